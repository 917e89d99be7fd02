#pragma once

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <utility>

#include "util/clock.h"
#include "util/fd.h"

namespace erdma::transport::shm {

/// Whether a pid still is that of the process that it was learnt of. A pid is given to another
/// process only after its own has exited and was reaped, and the pidfd tells of the exit: while the
/// pidfd is silent, what was called by the pid so far was called on the right process.
class PeerLife {
 public:
  PeerLife(util::Fd pidfd, const util::Clock& clock) noexcept
      : x_pidfd(std::move(pidfd)), x_clock(clock) {}

  int pidfd() const noexcept { return x_pidfd.get(); }  ///< -1: the kernel has none
  /// By the background thread: it has exited, or its socket says that it may be another program.
  void suspend() noexcept { x_suspended.store(true, std::memory_order_relaxed); }
  bool suspended() const noexcept { return x_suspended.load(std::memory_order_relaxed); }
  void resume() noexcept { x_suspended.store(false, std::memory_order_relaxed); }

  /// Any thread: asks the kernel.
  bool exited() const noexcept {
    pollfd exit{x_pidfd.get(), POLLIN, 0};
    return exit.fd >= 0 && ::poll(&exit, 1, 0) == 1;
  }
  bool over() const noexcept { return suspended() || exited(); }
  /// Polling thread, before each call: asks the kernel only if that is long ago.
  bool may_be_called() noexcept {
    if (suspended()) return false;
    const uint64_t now = x_clock.now();
    if (now - x_asked < kTrust) return true;
    x_asked = now;
    return !over();
  }
  /// Polling thread, after calls that succeeded and before anybody is told: it was the right
  /// process.
  bool was_called() noexcept { return !over(); }

 private:
  /// To be killed, reaped and replaced takes a process about as long.
  static constexpr uint64_t kTrust = 100'000;  // ns

  const util::Fd x_pidfd;
  const util::Clock& x_clock;
  std::atomic<bool> x_suspended = false;
  uint64_t x_asked = 0;
};

}  // namespace erdma::transport::shm
