#pragma once

#include <sys/mman.h>

#include <cerrno>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U
#endif

namespace erdma::util {

/// Makes a memfd that is closed on exec, can be sealed and can't be executed: with vm.memfd_noexec
/// = 2, Linux 6.3 to 6.5 refuse a memfd of any other kind (EACCES), and later kernels log a
/// warning. Kernels before 6.3 do not know the flag (EINVAL). Returns the descriptor, or -1 and
/// sets errno.
inline int make_memory_file(const char* name) noexcept {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  const int made = memfd_create(name, kFlags | MFD_NOEXEC_SEAL);
  return made < 0 && errno == EINVAL ? memfd_create(name, kFlags) : made;
}

}  // namespace erdma::util
