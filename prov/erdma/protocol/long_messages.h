#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace erdma::protocol {

/// Guesses whether long messages to a peer will be unexpected. In fragments, such a message is
/// copied once more there, and needs as much memory; a rendezvous waits for the receive. So after
/// one, of which the receiver tells, a number of long messages are taken to be unexpected: more
/// each time, until as many again were not.
class LongMessages {
 public:
  /// Messages above this length are long.
  static constexpr size_t kLong = size_t{128} * 1024;
  static constexpr uint16_t kFirstPause = 64, kLongestPause = 4096;  ///< messages

  /// Returns whether the next long message is likely to find its receive posted.
  bool expected() const noexcept { return !x_pausing; }
  /// The first packet of a long message has left.
  void sent(bool in_fragments) noexcept {
    if (x_left == 0 || in_fragments == x_pausing || --x_left > 0) return;
    if (x_pausing)
      x_left = pause();
    else
      x_pauses = 0;
    x_pausing = false;
  }
  /// A long message was unexpected. Further ones during the pause do not count.
  void came_unexpected() noexcept {
    if (x_pausing) return;
    if (x_pauses < kDoublings + 1) ++x_pauses;
    x_left = pause();
    x_pausing = true;
  }

 private:
  static constexpr unsigned kDoublings = std::countr_zero(unsigned(kLongestPause / kFirstPause));

  uint16_t pause() const noexcept { return uint16_t(kFirstPause << (x_pauses - 1)); }

  // Most peers are silent, so this is small.
  uint16_t x_left = 0;   ///< messages until the pause is over, or until the last one is forgotten
  uint8_t x_pauses = 0;  ///< since none was known; at most kDoublings + 1
  bool x_pausing = false;
};
static_assert(sizeof(LongMessages) == 4);

}  // namespace erdma::protocol
