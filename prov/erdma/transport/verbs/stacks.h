#pragma once

#include "transport/verbs/memory_range.h"

namespace erdma::transport::verbs {

/// Whether any of these pages is of the first thread's stack, or of the calling one's. Stacks of
/// other threads can't be told from other memory.
[[nodiscard]] bool is_stack(const MemoryRange& pages) noexcept;

}  // namespace erdma::transport::verbs
