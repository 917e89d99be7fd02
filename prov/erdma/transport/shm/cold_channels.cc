#include "transport/shm/cold_channels.h"

#include <bit>
#include <utility>

#include "transport/shm/hot_channels.h"
#include "transport/shm/link.h"

namespace erdma::transport::shm {

int ColdChannels::drain(Chunk& chunk, Sink& sink) noexcept {
  uint64_t bits = std::exchange(chunk.again, 0);
  if (chunk.shared->ready.load(std::memory_order_relaxed))
    bits |= chunk.shared->ready.exchange(0, std::memory_order_acq_rel);
  // Upcalls may make x_chunks grow: `chunk` is not touched while they run.
  const auto at = size_t(&chunk - x_chunks.data());
  int moved = 0;
  uint64_t again = 0;
  for (; bits; bits &= bits - 1) {
    const auto index = uint32_t(std::countr_zero(bits));
    InChannel* channel = x_chunks[at].channels[index];
    if (channel && channel->lending().take_help()) [[unlikely]]
      channel->link().help();
    // Not known yet: its mail is on the way and makes us look again. Hot: what is in the cold ring
    // comes after what is in the hot one.
    if (!channel || channel->hot()) continue;
    const int count = channel->drain(sink);
    moved += count;
    if (!count || channel->hot()) continue;
    again |= uint64_t(1) << index;
    if (channel->sends_a_lot(count)) x_hot.promote(*channel);
  }
  x_chunks[at].again |= again;
  return moved;
}

bool ColdChannels::anything_to_do() const noexcept {
  for (const Chunk& chunk : x_chunks)
    if (chunk.again || chunk.shared->ready.load(std::memory_order_relaxed)) return true;
  return false;
}

ColdChannels::Chunk* ColdChannels::find(const ColdPlace& place) noexcept {
  for (Chunk& chunk : x_chunks)
    if (chunk.shared == place.chunk) return &chunk;
  return nullptr;
}

void ColdChannels::add(InChannel& channel) {
  const ColdPlace& place = channel.connection()->place;
  if (!find(place)) x_chunks.push_back({place.chunk, 0, {}});
  find(place)->channels[place.index] = &channel;
  look_again(place);
}

void ColdChannels::forget(InChannel& channel) noexcept {
  const ColdPlace& place = channel.connection()->place;
  if (Chunk* chunk = find(place)) chunk->channels[place.index] = nullptr;
}

void ColdChannels::look_again(const ColdPlace& place) noexcept {
  if (Chunk* chunk = find(place)) chunk->again |= uint64_t(1) << place.index;
}

void ColdChannels::set_armed(bool on) noexcept {
  for (Chunk& chunk : x_chunks) chunk.shared->wake.armed.store(on, std::memory_order_relaxed);
}

}  // namespace erdma::transport::shm
