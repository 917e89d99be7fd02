#include "transport/shm/in_channels.h"

#include <algorithm>
#include <bit>
#include <new>
#include <utility>

#include "transport/shm/link.h"
#include "util/left_over.h"

namespace erdma::transport::shm {
namespace {

/// A hot peer gives up its ring once this many entries came from others since its last.
constexpr uint64_t kIdleEntries = 1024;

uint64_t bit_of(const InChannel& channel) noexcept {
  return uint64_t(1) << channel.connection()->place.index;
}

}  // namespace

InChannels::~InChannels() {
  util::expect_none_left("hot ring", x_granted);
}

int InChannels::drain(Chunk& chunk, Sink& sink) noexcept {
  uint64_t bits = std::exchange(chunk.again, 0);
  if (chunk.shared->ready.load(std::memory_order_relaxed))
    bits |= exchange_acq_rel(chunk.shared->ready, 0u);
  // Upcalls may make x_chunks grow: `chunk` is not touched while they run.
  const auto at = size_t(&chunk - x_chunks.data());
  int moved = 0;
  uint64_t again = 0;
  for (; bits; bits &= bits - 1) {
    const auto index = uint32_t(std::countr_zero(bits));
    InChannel* channel = x_chunks[at].channels[index];
    if (channel && channel->owner_gate().take_help()) [[unlikely]]
      channel->link().help();
    // Not known yet: its mail is on the way and makes us look again. Hot: what is in the cold ring
    // comes after what is in the hot one.
    if (!channel || channel->hot()) continue;
    const int count = channel->drain(sink);
    moved += count;
    if (!count || channel->hot()) continue;
    again |= uint64_t(1) << index;
    if (channel->sends_a_lot(count)) promote(*channel);
  }
  x_chunks[at].again |= again;
  return moved;
}

bool InChannels::anything_to_do() const noexcept {
  for (const Chunk& chunk : x_chunks)
    if (chunk.again || chunk.shared->ready.load(std::memory_order_relaxed)) return true;
  return std::ranges::any_of(
      x_hot, [](InChannel* channel) { return channel->ready() && !channel->parked(); });
}

void InChannels::set_armed(bool on) noexcept {
  for (Chunk& chunk : x_chunks) chunk.shared->wake.armed.store(on, std::memory_order_relaxed);
}

InChannels::Chunk* InChannels::chunk_of(const InChannel& channel) noexcept {
  for (Chunk& chunk : x_chunks)
    if (chunk.shared == channel.connection()->place.chunk) return &chunk;
  return nullptr;
}

void InChannels::add(InChannel& channel) {
  const ColdPlace& place = channel.connection()->place;
  if (!chunk_of(channel)) x_chunks.push_back({place.chunk, 0, {}});
  Chunk& chunk = *chunk_of(channel);
  chunk.channels[place.index] = &channel;
  chunk.again |= bit_of(channel);
}

void InChannels::forget(InChannel& channel) noexcept {
  if (Chunk* chunk = chunk_of(channel))
    chunk->channels[channel.connection()->place.index] = nullptr;
  unwatch(channel);
  std::erase(x_waiting, &channel);
  if (channel.granted()) give_back();
}

void InChannels::watch(InChannel& channel) noexcept {
  if (channel.hot())
    x_hot.push_back(&channel);  // promote() made room
  else if (Chunk* chunk = chunk_of(channel))
    chunk->again |= bit_of(channel);
}

void InChannels::promote(InChannel& channel) noexcept try {
  if (channel.granted()) return;
  x_hot.reserve(x_most_hot);
  if (x_granted < x_most_hot) return grant(channel);
  if (std::ranges::find(x_waiting, &channel) != x_waiting.end()) return;
  InChannel* idlest = nullptr;
  for (InChannel* hot : x_hot)
    if (!hot->demoting() && (!idlest || hot->last_active() < idlest->last_active())) idlest = hot;
  if (!idlest || x_entries - idlest->last_active() < kIdleEntries) return;
  idlest->ask_to_demote();
  if (idlest->demoting()) x_waiting.push_back(&channel);
} catch (const std::bad_alloc&) {
  // It goes without: the ring that comes free is granted to whoever sends a lot then.
}

void InChannels::grant(InChannel& channel) noexcept {
  if (channel.grant_hot())
    channel.put_off_promotion();
  else
    ++x_granted;
}

void InChannels::give_back() noexcept {
  --x_granted;
  while (!x_waiting.empty() && x_granted < x_most_hot) {
    InChannel& channel = *x_waiting.front();
    x_waiting.erase(x_waiting.begin());
    if (!channel.granted()) grant(channel);
  }
}

}  // namespace erdma::transport::shm
