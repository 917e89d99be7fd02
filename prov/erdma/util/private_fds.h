#pragma once

#include <utility>

namespace erdma::util {

/// Descriptors of this process that a forked child must not have: with copies of them, a child
/// would hold the ports, sockets and devices of a parent that is long dead. In the child each
/// becomes a socket without a peer (register_fork_handler()), so code that still knows the number
/// reaches nothing and can close it. util::Fd marks the descriptor that it owns. Thread-safe; no
/// allocation for numbers below 65536.
void mark_private(int fd) noexcept;
/// Must be called before the descriptor is closed, since the number may then be used again.
void unmark_private(int fd) noexcept;
/// Called in the child. It calls only functions that a signal handler may call.
void plug_private_fds() noexcept;

/// Marks a descriptor that a library owns and closes, as long as this object lives.
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
  /// The descriptor stays open to the end of the process.
  void keep_marked() noexcept { x_fd = -1; }

 private:
  int x_fd = -1;
};

}  // namespace erdma::util
