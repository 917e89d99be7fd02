#pragma once

#include <cerrno>

#include "util/error_text.h"
#include "util/log.h"

namespace erdma::util {

/// Tells the user that the kernel refused descriptors for `what`, or refused to watch them. `error`
/// is errno. Returns -error.
inline int refused_descriptor(const char* what, int error) noexcept {
  ERDMA_NOTICE(descriptors, FABRIC, "cannot make descriptors for %s: %s%s", what,
               ErrorText(error).c_str(),
               error == EMFILE ? "; raise RLIMIT_NOFILE (ulimit -n)" : "");
  return -error;
}

}  // namespace erdma::util
