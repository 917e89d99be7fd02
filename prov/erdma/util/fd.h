#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
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

/// Makes calls that would wait for the descriptor fail with EAGAIN. 0, or -errno.
inline int set_nonblocking(int fd) noexcept {
  return ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK) ? -errno : 0;
}

struct CloseFile {
  void operator()(FILE* file) const noexcept { std::fclose(file); }
};
using File = std::unique_ptr<FILE, CloseFile>;

/// Null: it cannot be opened.
inline File open_to_read(const char* path) noexcept {
  return File(std::fopen(path, "re"));
}

}  // namespace erdma::util
