#pragma once

#include "transport/verbs/memory_range.h"

namespace erdma::transport::verbs {

/// True if any of these pages belongs to the stack of the first or the calling thread. Stacks of
/// other threads cannot be distinguished from other memory.
[[nodiscard]] bool is_stack(const MemoryRange& pages) noexcept;

}  // namespace erdma::transport::verbs
