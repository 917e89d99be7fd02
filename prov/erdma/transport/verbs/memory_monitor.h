#pragma once

#include <memory>
#include <utility>

#include "transport/verbs/memory_range.h"
#include "transport/verbs/userfaultfd.h"
#include "util/event_fd.h"
#include "util/result.h"

namespace erdma::transport::verbs {

/// Tells which memory changed its pages: by munmap, mmap over it, mremap, brk or madvise, however
/// they are called. It uses userfaultfd, on ranges registered for write protection that is never
/// switched on. So it serves no page fault and costs nothing except in those calls.
///
/// Changes that the monitor cannot see: memory that other processes share (hence Mapping::ours),
/// shmat(SHM_REMAP) over watched memory, and MADV_GUARD_INSTALL.
class MemoryMonitor {
 public:
  /// `wake` rings when there is a change of what it watches to look at; it must outlive the
  /// monitor. -FI_EOPNOTSUPP: the kernel or the sandbox offers no userfaultfd, or one that does not
  /// behave as needed. `why` then tells the reason, and the remedy if there is one.
  static util::Result<std::unique_ptr<MemoryMonitor>> create(const util::EventFd& wake,
                                                             const char*& why) {
    std::unique_ptr<MemoryMonitor> monitor(new MemoryMonitor(wake));
    auto joined = Userfaultfd::join(monitor->x_listener, why);
    if (!joined) return joined.error();
    monitor->x_shared = std::move(*joined);
    return monitor;
  }
  ~MemoryMonitor() { Userfaultfd::leave(x_shared, x_listener); }
  MemoryMonitor(const MemoryMonitor&) = delete;
  MemoryMonitor& operator=(const MemoryMonitor&) = delete;

  /// The kernel counts changes in progress, as the trial of create() found. Older kernels only have
  /// a flag (before 5.15), and there each change counts as one of all memory.
  bool counts_changes() const noexcept { return x_shared->counts_changes(); }

  /// `range` consists of whole pages. 0; -FI_EBUSY: a userfaultfd that is not erdma's watches it;
  /// -FI_EOPNOTSUPP: memory of this kind cannot be watched; -FI_ENOMEM: a limit, or want of memory.
  [[nodiscard]] int watch(const MemoryRange& range) noexcept {
    return x_shared->watch(range, x_listener);
  }
  /// The range is watched for no other monitor of this process either, and all are told so.
  void unwatch(const MemoryRange& range) noexcept { x_shared->unwatch(range, x_listener); }

  /// Returns all changes that happened before this call and were not returned yet. False: a change
  /// is in progress that cannot be named yet, so no memory may be assumed unchanged.
  [[nodiscard]] bool look(MemoryChanges& changes) noexcept {
    return x_shared->look(x_listener, changes);
  }

 private:
  explicit MemoryMonitor(const util::EventFd& wake) noexcept : x_listener(wake) {}

  Userfaultfd::Listener x_listener;
  std::shared_ptr<Userfaultfd> x_shared;
};

}  // namespace erdma::transport::verbs
