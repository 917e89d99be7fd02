#include "protocol/posted_index.h"

#include <algorithm>
#include <bit>
#include <new>
#include <utility>

namespace erdma::protocol {
namespace {

using Ring = util::ListHook<PostedKin>;

void join(Ring& oldest, Ring& youngest) noexcept {
  youngest.previous = oldest.previous;
  youngest.next = &oldest;
  oldest.previous->next = &youngest;
  oldest.previous = &youngest;
}

}  // namespace

PostedEntry* PostedIndex::find_in(PostedEntry* first, const Peer* source,
                                  uint64_t tag) const noexcept {
  for (PostedEntry* entry = first; entry; entry = entry->chain) {
    // The second cache line of the entry, which a match needs. Most first entries match.
    __builtin_prefetch(&entry->sticky, 1);
    if (!tags_match(entry->tag, tag, x_selector.ignore)) continue;
    if (!x_selector.directed || entry->source == source) return entry;
  }
  return nullptr;
}

bool PostedIndex::insert(PostedEntry& entry) noexcept {
  if (2 * (x_size + 1) > x_count && !grow() && x_count == 0) return false;
  Ring& ring = entry;
  PostedEntry*& first = bucket(entry.source, entry.tag);
  PostedEntry* oldest = find_in(first, entry.source, entry.tag);
  entry.follower = oldest != nullptr;
  if (oldest) {
    join(*oldest, ring);
  } else {
    ring.previous = ring.next = &ring;
    entry.chain = first;
    first = &entry;
  }
  ++x_size;
  return true;
}

PostedEntry** PostedIndex::link_to(PostedEntry& oldest) noexcept {
  PostedEntry** link = &bucket(oldest.source, oldest.tag);
  while (*link != &oldest) link = &(*link)->chain;
  return link;
}

// The next entry of the same key, if there is one, takes the oldest entry's place in the bucket.
void PostedIndex::erase(PostedEntry& entry) noexcept {
  Ring& ring = entry;
  if (!entry.follower) {
    PostedEntry** link = link_to(entry);
    *link = entry.chain;
    if (ring.next != &ring) {
      auto* heir = static_cast<PostedEntry*>(ring.next);
      heir->follower = false;
      heir->chain = entry.chain;
      *link = heir;
    }
  }
  ring.unlink();
  if (--x_size == 0 && x_count > kFewest) {
    x_buckets.reset();
    x_count = 0;
  }
}

// Without memory for more buckets the index keeps those that it has, and gets slower.
bool PostedIndex::grow() noexcept {
  const size_t count = std::max(kFewest, x_count * 2);
  if (count > kMost) return false;
  std::unique_ptr<PostedEntry*[]> larger(new (std::nothrow) PostedEntry* [count] {});
  if (!larger) return false;
  const std::unique_ptr<PostedEntry*[]> old = std::exchange(x_buckets, std::move(larger));
  const size_t old_count = std::exchange(x_count, count);
  x_shift = 32 - static_cast<uint32_t>(std::countr_zero(count));
  for (size_t i = 0; i < old_count; ++i)
    for (PostedEntry *entry = old[i], *next; entry; entry = next) {
      next = entry->chain;
      PostedEntry*& first = bucket(entry->source, entry->tag);
      entry->chain = std::exchange(first, entry);
    }
  return true;
}

}  // namespace erdma::protocol
