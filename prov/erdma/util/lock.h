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

/// Waits a little, again and again, for something that another thread will do and tell nobody of.
/// It yields, because the other may need this core, and now and then sleeps, because a yield never
/// gives the core to a thread of lower real-time priority.
class PollingWait {
 public:
  void once_more() noexcept { ++x_rounds % 64 ? void(sched_yield()) : void(::usleep(50)); }

 private:
  unsigned x_rounds = 0;
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
    for (PollingWait wait; !try_lock();) wait.once_more();
  }
  void unlock() noexcept { x_held.store(0, std::memory_order_release); }

 private:
  std::atomic<uint64_t> x_held{0};  ///< 0 = free, else 1 + the process epoch of the holder
};

}  // namespace erdma::util
