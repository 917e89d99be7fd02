#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "protocol/match_index.h"
#include "protocol/posted_index.h"
#include "util/intrusive_list.h"

namespace erdma::protocol {

struct UnexpectedOrder;

/// A message that waits for its receive. Derived classes fill in source and tag before queue().
struct UnexpectedEntry : MatchEntry, util::ListHook<UnexpectedOrder> {
  static constexpr size_t kIndexes = 8;

  UnexpectedEntry() noexcept = default;
  UnexpectedEntry(const UnexpectedEntry&) = delete;
  UnexpectedEntry& operator=(const UnexpectedEntry&) = delete;

  // Maintained by UnexpectedQueue.
  uint32_t indexes = 0;  ///< bit i: node[i] is valid
  std::array<uint32_t, kIndexes> node;
};

static_assert(sizeof(UnexpectedEntry) <= 128);

/// Receives in posting order. find() scans a short queue. A long queue has one index per Selector
/// of its receives; masked receives beyond eight Selectors are scanned. Entries are indexed when a
/// lookup first needs the index, so a queue whose oldest entry always matches never hashes.
class PostedQueue {
 public:
  void append(PostedEntry& entry) noexcept {
    entry.sequence = ++x_sequence & PostedEntry::kSequences;
    entry.index = PostedEntry::kPending;
    ++x_count;
    x_list.push_back(entry);
  }
  /// Returns the oldest receive that matches, without removing it.
  PostedEntry* find(const Peer& source, uint64_t tag) noexcept {
    PostedEntry* oldest = x_list.front();
    return !oldest || matches(*oldest, source, tag) ? oldest : search(source, tag);
  }
  /// Prefetches the entries that find() would read.
  void prefetch(const Peer& source, uint64_t tag) const noexcept {
    for (uint32_t left = x_active; left; left &= left - 1)
      x_indexes[static_cast<size_t>(std::countr_zero(left))].prefetch(&source, tag);
  }
  void remove(PostedEntry& entry) noexcept {
    if (entry.index != PostedEntry::kPending) drop_index(entry);
    --x_count;
    x_list.erase(entry);
  }

  PostedEntry* first() noexcept { return x_list.front(); }
  PostedEntry* next(PostedEntry& entry) noexcept { return x_list.next(entry); }
  size_t count() const noexcept { return x_count; }

 private:
  static constexpr size_t kExact = 2;  ///< for receives with ignore 0: any source, one source
  static constexpr size_t kIndexes = 8 + kExact;

  static bool matches(const PostedEntry& entry, const Peer& source, uint64_t tag) noexcept {
    return tags_match(entry.tag, tag, entry.ignore) && (!entry.source || entry.source == &source);
  }
  PostedEntry* search(const Peer& source, uint64_t tag) noexcept;
  PostedEntry* lookup(const Peer& source, uint64_t tag) noexcept;
  void index_pending() noexcept;
  void add_index(PostedEntry& entry) noexcept;
  void drop_index(PostedEntry& entry) noexcept;
  size_t choose(const Selector& selector) noexcept;

  util::IntrusiveList<PostedEntry, PostedOrder> x_list;
  util::IntrusiveList<PostedEntry, PostedKin> x_rest;  ///< entries in no index, in posting order
  std::array<PostedIndex, kIndexes> x_indexes;
  uint32_t x_active = 0;               ///< bit i: x_indexes[i] has entries
  PostedEntry* x_last_seen = nullptr;  ///< later entries are not indexed yet
  size_t x_count = 0;
  uint64_t x_sequence = 0;
};

/// Messages in arrival order. Each Selector by which a long queue is searched gets an index over
/// all messages, which is brought up to date when it is used.
class UnexpectedQueue {
 public:
  void append(UnexpectedEntry& entry) noexcept {
    entry.sequence = ++x_sequence;
    entry.indexes = 0;
    ++x_count;
    x_list.push_back(entry);
  }
  /// Returns the oldest message that matches, without removing it.
  UnexpectedEntry* find(const Peer* source, uint64_t tag, uint64_t ignore) noexcept {
    UnexpectedEntry* oldest = x_list.front();
    return !oldest || matches(*oldest, source, tag, ignore) ? oldest : search(source, tag, ignore);
  }
  void remove(UnexpectedEntry& entry) noexcept {
    if (entry.indexes) drop_indexes(entry);
    --x_count;
    x_list.erase(entry);
  }

