#pragma once

#include <cstdint>
#include <mutex>

#include "util/process_epoch.h"

namespace erdma::util {

/// The lock of a domain. It is inactive under FI_THREAD_DOMAIN with manual progress: then lock()
/// costs one predictable branch. It is not recursive. It is inactive in a forked child too: the
/// child has one thread, and a parent's thread that held the lock at the fork cannot release it
/// there.
class OptionalLock {
 public:
  explicit OptionalLock(bool active) noexcept : x_active(active), x_epoch(process_epoch()) {}

  void lock() noexcept {
    if (x_active && owned()) x_mutex.lock();
  }
  bool try_lock() noexcept { return !x_active || !owned() || x_mutex.try_lock(); }
  void unlock() noexcept {
    if (x_active && owned()) x_mutex.unlock();
  }
  bool active() const noexcept { return x_active; }

 private:
  bool owned() const noexcept { return x_epoch == process_epoch(); }

  std::mutex x_mutex;
  const bool x_active;
  const uint32_t x_epoch;
};

using Guard = std::lock_guard<OptionalLock>;

}  // namespace erdma::util
