#pragma once

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <utility>

#include "util/clock.h"
#include "util/fd.h"

namespace erdma::transport::shm {

/// Tells whether a pid still belongs to the process that it was learned from. The kernel gives a
/// pid to another process only after the first has exited and been reaped, and the pidfd reports
/// the exit. So while the pidfd is silent, all calls by pid so far reached the right process. The
/// same holds for kTrust after it was silent: the kernel gives out all other free pids before one
/// that has just become free.
class PeerLife {
 public:
  PeerLife(util::Fd pidfd, const util::Clock& clock) noexcept
      : x_pidfd(std::move(pidfd)), x_clock(clock) {}

  int pidfd() const noexcept { return x_pidfd.get(); }  ///< -1: the kernel has none
  /// Background thread: the process has exited, or the state of its socket suggests that it has
  /// executed another program.
  void suspend() noexcept { x_suspended.store(true, std::memory_order_relaxed); }
  bool suspended() const noexcept { return x_suspended.load(std::memory_order_relaxed); }
  void resume() noexcept { x_suspended.store(false, std::memory_order_relaxed); }

  /// Any thread; asks the kernel.
  bool exited() const noexcept {
    pollfd exit{x_pidfd.get(), POLLIN, 0};
    return exit.fd >= 0 && ::poll(&exit, 1, 0) == 1;
  }
  /// Any thread; asks the kernel. False: all calls so far reached the right process.
  bool over() const noexcept { return suspended() || exited(); }
  /// Polling thread, before each call. Asks the kernel only if it last did so long ago.
  bool may_be_called() noexcept {
    if (suspended()) return false;
    const uint64_t now = x_clock.now();
    if (now < x_trusted_until) return true;
    if (exited()) return false;
    x_trusted_until = now + kTrust;
    return true;
  }
  /// Polling thread, after calls that succeeded and before they are reported. True: they reached
  /// the right process.
  bool was_called() noexcept { return may_be_called(); }

 private:
  /// About the time in which a process can be killed, reaped and its pid given to another.
  static constexpr uint64_t kTrust = 100'000;  // ns

  const util::Fd x_pidfd;
  std::atomic<bool> x_suspended = false;
  const util::Clock& x_clock;
  uint64_t x_trusted_until = 0;
};

}  // namespace erdma::transport::shm
