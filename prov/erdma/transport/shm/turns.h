#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace erdma::transport::shm {

/// Tells whether the two sides of a link take turns with messages of medium length, as in a
/// ping-pong or an exchange: the peer has sent something since the last one, and this side hardly
/// anything. Otherwise such messages follow each other, one way or both ways, and the work on one
/// overlaps with that on the next. A guess: the peer may have sent something that is no answer,
/// such as the fin of an RMA operation. Tells also whether messages go both ways for long, by the
/// bytes that move.
class Turns {
 public:
  /// To be asked for each message, before it is sent. `taken`: entries of the peer's ring that this
  /// side has taken. `pushed`: entries that this side has pushed before. `entries`: those of the
  /// message, if it goes in packets. All wrap around.
  bool answered(uint32_t taken, uint32_t pushed, uint32_t entries) noexcept {
    const bool yes = int32_t(taken - x_taken) > 0 && int32_t(pushed - x_pushed) <= kFew;
    x_taken = taken;
    x_pushed = pushed + entries;
    return yes;
  }
  /// A rendezvous begins, so the peer will send a fin, which is no answer.
  void expect_fin() noexcept { ++x_taken; }

  /// So many bytes of a long message have left, by a copy or a rendezvous.
  void sends(size_t length) noexcept { count(x_sent, length); }
  /// So many bytes of a long message of the peer have arrived, or are being read.
  void takes(size_t length) noexcept { count(x_received, length); }
  /// Either side has sent at least a quarter of what the other one has, and has not fallen silent
  /// since. Even if both always have something to send, one may be far ahead for a while.
  bool both_ways() const noexcept { return x_windows > 0; }

  static constexpr uint32_t kWindow = uint32_t{8} << 20;  ///< bytes of both directions
  static constexpr uint8_t kPatience = 16;                ///< windows, of which half are new bytes

 private:
  void count(uint32_t& bytes, size_t length) noexcept {
    bytes += uint32_t(std::min<size_t>(length, kWindow));
    if (x_sent + x_received < kWindow) return;
    if (std::min(x_sent, x_received) >= std::max(x_sent, x_received) / 4)
      x_windows = kPatience;
    else if (x_windows > 0)
      --x_windows;
    x_sent /= 2;
    x_received /= 2;
  }

  static constexpr int32_t kFew = 8;
  uint32_t x_taken = 0, x_pushed = 0;
  uint32_t x_sent = 0, x_received = 0;  ///< bytes; those of earlier windows count less and less
  uint8_t x_windows = 0;                ///< until messages count as one way
};

}  // namespace erdma::transport::shm
