#pragma once

#include "transport/verbs/memory_range.h"

namespace erdma::transport::verbs {

/// One mapping of this process, as the kernel keeps it (it merges neighbours of one kind).
struct Mapping {
  MemoryRange range;
  /// Readable and writable, and no other process can take its pages away: private and anonymous,
  /// including huge pages. False for files, which other processes may truncate.
  bool ours = false;
};

/// Finds the mapping that holds `address`. False: there is none, or /proc does not tell.
[[nodiscard]] bool find_mapping(uintptr_t address, Mapping& mapping) noexcept;

/// Parses one line of /proc/self/maps. False: the line is not one of a mapping.
[[nodiscard]] bool parse_mapping(const char* line, Mapping& mapping) noexcept;

/// True if any of these pages belongs to the stack of the first or the calling thread. Stacks of
/// other threads cannot be distinguished from other memory.
[[nodiscard]] bool is_stack(const MemoryRange& pages) noexcept;

}  // namespace erdma::transport::verbs
