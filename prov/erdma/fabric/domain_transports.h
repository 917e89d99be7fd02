#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <rdma/fabric.h>

#include "util/result.h"
#include "util/socket_address.h"

namespace erdma::hmem {
class Cuda;
class DeviceMemory;
}  // namespace erdma::hmem
namespace erdma::transport::verbs {
class KnownMemory;
}

namespace erdma::fabric {

class EndpointStatistics;
class LocalAddresses;
class MemoryRegions;
struct EndpointFacts;
struct Settings;
struct TransportSet;

/// What an endpoint asks of its transports.
struct TransportRequest {
  util::SocketAddress name;        ///< to listen under; port 0 = a free one
  bool shared_memory;              ///< else local peers are reached through the NIC
  std::string key;                 ///< of the job; empty = none
  hmem::DeviceMemory* devices;     ///< null: buffers are host memory
  EndpointStatistics& statistics;  ///< of the endpoint; outlive its transports
};

/// The NIC of a domain with its registrations, if it has one, and the transports of the domain's
/// endpoints. The composition root: its .cc alone names the transports together. Thread-safe once
/// the NIC is open.
class DomainTransports {
 public:
  DomainTransports(const Settings& settings, const LocalAddresses& local,
                   MemoryRegions& regions) noexcept;
  DomainTransports(const DomainTransports&) = delete;
  DomainTransports& operator=(const DomainTransports&) = delete;
  ~DomainTransports();

  /// The NIC that bears the address. `cuda` is null without FI_HMEM.
  int open_nic(const fi_info& info, const util::SocketAddress& address, hmem::Cuda* cuda);
  bool has_nic() const noexcept { return x_nic != nullptr; }
  /// What endpoints use that may not call CUDA. The first call registers GPU memory, has the NIC
  /// read and write it, and calls CUDA for that; what came of it is remembered. -FI_EOPNOTSUPP
  /// (logged): it can't be had.
  util::Result<hmem::DeviceMemory*> memory_without_cuda(hmem::Cuda* cuda);

  /// The transports of a new endpoint, all listening under one name.
  util::Result<TransportSet> open(const TransportRequest& request);
  /// How the bytes of an endpoint with these transports travel.
  EndpointFacts describe(const TransportRequest& request, const TransportSet& set) const;

 private:
  struct Nic;
  util::Result<TransportSet> open_shm_only(const TransportRequest& request);
  util::Result<TransportSet> open_with_nic(const TransportRequest& request);
  int add_local(TransportSet& set, const TransportRequest& request);
  /// The result of memory_without_cuda() if `devices` is that object; otherwise null.
  transport::verbs::KnownMemory* known_memory(const hmem::DeviceMemory* devices) const;

  const Settings& x_settings;
  const LocalAddresses& x_local;
  MemoryRegions& x_regions;
  std::string x_device_name = "shm";
  uint64_t x_device_speed = 0;  ///< bit/s; 0 = unknown
  std::unique_ptr<Nic> x_nic;   ///< null on a single-host domain
};

}  // namespace erdma::fabric
