#pragma once

#include <pthread.h>

#include <csignal>
#include <mutex>

#include "util/event_fd.h"

namespace erdma::util {

/// A background thread that blocks all signals, so that no signal handler of the application runs
/// on it. The object must not move, and its owner must call join() or stop(). The thread does not
/// exist in a forked child, where no function of this class may be called.
class Thread {
 public:
  /// Runs (owner.*Body)(). `name`: a string literal of at most 15 characters. Returns 0 or a
  /// positive errno (pthread_create(3)).
  template <auto Body, typename Owner>
  [[nodiscard]] int start(const char* name, Owner& owner) noexcept {
    x_name = name;
    x_owner = &owner;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int rc = pthread_create(&x_thread, nullptr, &entry<Body, Owner>, this);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    x_running = rc == 0;
    return rc;
  }
  bool running() const noexcept { return x_running; }
  /// Waits for the end of the thread. start() succeeded, and the owner has told the thread to end.
  void join() noexcept {
    x_running = false;
    pthread_join(x_thread, nullptr);
  }
  /// Ends the thread, if it runs: sets `flag` with the mutex held, wakes the thread and joins it.
  void stop(std::mutex& mutex, bool& flag, const EventFd& wake) noexcept {
    if (!x_running) return;
    {
      const std::lock_guard guard(mutex);
      flag = true;
    }
    wake.ring();
    join();
  }

 private:
  template <auto Body, typename Owner>
  static void* entry(void* argument) noexcept {
    const auto* self = static_cast<const Thread*>(argument);
    pthread_setname_np(pthread_self(), self->x_name);
    (static_cast<Owner*>(self->x_owner)->*Body)();
    return nullptr;
  }

  const char* x_name = nullptr;
  void* x_owner = nullptr;
  pthread_t x_thread{};
  bool x_running = false;
};

}  // namespace erdma::util
