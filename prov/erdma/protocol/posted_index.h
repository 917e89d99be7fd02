#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "protocol/match_index.h"
#include "util/intrusive_list.h"

namespace erdma::protocol {

struct PostedEntry;
struct PostedOrder;
struct PostedKin;

/// What matching looks at, in one cache line: a long queue does not fit the cache.
struct PostedLine : util::ListHook<PostedOrder> {
  const Peer* source = nullptr;  ///< null = any
  uint64_t tag = 0;
  uint64_t ignore = 0;  ///< tag bits that need not agree
  void* context = nullptr;

  // Kept by PostedQueue and its PostedIndex.
  static constexpr uint8_t kPending = UINT8_MAX;   ///< in no index yet
  static constexpr uint8_t kRest = UINT8_MAX - 1;  ///< in the list of those without an index
  static constexpr uint64_t kSequences = (uint64_t{1} << 56) - 1;
  PostedEntry* chain = nullptr;  ///< the oldest of the bucket's next key
  uint64_t sequence : 56 = 0;    ///< place in the queue: enough for a century
  uint8_t index : 8 = kPending;
};
static_assert(sizeof(PostedLine) == 64);

/// A receive waiting for its message. Derive from it and fill in source, tag, ignore, context and
/// sticky before post(); do not change them while it is queued. The hook is that of the ring of
/// those with the same key, or of the list of those without an index.
struct alignas(64) PostedEntry : PostedLine, util::ListHook<PostedKin> {
  PostedEntry() noexcept = default;
  PostedEntry(const PostedEntry&) = delete;
  PostedEntry& operator=(const PostedEntry&) = delete;

  bool sticky = false;    ///< multi-receive: stays queued when it matches
  bool follower = false;  ///< not the oldest of its key; kept by PostedIndex
};

/// Finds the oldest receive that takes a (source, tag), as far as one Selector looks. Owns its
/// buckets. Chains the receives themselves, so that a match among thousands, which the cache does
/// not hold, fetches a bucket and the receive, and nothing between. Receives of equal key form a
/// ring behind the oldest, so only distinct keys share a bucket.
class PostedIndex {
 public:
  const Selector& selector() const noexcept { return x_selector; }
  bool empty() const noexcept { return x_size == 0; }

  /// Looks by `selector` from now on. Only while it is empty.
  void restart(const Selector& selector) noexcept { x_selector = selector; }

  PostedEntry* find(const Peer* source, uint64_t tag) const noexcept {
    return empty() ? nullptr : find_in(bucket(source, tag), source, tag);
  }
  /// Brings the receive that find() will return, most likely, into the cache.
  void prefetch(const Peer* source, uint64_t tag) const noexcept {
    if (empty()) return;
    const PostedEntry* entry = bucket(source, tag);
    if (!entry) return;
    __builtin_prefetch(entry, 1);
    __builtin_prefetch(&entry->sticky, 1);
  }
  /// `entry` is younger than every entry inside. False: memory is out, and nothing has changed.
  bool insert(PostedEntry& entry) noexcept;
  /// The buckets are given back when the last entry leaves, unless they are few.
  void erase(PostedEntry& entry) noexcept;

 private:
  static constexpr size_t kFewest = 128;
  static constexpr size_t kMost = size_t{1} << 31;

  PostedEntry*& bucket(const Peer* source, uint64_t tag) const noexcept {
    return x_buckets[hash_of(x_selector, source, tag) >> x_shift];
  }
  PostedEntry* find_in(PostedEntry* first, const Peer* source, uint64_t tag) const noexcept;
  PostedEntry** link_to(PostedEntry& oldest) noexcept;
  bool grow() noexcept;

  std::unique_ptr<PostedEntry*[]> x_buckets;
  size_t x_count = 0;     ///< buckets: a power of two, or none
  uint32_t x_shift = 32;  ///< 32 - log2(x_count): the top bits of a hash choose its bucket
  size_t x_size = 0;      ///< entries
  Selector x_selector;
};

}  // namespace erdma::protocol
