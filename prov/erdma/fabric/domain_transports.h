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

/// What an endpoint requires of its transports.
struct TransportRequest {
  util::SocketAddress name;        ///< to listen under; port 0 = any free port
  bool shared_memory;              ///< false: local peers are reached through the NIC
  std::string key;                 ///< of the job; empty = none
  hmem::DeviceMemory* devices;     ///< null: all buffers are host memory
  EndpointStatistics& statistics;  ///< of the endpoint; outlives its transports
};

/// The NIC of a domain with its registrations, if the domain has one, and the factory of the
/// transports of its endpoints. This is the composition root: its .cc is the only file that names
/// all transports. Thread-safe once the NIC is open.
class DomainTransports {
 public:
  DomainTransports(const Settings& settings, const LocalAddresses& local,
                   MemoryRegions& regions) noexcept;
  DomainTransports(const DomainTransports&) = delete;
  DomainTransports& operator=(const DomainTransports&) = delete;
  ~DomainTransports();

  /// Opens the NIC that has the address. `cuda` is null without FI_HMEM.
  int open_nic(const fi_info& info, const util::SocketAddress& address, hmem::Cuda* cuda);
  /// The NIC's name, or "shm".
  const std::string& device_name() const noexcept { return x_device_name; }
  bool has_nic() const noexcept { return x_nic != nullptr; }
  /// The DeviceMemory of endpoints that may not call CUDA. The first call tests it, for which it
  /// calls CUDA: it registers GPU memory and makes the NIC read and write it. The result is kept.
  /// -FI_EOPNOTSUPP (logged): the NIC can't access GPU memory, or there is no NIC or no FI_HMEM.
  util::Result<hmem::DeviceMemory*> memory_without_cuda(hmem::Cuda* cuda);

  /// The transports of a new endpoint, all listening under one name.
  util::Result<TransportSet> open(const TransportRequest& request);
  /// How data of an endpoint with these transports travels.
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