  UnexpectedEntry* first() noexcept { return x_list.front(); }
  UnexpectedEntry* next(UnexpectedEntry& entry) noexcept { return x_list.next(entry); }
  size_t count() const noexcept { return x_count; }

 private:
  struct View {
    MatchIndex index;
    UnexpectedEntry* last = nullptr;  ///< the index holds all messages up to this one
    uint64_t last_use = 0;            ///< value of x_searches at the last use; 0 = never used
  };

  static bool matches(const UnexpectedEntry& entry, const Peer* source, uint64_t tag,
                      uint64_t ignore) noexcept {
    return tags_match(entry.tag, tag, ignore) && (!source || entry.source == source);
  }
  UnexpectedEntry* search(const Peer* source, uint64_t tag, uint64_t ignore) noexcept;
  UnexpectedEntry* scan(UnexpectedEntry* from, const Peer* source, uint64_t tag,
                        uint64_t ignore) noexcept;
  View* choose(const Selector& selector) noexcept;
  void restart(View& view, const Selector& selector) noexcept;
  UnexpectedEntry* index_pending(View& view) noexcept;
  void drop_indexes(UnexpectedEntry& entry) noexcept;

  util::IntrusiveList<UnexpectedEntry, UnexpectedOrder> x_list;
  std::array<View, UnexpectedEntry::kIndexes> x_views;
  size_t x_count = 0;
  uint64_t x_sequence = 0;
  uint64_t x_searches = 0;
};

/// Posted receives and unexpected messages of one endpoint and one kind (tagged or not); owns
/// neither. The caller holds the domain lock. Without memory for indexes matching is slower, and
/// nothing else changes. Invariant: no queued message matches a queued receive.
class Matcher {
 public:
  /// If a message matches `entry`, removes and returns the oldest one, and does not queue `entry`,
  /// even if it is sticky. Otherwise queues `entry` and returns null.
  UnexpectedEntry* post(PostedEntry& entry) noexcept {
    UnexpectedEntry* message = x_unexpected.find(entry.source, entry.tag, entry.ignore);
    if (message) {
      x_unexpected.remove(*message);
    } else {
      x_posted.append(entry);
    }
    return message;
  }

  /// Returns the oldest receive that matches, and removes it unless it is sticky. Null: none does.
  PostedEntry* arrive(const Peer& source, uint64_t tag) noexcept {
    PostedEntry* receive = x_posted.find(source, tag);
    if (receive && !receive->sticky) x_posted.remove(*receive);
    return receive;
  }

  /// True if more receives are posted than the first-level cache holds: prefetch() pays.
  bool deep() const noexcept { return x_posted.count() > kDeep; }
  /// Prefetches for a message of this source and tag that is about to arrive.
  void prefetch(const Peer& source, uint64_t tag) const noexcept { x_posted.prefetch(source, tag); }

  /// To be called right after arrive() returned null for the same source and tag.
  void queue(UnexpectedEntry& message) noexcept { x_unexpected.append(message); }

  /// Returns the oldest message that such a receive would match, without removing it (FI_PEEK).
  UnexpectedEntry* find(const Peer* source, uint64_t tag, uint64_t ignore) noexcept {
    return x_unexpected.find(source, tag, ignore);
  }

  /// The entry must be queued.
  void remove(PostedEntry& entry) noexcept { x_posted.remove(entry); }
  void remove(UnexpectedEntry& message) noexcept { x_unexpected.remove(message); }

  /// Returns the oldest receive with this context. Scans the queue (fi_cancel).
  PostedEntry* posted_with_context(const void* context) noexcept;

  /// Iterate from the oldest entry. Get the next entry before removing the current one.
  PostedEntry* first_posted() noexcept { return x_posted.first(); }
  PostedEntry* next_posted(PostedEntry& entry) noexcept { return x_posted.next(entry); }
  UnexpectedEntry* first_unexpected() noexcept { return x_unexpected.first(); }
  UnexpectedEntry* next_unexpected(UnexpectedEntry& message) noexcept {
    return x_unexpected.next(message);
  }

  size_t posted_count() const noexcept { return x_posted.count(); }
  size_t unexpected_count() const noexcept { return x_unexpected.count(); }

 private:
  static constexpr size_t kDeep = 200;

  PostedQueue x_posted;
  UnexpectedQueue x_unexpected;
};

}  // namespace erdma::protocol
