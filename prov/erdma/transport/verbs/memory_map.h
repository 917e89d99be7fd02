#pragma once

#include "transport/verbs/memory_range.h"

namespace erdma::transport::verbs {

/// One mapping of this process, as the kernel keeps it (neighbours of one kind are one).
struct Mapping {
  MemoryRange range;
  /// Readable and writable, and nobody outside this process can take its pages away: private and
  /// anonymous, huge pages included. Not so a file, which others may truncate.
  bool ours = false;
};

/// The mapping that holds `address`. False: there is none, or /proc can't tell.
[[nodiscard]] bool find_mapping(uintptr_t address, Mapping& mapping) noexcept;

/// One line of /proc/self/maps. False: it is none.
[[nodiscard]] bool parse_mapping(const char* line, Mapping& mapping) noexcept;

}  // namespace erdma::transport::verbs
