#include "transport/shm/in_channels.h"

#include <algorithm>
#include <bit>
#include <new>
#include <utility>

#include "transport/shm/link.h"
#include "util/left_over.h"

namespace erdma::transport::shm {
namespace {

/// A peer gives up its hot ring once this many entries have come from others since its last.
constexpr uint64_t kIdleEntries = 1024;

uint64_t bit_of(const InChannel& channel) noexcept {
  return uint64_t(1) << channel.connection()->ring;
}

}  // namespace

InChannels::~InChannels() {
  util::expect_none_left("hot ring", x_granted);
}

int InChannels::drain(Chunk& chunk, Sink& sink) noexcept {
  uint64_t bits = std::exchange(chunk.again, 0);
  if (chunk.shared->ready.load(std::memory_order_relaxed))
    bits |= exchange_acq_rel(chunk.shared->ready, 0u);
  // Upcalls may make x_chunks grow, so `chunk` is not used while they run.
  const auto at = size_t(&chunk - x_chunks.data());
  int moved = 0;
  uint64_t again = 0;
  for (; bits; bits &= bits - 1) {
    const auto index = uint32_t(std::countr_zero(bits));
    InChannel* channel = x_chunks[at].channels[index];
    if (channel && channel->owner_gate().take_help()) [[unlikely]]
      channel->link().help();
    // Unknown channel: its mail is on the way, and handling it looks into the ring again. Hot: the
    // entries in the cold ring follow those in the hot ring.
    if (!channel || channel->hot()) continue;
    const int count = channel->drain(sink);
    moved += count;
    if (!count || channel->hot()) continue;
    again |= uint64_t(1) << index;
    if (channel->should_promote(count)) promote(*channel);
  }
  x_chunks[at].again |= again;
  return moved;
}

bool InChannels::anything_to_do() const noexcept {
  for (const Chunk& chunk : x_chunks)
    if (chunk.again || chunk.shared->ready.load(std::memory_order_relaxed)) return true;
  return std::ranges::any_of(
      x_hot, [](InChannel* channel) { return channel->ready() && !channel->ring().parked(); });
}

void InChannels::set_armed(bool on) noexcept {
  if (on && ++x_sleeps == 0) ++x_sleeps;
  const uint32_t word = on ? x_sleeps : 0;
  for (Chunk& chunk : x_chunks) chunk.shared->wake.armed.store(word, std::memory_order_relaxed);
}

void InChannels::show_core(uint64_t sign) noexcept {
  for (Chunk& chunk : x_chunks) chunk.shared->core.store(sign, std::memory_order_relaxed);
}

InChannels::Chunk* InChannels::chunk_of(const InChannel& channel) noexcept {
  for (Chunk& chunk : x_chunks)
    if (chunk.shared == channel.connection()->chunk) return &chunk;
  return nullptr;
}

void InChannels::add(InChannel& channel) {
  const ColdPlace place = channel.connection()->place();
  if (!chunk_of(channel)) x_chunks.push_back({place.chunk, 0, {}});
  Chunk& chunk = *chunk_of(channel);
  chunk.channels[place.index] = &channel;
  chunk.again |= bit_of(channel);
}

void InChannels::forget(InChannel& channel) noexcept {
  if (Chunk* chunk = chunk_of(channel)) chunk->channels[channel.connection()->ring] = nullptr;
  unwatch(channel);
  std::erase(x_waiting, &channel);
  std::erase(x_unbegun, &channel);
  if (channel.granted()) give_back(channel);
}

void InChannels::watch(InChannel& channel) noexcept {
  if (channel.hot()) {
    std::erase(x_unbegun, &channel);
    x_hot.push_back(&channel);  // promote() reserved the space
  } else if (Chunk* chunk = chunk_of(channel)) {
    chunk->again |= bit_of(channel);
  }
}

/// Another channel gives its hot ring back first, if there are as many as permitted. A sender that
/// has not begun to use its ring may never poll, so nothing waits for its answer.
void InChannels::promote(InChannel& channel) noexcept try {
  if (channel.granted()) return;
  x_unbegun.reserve(x_most_hot);
  x_unused.reserve(x_unused.size() + 1);
  x_hot.reserve(x_most_hot + x_unused.capacity());
  if (x_granted < x_most_hot) return grant(channel);
  const bool waits = std::ranges::find(x_waiting, &channel) != x_waiting.end();
  x_waiting.reserve(x_waiting.size() + 1);
  InChannel* const unused = x_unused.size() < x_most_hot ? idlest(x_unbegun) : nullptr;
  if (idle(unused)) {
    unused->ask_to_demote();
    if (!unused->demoting()) return;
    std::erase(x_unbegun, unused);
    x_unused.push_back(unused);
    --x_granted;
    std::erase(x_waiting, &channel);
    return grant(channel);
  }
  InChannel* const hot = idlest(x_hot);
  if (!idle(hot)) return;
  hot->ask_to_demote();
  if (hot->demoting() && !waits) x_waiting.push_back(&channel);
} catch (const std::bad_alloc&) {
  // This channel stays cold: the next free ring goes to the next channel that sends a lot.
}

/// Of those that were not asked to give their hot ring back; or null.
InChannel* InChannels::idlest(const std::vector<InChannel*>& channels) noexcept {
  InChannel* found = nullptr;
  for (InChannel* channel : channels)
    if (!channel->demoting() && (!found || channel->last_active() < found->last_active()))
      found = channel;
  return found;
}

bool InChannels::idle(const InChannel* channel) const noexcept {
  return channel && x_entries - channel->last_active() >= kIdleEntries;
}

void InChannels::grant(InChannel& channel) noexcept {
  if (channel.grant_hot()) return channel.put_off_promotion();
  x_unbegun.push_back(&channel);  // promote() reserved the space
  ++x_granted;
}

/// No honest sender refuses a ring that it uses.
void InChannels::take_back(InChannel& channel) noexcept {
  if (!channel.granted() || channel.hot()) return;
  std::erase(x_unbegun, &channel);
  channel.put_off_promotion();
  give_back(channel);
}

void InChannels::give_back(const InChannel& from) noexcept {
  if (std::erase(x_unused, &from)) return;
  --x_granted;
  while (!x_waiting.empty() && x_granted < x_most_hot) {
    InChannel& channel = *x_waiting.front();
    x_waiting.erase(x_waiting.begin());
    if (!channel.granted()) grant(channel);
  }
}

}  // namespace erdma::transport::shm
