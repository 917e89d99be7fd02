#include "transport/shm/cold_rings.h"

#include <bit>

#include "transport/shm/region_gate.h"
#include "transport/shm/ring.h"

namespace erdma::transport::shm {

util::Result<ColdPlace> ColdRings::acquire(bool registered) {
  std::lock_guard guard(x_mutex);
  size_t at = 0;
  while (at < x_chunks.size() && x_chunks[at].used == UINT64_MAX) ++at;
  if (at == x_chunks.size())
    if (const int rc = grow()) return rc;
  Chunk& chunk = x_chunks[at];
  const auto index = uint32_t(std::countr_one(chunk.used));
  // Backed now, because peers' writes must not fail for lack of memory; rings not in use stay
  // unbacked.
  if (const int rc = chunk.segment.back(offsetof(ColdChunk, slots) + size_t{index} * kColdRingBytes,
                                        kColdRingBytes))
    return rc;
  chunk.used |= uint64_t(1) << index;
  x_all_registered = x_all_registered && registered;
  const ColdPlace place{&chunk.segment.as<ColdChunk>(), index};
  ColdControl& control = place.chunk->controls[index];
  control.left.store(0, std::memory_order_relaxed);
  control.revocations.store(OwnerGate::kClosed, std::memory_order_relaxed);
  control.inside.store(0, std::memory_order_relaxed);
  control.help.store(0, std::memory_order_relaxed);
  reset_ring(RingMemory::cold(*place.chunk, index), 0);
  return place;
}

int ColdRings::descriptor_of(const ColdPlace& place) noexcept {
  const std::lock_guard guard(x_mutex);
  for (const Chunk& chunk : x_chunks)
    if (chunk.segment.data() == place.chunk) return chunk.segment.fd();
  return -1;
}

void ColdRings::release(const ColdPlace& place) noexcept {
  std::lock_guard guard(x_mutex);
  for (Chunk& chunk : x_chunks)
    if (chunk.segment.data() == place.chunk) chunk.used &= ~(uint64_t(1) << place.index);
}

bool ColdRings::announce_sleep() noexcept {
  std::lock_guard guard(x_mutex);
  x_sleeps = true;
  for (Chunk& chunk : x_chunks) store_release(chunk.segment.as<ColdChunk>().wake.may_sleep, 1u);
  return x_all_registered;
}

bool ColdRings::announce_polling() noexcept {
  std::lock_guard guard(x_mutex);
  if (!x_all_registered) return false;
  x_sleeps = false;
  for (Chunk& chunk : x_chunks)
    chunk.segment.as<ColdChunk>().wake.may_sleep.store(0, std::memory_order_relaxed);
  return true;
}

int ColdRings::grow() {
  auto segment = Memfd::create("erdma-cold", kColdChunkBytes, kShmPage);
  if (!segment) return segment.error();
  segment->as<ColdChunk>().wake.may_sleep.store(x_sleeps, std::memory_order_relaxed);
  x_chunks.push_back({std::move(*segment), 0});
  return 0;
}

}  // namespace erdma::transport::shm
