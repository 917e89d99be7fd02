#include "transport/verbs/single_uses.h"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>

#include <rdma/fi_errno.h>

#include "hmem/copy.h"
#include "util/left_over.h"
#include "util/log.h"

namespace erdma::transport::verbs {

SingleUses::SingleUses(std::unique_ptr<RegionMaker> maker, const Limits& limits,
                       const char* why) noexcept
    : x_maker(std::move(maker)), x_limits(limits), x_why(why) {
  util::register_fork_handler();
}

SingleUses::~SingleUses() {
  if (x_epoch == util::process_epoch()) util::expect_none_left("use of a registration", x_regions);
}

int SingleUses::acquire(const void* address, size_t length, int rights,
                        Registration& registration) noexcept {
  MemoryRange range;
  if (!whole_pages(address, length, range) || (rights & ~kAllRights) != 0) return -FI_EINVAL;
  if (x_epoch != util::process_epoch()) return -FI_EOPNOTSUPP;
  warn();
  if (range.bytes() > x_limits.max_region_bytes)
    return refuse(CopyNotices::size, kMoreThanTheNic, range.bytes());
  if (range.bytes() > x_limits.max_bytes)
    return refuse(CopyNotices::size, kMoreThanTheLimit, range.bytes());
  if (!reserve(range.bytes())) return -FI_ENOMEM;
  auto* const entry = new (std::nothrow) CachedRegion;
  errno = ENOMEM;
  ibv_mr* const region = entry ? x_maker->make(range, rights) : nullptr;
  if (!region) {
    const int error = errno;
    delete entry;
    give_back(range.bytes());
    return failed(error, range.bytes());
  }
  entry->range = range;
  entry->rights = rights;
  entry->region = region;
  registration = {region->lkey, region->rkey, entry};
  return 0;
}

bool SingleUses::worth(const iovec* memory, size_t count) noexcept {
  warn();
  return hmem::total_length(memory, count) >= x_limits.least_bytes;
}

void SingleUses::release(const Registration& registration) noexcept {
  if (x_epoch != util::process_epoch()) return;
  auto* const entry = static_cast<CachedRegion*>(registration.entry);
  x_maker->destroy(entry->region);
  give_back(entry->range.bytes());
  delete entry;
}

/// False: later, as others hold too much now.
bool SingleUses::reserve(size_t bytes) noexcept {
  std::lock_guard guard(x_mutex);
  if (bytes >= x_refused_bytes || x_bytes + bytes > x_limits.max_bytes ||
      x_regions >= x_limits.max_regions)
    return false;
  x_bytes += bytes;
  ++x_regions;
  return true;
}

void SingleUses::give_back(size_t bytes) noexcept {
  std::lock_guard guard(x_mutex);
  x_bytes -= bytes;
  --x_regions;
}

int SingleUses::refuse(CopyNotices::What what, const char* why, size_t bytes) noexcept {
  std::lock_guard guard(x_mutex);
  x_notices.once(what, why, bytes);
  return -FI_EOPNOTSUPP;
}

int SingleUses::failed(int error, size_t bytes) noexcept {
  if (!for_want_of_room(error)) return -FI_EOPNOTSUPP;
  std::lock_guard guard(x_mutex);
  if (x_regions == 0) x_refused_bytes = bytes;
  x_notices.once(CopyNotices::locked, std::strerror(error), bytes);
  return -FI_ENOMEM;
}

void SingleUses::warn() noexcept {
  static std::atomic<bool> told{false};  // of the process, as the remedy is one for all domains
  if (told.load(std::memory_order_relaxed) || told.exchange(true)) return;
  ERDMA_NOTICE(zero_copy, MR,
               "zero copy is limited: memory of the application is registered with the NIC anew "
               "for each transfer of %zu KiB and more, and shorter transfers are copied, which "
               "takes processor time: %s. FI_ERDMA_MR_CACHE=off asks for copies and silences this "
               "line\n",
               x_limits.least_bytes >> 10, x_why);
}

}  // namespace erdma::transport::verbs
