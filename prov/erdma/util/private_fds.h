#pragma once

#include <utility>

namespace erdma::util {

/// Marks a descriptor that a forked child must not inherit: with a copy of it, a child would keep
/// the ports, sockets and devices of its parent open after the parent's death. In the child an
/// unconnected socket replaces each marked descriptor (register_fork_handler()), so code that still
/// uses the number reaches nothing and can close it. util::Fd marks the descriptor that it owns.
/// Thread-safe. Numbers below 65536 need no allocation.
void mark_private(int fd) noexcept;
bool is_private(int fd) noexcept;
/// Must be called before the descriptor is closed, since the kernel may then reuse the number.
void unmark_private(int fd) noexcept;
/// Called in the child of a fork. It uses async-signal-safe functions only (signal-safety(7)).
void plug_private_fds() noexcept;

/// Marks a descriptor for the life of this object. A library owns the descriptor and closes it.
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
  /// For a descriptor that stays open until the process ends: the mark outlives this object.
  void keep_marked() noexcept { x_fd = -1; }

 private:
  int x_fd = -1;
};

}  // namespace erdma::util
