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
  std::vector<Block> blocks;  ///< in the order of their indices
  /// Blocks that were being changed all the while: their process was stopped or ended in a change.
  unsigned unsettled = 0;

  const Block* block(uint32_t index) const;  ///< null if it is not in use
};

/// What a page says. Texts hold printable ASCII only: what else the page has is shown as '?'.
struct Snapshot {
  std::vector<BlockKind> kinds;

  const BlockKind* kind(std::string_view name) const;
  /// The block of the process itself; null if there is none.
  const Block* process() const;
};

/// Bytes that a snapshot may keep, roughly: the largest page of a provider has 256 endpoints and
/// 16384 peers, of which each may have some 25 fields.
inline constexpr size_t kMostCost = size_t(96) << 20;

/// Reads a page, which may hold anything and change meanwhile: it neither fails nor takes long,
/// whatever the page says. The address must be divisible by 8.
struct ReadResult {
  std::optional<Snapshot> snapshot;
  std::string fault;  ///< why there is none
  size_t cost = 0;    ///< bytes that the snapshot keeps
};
ReadResult read_page(std::span<const std::byte> page, size_t most_cost = kMostCost);

}  // namespace fi_erdma
