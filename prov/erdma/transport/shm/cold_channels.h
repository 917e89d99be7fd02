#pragma once

#include <cstdint>
#include <vector>

#include "transport/shm/cold_rings.h"
#include "transport/shm/in_channel.h"
#include "transport/transport.h"

namespace erdma::transport::shm {

class HotChannels;

/// The inbound channels by the places of their cold rings. Polling thread only.
class ColdChannels {
 public:
  explicit ColdChannels(HotChannels& hot) noexcept : x_hot(hot) {}

  int poll(Sink& sink) noexcept {
    int moved = 0;
    for (Chunk& chunk : x_chunks)
      if (chunk.shared->ready.load(std::memory_order_relaxed) | chunk.again) [[unlikely]]
        moved += drain(chunk, sink);
    return moved;
  }
  bool anything_to_do() const noexcept;
  void add(InChannel& channel);  ///< may throw
  void forget(InChannel& channel) noexcept;
  /// The ring is looked at next, whether or not its bit is set.
  void look_again(const ColdPlace& place) noexcept;
  /// Senders of news ring the doorbell from now on, or no longer do.
  void set_armed(bool on) noexcept;

 private:
  struct Chunk {
    ColdChunk* shared;
    uint64_t again;  ///< rings to look at although no bit is set
    InChannel* channels[kColdRings];
  };
  int drain(Chunk& chunk, Sink& sink) noexcept;
  Chunk* find(const ColdPlace& place) noexcept;

  std::vector<Chunk> x_chunks;
  HotChannels& x_hot;
};

}  // namespace erdma::transport::shm
