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

/// The members that matching reads, in one cache line: a long queue does not fit the cache.
struct PostedLine : util::ListHook<PostedOrder> {
  const Peer* source = nullptr;  ///< null = any
  uint64_t tag = 0;
  uint64_t ignore = 0;  ///< tag bits that need not agree
  void* context = nullptr;

  // Maintained by PostedQueue and its PostedIndex.
  static constexpr uint8_t kPending = UINT8_MAX;   ///< not indexed yet
  static constexpr uint8_t kRest = UINT8_MAX - 1;  ///< in PostedQueue::x_rest
  static constexpr uint64_t kSequences = (uint64_t{1} << 56) - 1;
  PostedEntry* chain = nullptr;  ///< the oldest entry of the bucket's next key
  uint64_t sequence : 56 = 0;    ///< position in the queue; 56 bits last for decades
  uint8_t index : 8 = kPending;
};
static_assert(sizeof(PostedLine) == 64);

/// A receive that waits for its message. Derived classes fill in source, tag, ignore, context and
/// sticky before post(), and leave them alone while the entry is queued. The hook belongs to the
/// ring of entries with the same key, or to PostedQueue::x_rest.
struct alignas(64) PostedEntry : PostedLine, util::ListHook<PostedKin> {
  PostedEntry() noexcept = default;
  PostedEntry(const PostedEntry&) = delete;
  PostedEntry& operator=(const PostedEntry&) = delete;

  bool sticky = false;    ///< multi-receive: the entry stays queued when it matches
  bool follower = false;  ///< not the oldest entry of its key; maintained by PostedIndex
};

/// Finds the oldest receive that takes a (source, tag), compared as one Selector says. Owns its
/// buckets. The chains run through the receives themselves: thousands of receives do not fit the
/// cache, and a match then fetches only a bucket and the receive. Receives of equal key form a ring
/// behind the oldest one, so only distinct keys share a bucket.
class PostedIndex {
 public:
  const Selector& selector() const noexcept { return x_selector; }
  bool empty() const noexcept { return x_size == 0; }

  /// Uses `selector` from now on. The index must be empty.
  void restart(const Selector& selector) noexcept { x_selector = selector; }

  PostedEntry* find(const Peer* source, uint64_t tag) const noexcept {
    return empty() ? nullptr : find_in(bucket(source, tag), source, tag);
  }
  /// Prefetches the receive that find() will most likely return.
  void prefetch(const Peer* source, uint64_t tag) const noexcept {
    if (empty()) return;
    const PostedEntry* entry = bucket(source, tag);
    if (!entry) return;
    __builtin_prefetch(entry, 1);
    __builtin_prefetch(&entry->sticky, 1);
  }
  /// `entry` must be younger than every entry in the index. False: out of memory; nothing changed.
  bool insert(PostedEntry& entry) noexcept;
  /// Frees the buckets when the last entry leaves, unless they are few.
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
