#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fi_erdma/named.h"
#include "util/stat_layout.h"

namespace fi_erdma {

namespace layout = erdma::stat_layout;

/// An entry of the directory of fields.
struct FieldInfo {
  std::string name, unit;
  layout::Type type;
  layout::Meaning meaning;
  uint32_t offset, bytes;
};

/// A consistent copy of one block in use.
struct Block {
  uint32_t index;
  Named<uint64_t> numbers;
  Named<std::string> texts;

  /// Empty if the number is unknown or the page does not have this field.
  std::optional<uint64_t> number(std::string_view name) const;
  std::string text(std::string_view name) const;
};

struct BlockKind {
  std::string name;
  std::vector<FieldInfo> fields;
  std::vector<Block> blocks;  ///< in the order of their indices
  /// Number of blocks that could not be read consistently: their process was stopped or ended while
  /// it changed them.
  unsigned unsettled = 0;

  const Block* block(uint32_t index) const;  ///< null if it is not in use
};

/// A copy of a page. Texts hold printable ASCII only; other bytes are replaced by '?'.
struct Snapshot {
  std::vector<BlockKind> kinds;
  uint32_t sequence = 0;  ///< of the block of the process: another one since an endpoint was closed

  const BlockKind* kind(std::string_view name) const;
  BlockKind* kind(std::string_view name) {
    return const_cast<BlockKind*>(std::as_const(*this).kind(name));
  }
  /// The blocks of a kind; none if the page does not have it.
  std::span<const Block> blocks(std::string_view kind) const;
  /// The block of the process itself; null if there is none.
  const Block* process() const;
  /// Number of blocks of all kinds that could not be read consistently.
  unsigned unsettled() const;
};

/// Peers by the index of the endpoint that has them. Not a hash table, which the indices of a
/// forged page could make slow.
using PeersOf = std::map<uint64_t, std::vector<const Block*>>;
PeersOf peers_of(const Snapshot& snapshot);

/// Roughly the bytes that a snapshot may keep. The largest page of the provider has 256 endpoints
/// and 16384 peers, which cost less than a KiB each.
inline constexpr size_t kMostCost = size_t(96) << 20;

/// Reads a page. The page may hold anything and change meanwhile; reading it neither crashes nor
/// takes long. Its address must be divisible by 8.
struct ReadResult {
  std::optional<Snapshot> snapshot;
  std::string fault;  ///< why there is no snapshot
  size_t cost = 0;    ///< bytes that the snapshot keeps, and `memory`
  size_t memory = 0;  ///< bytes that reading the page allocated in it, and that it keeps
};
ReadResult read_page(std::span<const std::byte> page, size_t most_cost = kMostCost);

}  // namespace fi_erdma
