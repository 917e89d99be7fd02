#include "transport/verbs/registration.h"

#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>

#include <rdma/fi_errno.h>

#include "transport/verbs/registration_cache.h"
#include "util/log.h"

namespace erdma::transport::verbs {
namespace {

class VerbsRegions final : public RegionMaker {
 public:
  explicit VerbsRegions(ibv_pd* pd) noexcept : x_pd(pd) {}
  ibv_mr* make(const MemoryRange& range, int rights) noexcept override {
    return ibv_reg_mr(x_pd, reinterpret_cast<void*>(range.start), range.bytes(), rights);
  }
  void destroy(ibv_mr* region) noexcept override {
    if (const int rc = ibv_dereg_mr(region)) log_leak("a memory region", std::abs(rc));
  }

 private:
  ibv_pd* const x_pd;
};

/// Where memory can't be watched, or must not be registered.
class NoCache final : public RegistrationCache {
 public:
  explicit NoCache(const char* why) noexcept : x_why(why) {}
  int acquire(const void*, size_t, int, Registration&) noexcept override { return -FI_EOPNOTSUPP; }
  void release(const Registration&) noexcept override {}
  const char* refuses_always() const noexcept override { return x_why; }

 private:
  const char* const x_why;
};

struct Close {
  void operator()(FILE* file) const noexcept { std::fclose(file); }
};

/// CAP_IPC_LOCK: the limit of locked memory does not hold.
bool may_lock_all() noexcept {
  constexpr unsigned kIpcLock = 14;
  const std::unique_ptr<FILE, Close> status(std::fopen("/proc/self/status", "re"));
  char line[256];
  unsigned long capabilities = 0;
  while (status && std::fgets(line, sizeof(line), status.get()))
    if (std::sscanf(line, "CapEff: %lx", &capabilities) == 1) break;
  return capabilities >> kIpcLock & 1;
}

}  // namespace

size_t lockable_bytes() noexcept {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) || limit.rlim_cur == RLIM_INFINITY || may_lock_all())
    return SIZE_MAX;
  return size_t(limit.rlim_cur);
}

util::Result<std::unique_ptr<RegistrationCache>> RegistrationCache::create(const Device& device,
                                                                           const Config& config) {
  const auto none = [](const char* why) {
    return std::unique_ptr<RegistrationCache>(new NoCache(why));
  };
  if (!config.enabled) return none("FI_ERDMA_MR_CACHE=off");
  if (!device.fork_safe()) {
    ERDMA_NOTICE(zero_copy, MR,
                 "zero copy is off, long messages through %s are copied: a fork would take "
                 "registered memory away on this kernel (5.12 and later have copy on fork)\n",
                 device.name().c_str());
    return none("a fork would take registered memory away on this kernel");
  }
  // The rest is for open regions, for the transport's own and for others of the user.
  const size_t lockable = lockable_bytes();
  const size_t default_bytes = lockable == SIZE_MAX ? SIZE_MAX : lockable / 2;
  WatchedCache::Limits limits;
  limits.max_bytes = config.max_bytes ? config.max_bytes : default_bytes;
  limits.max_regions = config.max_regions;
  limits.max_region_bytes = device.limits().max_region;
  auto cache = WatchedCache::create(std::make_unique<VerbsRegions>(device.pd()), limits);
  if (cache) return std::unique_ptr<RegistrationCache>(std::move(*cache));
  ERDMA_INFO(MR,
             "%s: memory of the application is copied, not registered: changes of its mappings "
             "could not be noticed\n",
             device.name().c_str());
  return none("no userfaultfd");
}

}  // namespace erdma::transport::verbs
