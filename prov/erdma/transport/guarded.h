#pragma once

#include <new>

#include "util/log.h"

namespace erdma::transport {

/// To be called where std::bad_alloc is caught. What lacked memory is done once there is some.
inline void say_out_of_memory(const char* doing) noexcept {
  ERDMA_WARN(EP_CTRL, "out of memory while %s\n", doing);
}

/// False: `step` ran out of memory, which is logged. Of a connection, its time limit ends what was
/// left undone.
template <typename Step>
bool guarded(const char* doing, Step&& step) noexcept try {
  step();
  return true;
} catch (const std::bad_alloc&) {
  say_out_of_memory(doing);
  return false;
}

}  // namespace erdma::transport
