#include "transport/verbs/registration_cache.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <new>

#include <rdma/fi_errno.h>

#include "transport/verbs/memory_map.h"
#include "util/clock.h"
#include "util/left_over.h"

namespace erdma::transport::verbs {

bool for_want_of_room(int error) noexcept {
  return error != EFAULT && error != EINVAL && error != EPERM && error != EACCES &&
         error != EOPNOTSUPP && error != ENODEV && error != ETIME;
}

namespace {

/// Tells why memory of this range can't be watched, if it is therefore copied.
void tell_copied(CopyNotices& notices, const MemoryRange& range, CopyNotices::What what,
                 const char* why) noexcept {
  if (range.bytes() < kLeastSingleUse) notices.once(what, why, 0);
}

/// Those of this process.
std::atomic<unsigned> g_caches{0};
/// Each of them may keep so many idle regions, so that buffers in use again and again are found.
constexpr size_t kLeastIdle = 8;

/// The idle region that was used longest ago, which can't be found any more. Null: there is none.
/// `indexes`: by rights.
CachedRegion* take_oldest(IdleRegions& idle, RegionIndex* indexes) noexcept {
  CachedRegion* const oldest = idle.pop_front();
  if (!oldest) return nullptr;
  indexes[oldest->rights].remove(*oldest);
  oldest->listed = false;
  return oldest;
}

}  // namespace

// --- Start and end.

WatchedCache::WatchedCache(std::unique_ptr<RegionMaker> maker, const Limits& limits) noexcept
    : x_quarantines(limits.tick_ns), x_maker(std::move(maker)), x_limits(limits) {
  g_caches.fetch_add(1, std::memory_order_relaxed);
}

util::Result<std::unique_ptr<WatchedCache>> WatchedCache::create(std::unique_ptr<RegionMaker> maker,
                                                                 const Limits& limits,
                                                                 const char*& why) {
  util::register_fork_handler();
  std::unique_ptr<WatchedCache> cache(new WatchedCache(std::move(maker), limits));
  if (const int rc = cache->start(why)) return rc;
  return cache;
}

int WatchedCache::start(const char*& why) {
  x_quarantines.reserve();
  if (!x_wake) return -FI_EMFILE;
  auto monitor = MemoryMonitor::create(x_wake, why);
  if (!monitor) return monitor.error();
  x_monitor = std::move(*monitor);
  if (x_limits.kept_from_children) listen();
  if (x_limits.device) x_limits.device->set_evictor(this);
  return -x_evict_thread.start<&WatchedCache::evict_loop>("erdma-regions", *this);
}

WatchedCache::~WatchedCache() {
  g_caches.fetch_sub(1, std::memory_order_relaxed);
  util::BeforeFork::forget();
  if (x_limits.device) x_limits.device->set_evictor(nullptr);
  const bool ours = x_epoch == util::process_epoch();
  if (ours) x_evict_thread.stop(x_mutex, x_stop, x_wake);
  // Unwatch explicitly, so that no call on this memory waits for events if a child still has the
  // descriptor.
  for (const MemoryRange& range : x_watched.ranges())
    if (ours) x_monitor->unwatch(range);
  size_t users = 0;
  while (CachedRegion* entry = x_idle.pop_front()) x_to_destroy.push_back(*entry);
  for (auto* entries : {&x_held, &x_to_destroy}) {
    while (CachedRegion* entry = entries->pop_front()) {
      users += entry->users;
      if (ours) x_maker->destroy(entry->region);
      delete entry;
    }
  }
  util::expect_none_left("user of a registration", users);
  x_monitor.reset();  // its thread writes to x_wake
}

void WatchedCache::evict_loop() noexcept {
  const util::SystemClock clock;
  for (;;) {
    int timeout = -1;
    {
      std::lock_guard guard(x_mutex);
      if (!x_quarantines.empty()) timeout = int(x_limits.tick_ns / 1'000'000) + 1;
    }
    x_wake.await(timeout);
    if (!destroy_due(clock.now())) return;
  }
}

/// False: the thread must end.
bool WatchedCache::destroy_due(uint64_t now) noexcept {
  const std::lock_guard destroying(x_destroy_mutex);
  util::IntrusiveList<CachedRegion> to_destroy;
  {
    std::lock_guard guard(x_mutex);
    if (x_stop) return false;
    (void)apply_changes();
    x_quarantines.age(now);
    while (CachedRegion* entry = x_to_destroy.pop_front()) to_destroy.push_back(*entry);
    x_destroying = !to_destroy.empty();
  }
  size_t regions = 0, bytes = 0;
  while (CachedRegion* entry = to_destroy.pop_front()) {
    x_maker->destroy(entry->region);  // a firmware command, for which no other thread should wait
    ++regions;
    bytes += entry->range.bytes();
    delete entry;
  }
  std::lock_guard guard(x_mutex);
  x_statistics.regions -= regions;
  x_statistics.bytes -= bytes;
  x_destroying = false;
  return true;
}

/// The application may have freed memory of unused regions, and malloc() in a child would hand it
/// out. Memory of regions in use still belongs to the application, which knows about it.
void WatchedCache::before_fork() noexcept {
  if (x_epoch != util::process_epoch()) return;  // this is a child with its parent's regions
  const std::lock_guard destroying(x_destroy_mutex);
  const std::lock_guard guard(x_mutex);
  while (evict()) {
  }
}

bool WatchedCache::evict_after(int error) noexcept {
  if (!for_want_of_room(error) || x_epoch != util::process_epoch()) return false;
  const size_t before = statistics().regions;
  const std::lock_guard destroying(x_destroy_mutex);  // and what that destroys is gone then
  const std::lock_guard guard(x_mutex);
  return evict() || x_statistics.regions < before;
}

WatchedCache::Statistics WatchedCache::statistics() noexcept {
  std::lock_guard guard(x_mutex);
  return x_statistics;
}

// --- Using regions.

int WatchedCache::acquire(const void* address, size_t length, int rights,
                          Registration& registration) noexcept try {
  MemoryRange range;
  if (!whole_pages(address, length, range) || (rights & ~kAllRights) != 0) return -FI_EINVAL;
  if (x_epoch != util::process_epoch()) return -FI_EOPNOTSUPP;
  std::lock_guard guard(x_mutex);
  int rc = -FI_EOPNOTSUPP;
  if (apply_changes()) [[likely]] {
    if (CachedRegion* entry = x_indexes[rights].find(range)) {
      ++x_statistics.hits;
      use(*entry, registration);
      return 0;
    }
    ++x_statistics.misses;
    rc = make(range, rights, registration);
  }
  if (rc) ++x_statistics.refusals;
  return rc;
} catch (const std::bad_alloc&) {
  return -FI_ENOMEM;
}

void WatchedCache::release(const Registration& registration) noexcept {
  if (x_epoch != util::process_epoch()) return;
  auto& entry = *static_cast<CachedRegion*>(registration.entry);
  std::lock_guard guard(x_mutex);
  if (--entry.users > 0) return;
  x_held.erase(entry);
  if (!entry.listed) return destroy_later(entry);
  x_idle.push_back(entry);
  const size_t part = x_limits.max_idle / g_caches.load(std::memory_order_relaxed);
  const size_t most = std::max(part, std::min(x_limits.max_idle, kLeastIdle));
  if (x_idle.size() > most) destroy_later(*take_oldest(x_idle, x_indexes));
}

void WatchedCache::use(CachedRegion& entry, Registration& registration) noexcept {
  if (entry.users++ == 0) {
    if (entry.linked()) x_idle.erase(entry);
    x_held.push_back(entry);
  }
  registration = {entry.region->lkey, entry.region->rkey, &entry};
}

void WatchedCache::destroy_later(CachedRegion& entry) noexcept {
  x_to_destroy.push_back(entry);
  x_wake.ring();
}

void WatchedCache::destroy(CachedRegion& entry) noexcept {
  x_maker->destroy(entry.region);
  --x_statistics.regions;
  x_statistics.bytes -= entry.range.bytes();
  delete &entry;
}

// --- Making regions.

int WatchedCache::make(const MemoryRange& range, int rights, Registration& registration) {
  if (range.bytes() > x_limits.max_region_bytes || range.bytes() > x_limits.max_bytes) {
    x_notices.once(CopyNotices::size,
                   range.bytes() > x_limits.max_region_bytes ? kMoreThanTheNic : kMoreThanTheLimit,
                   range.bytes());
    return -FI_EOPNOTSUPP;
  }
  if (x_refused.refuses(range.bytes())) return -FI_ENOMEM;
  const int unwatched = watch(range);
  if (unwatched && (unwatched != -FI_EOPNOTSUPP || range.bytes() < kLeastSingleUse))
    return unwatched;
  if (!make_room(range.bytes())) return -FI_ENOMEM;
  auto entry = std::make_unique<CachedRegion>();
  entry->range = range;
  entry->rights = rights;
  entry->region = make_region(range, rights);
  if (!entry->region) return for_want_of_room(errno) ? -FI_ENOMEM : -FI_EOPNOTSUPP;
  ++x_statistics.regions;
  x_statistics.bytes += range.bytes();
  CachedRegion& made = *entry.release();
  use(made, registration);
  if (!unwatched && !x_quarantines.overlap(range)) list(made);
  return 0;
}

/// Makes the region findable, unless memory is out.
void WatchedCache::list(CachedRegion& entry) try {
  std::vector<CachedRegion*> superseded;
  x_indexes[entry.rights].insert(entry, superseded);
  entry.listed = true;
  for (CachedRegion* old : superseded) {
    old->listed = false;
    if (old->users > 0) continue;
    x_idle.erase(*old);
    destroy_later(*old);
  }
} catch (const std::bad_alloc&) {
}

int WatchedCache::watch(const MemoryRange& range) {
  if (x_watched.contains(range)) return 0;
  MemoryRange watched;
  for (uintptr_t at = range.start; at < range.end; at = watched.end)
    if (const int rc = watch_mapping(at, range, watched)) return rc;
  return 0;
}

/// `before` is looked up before watching and may be another mapping by then. But a range that is
/// one mapping afterwards is watched as a whole or not at all, and apply_changes() reports changes
/// in between.
int WatchedCache::watch_mapping(uintptr_t address, const MemoryRange& range, MemoryRange& watched) {
  Mapping before, after;
  if (!find_mapping(address, before) || !before.ours) {
    tell_copied(x_notices, range, CopyNotices::shared,
                "is shared or of a file, which may change unseen");
    return -FI_EOPNOTSUPP;
  }
  watched = before.range;
  if (const int rc = x_monitor->watch(watched)) {
    if (rc == -FI_EBUSY)
      tell_copied(x_notices, range, CopyNotices::busy, "is watched by another userfaultfd");
    else if (rc == -FI_EOPNOTSUPP && find_mapping(address, after) && after.ours &&
             after.range.contains(watched))
      tell_copied(x_notices, range, CopyNotices::kind,
                  "is of a kind that userfaultfd of this kernel can't watch (huge pages can be "
                  "watched since Linux 5.19)");
    return -FI_EOPNOTSUPP;
  }
  x_watched.add(watched);
  if (find_mapping(address, after) && after.ours && after.range.contains(watched) &&
      apply_changes() && x_watched.contains(watched))
    return 0;
  forget(watched);
  not_watched(watched);
  x_monitor->unwatch(watched);
  return -FI_EOPNOTSUPP;
}

/// Null with errno.
ibv_mr* WatchedCache::make_region(const MemoryRange& range, int rights) noexcept {
  for (;;) {
    ibv_mr* region = x_maker->make(range, rights);
    const int error = errno;
    if (region && range.bytes() >= x_fruitless.bytes) x_fruitless = {};  // there is room now
    if (region && x_refused.made(range.bytes())) x_notices.mended(range.bytes());
    if (region || !for_want_of_room(error)) return region;
    const size_t bytes = x_statistics.bytes;
    while (may_help(range.bytes()) && evict() && bytes - x_statistics.bytes < range.bytes()) {
    }
    if (bytes != x_statistics.bytes) continue;
    if (may_help(range.bytes()) && !x_destroying) x_fruitless = {range.bytes(), held_bytes()};
    x_refused.failed(range.bytes(), x_statistics.regions == 0);
    x_notices.no_room(error, range.bytes());
    errno = error;
    return nullptr;
  }
}

/// True if idle regions should be destroyed to make one of `bytes`. Some drivers need a contiguous
/// table, which other regions do not occupy: emptying the cache again for such a size would cost
/// all other users their regions each time. It is worth another attempt once some of what was in
/// use then is no longer in use.
bool WatchedCache::may_help(size_t bytes) noexcept {
  return bytes < x_fruitless.bytes || held_bytes() < x_fruitless.held;
}

size_t WatchedCache::held_bytes() noexcept {
  size_t bytes = 0;
  for (CachedRegion* entry = x_held.front(); entry; entry = x_held.next(*entry))
    bytes += entry->range.bytes();
  return bytes;
}

bool WatchedCache::make_room(size_t bytes) noexcept {
  while (x_statistics.bytes + bytes > x_limits.max_bytes ||
         x_statistics.regions >= x_limits.max_regions)
    if (!evict()) return false;
  return true;
}

/// Destroys one unused region.
bool WatchedCache::evict() noexcept {
  CachedRegion* entry = x_to_destroy.pop_front();
  if (!entry) entry = take_oldest(x_idle, x_indexes);
  if (entry) destroy(*entry);
  return entry != nullptr;
}

// --- Changes of memory.

/// False: regions that seem unchanged may have changed.
bool WatchedCache::apply_changes() noexcept {
  const bool stable = x_monitor->look(x_changes);
  if (x_changes.all) [[unlikely]] {
    if (!stable)
      x_notices.once(CopyNotices::lost, "can't be watched any more: its userfaultfd was closed", 0);
    forget(kAllAddresses);
    x_watched.clear();
    quarantine(kAllAddresses);
    return stable;
  }
  for (size_t i = 0; i < x_changes.count; ++i) {
    const auto& change = x_changes.changes[i];
    forget(change.range);
    if (change.remains)
      quarantine(change.range);
    else
      not_watched(change.range);
  }
  return stable;
}

void WatchedCache::forget(const MemoryRange& range) noexcept {
  const auto lose = [this](CachedRegion& entry) {
    ++x_statistics.lost;
    entry.listed = false;
    if (entry.users > 0) return;
    x_idle.erase(entry);
    destroy_later(entry);
  };
  for (RegionIndex& index : x_indexes) index.remove_overlapping(range, lose);
}

void WatchedCache::not_watched(const MemoryRange& range) noexcept {
  try {
    x_watched.subtract(range);
  } catch (const std::bad_alloc&) {
    x_watched.clear();  // the next use finds out again
  }
}

void WatchedCache::quarantine(const MemoryRange& range) noexcept {
  if (x_quarantines.add(range, util::SystemClock().now())) x_wake.ring();
}

}  // namespace erdma::transport::verbs
