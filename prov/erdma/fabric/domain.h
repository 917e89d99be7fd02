#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>

#include "fabric/domain_transports.h"
#include "fabric/env.h"
#include "fabric/fid_ops.h"
#include "fabric/local_addresses.h"
#include "fabric/mr.h"
#include "fabric/open_objects.h"
#include "fabric/work_queue.h"
#include "util/domain_lock.h"
#include "util/result.h"
#include "util/socket_address.h"

namespace erdma::hmem {
class Cuda;
}  // namespace erdma::hmem
namespace erdma::fabric {

class AutoProgress;
class Fabric;

/// One domain: the lock that all objects of the domain share, and the state that they have in
/// common. Invariant: the domain outlives its children; fi_close returns -FI_EBUSY while it has
/// any.
class Domain final : public FidObject<Domain, fid_domain>, public OpenObjects<Domain>::Member {
 public:
  /// fi_domain(3).
  static int open(Fabric& fabric, const fi_info& info, fid_domain** domain, void* context);

  util::DomainLock& lock() noexcept { return x_lock; }
  Fabric& fabric() noexcept { return x_fabric; }
  const Settings& settings() const noexcept { return x_settings; }
  uint32_t api_version() const noexcept;
  /// The capabilities that the domain was opened with.
  uint64_t caps() const noexcept { return x_caps; }
  MemoryRegions& memory_regions() noexcept { return x_regions; }
  /// Operations that wait for counters. Protected by the domain lock.
  DeferredWorkQueue& works() noexcept { return x_works; }

  /// The canonical form of an address, by which peers are compared. On a single-host domain every
  /// local IP becomes the domain's own IP, so that 127.0.0.1:p and 10.0.0.1:p are one endpoint. On
  /// a NIC only loopback does: other IPs of this host may belong to other NICs. There link-local
  /// IPv6 addresses of other hosts get the scope of the domain's own address.
  util::SocketAddress canonical(const util::SocketAddress& address) const noexcept;
  /// True if an endpoint of this domain may have this IP.
  bool names_us(const util::SocketAddress& address) const noexcept;
  /// The CUDA driver for objects with these capabilities; null without FI_HMEM.
  hmem::Cuda* cuda_for(uint64_t caps) const noexcept;
  /// The key that endpoints opened with `info` and their peers must share (FI_ERDMA_JOB_KEY,
  /// auth_key); empty: none.
  std::string key_of(const fi_info& info) const;
  const util::SocketAddress& own_address() const noexcept { return x_own_address; }
  /// What endpoints of `info`, an answer of fi_getinfo, would need and this domain does not have,
  /// since it was opened for something else. Null: nothing.
  const char* lacks_for(const fi_info& info) const noexcept;

  /// 0, or in a forked child of the process that opened the domain -FI_EOPBADSTATE, after one log
  /// line: threads, locks and NICs of the domain do not exist there.
  int check_owned() const noexcept;

  /// Counts address vectors, queues, counters, regions, endpoints and so on.
  Children& children() noexcept { return x_children; }

  /// The NIC, and the factory of the endpoints' transports.
  DomainTransports& transports() noexcept { return x_transports; }

  /// FI_PROGRESS_AUTO: the progress thread; null under manual progress.
  AutoProgress* auto_progress() noexcept { return x_auto_progress.get(); }

  Domain(Fabric& fabric, const fi_info& info, Settings settings, void* context);
  ~Domain();
  int start(const fi_info& info);
  int bind(fid_t object, uint64_t flags) noexcept;
  int control(int command, void* argument);
  int close() noexcept;

 private:
  Fabric& x_fabric;
  const bool x_auto;
  const uint64_t x_caps;
  Settings x_settings;
  const bool x_hmem;  ///< endpoints may have FI_HMEM
  LocalAddresses x_local;
  util::SocketAddress x_own_address;
  util::DomainLock x_lock;
  Children x_children;
  MemoryRegions x_regions;
  DeferredWorkQueue x_works;
  DomainTransports x_transports;
  std::string x_key;
  std::unique_ptr<AutoProgress> x_auto_progress;
};

}  // namespace erdma::fabric
