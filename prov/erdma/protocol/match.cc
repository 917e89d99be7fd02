#include "protocol/match.h"

#include <algorithm>

namespace erdma::protocol {
namespace {

// Queues of up to this length are scanned, because hashing would be slower.
constexpr size_t kScanned = 16;

// A new Selector may take over an index that was not used in this number of searches. Rebuilding
// an index costs about as much as a scan of the queue, so it must be rare.
constexpr uint64_t kIdleSearches = 1024;

template <typename Entry, typename Tag>
Entry* previous(util::IntrusiveList<Entry, Tag>& list, Entry& entry) noexcept {
  if (list.front() == &entry) return nullptr;
  return static_cast<Entry*>(static_cast<util::ListHook<Tag>&>(entry).previous);
}

}  // namespace

PostedEntry* PostedQueue::search(const Peer& source, uint64_t tag) noexcept {
  if (x_count > kScanned) {
    index_pending();
    return lookup(source, tag);
  }
  for (PostedEntry* entry = x_list.front(); entry; entry = x_list.next(*entry))
    if (matches(*entry, source, tag)) return entry;
  return nullptr;
}

PostedEntry* PostedQueue::lookup(const Peer& source, uint64_t tag) noexcept {
  PostedEntry* oldest = nullptr;
  for (uint32_t left = x_active; left; left &= left - 1) {
    PostedEntry* found = x_indexes[static_cast<size_t>(std::countr_zero(left))].find(&source, tag);
    if (found && (!oldest || found->sequence < oldest->sequence)) oldest = found;
  }
  for (PostedEntry* entry = x_rest.front(); entry; entry = x_rest.next(*entry)) {
    if (oldest && oldest->sequence < entry->sequence) break;
    if (matches(*entry, source, tag)) return entry;
  }
  return oldest;
}

void PostedQueue::index_pending() noexcept {
  PostedEntry* entry = x_last_seen ? x_list.next(*x_last_seen) : x_list.front();
  for (; entry; entry = x_list.next(*entry)) {
    add_index(*entry);
    x_last_seen = entry;
  }
}

void PostedQueue::add_index(PostedEntry& entry) noexcept {
  const size_t chosen = choose({entry.ignore, entry.source != nullptr});
  if (chosen < kIndexes && x_indexes[chosen].insert(entry)) {
    entry.index = static_cast<uint8_t>(chosen);
    x_active |= uint32_t{1} << chosen;
    return;
  }
  entry.index = PostedEntry::kRest;
  x_rest.push_back(entry);
}

void PostedQueue::drop_index(PostedEntry& entry) noexcept {
  if (x_last_seen == &entry) x_last_seen = previous(x_list, entry);
  if (entry.index == PostedEntry::kRest) {
    x_rest.erase(entry);
    return;
  }
  PostedIndex& index = x_indexes[entry.index];
  index.erase(entry);
  if (index.empty()) x_active &= ~(uint32_t{1} << entry.index);
}

// Returns the index of this selector or, if it has none, an empty index; kIndexes if no index is
// empty.
size_t PostedQueue::choose(const Selector& selector) noexcept {
  size_t empty = kIndexes;
  const bool exact = selector.ignore == 0;
  for (size_t i = exact ? 0 : kExact; i < (exact ? kExact : kIndexes); ++i) {
    if (x_indexes[i].empty()) {
      empty = std::min(empty, i);
    } else if (x_indexes[i].selector() == selector) {
      return i;
    }
  }
  if (empty < kIndexes) x_indexes[empty].restart(selector);
  return empty;
}

UnexpectedEntry* UnexpectedQueue::search(const Peer* source, uint64_t tag,
                                         uint64_t ignore) noexcept {
  UnexpectedEntry* unindexed = x_list.front();
  View* view = x_count > kScanned ? choose({ignore, source != nullptr}) : nullptr;
  if (view) {
    unindexed = index_pending(*view);
    if (MatchEntry* found = view->index.find(source, tag))
      return static_cast<UnexpectedEntry*>(found);
  }
  return scan(unindexed, source, tag, ignore);
}

UnexpectedEntry* UnexpectedQueue::scan(UnexpectedEntry* from, const Peer* source, uint64_t tag,
                                       uint64_t ignore) noexcept {
  while (from && !matches(*from, source, tag, ignore)) from = x_list.next(*from);
  return from;
}

// Returns the view of this selector or, if it has none, a view that is empty or was not used for
// long. Null: there is no such view.
UnexpectedQueue::View* UnexpectedQueue::choose(const Selector& selector) noexcept {
  ++x_searches;
  View* victim = &x_views.front();
  for (View& view : x_views) {
    if (view.last_use && view.index.selector() == selector) {
      view.last_use = x_searches;
      return &view;
    }
    if (victim->index.empty()) continue;
    if (view.index.empty() || view.last_use < victim->last_use) victim = &view;
  }
  if (!victim->index.empty() && x_searches - victim->last_use < kIdleSearches) return nullptr;
  restart(*victim, selector);
  victim->last_use = x_searches;
  return victim;
}

void UnexpectedQueue::restart(View& view, const Selector& selector) noexcept {
  const uint32_t bit = uint32_t{1} << (&view - x_views.data());
  for (UnexpectedEntry* entry = view.last; entry; entry = previous(x_list, *entry))
    entry->indexes &= ~bit;
  view.last = nullptr;
  view.index.restart(selector);
}

// Returns the first message that could not be indexed for lack of memory; usually null.
UnexpectedEntry* UnexpectedQueue::index_pending(View& view) noexcept {
  const auto i = static_cast<size_t>(&view - x_views.data());
  UnexpectedEntry* entry = view.last ? x_list.next(*view.last) : x_list.front();
  for (; entry; entry = x_list.next(*entry)) {
    const uint32_t node = view.index.insert(*entry);
    if (node == MatchIndex::kNone) break;
    entry->node[i] = node;
    entry->indexes |= uint32_t{1} << i;
    view.last = entry;
  }
  return entry;
}

void UnexpectedQueue::drop_indexes(UnexpectedEntry& entry) noexcept {
  for (uint32_t left = entry.indexes; left; left &= left - 1) {
    const auto i = static_cast<size_t>(std::countr_zero(left));
    if (x_views[i].last == &entry) x_views[i].last = previous(x_list, entry);
    x_views[i].index.erase(entry.node[i]);
  }
}

PostedEntry* Matcher::posted_with_context(const void* context) noexcept {
  PostedEntry* entry = x_posted.first();
  while (entry && entry->context != context) entry = x_posted.next(*entry);
  return entry;
}

}  // namespace erdma::protocol
