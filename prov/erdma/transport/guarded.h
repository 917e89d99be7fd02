#pragma once

#include <new>

#include "util/log.h"

namespace erdma::transport {

/// Logs a caught std::bad_alloc. The caller repeats the work once there is memory.
inline void say_out_of_memory(const char* doing) noexcept {
  ERDMA_WARN(EP_CTRL, "out of memory while %s\n", doing);
}

/// False: `step` ran out of memory, which is logged. If the step was needed for a connection, the
/// time limit of the connection ends it.
template <typename Step>
bool guarded(const char* doing, Step&& step) noexcept try {
  step();
  return true;
} catch (const std::bad_alloc&) {
  say_out_of_memory(doing);
  return false;
}

}  // namespace erdma::transport
