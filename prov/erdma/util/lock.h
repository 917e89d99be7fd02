#pragma once

#include <sched.h>
#include <unistd.h>

#include <atomic>
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

/// A lock of what a forked child goes on using as its own. It is free in the child, even if a
/// thread of the parent held it at the fork and was in the middle of a change. A thread that waits
/// polls, so the lock is for short sections. It is not recursive.
class EpochLock {
 public:
  bool try_lock() noexcept {
    const uint64_t mine = process_epoch() + uint64_t(1);
    uint64_t held = x_held.load(std::memory_order_relaxed);
    return held != mine && x_held.compare_exchange_strong(held, mine, std::memory_order_acquire);
  }
  void lock() noexcept {
    // A thread with a real-time priority would keep the core from the holder by yielding.
    for (unsigned tries = 1; !try_lock(); ++tries) tries % 64 ? void(sched_yield()) : rest();
  }
  void unlock() noexcept { x_held.store(0, std::memory_order_release); }

 private:
  static void rest() noexcept { ::usleep(50); }

  std::atomic<uint64_t> x_held{0};  ///< 0 = free, else 1 + the process epoch of the holder
};

}  // namespace erdma::util
