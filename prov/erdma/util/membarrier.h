#pragma once

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace erdma::util {

/// membarrier(2), which the C library does not wrap. `command`: MEMBARRIER_CMD_*.
inline long membarrier(int command) noexcept {
  return syscall(SYS_membarrier, command, 0, 0);
}

}  // namespace erdma::util
