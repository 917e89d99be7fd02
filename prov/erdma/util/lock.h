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

}  // namespace erdma::util
