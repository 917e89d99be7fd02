#pragma once

#include <fcntl.h>
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

/// Allocates memory for a range of a file or memfd, like posix_fallocate, but without libc's
/// fallback of touching every page. Returns 0 or -errno.
inline int allocate_range(int fd, size_t offset, size_t bytes) noexcept {
  int rc;
  do {
    rc = fallocate(fd, 0, off_t(offset), off_t(bytes)) ? -errno : 0;
  } while (rc == -EINTR);
  return rc;
}

}  // namespace erdma::util
