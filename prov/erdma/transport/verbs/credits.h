#pragma once

#include <algorithm>
#include <cstdint>

namespace erdma::transport::verbs {

/// Flow control of one connection, seen from one side: the receives that the peer has posted for
/// this side, and the credits that this side has to return for receives posted again. No I/O.
///
/// Two sides that flood each other never block for good: only a credit packet may use the last
/// credit, and it always carries at least one credit itself. So the side that received last can
/// send, and a side that can send and has half a window to return does send. The exchange comes to
/// rest: a credit packet carries at least two credits and costs the peer one, so the total that
/// both have to return shrinks. test/transport/verbs_credits_test.cc checks every state of small
/// windows.
class Credits {
 public:
  static constexpr uint32_t kMinWindow = 4;

  /// `granted`: receives posted by the peer. `window`: receives posted by this side.
  void start(uint32_t granted, uint32_t window) noexcept {
    x_available = granted;
    x_granted = granted;
    set_window(window);
  }
  /// This side's window grows: it posted `more` additional receives.
  void grow(uint32_t more) noexcept {
    set_window(x_window + more);
    x_to_return += more;
    x_urgent = true;
  }
  /// That many receives of this side were consumed and are not posted again.
  void shrink(uint32_t fewer) noexcept { set_window(x_window - fewer); }

  bool may_send() const noexcept { return x_available >= 2; }
  bool may_send_credit() const noexcept { return x_available >= 1 && x_to_return >= 1; }
  /// True if a stream may send: streams leave credits for all other packets. The bound is less than
  /// what remains when the peer has half a window to return and posts in batches of a quarter.
  bool plenty() const noexcept { return x_available > std::max(x_granted / 8, 1u); }
  uint32_t available() const noexcept { return x_available; }
  uint32_t to_return() const noexcept { return x_to_return; }
  uint32_t window() const noexcept { return x_window; }

  /// A packet leaves. Returns the credits that it carries to the peer.
  uint16_t consume() noexcept {
    --x_available;
    const uint32_t carried = std::min<uint32_t>(x_to_return, UINT16_MAX);
    x_to_return -= carried;
    x_urgent = false;
    return uint16_t(carried);
  }
  /// The packet was not sent after all.
  void unconsume(uint16_t carried) noexcept {
    ++x_available;
    x_to_return += carried;
  }

  /// A packet arrived. False: it claims more receives than the peer can have posted.
  [[nodiscard]] bool receive(uint16_t credits) noexcept {
    x_available += credits;
    x_granted = std::max(x_granted, x_available);
    return x_available <= kMostGranted;
  }
  /// Receives were posted again: only from now on may packets carry their credits.
  void repost(uint32_t count) noexcept { x_to_return += count; }

  /// True if a credit packet must be sent: no other packet leaves, and the peer may be waiting.
  bool must_return() const noexcept { return x_urgent || x_to_return >= x_return_at; }

 private:
  /// No receive queue is longer.
  static constexpr uint32_t kMostGranted = 32'768;

  void set_window(uint32_t window) noexcept {
    x_window = window;
    x_return_at = std::max(window / 2, 2u);
  }

  uint32_t x_available = 0;
  uint32_t x_to_return = 0;
  uint32_t x_return_at = 1;
  uint32_t x_window = 0;
  uint32_t x_granted = 0;  ///< the most that were ever available
  bool x_urgent = false;
};

}  // namespace erdma::transport::verbs
