#include "transport/verbs/single_uses.h"

#include <atomic>
#include <cerrno>
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
  if (x_limits.kept_from_children) listen();
  if (x_limits.device) x_limits.device->set_evictor(this);
  // Without a thread, release() deregisters.
  if (x_limits.later && x_wake)
    (void)x_evict_thread.start<&SingleUses::evict_loop>("erdma-regions", *this);
}

SingleUses::~SingleUses() {
  util::BeforeFork::forget();
  if (x_limits.device) x_limits.device->set_evictor(nullptr);
  // In a child the regions belong to the parent. What describes them is left where it is, because
  // the parent's thread may have been changing the list when the process forked.
  if (x_epoch != util::process_epoch()) return;
  x_evict_thread.stop(x_mutex, x_stop, x_wake);
  (void)destroy_retired();
  util::expect_none_left("use of a registration", x_regions);
}

void SingleUses::evict_loop() noexcept {
  for (;;) {
    wait(-1);
    if (must_stop()) return;
    wait(x_limits.gather_ms);
    if (must_stop()) return;
    (void)destroy_retired();
  }
}

void SingleUses::wait(int timeout_ms) noexcept {
  {
    std::lock_guard guard(x_mutex);
    if (x_hurry) {
      // What was rung for these regions must not end the gathering of later ones.
      x_wake.drain();
      return;
    }
  }
  x_wake.await(timeout_ms);
}

bool SingleUses::must_stop() noexcept {
  std::lock_guard guard(x_mutex);
  return x_stop;
}

/// A child gets the memory that no transfer uses any more.
void SingleUses::before_fork() noexcept {
  if (x_epoch == util::process_epoch()) (void)destroy_retired();
}

bool SingleUses::evict_after(int error) noexcept {
  return for_want_of_room(error) && x_epoch == util::process_epoch() && destroy_retired();
}

/// True: there was a retired region.
bool SingleUses::destroy_retired() noexcept {
  const std::lock_guard destroying(x_destroy_mutex);
  util::IntrusiveList<CachedRegion> retired;
  {
    std::lock_guard guard(x_mutex);
    x_retired_bytes = x_retired_regions = 0;
    x_hurry = false;
    while (CachedRegion* entry = x_retired.pop_front()) retired.push_back(*entry);
  }
  const bool any = !retired.empty();
  while (CachedRegion* entry = retired.pop_front()) {
    x_maker->destroy(entry->region);
    give_back(entry->range.bytes());
    delete entry;
  }
  return any;
}

/// Registers memory. Retired regions make room for it if they must. Null with errno.
CachedRegion* SingleUses::make(const MemoryRange& range, int rights) noexcept {
  errno = ENOMEM;
  auto* const entry = new (std::nothrow) CachedRegion;
  if (!entry) return nullptr;
  entry->range = range;
  entry->rights = rights;
  entry->region = x_maker->make(range, rights);
  if (!entry->region && x_evict_thread.running() && for_want_of_room(errno)) {
    (void)destroy_retired();
    entry->region = x_maker->make(range, rights);
  }
  if (entry->region) return entry;
  const int error = errno;
  delete entry;
  errno = error;
  return nullptr;
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
  int rc = reserve(range.bytes());
  if (rc == -FI_EAGAIN && x_evict_thread.running()) {
    (void)destroy_retired();
    rc = reserve(range.bytes());
  }
  if (rc) return -FI_ENOMEM;
  CachedRegion* const entry = make(range, rights);
  if (!entry) {
    const int error = errno;
    give_back(range.bytes());
    return failed(error, range.bytes());
  }
  made(range.bytes());
  registration = {entry->region->lkey, entry->region->rkey, entry};
  return 0;
}

bool SingleUses::should_register(const iovec* memory, size_t count) noexcept {
  warn();
  return hmem::total_length(memory, count) >= x_limits.least_bytes;
}

void SingleUses::release(const Registration& registration) noexcept {
  if (x_epoch != util::process_epoch()) return;
  auto* const entry = static_cast<CachedRegion*>(registration.entry);
  if (x_evict_thread.running()) return retire(*entry);
  x_maker->destroy(entry->region);
  give_back(entry->range.bytes());
  delete entry;
}

/// Leaves the region to the thread, which waits for others only while few are retired. Otherwise a
/// transfer would have to deregister them to make room.
void SingleUses::retire(CachedRegion& entry) noexcept {
  std::lock_guard guard(x_mutex);
  x_retired_bytes += entry.range.bytes();
  ++x_retired_regions;
  const bool many =
      x_retired_regions > x_limits.max_regions / 2 || x_retired_bytes > x_limits.max_bytes / 2;
  if (x_retired.empty() || (many && !x_hurry)) x_wake.ring();
  x_hurry = many;
  x_retired.push_back(entry);
}

/// -FI_EAGAIN: other uses hold too much now. -FI_ENOMEM: the device has no room.
int SingleUses::reserve(size_t bytes) noexcept {
  std::lock_guard guard(x_mutex);
  if (x_bytes + bytes > x_limits.max_bytes || x_regions >= x_limits.max_regions) return -FI_EAGAIN;
  if (x_refused.refuses(bytes)) return -FI_ENOMEM;
  x_bytes += bytes;
  ++x_regions;
  return 0;
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
  x_refused.failed(bytes, x_regions == 0);
  x_notices.no_room(error, bytes);
  return -FI_ENOMEM;
}

void SingleUses::made(size_t bytes) noexcept {
  std::lock_guard guard(x_mutex);
  if (x_refused.made(bytes)) x_notices.mended(bytes);
}

void SingleUses::warn() noexcept {
  // one per process, because the remedy is the same for all domains
  static std::atomic<bool> told{false};
  if (told.load(std::memory_order_relaxed) || told.exchange(true)) return;
  ERDMA_NOTICE(zero_copy, MR,
               "zero copy is limited: memory of the application is registered with the NIC anew "
               "for each transfer of %zu KiB and more, and shorter transfers are copied, which "
               "takes processor time: %s. FI_ERDMA_MR_CACHE=off asks for copies and silences this "
               "line",
               x_limits.least_bytes >> 10, x_why);
}

}  // namespace erdma::transport::verbs
