#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "transport/verbs/copy_notices.h"
#include "transport/verbs/memory_monitor.h"
#include "transport/verbs/memory_range.h"
#include "transport/verbs/quarantines.h"
#include "transport/verbs/refused_size.h"
#include "transport/verbs/region_index.h"
#include "transport/verbs/registration.h"
#include "util/before_fork.h"
#include "util/event_fd.h"
#include "util/intrusive_list.h"
#include "util/process_epoch.h"
#include "util/thread.h"

namespace erdma::transport::verbs {

/// Makes and destroys memory regions: through the device's driver, or in a test.
class RegionMaker {
 public:
  virtual ~RegionMaker() = default;
  /// Null with errno.
  virtual ibv_mr* make(const MemoryRange& range, int rights) noexcept = 0;
  virtual void destroy(ibv_mr* region) noexcept = 0;
};

/// All rights with which memory may be registered.
inline constexpr int kAllRights =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

/// Why a size forbids a registration: texts for CopyNotices::size.
inline constexpr char kMoreThanTheNic[] = "is more than the NIC registers at once";
inline constexpr char kMoreThanTheLimit[] =
    "is more than half of the limit of locked memory (raise ulimit -l)";

/// A registration for one use costs about as much as copying this many bytes: two commands of the
/// device, and the kernel pins page by page.
inline constexpr size_t kLeastSingleUse = 256 * 1024;

/// True if an error of the driver may go away once another region is deregistered. Drivers report
/// different errors when a limit is reached.
bool for_want_of_room(int error) noexcept;

/// The implementation of RegistrationCache where memory can be watched; elsewhere there is
/// SingleUses. A region has the pages that its range had when it was made. MemoryMonitor tells when
/// that may have changed, and every acquire() asks it first. Mappings are watched as a whole, from
/// the first use of any part: the kernel splits a mapping of which only a part is watched, and
/// mremap() of both parts would fail.
///
/// Each set of rights has its own regions: memory that is both sent and received has two or more.
/// Overlapping ranges are not merged, because an application that sends from a sliding window would
/// register all of it anew each time. A region that another contains is dropped.
///
/// Memory that cannot be watched, as it is shared, is registered for one use at a time (SingleUses
/// explains why that is safe), if the use is long enough.
///
/// Memory that is freed under x_mutex may itself be watched; then freeing waits for the monitor's
/// thread, which never takes x_mutex. A thread of the cache does what can be done later.
class WatchedCache final : public RegistrationCache,
                           private util::BeforeFork,
                           private RegionEvictor {
 public:
  struct Limits {
    size_t max_bytes = SIZE_MAX;  ///< of all regions
    size_t max_regions = 1024;
    size_t max_idle = SIZE_MAX;  ///< regions that nobody uses, in all caches of the process
    size_t max_region_bytes = SIZE_MAX;
    uint64_t tick_ns = 100'000'000;  ///< of a quarantine
    /// children do not get memory that is registered when they begin
    bool kept_from_children = false;
    const Device* device = nullptr;  ///< idle regions make room for its other memory
  };
  /// -FI_EOPNOTSUPP: memory cannot be watched here. `why` tells the cause and the remedy.
  static util::Result<std::unique_ptr<WatchedCache>> create(std::unique_ptr<RegionMaker> maker,
                                                            const Limits& limits, const char*& why);
  ~WatchedCache() override;

  int acquire(const void* address, size_t length, int rights,
              Registration& registration) noexcept override;
  void release(const Registration& registration) noexcept override;

  struct Statistics {
    uint64_t hits = 0, misses = 0, refusals = 0, lost = 0;  ///< lost: because memory changed
    size_t regions = 0, bytes = 0;
  };
  Statistics statistics() noexcept;

 private:
  WatchedCache(std::unique_ptr<RegionMaker> maker, const Limits& limits) noexcept;
  int start(const char*& why);
  void evict_loop() noexcept;
  bool destroy_due(uint64_t now) noexcept;
  void before_fork() noexcept override;
  bool evict_after(int error) noexcept override;

  // Call all of these with x_mutex held.
  bool apply_changes() noexcept;
  void forget(const MemoryRange& range) noexcept;
  void not_watched(const MemoryRange& range) noexcept;
  void quarantine(const MemoryRange& range) noexcept;
  void use(CachedRegion& entry, Registration& registration) noexcept;
  int make(const MemoryRange& range, int rights, Registration& registration);
  void list(CachedRegion& entry);
  int watch(const MemoryRange& range);
  int watch_mapping(uintptr_t address, const MemoryRange& range, MemoryRange& watched);
  ibv_mr* make_region(const MemoryRange& range, int rights) noexcept;
  bool may_help(size_t bytes) noexcept;
  size_t held_bytes() noexcept;
  bool make_room(size_t bytes) noexcept;
  bool evict() noexcept;
  void destroy_later(CachedRegion& entry) noexcept;
  void destroy(CachedRegion& entry) noexcept;

  /// Held while regions are destroyed without x_mutex; taken before x_mutex.
  std::mutex x_destroy_mutex;
  std::mutex x_mutex;
  std::unique_ptr<MemoryMonitor> x_monitor;
  RegionIndex x_indexes[kAllRights + 1];  ///< by rights
  IdleRegions x_idle;
  util::IntrusiveList<CachedRegion> x_held;        ///< with users
  util::IntrusiveList<CachedRegion> x_to_destroy;  ///< no users, not listed
  MemoryChanges x_changes;
  Quarantines x_quarantines;
  MemoryRanges x_watched;
  std::unique_ptr<RegionMaker> x_maker;
  const Limits x_limits;
  Statistics x_statistics;
  RefusedSize x_refused;
  struct {
    size_t bytes = SIZE_MAX, held = 0;
  } x_fruitless;  ///< size for which the cache was emptied in vain, and the bytes in use then
  /// evict_loop() is destroying regions, which still take their room.
  bool x_destroying = false;
  CopyNotices x_notices;
  util::EventFd x_wake;  ///< for evict_loop()
  bool x_stop = false;
  util::Thread x_evict_thread;
  const uint32_t x_epoch = util::process_epoch();
};

}  // namespace erdma::transport::verbs
