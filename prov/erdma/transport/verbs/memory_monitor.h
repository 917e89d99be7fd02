#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "transport/verbs/memory_range.h"
#include "util/event_fd.h"
#include "util/fd.h"
#include "util/result.h"
#include "util/thread.h"

namespace erdma::transport::verbs {

/// What happened to watched memory since the last look, in order.
struct MemoryChanges {
  struct Change {
    MemoryRange range;
    /// True: still mapped and watched, but its pages are about to be replaced; the call that
    /// replaces them may still be running. False: gone.
    bool remains = false;
  };
  static constexpr size_t kMax = 64;
  size_t count = 0;
  /// There were more changes: any memory may have changed, and nothing is watched.
  bool all = false;
  Change changes[kMax];
};

class MonitorTrial;

/// Tells which memory changed its pages: by munmap, mmap over it, mremap, brk or madvise, however
/// they are called. It uses userfaultfd, on ranges registered for write protection that is never
/// switched on. So it serves no page fault and costs nothing except in those calls.
///
/// Those calls wait until a thread of the monitor has read the event. That thread takes no lock
/// that is held while memory is allocated or freed, and does neither itself: it would wait for
/// itself.
///
/// Changes that the monitor cannot see: memory that other processes share (hence Mapping::ours),
/// shmat(SHM_REMAP) over watched memory, and MADV_GUARD_INSTALL.
class MemoryMonitor {
 public:
  /// `wake` rings when there is a change to look at; it must outlive the monitor. -FI_EOPNOTSUPP:
  /// the kernel or the sandbox offers no userfaultfd, or one that does not behave as needed. `why`
  /// then tells the reason, and the remedy if there is one.
  static util::Result<std::unique_ptr<MemoryMonitor>> create(const util::EventFd& wake,
                                                             const char*& why);
  ~MemoryMonitor();
  MemoryMonitor(const MemoryMonitor&) = delete;
  MemoryMonitor& operator=(const MemoryMonitor&) = delete;

  /// The kernel counts changes in progress, as the trial of create() found. Older kernels only have
  /// a flag (before 5.15), and there each change counts as one of all memory.
  bool counts_changes() const noexcept { return x_counts; }

  /// `range` consists of whole pages. 0; -FI_EBUSY: another userfaultfd watches it; -FI_EOPNOTSUPP:
  /// memory of this kind cannot be watched; -FI_ENOMEM: a limit, or want of memory.
  [[nodiscard]] int watch(const MemoryRange& range) noexcept;
  void unwatch(const MemoryRange& range) noexcept;

  /// Returns all changes that happened before this call and were not returned yet. False: a change
  /// is in progress that cannot be named yet, so no memory may be assumed unchanged.
  [[nodiscard]] bool look(MemoryChanges& changes) noexcept;

 private:
  explicit MemoryMonitor(const util::EventFd& wake) noexcept : x_wake(wake) {}
  static constexpr size_t kEventsAtOnce = 8;
  int open(const char*& why) noexcept;
  bool behaves() noexcept;
  bool try_changes(MonitorTrial& trial) noexcept;
  void read_forever() noexcept;
  enum class State : uint8_t { stable, changing, lost };
  State state() noexcept;
  size_t read_events(size_t most = kEventsAtOnce) noexcept;
  void take(MemoryChanges& changes) noexcept;
  void note(const MemoryRange& range, bool remains) noexcept;

  util::Fd x_uffd;  ///< closed in a forked child, where it would keep the parent's events alive
  util::EventFd x_stop;
  const util::EventFd& x_wake;
  bool x_counts = true;
  std::mutex x_mutex;  ///< held from reading events until they are in x_pending
  MemoryChanges x_pending;
  util::Thread x_reader;
  uint32_t x_epoch = 0;
};

}  // namespace erdma::transport::verbs
