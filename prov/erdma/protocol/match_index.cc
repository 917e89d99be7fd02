#include "protocol/match_index.h"

#include <algorithm>
#include <new>
#include <utility>

namespace erdma::protocol {

uint32_t MatchIndex::find_node(uint32_t hash, const Peer* source, uint64_t tag) const noexcept {
  for (uint32_t i = bucket(hash); i != kNone; i = x_nodes[i].chain) {
    if (x_nodes[i].hash != hash) continue;
    const MatchEntry& entry = *x_nodes[i].entry;
    if (!tags_match(entry.tag, tag, x_selector.ignore)) continue;
    if (!x_selector.directed || entry.source == source) return i;
  }
  return kNone;
}

uint32_t MatchIndex::insert(MatchEntry& entry) noexcept {
  if (x_size == x_capacity && !grow()) return kNone;
  const uint32_t key = hash(entry.source, entry.tag);
  const uint32_t oldest = find_node(key, entry.source, entry.tag);
  const uint32_t node = x_free != kNone ? std::exchange(x_free, x_nodes[x_free].next) : x_touched++;
  ++x_size;
  x_nodes[node].entry = &entry;
  x_nodes[node].hash = key;
  if (oldest == kNone) {
    x_nodes[node].next = x_nodes[node].previous = node;
    lead(node);
  } else {
    follow(node, oldest);
  }
  return node;
}

void MatchIndex::erase(uint32_t node) noexcept {
  Node& gone = x_nodes[node];
  if (gone.chain != kFollower) unlink_oldest(node);
  x_nodes[gone.previous].next = gone.next;
  x_nodes[gone.next].previous = gone.previous;
  gone.entry = nullptr;
  gone.next = std::exchange(x_free, node);
  if (--x_size == 0) clear();
}

void MatchIndex::lead(uint32_t node) noexcept {
  x_nodes[node].chain = std::exchange(bucket(x_nodes[node].hash), node);
}

void MatchIndex::follow(uint32_t node, uint32_t oldest) noexcept {
  const uint32_t youngest = std::exchange(x_nodes[oldest].previous, node);
  x_nodes[youngest].next = node;
  x_nodes[node].previous = youngest;
  x_nodes[node].next = oldest;
  x_nodes[node].chain = kFollower;
}

// The next node of the same key, if there is one, takes the node's place in the bucket.
void MatchIndex::unlink_oldest(uint32_t node) noexcept {
  const Node& gone = x_nodes[node];
  uint32_t* link = &bucket(gone.hash);
  while (*link != node) link = &x_nodes[*link].chain;
  if (gone.next == node) {
    *link = gone.chain;
  } else {
    x_nodes[gone.next].chain = gone.chain;
    *link = gone.next;
  }
}

// Called when every node is in use.
bool MatchIndex::grow() noexcept {
  if (x_capacity >= kLargest) return false;
  const uint32_t capacity = std::max(kSmallest, x_capacity * 2);
  std::unique_ptr<Node[]> nodes(new (std::nothrow) Node[capacity]);
  std::unique_ptr<uint32_t[]> buckets(new (std::nothrow) uint32_t[size_t{2} * capacity]);
  if (!nodes || !buckets) return false;
  std::copy_n(x_nodes.get(), x_touched, nodes.get());
  std::fill_n(buckets.get(), 2 * capacity, kNone);
  x_nodes = std::move(nodes);
  x_buckets = std::move(buckets);
  x_capacity = capacity;
  x_shift = static_cast<uint32_t>(std::countl_zero(capacity));
  for (uint32_t i = 0; i < x_touched; ++i)
    if (x_nodes[i].chain != kFollower) lead(i);
  return true;
}

// The caller has emptied every bucket.
void MatchIndex::clear() noexcept {
  x_touched = 0;
  x_free = kNone;
  if (x_capacity <= kKept) return;
  x_nodes.reset();
  x_buckets.reset();
  x_capacity = 0;
}

void MatchIndex::restart(const Selector& selector) noexcept {
  x_selector = selector;
  if (empty()) return;
  x_size = 0;
  std::fill_n(x_buckets.get(), 2 * x_capacity, kNone);
  clear();
}

}  // namespace erdma::protocol
