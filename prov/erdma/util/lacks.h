#pragma once

#include <cerrno>

#include "util/error_text.h"
#include "util/log.h"

namespace erdma::util {

/// True of an error that says that this process or the host has no descriptor or no memory now:
/// another part of it may give some back. `status` is a negative errno.
inline bool is_lack(int status) noexcept {
  return status == -EMFILE || status == -ENFILE || status == -ENOMEM || status == -ENOBUFS;
}

/// What a user can do about it, to end a sentence; empty: nothing. `error` is errno.
inline const char* remedy_of_lack(int error) noexcept {
  return error == EMFILE ? "; raise RLIMIT_NOFILE (ulimit -n)" : "";
}

/// Tells the user that the kernel refused descriptors for `what`, or refused to watch them. `error`
/// is errno. Returns -error.
inline int refused_descriptor(const char* what, int error) noexcept {
  ERDMA_NOTICE(descriptors, FABRIC, "cannot make descriptors for %s: %s%s", what,
               ErrorText(error).c_str(), remedy_of_lack(error));
  return -error;
}

}  // namespace erdma::util
