#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

namespace erdma::util {

/// Sets the size of a file or memfd. Returns 0 or -errno. -EFBIG: RLIMIT_FSIZE (ulimit -f), which
/// applies to memfds too, forbids this size; ftruncate(2) would raise SIGXFSZ and end the process.
inline int set_file_size(int fd, size_t bytes) noexcept {
  rlimit limit{};
  if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur)
    return -EFBIG;
  return ftruncate(fd, off_t(bytes)) ? -errno : 0;
}

}  // namespace erdma::util
