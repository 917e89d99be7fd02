#pragma once

#include <unistd.h>

namespace fi_erdma {

/// Owns a file descriptor, or none (-1).
class Descriptor {
 public:
  explicit Descriptor(int fd) : x_fd(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (x_fd >= 0) close(x_fd);
  }
  int get() const { return x_fd; }

 private:
  int x_fd;
};

}  // namespace fi_erdma
