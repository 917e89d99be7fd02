#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>

#include "fabric/env.h"
#include "fabric/local_addresses.h"
#include "fabric/mr.h"
#include "fabric/work_queue.h"
#include "util/lock.h"
#include "util/result.h"
#include "util/socket_address.h"

namespace erdma::hmem {
class Cuda;
class DeviceMemory;
}  // namespace erdma::hmem
namespace erdma::transport {
class Transport;
}
namespace erdma::transport::verbs {
class KnownMemory;
}

namespace erdma::fabric {

class AutoProgress;
class Fabric;
struct EndpointFacts;
struct TransportSet;

/// What an endpoint asks of its transports.
struct TransportRequest {
  util::SocketAddress name;     ///< to listen under; port 0 = a free one
  bool shared_memory;           ///< else local peers are reached through the NIC
  std::string key;              ///< of the job; empty = none
  hmem::DeviceMemory* devices;  ///< null: buffers are host memory
};

/// One domain: the lock that everything under it shares, the NIC with its registrations, and the
/// composition root (its .cc alone names the transports together). Invariant: outlives its
/// children; close is -FI_EBUSY until then.
class Domain final : public fid_domain {
 public:
  static Domain& from(fid_domain* domain) noexcept { return static_cast<Domain&>(*domain); }
  static Domain& from(fid_t fid) noexcept { return from(reinterpret_cast<fid_domain*>(fid)); }

  /// fi_domain(3).
  static int open(Fabric& fabric, const fi_info& info, fid_domain** domain, void* context);

  util::OptionalLock& lock() noexcept { return x_lock; }
  Fabric& fabric() noexcept { return x_fabric; }
  const Settings& settings() const noexcept { return x_settings; }
  uint32_t api_version() const noexcept;
  uint32_t addr_format() const noexcept;
  MemoryRegions& memory_regions() noexcept { return x_regions; }
  /// Operations that wait for counters; under the lock.
  WorkQueue& works() noexcept { return x_works; }

  /// The form in which an address names a peer here: on a single-host domain every local address
  /// stands for the domain's own IP, so that 127.0.0.1:p and 10.0.0.1:p are one endpoint. On a NIC
  /// only loopback does: other IPs of this host may be those of other NICs.
  util::SocketAddress canonical(const util::SocketAddress& address) const noexcept;
  /// Whether an endpoint here can bear that IP.
  bool names_us(const util::SocketAddress& address) const noexcept;
  /// The CUDA driver for whoever has these capabilities; null without FI_HMEM.
  hmem::Cuda* cuda_for(uint64_t caps) const noexcept;
  /// What endpoints use that may not call CUDA. The first call registers GPU memory, has the NIC
  /// read and write it, and calls CUDA for that; what came of it is remembered. -FI_EOPNOTSUPP
  /// (logged): it can't be had.
  util::Result<hmem::DeviceMemory*> memory_without_cuda(uint64_t caps);
  /// Whether endpoints made from the info of this domain have atomics.
  bool atomics() const noexcept { return x_atomics; }
  bool has_nic() const noexcept { return x_nic != nullptr; }
  /// What endpoints made from `info` and their peers must share.
  std::string key_of(const fi_info& info) const;
  const util::SocketAddress& own_address() const noexcept { return x_own_address; }
  const LocalAddresses& local_addresses() const noexcept { return x_local; }

  /// Children (AV, CQ, counter, MR, endpoint) count themselves.
  void child_opened() noexcept { x_children.fetch_add(1, std::memory_order_relaxed); }
  void child_closed() noexcept { x_children.fetch_sub(1, std::memory_order_relaxed); }

  /// The transports of a new endpoint, all listening under one name.
  util::Result<TransportSet> open_transports(const TransportRequest& request);

  /// How the bytes of an endpoint with these transports travel.
  EndpointFacts describe(const TransportRequest& request, const TransportSet& set) const;

  /// FI_PROGRESS_AUTO: the thread that drives endpoints; null under manual progress.
  AutoProgress* auto_progress() noexcept { return x_auto_progress.get(); }

  Domain(Fabric& fabric, const fi_info& info, Settings settings, void* context);
  ~Domain();
  int start(const fi_info& info);
  int bind(fid_t object, uint64_t flags) noexcept;
  int control(int command, void* argument);
  int close() noexcept;

 private:
  struct Nic;
  int open_nic(const fi_info& info);
  util::Result<TransportSet> open_shm_only(const TransportRequest& request);
  /// What memory_without_cuda() gave, if `devices` is that; else null.
  transport::verbs::KnownMemory* known_memory(const hmem::DeviceMemory* devices) const;
  util::Result<TransportSet> open_with_nic(const TransportRequest& request);
  int add_local(TransportSet& set, const TransportRequest& request);

  Fabric& x_fabric;
  const bool x_auto;
  Settings x_settings;
  const bool x_atomics;
  LocalAddresses x_local;
  util::SocketAddress x_own_address;
  std::string x_device_name = "shm";
  uint64_t x_device_speed = 0;  ///< bit/s; 0 = unknown
  util::OptionalLock x_lock;
  std::atomic<int> x_children{0};
  MemoryRegions x_regions;
  WorkQueue x_works;
  std::string x_key;
  std::unique_ptr<Nic> x_nic;  ///< null on a single-host domain
  std::unique_ptr<AutoProgress> x_auto_progress;
};

}  // namespace erdma::fabric
