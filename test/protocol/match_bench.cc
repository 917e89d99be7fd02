// Prints a table of nanoseconds per match. This is not a test and judges nothing. Run it a few
// times on an idle core and take the minima.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <vector>

#include "protocol/match.h"

namespace {

using erdma::protocol::Matcher;
using erdma::protocol::Peer;
using erdma::protocol::PostedEntry;
using erdma::protocol::UnexpectedEntry;

constexpr size_t kPeers = 16;
constexpr size_t kOperations = 100'000;
constexpr int kRounds = 20;
constexpr uint64_t kProtocolBits = uint64_t{3} << 60;  // a constant mask, as Open MPI sets it

struct Kind {
  const char* name;
  uint64_t ignore;
  bool directed;
  bool any;  // with directed: every other receive
};
constexpr Kind kKinds[] = {{"exact tag, any source", 0, false, true},
                           {"exact tag, directed", 0, true, false},
                           {"masked tag, any source", kProtocolBits, false, true},
                           {"masked tag, directed", kProtocolBits, true, false},
                           {"masked, half directed", kProtocolBits, true, true}};
constexpr size_t kDepths[] = {1, 10, 64, 1000, 10000};

const Peer& peer(size_t i) {
  return *reinterpret_cast<const Peer*>((i % kPeers + 1) * 4096);
}
uint64_t tag_of(size_t i) {
  return uint64_t{7} << 32 | i;
}

bool directed(const Kind& kind, size_t i) {
  return kind.directed && (!kind.any || i % 2);
}

// The queue keeps its depth: each operation matches one entry and queues it again.
double posted(const Kind& kind, size_t depth, const std::vector<size_t>& order) {
  const std::unique_ptr<PostedEntry[]> entries(new PostedEntry[depth]);
  Matcher matcher;
  for (size_t i = 0; i < depth; ++i) {
    entries[i].source = directed(kind, i) ? &peer(i) : nullptr;
    entries[i].tag = tag_of(i);
    entries[i].ignore = kind.ignore;
    matcher.post(entries[i]);
  }
  size_t wrong = 0;
  const auto start = std::chrono::steady_clock::now();
  for (const size_t i : order) {
    PostedEntry* entry = matcher.arrive(peer(i), tag_of(i));
    wrong += entry != &entries[i];
    matcher.post(entries[i]);
  }
  const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - start;
  if (wrong) std::puts("wrong match");
  return spent.count() / double(order.size());
}

double unexpected(const Kind& kind, size_t depth, const std::vector<size_t>& order) {
  const std::unique_ptr<UnexpectedEntry[]> entries(new UnexpectedEntry[depth]);
  Matcher matcher;
  for (size_t i = 0; i < depth; ++i) {
    entries[i].source = &peer(i);
    entries[i].tag = tag_of(i);
    matcher.queue(entries[i]);
  }
  PostedEntry receive;
  receive.ignore = kind.ignore;
  size_t wrong = 0;
  const auto start = std::chrono::steady_clock::now();
  for (const size_t i : order) {
    receive.source = directed(kind, i) ? &peer(i) : nullptr;
    receive.tag = tag_of(i);
    wrong += matcher.post(receive) != &entries[i];
    wrong += matcher.arrive(peer(i), tag_of(i)) != nullptr;
    matcher.queue(entries[i]);
  }
  const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - start;
  if (wrong) std::puts("wrong match");
  return spent.count() / double(order.size());
}

template <typename Measure>
void row(const char* side, const char* sequence, const Kind& kind, bool shuffled,
         Measure&& measure) {
  std::printf("%-10s %-9s %-24s", side, sequence, kind.name);
  for (const size_t depth : kDepths) {
    std::vector<size_t> order(kOperations);  // entries to match; in order = always the oldest
    std::mt19937 random(1);
    for (size_t i = 0; i < kOperations; ++i) order[i] = (shuffled ? random() : i) % depth;
    double best = measure(kind, depth, order);
    for (int i = 1; i < kRounds; ++i) best = std::min(best, measure(kind, depth, order));
    std::printf(" %7.1f", best);
  }
  std::putchar('\n');
}

}  // namespace

int main() {
  std::printf("%-45s", "ns per match and queueing; entries:");
  for (const size_t depth : kDepths) std::printf(" %7zu", depth);
  std::putchar('\n');
  row("posted", "in order", kKinds[1], false, posted);
  row("unexpected", "in order", kKinds[1], false, unexpected);
  for (const Kind& kind : kKinds) row("posted", "random", kind, true, posted);
  for (const Kind& kind : kKinds) row("unexpected", "random", kind, true, unexpected);
  return 0;
}
