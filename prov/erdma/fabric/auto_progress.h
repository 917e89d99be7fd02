#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "fabric/progress.h"
#include "util/domain_lock.h"
#include "util/event_fd.h"
#include "util/result.h"
#include "util/thread.h"

namespace erdma::fabric {

/// FI_PROGRESS_AUTO: one thread per domain, which makes progress on its endpoints when something
/// arrives and sleeps otherwise. It holds the domain lock during each round. In a forked child the
/// thread does not exist, and the destructor only closes descriptors.
class AutoProgress {
 public:
  /// Starts the thread. A negative fi_errno, after one log line: the kernel refuses descriptors or
  /// a thread. Throws std::bad_alloc.
  static util::Result<std::unique_ptr<AutoProgress>> start(util::DomainLock& lock);
  ~AutoProgress();

  /// Makes room for one more source. Throws std::bad_alloc. The caller holds the domain lock.
  void expect_one_more() { x_sources.reserve(x_sources.size() + 1); }
  /// Called by fi_enable(3). The caller holds the domain lock, and has called expect_one_more().
  void add(ProgressSource& source) noexcept;
  /// After return the thread no longer uses the source. The caller does not hold the domain lock.
  void remove(ProgressSource& source) noexcept;
  /// Tells the thread that there is work which no descriptor signals.
  void wake() noexcept { x_wake.ring(); }

 private:
  struct Source {
    ProgressSource* source;
    bool watched;
  };
  AutoProgress(util::DomainLock& lock, util::Fd epoll, util::EventFd wake) noexcept;
  bool watch(const ProgressSource& source, int change) noexcept;
  void run() noexcept;
  bool round() noexcept;

  util::DomainLock& x_lock;
  util::Fd x_epoll;
  util::EventFd x_wake;
  const uint32_t x_epoch;
  std::atomic<bool> x_blind{false};  ///< a source is not watched, so the thread polls
  std::vector<Source> x_sources;     ///< protected by the domain lock
  bool x_stop = false;               ///< protected by the domain lock
  util::Thread x_thread;
};

}  // namespace erdma::fabric
