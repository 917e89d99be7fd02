#pragma once

#include <unistd.h>

#include <utility>

namespace erdma::util {

/// Owns one file descriptor; closed on destruction. -1 = none.
class Fd {
 public:
  Fd() noexcept = default;
  explicit Fd(int fd) noexcept : x_fd(fd) {}
  Fd(Fd&& other) noexcept : x_fd(std::exchange(other.x_fd, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.x_fd, -1));
    return *this;
  }
  ~Fd() { reset(); }

  int get() const noexcept { return x_fd; }
  explicit operator bool() const noexcept { return x_fd >= 0; }
  int release() noexcept { return std::exchange(x_fd, -1); }
  void reset(int fd = -1) noexcept {
    if (x_fd >= 0) ::close(x_fd);
    x_fd = fd;
  }

 private:
  int x_fd = -1;
};

}  // namespace erdma::util
