#pragma once

#include <cstdint>
#include <mutex>

#include "util/process_epoch.h"

namespace erdma::util {

/// A mutex of the process that constructed it. It is not recursive. In a forked child it does
/// nothing: the child has one thread, and a parent's thread that held the mutex at the fork cannot
/// release it there.
class OwnedMutex {
 public:
  OwnedMutex() noexcept : x_epoch(process_epoch()) {}

  void lock() noexcept {
    if (owned()) x_mutex.lock();
  }
  bool try_lock() noexcept { return !owned() || x_mutex.try_lock(); }
  void unlock() noexcept {
    if (owned()) x_mutex.unlock();
  }
  /// False in a forked child. There, counts of threads that the mutex protects mean nothing: the
  /// parent's threads do not exist.
  bool owned() const noexcept { return x_epoch == process_epoch(); }

 private:
  std::mutex x_mutex;
  const uint32_t x_epoch;
};

/// The lock of a domain. It is inactive under FI_THREAD_DOMAIN with manual progress: then lock()
/// costs one predictable branch.
class OptionalLock {
 public:
  explicit OptionalLock(bool active) noexcept : x_active(active) {}

  void lock() noexcept {
    if (x_active) x_mutex.lock();
  }
  bool try_lock() noexcept { return !x_active || x_mutex.try_lock(); }
  void unlock() noexcept {
    if (x_active) x_mutex.unlock();
  }
  bool active() const noexcept { return x_active; }
  /// False in a forked child, also for a lock that is inactive.
  bool owned() const noexcept { return x_mutex.owned(); }

 private:
  OwnedMutex x_mutex;
  const bool x_active;
};

using Guard = std::lock_guard<OptionalLock>;

}  // namespace erdma::util
