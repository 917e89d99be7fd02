#pragma once

#include <cstdint>

namespace erdma::transport::shm {

/// Tells whether the two sides of a link take turns with messages of medium length, as in a
/// ping-pong or an exchange: the peer has sent something since the last one, and this side hardly
/// anything. Otherwise such messages follow each other, and the work on one overlaps with that on
/// the next. A guess: the peer may have sent something that is no answer, such as the fin of an RMA
/// operation.
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

 private:
  static constexpr int32_t kFew = 8;
  uint32_t x_taken = 0, x_pushed = 0;
};

}  // namespace erdma::transport::shm
