#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "util/bias_order.h"
#include "util/lock.h"
#include "util/thread_barrier.h"

namespace erdma::util {

/// What the threads of an application may do at the same time: fi_domain(3), threading. Each kind
/// permits what those before it do.
enum class LockKind : uint8_t {
  none,    ///< one call at a time (FI_THREAD_DOMAIN with FI_PROGRESS_CONTROL_UNIFIED)
  biased,  ///< one data call at a time, and any number of control calls (FI_THREAD_DOMAIN)
  mutex,   ///< any calls
};

/// The data side of a domain's lock: calls that transfer data, and that read completion queues and
/// counters. While no control call has come for some time, a biased lock costs two stores, two
/// loads and two predictable branches. It is not recursive, and a thread that holds it must not
/// take the DomainLock.
class DataLock {
 public:
  explicit DataLock(LockKind kind) noexcept;

  void lock() noexcept {
    if (x_by_mutex || !x_bias.enter()) [[unlikely]]
      lock_mutex();
  }
  void unlock() noexcept {
    if (x_by_mutex) [[unlikely]]
      unlock_mutex();
    else
      x_bias.leave();
  }
  /// False in a forked child, for a lock of any kind. There, it does nothing.
  bool owned() const noexcept { return x_mutex.owned(); }

 private:
  friend class DomainLock;

  void lock_mutex() noexcept;
  void unlock_mutex() noexcept;

  const LockKind x_kind;
  bool x_opens;  ///< the gate may be opened again; protected by the mutex
  /// A biased lock: the data call that is under way holds the mutex; only data calls use this. Of
  /// other kinds it is constant: true of a mutex.
  bool x_by_mutex;
  BiasOrder<std::atomic<uint32_t>, ThreadBarrier> x_bias;  ///< open at first if the gate opens
  unsigned x_detours = 0;  ///< calls that took the mutex since the gate was closed
  OwnedMutex x_mutex;
};

/// The lock of a domain, as control calls take it: they open, close and bind objects, and register
/// memory. Under FI_THREAD_DOMAIN applications serialize data calls alone.
class DomainLock {
 public:
  explicit DomainLock(LockKind kind) noexcept : x_data(kind) {}

  void lock() noexcept {
    if (x_data.x_kind != LockKind::none) lock_out();
  }
  void unlock() noexcept {
    if (x_data.x_kind != LockKind::none) x_data.x_mutex.unlock();
  }
  DataLock& data() noexcept { return x_data; }
  LockKind kind() const noexcept { return x_data.x_kind; }
  bool owned() const noexcept { return x_data.owned(); }

 private:
  void lock_out() noexcept;

  DataLock x_data;
};

/// For control calls, and for data calls.
using Guard = std::lock_guard<DomainLock>;
class DataGuard : public std::lock_guard<DataLock> {
 public:
  explicit DataGuard(DomainLock& lock) noexcept : std::lock_guard<DataLock>(lock.data()) {}
};

}  // namespace erdma::util
