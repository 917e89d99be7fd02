#pragma once

#include <thread>
#include <vector>

#include "fabric/progress.h"
#include "util/event_fd.h"
#include "util/lock.h"
#include "util/result.h"

namespace erdma::fabric {

/// FI_PROGRESS_AUTO: one thread per domain that drives its endpoints whenever something arrives and
/// sleeps otherwise. Takes the domain lock for each round. In a forked child there is no thread,
/// and destruction only closes descriptors.
class AutoProgress {
 public:
  static util::Result<std::unique_ptr<AutoProgress>> start(util::OptionalLock& lock);
  ~AutoProgress();

  /// From fi_enable, with the domain lock held.
  void add(ProgressSource& source);
  /// After return the thread no longer touches the source. Domain lock not held.
  void remove(ProgressSource& source) noexcept;
  /// There is work that no descriptor tells of.
  void wake() noexcept { x_wake.ring(); }

 private:
  AutoProgress(util::OptionalLock& lock, util::Fd epoll, util::EventFd wake);
  void watch(const ProgressSource& source, int change) noexcept;
  void run() noexcept;
  bool round() noexcept;

  util::OptionalLock& x_lock;
  util::Fd x_epoll;
  util::EventFd x_wake;
  const uint32_t x_epoch;
  std::vector<ProgressSource*> x_sources;  ///< under the domain lock
  bool x_stop = false;                     ///< likewise
  std::thread x_thread;
};

}  // namespace erdma::fabric
