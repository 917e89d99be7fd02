#pragma once

#include <utility>

namespace erdma::util {

/// Descriptors that belong to this process and no forked child of it: through a copy, a child that
/// stays would hold the ports, sockets and devices of a parent that is long dead. In the child each
/// becomes a socket that leads nowhere (register_fork_handler()), so that whoever still knows its
/// number finds nothing and can close it. util::Fd marks what it owns. Thread-safe; no allocation
/// for numbers below 65536.
void mark_private(int fd) noexcept;
/// Before it is closed, as the number is anybody's then.
void unmark_private(int fd) noexcept;
/// In the child. Calls only what a signal handler may call.
void plug_private_fds() noexcept;

/// Marks a descriptor that a library owns, and closes, while this lives.
class PrivateFd {
 public:
  PrivateFd() noexcept = default;
  explicit PrivateFd(int fd) noexcept : x_fd(fd) { mark_private(fd); }
  PrivateFd(PrivateFd&& other) noexcept : x_fd(std::exchange(other.x_fd, -1)) {}
  PrivateFd& operator=(PrivateFd&& other) noexcept {
    std::swap(x_fd, other.x_fd);
    return *this;
  }
  ~PrivateFd() { unmark_private(x_fd); }

 private:
  int x_fd = -1;
};

}  // namespace erdma::util
