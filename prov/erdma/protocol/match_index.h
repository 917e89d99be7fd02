#pragma once

#include <cstdint>
#include <memory>

namespace erdma::protocol {

class Peer;

/// The part of a queued message that searches read.
struct MatchEntry {
  const Peer* source = nullptr;  ///< never null
  uint64_t tag = 0;
  uint64_t sequence = 0;  ///< position in the queue, set by the queue
};

/// What a class of receives compares: the tag bits outside `ignore`, and the source if `directed`.
struct Selector {
  uint64_t ignore = 0;
  bool directed = false;
  bool operator==(const Selector&) const noexcept = default;
};

constexpr bool tags_match(uint64_t left, uint64_t right, uint64_t ignore) noexcept {
  return ((left ^ right) & ~ignore) == 0;
}

/// Folds the two halves of one wide product, so that every bit of tag and source influences the top
/// bits: clients may vary any bits of their tags.
inline uint32_t hash_of(const Selector& selector, const Peer* source, uint64_t tag) noexcept {
  const uint64_t name = selector.directed ? reinterpret_cast<uintptr_t>(source) : 0;
  __extension__ using Wide = unsigned __int128;
  const Wide product =
      Wide{(tag & ~selector.ignore) ^ 0x9E3779B97F4A7C15u} * (name ^ 0xD6E8FEB86659FD93u);
  const uint64_t folded = static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  return static_cast<uint32_t>((folded * 0xA0761D6478BD642Fu) >> 32);
}

/// Finds the oldest message of a (source, tag), compared as one Selector says. Owns its table, not
/// the entries; an entry may be in several indexes. Entries of equal key form a ring behind the
/// oldest one, so only distinct keys share a bucket, and ten thousand entries of one tag cost as
/// much as one.
class MatchIndex {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  const Selector& selector() const noexcept { return x_selector; }
  bool empty() const noexcept { return x_size == 0; }

  /// Removes all entries and uses `selector` from now on.
  void restart(const Selector& selector) noexcept;

  MatchEntry* find(const Peer* source, uint64_t tag) const noexcept {
    const uint32_t node = empty() ? kNone : find_node(hash(source, tag), source, tag);
    return node == kNone ? nullptr : x_nodes[node].entry;
  }

  /// `entry` must be younger than every entry in the index. Returns the node for erase(), or kNone
  /// if memory is out; then nothing has changed.
  uint32_t insert(MatchEntry& entry) noexcept;

  /// Frees the table when the last entry leaves, unless the table is small.
  void erase(uint32_t node) noexcept;

 private:
  struct Node {
    MatchEntry* entry;  ///< null: the node is free, and `next` is the next free node
    uint32_t hash;
    uint32_t chain;  ///< oldest node of the bucket's next key, or kFollower
    uint32_t next;   ///< ring of nodes with equal keys, oldest first
    uint32_t previous;
  };
  static constexpr uint32_t kFollower = UINT32_MAX - 1;  ///< not the oldest node of its key
  static constexpr uint32_t kSmallest = 64;
  static constexpr uint32_t kKept = 64;  ///< nodes kept by an empty index: 2 KiB
  static constexpr uint32_t kLargest = uint32_t{1} << 30;

  uint32_t hash(const Peer* source, uint64_t tag) const noexcept {
    return hash_of(x_selector, source, tag);
  }
  uint32_t& bucket(uint32_t hash) const noexcept { return x_buckets[hash >> x_shift]; }
  uint32_t find_node(uint32_t hash, const Peer* source, uint64_t tag) const noexcept;
  void lead(uint32_t node) noexcept;
  void follow(uint32_t node, uint32_t oldest) noexcept;
  void unlink_oldest(uint32_t node) noexcept;
  bool grow() noexcept;
  void clear() noexcept;

  std::unique_ptr<Node[]> x_nodes;
  std::unique_ptr<uint32_t[]> x_buckets;  ///< twice as many as nodes
  uint32_t x_capacity = 0;                ///< nodes: a power of two, or none
  uint32_t x_shift = 0;  ///< 32 - log2(buckets): the top bits of a hash choose its bucket
  uint32_t x_size = 0;
  uint32_t x_touched = 0;  ///< nodes from this index on were never used
  uint32_t x_free = kNone;
  Selector x_selector;
};

}  // namespace erdma::protocol
