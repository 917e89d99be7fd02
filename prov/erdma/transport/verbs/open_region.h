#pragma once

#include <sys/uio.h>

#include <memory>
#include <mutex>
#include <utility>

#include "transport/memory.h"
#include "transport/verbs/device.h"
#include "transport/verbs/handles.h"
#include "transport/verbs/refused_size.h"
#include "transport/verbs/registration.h"
#include "transport/verbs/shared_memory.h"
#include "util/process_epoch.h"

namespace erdma::transport::verbs {

/// A region of the application, with the rights that it asked for and no others.
class VerbsRegion : public RegisteredRegion {
 public:
  VerbsRegion(MemoryRegion region, const iovec& memory) noexcept
      : x_region(std::move(region)), x_memory(memory) {}
  /// For a region that is registered later: it is of no use until hold().
  explicit VerbsRegion(const iovec& memory) noexcept : x_memory(memory) {}
  void hold(MemoryRegion region) noexcept { x_region = std::move(region); }
  ~VerbsRegion() override {
    if (x_epoch != util::process_epoch()) (void)x_region.release();  // the parent's
  }
  void describe(RemoteKey& remote_key) const noexcept override {
    remote_key = key_of({uint64_t(x_memory.iov_base), x_memory.iov_len, x_region->rkey});
  }

 protected:
  /// False: nothing was registered by this process, or not any more.
  bool deregister() noexcept {
    if (!x_region || x_epoch != util::process_epoch()) return false;
    x_region.reset();
    return true;
  }
  const iovec& memory() const noexcept { return x_memory; }

 private:
  MemoryRegion x_region;
  const iovec x_memory;
  const uint32_t x_epoch = util::process_epoch();
};

/// Registers host memory of the application. All regions count against RLIMIT_MEMLOCK. Thread-safe.
class HostRegistrar final : public RegionRegistrar {
 public:
  HostRegistrar(const Device& device, RegistrationCache& cache) noexcept
      : x_device(device), x_cache(cache) {}
  /// -FI_EOPNOTSUPP also where a fork would take the pages away. GPU memory is not registered here:
  /// forks do not affect it, and it is open from its registration on.
  util::Result<std::unique_ptr<RegisteredRegion>> open(const iovec& memory, const Dmabuf* file,
                                                       bool for_reads, bool for_writes) override;

 private:
  int make(const iovec& memory, int rights, MemoryRegion& region) noexcept;

  const Device& x_device;
  RegistrationCache& x_cache;
  std::mutex x_mutex;
  RefusedSize x_fruitless;  ///< lengths for which the end of all idle registrations was too little
};

}  // namespace erdma::transport::verbs
