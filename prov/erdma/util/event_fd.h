#pragma once

#include <poll.h>
#include <sys/eventfd.h>

#include "util/fd.h"

namespace erdma::util {

/// An eventfd that wakes a thread of this process. It is readable from ring() until drain().
class EventFd {
 public:
  EventFd() noexcept : x_fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  explicit operator bool() const noexcept { return bool(x_fd); }
  int fd() const noexcept { return x_fd.get(); }
  /// Any thread may call it; it never blocks. The write may fail only if the counter is full, and
  /// then the descriptor is readable already.
  void ring() const noexcept { (void)::eventfd_write(x_fd.get(), 1); }
  void drain() const noexcept {
    eventfd_t count;
    (void)::eventfd_read(x_fd.get(), &count);
  }
  /// Waits for ring(), with a time limit as in poll(2), and drains.
  void await(int timeout_ms) const noexcept {
    pollfd rung{x_fd.get(), POLLIN, 0};
    (void)::poll(&rung, 1, timeout_ms);
    drain();
  }
  void reset() noexcept { x_fd.reset(); }

 private:
  Fd x_fd;
};

}  // namespace erdma::util
