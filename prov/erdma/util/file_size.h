#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

namespace erdma::util {

/// 0 or -errno. -EFBIG where RLIMIT_FSIZE (ulimit -f), which holds for memory files too, permits no
/// such file: ftruncate(2) alone would end the process by SIGXFSZ.
inline int set_file_size(int fd, size_t bytes) noexcept {
  rlimit limit{};
  if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur)
    return -EFBIG;
  return ftruncate(fd, off_t(bytes)) ? -errno : 0;
}

}  // namespace erdma::util
