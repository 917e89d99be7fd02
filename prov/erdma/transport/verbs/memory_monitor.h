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

/// What became of watched memory since the last look, in order.
struct MemoryChanges {
  struct Change {
    MemoryRange range;
    /// Still mapped and watched, but its pages are about to be replaced: the call that does it is
    /// under way and may take another moment. Else: gone.
    bool remains = false;
  };
  static constexpr size_t kMax = 64;
  size_t count = 0;
  bool all = false;  ///< more than that: anything may have changed, and nothing is watched
  Change changes[kMax];
};

/// Tells which memory changed its pages: munmap, mmap over it, mremap, brk, madvise, by whichever
/// way they are called. By userfaultfd, with ranges registered for write protection that is never
/// switched on: so it serves no page fault and costs nothing but those calls.
///
/// They wait until the event is read, by a thread of the monitor's own; this thread takes no lock
/// that is held while memory is allocated or freed, and does neither: it would wait for itself.
///
/// What can't be seen: memory that others share (hence Mapping::ours), shmat(SHM_REMAP) over
/// watched memory, and MADV_GUARD_INSTALL.
class MemoryMonitor {
 public:
  /// `wake` rings when there is something to look at, and outlives the monitor. -FI_EOPNOTSUPP: the
  /// kernel or the sandbox offers no userfaultfd, or one that does not behave. `why` says it then,
  /// with the remedy if there is one.
  static util::Result<std::unique_ptr<MemoryMonitor>> create(const util::EventFd& wake,
                                                             const char*& why);
  ~MemoryMonitor();
  MemoryMonitor(const MemoryMonitor&) = delete;
  MemoryMonitor& operator=(const MemoryMonitor&) = delete;

  /// Whole pages. 0; -FI_EBUSY: another userfaultfd has it; -FI_EOPNOTSUPP: not that memory.
  [[nodiscard]] int watch(const MemoryRange& range) noexcept;
  void unwatch(const MemoryRange& range) noexcept;

  /// Whatever happened before this call and was not told yet. False: somebody is in the middle of
  /// a change that can't be named yet, so nothing may be taken for unchanged.
  [[nodiscard]] bool look(MemoryChanges& changes) noexcept;

 private:
  explicit MemoryMonitor(const util::EventFd& wake) noexcept : x_wake(wake) {}
  int open(const char*& why) noexcept;
  bool behaves() noexcept;
  void read_forever() noexcept;
  enum class State : uint8_t { stable, changing, lost };
  State state() noexcept;
  void read_events() noexcept;
  void take(MemoryChanges& changes) noexcept;
  void note(const MemoryRange& range, bool remains) noexcept;

  util::Fd x_uffd;  ///< plugged in a forked child, where it would keep the parent's events alive
  util::EventFd x_stop;
  const util::EventFd& x_wake;
  bool x_counts = true;  ///< the kernel counts changes under way (5.15); else it only has a flag
  std::mutex x_mutex;    ///< events: from reading them until they are in x_pending
  MemoryChanges x_pending;
  util::Thread x_reader;
  uint32_t x_epoch = 0;
};

}  // namespace erdma::transport::verbs
