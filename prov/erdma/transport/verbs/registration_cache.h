#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "transport/verbs/copy_notices.h"
#include "transport/verbs/memory_monitor.h"
#include "transport/verbs/memory_range.h"
#include "transport/verbs/quarantines.h"
#include "transport/verbs/region_index.h"
#include "transport/verbs/registration.h"
#include "util/before_fork.h"
#include "util/event_fd.h"
#include "util/intrusive_list.h"
#include "util/process_epoch.h"
#include "util/thread.h"

namespace erdma::transport::verbs {

/// Makes and destroys memory regions: the device's driver, or a test.
class RegionMaker {
 public:
  virtual ~RegionMaker() = default;
  /// Null with errno.
  virtual ibv_mr* make(const MemoryRange& range, int rights) noexcept = 0;
  virtual void destroy(ibv_mr* region) noexcept = 0;
};

/// Rights that memory is registered with.
inline constexpr int kAllRights =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

/// Whose size forbids a registration: of CopyNotices::size.
inline constexpr char kMoreThanTheNic[] = "is more than the NIC registers at once";
inline constexpr char kMoreThanTheLimit[] =
    "is more than half of the limit of locked memory (raise ulimit -l)";

/// Whether an error of the driver may go away once something else is deregistered. Drivers do not
/// agree on what they say when a limit is reached.
bool for_want_of_room(int error) noexcept;

/// The cache behind RegistrationCache where memory can be watched; SingleUses elsewhere. Regions
/// have the pages of their range when they are made; MemoryMonitor tells when that may have
/// changed, and every acquire() asks it first. Mappings are watched as a whole, from the first use
/// of any part: a mapping of which a part is watched is two to the kernel, and mremap() of both at
/// once would fail.
///
/// Each set of rights has regions of its own: memory that is both sent and received has two or
/// more. Overlapping ranges are not merged: whoever sends a sliding window would register all of it
/// anew each time. What is contained in another goes.
///
/// Memory that is freed under x_mutex may itself be watched: that waits for the monitor's thread,
/// which never takes x_mutex. Hence a thread of the cache's own for what can be done later.
class WatchedCache final : public RegistrationCache, private util::BeforeFork {
 public:
  struct Limits {
    size_t max_bytes = SIZE_MAX;  ///< of all regions
    size_t max_regions = 1024;
    size_t max_region_bytes = SIZE_MAX;
    uint64_t tick_ns = 100'000'000;  ///< of quarantines
    /// Children do not get what is registered when they begin
    bool kept_from_children = false;
  };
  /// -FI_EOPNOTSUPP: memory can't be watched here. `why` says the cause, and the remedy.
  static util::Result<std::unique_ptr<WatchedCache>> create(std::unique_ptr<RegionMaker> maker,
                                                            const Limits& limits, const char*& why);
  ~WatchedCache() override;

  int acquire(const void* address, size_t length, int rights,
              Registration& registration) noexcept override;
  void release(const Registration& registration) noexcept override;

  struct Statistics {
    uint64_t hits = 0, misses = 0, refusals = 0, lost = 0;  ///< lost: to changes of memory
    size_t regions = 0, bytes = 0;
  };
  Statistics statistics() noexcept;

 private:
  WatchedCache(std::unique_ptr<RegionMaker> maker, const Limits& limits) noexcept
      : x_quarantines(limits.tick_ns), x_maker(std::move(maker)), x_limits(limits) {}
  int start(const char*& why);
  void keep_house() noexcept;
  bool run_housekeeping(uint64_t now) noexcept;
  void before_fork() noexcept override;

  // All under x_mutex.
  bool apply_changes() noexcept;
  void forget(const MemoryRange& range) noexcept;
  void not_watched(const MemoryRange& range) noexcept;
  void quarantine(const MemoryRange& range) noexcept;
  void use(CachedRegion& entry, Registration& registration) noexcept;
  int make(const MemoryRange& range, int rights, Registration& registration);
  void list(CachedRegion& entry);
  int watch(const MemoryRange& range);
  int watch_mapping(uintptr_t address, MemoryRange& watched);
  ibv_mr* make_region(const MemoryRange& range, int rights) noexcept;
  bool may_help(size_t bytes) noexcept;
  size_t held_bytes() noexcept;
  bool make_room(size_t bytes) noexcept;
  bool evict() noexcept;
  void destroy_later(CachedRegion& entry) noexcept;
  void destroy(CachedRegion& entry) noexcept;

  std::mutex x_housekeeping;  ///< held by who destroys regions without x_mutex; before that
  std::mutex x_mutex;
  std::unique_ptr<MemoryMonitor> x_monitor;
  RegionIndex x_indexes[kAllRights + 1];           ///< by rights
  util::IntrusiveList<CachedRegion> x_idle;        ///< listed, no users; least recently used first
  util::IntrusiveList<CachedRegion> x_held;        ///< with users
  util::IntrusiveList<CachedRegion> x_to_destroy;  ///< no users, not listed: to be destroyed
  MemoryChanges x_changes;
  Quarantines x_quarantines;
  MemoryRanges x_watched;
  std::unique_ptr<RegionMaker> x_maker;
  const Limits x_limits;
  Statistics x_statistics;
  size_t x_refused_bytes = SIZE_MAX;  ///< was refused although nothing else was registered
  struct {
    size_t bytes = SIZE_MAX, held = 0;
  } x_fruitless;  ///< a size for which the cache was emptied in vain, and what was in use then
  bool x_destroying = false;  ///< the housekeeper destroys regions, which hold their room still
  CopyNotices x_notices;
  util::EventFd x_wake;  ///< for the housekeeper
  bool x_stop = false;
  util::Thread x_housekeeper;
  const uint32_t x_epoch = util::process_epoch();
};

}  // namespace erdma::transport::verbs
