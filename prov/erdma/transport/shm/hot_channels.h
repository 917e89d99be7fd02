#pragma once

#include <cstdint>
#include <vector>

#include "transport/shm/in_channel.h"
#include "transport/transport.h"

namespace erdma::transport::shm {

class ColdChannels;

/// The inbound channels with a hot ring, at most so many at one time, and who gets one next.
/// Polling thread only.
class HotChannels {
 public:
  explicit HotChannels(unsigned most) noexcept : x_most(most) {}
  ~HotChannels();

  int poll(Sink& sink) noexcept {
    int moved = 0;
    for (size_t i = 0; i < x_polled.size(); ++i)
      if (x_polled[i]->ready()) moved += x_polled[i]->drain(sink);
    return moved;
  }
  bool anything_to_do() const noexcept;
  /// A channel that sends a lot wants a hot ring: it gets one now, or once the idlest one gave its
  /// own back, or never.
  void promote(InChannel& channel) noexcept;
  /// Looks into its ring from now on, or no longer does. False: no memory.
  [[nodiscard]] bool add(InChannel& channel) noexcept;
  void remove(InChannel& channel) noexcept { std::erase(x_polled, &channel); }
  /// The channel has no hot ring any more.
  void give_back() noexcept;
  void forget(InChannel& channel) noexcept;
  /// The clock of activity: entries received so far.
  uint64_t count_entries(int count) noexcept { return x_entries += uint64_t(count); }

 private:
  void grant(InChannel& channel) noexcept;

  std::vector<InChannel*> x_polled;
  uint64_t x_entries = 0;
  const unsigned x_most;
  unsigned x_granted = 0;
  std::vector<InChannel*> x_waiting;
};

}  // namespace erdma::transport::shm
