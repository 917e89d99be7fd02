#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "util/stat_layout.h"

namespace fi_erdma {

namespace layout = erdma::stat_layout;

/// A field of the directory.
struct FieldInfo {
  std::string name, unit;
  layout::Type type;
  layout::Meaning meaning;
  uint32_t offset, bytes;
};

/// One block in use, as it was at one moment.
struct Block {
  uint32_t index;
  std::map<std::string, uint64_t, std::less<>> numbers;
  std::map<std::string, std::string, std::less<>> texts;

  /// Unknown numbers and fields that this page lacks are empty alike.
  std::optional<uint64_t> number(std::string_view name) const;
  std::string text(std::string_view name) const;
};

struct BlockKind {
  std::string name;
  std::vector<FieldInfo> fields;
  std::vector<Block> blocks;
  /// Blocks that were being changed all the while: their process was stopped or ended in a change.
  unsigned unsettled = 0;
};

/// What a page says. Texts hold printable ASCII only: what else the page has is shown as '?'.
struct Snapshot {
  std::vector<BlockKind> kinds;

  const BlockKind* kind(std::string_view name) const;
  /// The block of the process itself; null if there is none.
  const Block* process() const;
};

/// Reads a page, which may hold anything and change meanwhile: it neither fails nor takes long,
/// whatever the page says. The address must be divisible by 8.
struct ReadResult {
  std::optional<Snapshot> snapshot;
  std::string fault;  ///< why there is none
};
ReadResult read_page(std::span<const std::byte> page);

}  // namespace fi_erdma
