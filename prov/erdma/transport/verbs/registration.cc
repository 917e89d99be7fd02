#include "transport/verbs/registration.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include <rdma/fi_errno.h>

#include "transport/verbs/copy_notices.h"
#include "transport/verbs/registration_cache.h"
#include "transport/verbs/single_uses.h"
#include "util/fd.h"
#include "util/log.h"

namespace erdma::transport::verbs {
namespace {

class VerbsRegions final : public RegionMaker {
 public:
  explicit VerbsRegions(const Device& device) noexcept : x_device(device) {}
  ibv_mr* make(const MemoryRange& range, int rights) noexcept override {
    return register_host_memory(x_device, reinterpret_cast<void*>(range.start), range.bytes(),
                                rights);
  }
  void destroy(ibv_mr* region) noexcept override {
    const iovec memory{region->addr, region->length};
    if (const int rc = ibv_dereg_mr(region)) return log_leak("a memory region", std::abs(rc));
    deregistered_host_memory(x_device, memory);
  }

 private:
  const Device& x_device;
};

/// The cache where memory must not be registered, or where the user does not want that.
class NoCache final : public RegistrationCache {
 public:
  /// `warning`: null if users need no warning about copies.
  NoCache(const char* why, const char* warning) noexcept : x_why(why), x_warning(warning) {}
  int acquire(const void*, size_t, int, Registration&) noexcept override {
    warn_of_copy();
    return -FI_EOPNOTSUPP;
  }
  void warn_of_copy() noexcept override {
    if (x_warning) warn_of_copies(x_warning);
  }
  void release(const Registration&) noexcept override {}
  const char* refuses_always() const noexcept override { return x_why; }

 private:
  const char* const x_why;
  const char* const x_warning;
};

/// How many regions that nobody uses a process may keep. The adapter has few for all processes of
/// its host, and only the process that keeps one can end it. Half of them are for this, in as many
/// processes as there are processors; then the connections of any process find some.
size_t share_of_regions(const Device& device) noexcept {
  constexpr size_t kLeast = 16;
  const auto processors = size_t(std::max(::sysconf(_SC_NPROCESSORS_ONLN), 1L));
  return std::max(device.limits().max_regions / 2 / processors, kLeast);
}

/// The rest of what may be locked is left for open regions, for the transport's own memory and for
/// other code of the user.
size_t default_bytes() noexcept {
  const size_t lockable = lockable_bytes();
  return lockable == SIZE_MAX ? SIZE_MAX : lockable / 2;
}

std::unique_ptr<RegistrationCache> single_uses(const Device& device, size_t max_bytes,
                                               size_t max_regions, const char* why) {
  if (!why) why = "no thread or descriptor can be had to watch memory with";
  ERDMA_INFO(MR,
             "%s: memory of the application does not stay registered, as changes of its mappings "
             "could not be noticed: %s\n",
             device.name().c_str(), why);
  SingleUses::Limits limits;
  limits.max_bytes = max_bytes;
  limits.max_regions = max_regions;
  limits.max_region_bytes = device.limits().max_region;
  limits.later = true;
  limits.kept_from_children = device.keeps_from_children();
  limits.device = &device;
  return std::make_unique<SingleUses>(std::make_unique<VerbsRegions>(device), limits, why);
}

/// True with CAP_IPC_LOCK, which lifts the limit of locked memory.
bool may_lock_all() noexcept {
  constexpr unsigned kIpcLock = 14;
  const util::File status = util::open_to_read("/proc/self/status");
  char line[256];
  unsigned long capabilities = 0;
  while (status && std::fgets(line, sizeof(line), status.get()))
    if (std::sscanf(line, "CapEff: %lx", &capabilities) == 1) break;
  return capabilities >> kIpcLock & 1;
}

}  // namespace

ibv_mr* register_host_memory(const Device& device, void* address, size_t length,
                             int rights) noexcept {
  int error = device.keeps_from_children() ? keep_from_children(address, length) : 0;
  if (!error) {
    if (ibv_mr* const region = ibv_reg_mr(device.pd(), address, length, rights)) return region;
    error = errno;
    deregistered_host_memory(device, {address, length});
    // Whatever the device answers, this is no want of room.
    if (device.failed(error)) error = ENODEV;
  }
  errno = error;
  return nullptr;
}

void deregistered_host_memory(const Device& device, const iovec& memory) noexcept {
  if (device.keeps_from_children()) give_to_children(memory.iov_base, memory.iov_len);
}

size_t lockable_bytes() noexcept {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) || limit.rlim_cur == RLIM_INFINITY || may_lock_all())
    return SIZE_MAX;
  return size_t(limit.rlim_cur);
}

util::Result<std::unique_ptr<RegistrationCache>> RegistrationCache::create(const Device& device,
                                                                           const Config& config) {
  if (!config.enabled)
    return std::unique_ptr<RegistrationCache>(new NoCache("FI_ERDMA_MR_CACHE=off", nullptr));
  if (!device.fork_safe())
    return std::unique_ptr<RegistrationCache>(
        new NoCache("a fork would take memory away", kForkTakesPages));
  WatchedCache::Limits limits;
  limits.max_bytes = config.max_bytes ? config.max_bytes : default_bytes();
  limits.max_regions = config.max_regions;
  limits.max_idle = share_of_regions(device);
  limits.max_region_bytes = device.limits().max_region;
  limits.kept_from_children = device.keeps_from_children();
  limits.device = &device;
  const char* why = nullptr;
  auto cache = WatchedCache::create(std::make_unique<VerbsRegions>(device), limits, why);
  if (cache) return std::unique_ptr<RegistrationCache>(std::move(*cache));
  return single_uses(device, limits.max_bytes, limits.max_regions, why);
}

}  // namespace erdma::transport::verbs
