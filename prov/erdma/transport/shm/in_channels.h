#pragma once

#include <cstdint>
#include <vector>

#include "transport/shm/cold_rings.h"
#include "transport/shm/in_channel.h"
#include "transport/transport.h"

namespace erdma::transport::shm {

/// The inbound channels of one endpoint: those with a hot ring, at most so many at one time, the
/// others by the places of their cold rings, and who gets a hot ring next. Polling thread only.
class InChannels {
 public:
  explicit InChannels(unsigned most_hot) noexcept : x_most_hot(most_hot) {}
  ~InChannels();

  int poll(Sink& sink) noexcept {
    int moved = 0;
    for (size_t i = 0; i < x_hot.size(); ++i)
      if (x_hot[i]->ready()) moved += x_hot[i]->drain(sink);
    for (Chunk& chunk : x_chunks)
      if (chunk.shared->ready.load(std::memory_order_relaxed) | chunk.again) [[unlikely]]
        moved += drain(chunk, sink);
    return moved;
  }
  bool anything_to_do() const noexcept;
  /// Senders of news ring the doorbell from now on, or no longer do.
  void set_armed(bool on) noexcept;

  void add(InChannel& channel);  ///< in its cold ring; may throw
  /// The channel ends. Its place stays taken until the connector gives it back.
  void forget(InChannel& channel) noexcept;
  /// Looks into the ring that the channel uses from now on, whether or not its bit is set.
  void watch(InChannel& channel) noexcept;
  /// No longer looks into its hot ring.
  void unwatch(InChannel& channel) noexcept { std::erase(x_hot, &channel); }

  /// A channel that sends a lot wants a hot ring: it gets one now, or once the idlest one gave its
  /// own back, or never.
  void promote(InChannel& channel) noexcept;
  /// A hot ring is not used any more.
  void give_back() noexcept;
  /// The clock of activity: entries received so far.
  uint64_t count_entries(uint64_t count) noexcept { return x_entries += count; }

 private:
  struct Chunk {
    ColdChunk* shared;
    uint64_t again;  ///< rings to look at although no bit is set
    InChannel* channels[kColdRings];
  };
  int drain(Chunk& chunk, Sink& sink) noexcept;
  Chunk* chunk_of(const InChannel& channel) noexcept;
  void grant(InChannel& channel) noexcept;

  std::vector<InChannel*> x_hot;
  std::vector<Chunk> x_chunks;
  uint64_t x_entries = 0;
  const unsigned x_most_hot;
  unsigned x_granted = 0;  ///< hot rings
  std::vector<InChannel*> x_waiting;
};

}  // namespace erdma::transport::shm
