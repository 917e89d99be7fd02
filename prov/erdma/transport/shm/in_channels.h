#pragma once

#include <cstdint>
#include <vector>

#include "transport/shm/cold_rings.h"
#include "transport/shm/in_channel.h"
#include "transport/transport.h"

namespace erdma::transport::shm {

/// The inbound channels of one endpoint: those with a hot ring, up to a limit, and the others by
/// the place of their cold ring. Decides which gets a hot ring next. Polling thread only.
class InChannels {
 public:
  explicit InChannels(unsigned most_hot) noexcept : x_most_hot(most_hot) {}
  ~InChannels();

  int poll(Sink& sink) noexcept {
    int moved = 0;
    x_leave_rest = false;
    size_t at = x_first;
    for (size_t left = x_hot.size(); left > 0 && !x_leave_rest && !x_hot.empty(); --left, ++at) {
      if (at >= x_hot.size()) at = 0;
      if (x_hot[at]->ready()) moved += x_hot[at]->drain(sink);
    }
    x_first = at;
    for (Chunk& chunk : x_chunks)
      if (chunk.shared->ready.load(std::memory_order_relaxed) | chunk.again) [[unlikely]]
        moved += drain(chunk, sink);
    return moved;
  }
  bool anything_to_do() const noexcept;
  /// Tells senders whether to ring the doorbell for new entries.
  void set_armed(bool on) noexcept;
  /// Shows a sign of this endpoint's core to the senders (core_sign.h).
  void show_core(uint64_t sign) noexcept;

  void add(InChannel& channel);  ///< with its cold ring; may throw
  /// The channel ends. Its place stays taken until the connector releases it.
  void forget(InChannel& channel) noexcept;
  /// Looks into the ring that the channel uses from now on, whether or not its bit is set.
  void watch(InChannel& channel) noexcept;
  /// Stops looking into the hot ring of the channel.
  void unwatch(InChannel& channel) noexcept { std::erase(x_hot, &channel); }

  /// The channel sends a lot and wants a hot ring. It gets one now, or once the idlest channel has
  /// given its own back, or never.
  void promote(InChannel& channel) noexcept;
  /// The sender cannot take the hot ring that the channel has granted.
  void take_back(InChannel& channel) noexcept;
  /// The channel's hot ring is no longer in use.
  void give_back(const InChannel& from) noexcept;
  /// Called by drain(): the sink is served (Sink::take_served()), so the other hot rings have their
  /// turn at the next poll(), before this one.
  void leave_rest() noexcept { x_leave_rest = true; }
  /// The clock of activity: the number of entries received so far.
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
  static InChannel* idlest(const std::vector<InChannel*>& channels) noexcept;
  bool idle(const InChannel* channel) const noexcept;

  std::vector<InChannel*> x_hot;
  size_t x_first = 0;  ///< the hot ring whose turn it is; may be out of range
  bool x_leave_rest = false;
  std::vector<Chunk> x_chunks;
  uint64_t x_entries = 0;
  uint32_t x_sleeps = 0;  ///< number of the last sleep; 0 = there was none
  const unsigned x_most_hot;
  unsigned x_granted = 0;  ///< hot rings, without those of x_unused
  std::vector<InChannel*> x_waiting;
  std::vector<InChannel*> x_unbegun;  ///< have a hot ring that their senders do not use yet
  /// Were of x_unbegun, and their senders were asked to give the ring back. Each keeps its memory
  /// until the sender answers, so there are at most x_most_hot.
  std::vector<const InChannel*> x_unused;
};

}  // namespace erdma::transport::shm
