#pragma once

#include <mutex>

namespace erdma::util {

/// The one lock of a domain. Inactive under FI_THREAD_DOMAIN with manual progress: then lock()
/// costs one predictable branch. Recursive use is a bug.
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

 private:
  std::mutex x_mutex;
  const bool x_active;
};

using Guard = std::lock_guard<OptionalLock>;

}  // namespace erdma::util
