#pragma once

#include <sched.h>

#include <atomic>

namespace softerdma {

/// A lock like those of the device's driver. A long wait yields the processor.
class SpinLock {
 public:
  void lock() noexcept {
    for (unsigned spins = 0; x_held.exchange(true, std::memory_order_acquire);) {
      while (x_held.load(std::memory_order_relaxed)) {
        if (++spins > 200) sched_yield();
      }
    }
  }
  bool try_lock() noexcept { return !x_held.exchange(true, std::memory_order_acquire); }
  void unlock() noexcept { x_held.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> x_held{false};
};

}  // namespace softerdma
