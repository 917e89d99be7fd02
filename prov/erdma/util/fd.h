#pragma once

#include <unistd.h>

#include <utility>

#include "util/private_fds.h"

namespace erdma::util {

/// Owns one file descriptor and closes it on destruction; -1 = none. A forked child does not
/// inherit it (private_fds.h).
class Fd {
 public:
  Fd() noexcept = default;
  explicit Fd(int fd) noexcept : x_fd(fd) { mark_private(fd); }
  Fd(Fd&& other) noexcept : x_fd(std::exchange(other.x_fd, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~Fd() { reset(); }

  int get() const noexcept { return x_fd; }
  explicit operator bool() const noexcept { return x_fd >= 0; }
  int release() noexcept {
    unmark_private(x_fd);
    return std::exchange(x_fd, -1);
  }
  void reset(int fd = -1) noexcept {
    unmark_private(x_fd);
    if (x_fd >= 0) ::close(x_fd);
    x_fd = fd;
    mark_private(fd);
  }

 private:
  int x_fd = -1;
};

}  // namespace erdma::util
