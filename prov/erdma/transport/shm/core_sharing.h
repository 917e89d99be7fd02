#pragma once

#include <pthread.h>
#include <sys/resource.h>

#include <cstdint>

namespace erdma::transport::shm {

/// Tells whether other threads run on the core of the polling thread, as with more ranks than
/// cores. Then methods that shorten a wait at the cost of more work do not pay, since the time
/// belongs to the other threads too. The kernel's figures decide: the thread was preempted, and ran
/// for less time than passed. Polling thread only; table-tested.
class CoreSharing {
 public:
  /// Figures of one thread since it began; getrusage(2).
  struct Usage {
    pthread_t thread;
    uint64_t forced, willing;  ///< context switches
    uint64_t ran;              ///< us
  };
  using Look = Usage (*)() noexcept;
  explicit CoreSharing(Look look = of_this_thread) noexcept : x_look(look) {}

  bool shared() const noexcept { return x_shared; }
  /// Call for each large message sent or received. True once in a while: judge() is due.
  bool on_message() noexcept { return ++x_messages % kEvery == 0; }
  void judge(uint64_t now_ns) noexcept;

  /// Messages between looks, because each costs a system call.
  static constexpr unsigned kEvery = 32;
  static constexpr unsigned kForced = 2;  ///< forced switches since the last look, at least

 private:
  static Usage of_this_thread() noexcept;

  Look x_look;
  unsigned x_messages = 0;
  bool x_shared = false;
  Usage x_last{};
  uint64_t x_looked = 0;  ///< ns; 0 = never
};

}  // namespace erdma::transport::shm
