#pragma once

#include <pthread.h>
#include <sys/resource.h>

#include <cstdint>

namespace erdma::transport::shm {

/// Whether other threads run on the core of the thread that polls, as with more ranks than cores.
/// Then what saves waiting and costs work is not worth it, since the time is the others' too. The
/// kernel says so: the thread was switched away from against its will, and ran for less time than
/// went by. Polling thread only; table-tested.
class CoreSharing {
 public:
  /// Of one thread, so far; getrusage(2).
  struct Usage {
    pthread_t thread;
    uint64_t forced, willing;  ///< switches
    uint64_t ran;              ///< us
  };
  using Look = Usage (*)() noexcept;
  explicit CoreSharing(Look look = of_this_thread) noexcept : x_look(look) {}

  bool shared() const noexcept { return x_shared; }
  /// True once in a while: judge() is due. A large message is sent, or received.
  bool on_message() noexcept { return ++x_messages % kEvery == 0; }
  void judge(uint64_t now_ns) noexcept;

  static constexpr unsigned kEvery = 32;  ///< messages: a look costs a system call
  static constexpr unsigned kForced = 2;  ///< switches since the last look, at least

 private:
  static Usage of_this_thread() noexcept;

  Look x_look;
  unsigned x_messages = 0;
  bool x_shared = false;
  Usage x_last{};
  uint64_t x_looked = 0;  ///< ns; 0 = never
};

}  // namespace erdma::transport::shm
