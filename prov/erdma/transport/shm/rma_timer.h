#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "transport/shm/layout.h"
#include "transport/shm/way_choice.h"
#include "util/clock.h"

namespace erdma::transport::shm {

/// Learns, per class of lengths, whether an access to memory of a peer that polls is faster by a
/// packet, which the peer executes, or by a call of the kernel (CMA). Between the cores of some
/// processors a packet takes a quarter of the time for 16 KiB, on others three times as long. Times
/// operations one at a time, and only those that do not overlap with others. One for all links of
/// an endpoint, which name themselves. Polling thread only.
class RmaTimer {
 public:
  explicit RmaTimer(const util::Clock& clock) noexcept : x_clock(clock) {}

  /// Chooses for the operation that begins now; `length` is above kSlotPayload and at most
  /// kMaxEager. `alone`: no packet of this link is under way.
  bool prefers_packet(const void* link, size_t length, bool alone) noexcept {
    const WayChoice::Way way = x_classes[class_of(length)].choose();
    if (x_link && x_packet) return way.first;  // a packet is being timed
    x_link = way.timed && alone ? link : nullptr;
    if (x_link) {
      x_by_packet = way.first;
      x_length = length;
      x_began = x_clock.now();
    }
    return way.first;
  }
  /// The operation has left in this packet.
  void sent(const void* link, uint64_t packet) noexcept {
    if (x_link != link || x_packet) return;
    if (x_by_packet)
      x_packet = packet;
    else
      x_link = nullptr;
  }
  /// The packet's operation is over. `answered`: by the peer.
  void ended(const void* link, uint64_t packet, bool answered) noexcept {
    if (x_link != link || x_packet != packet) return;
    if (answered) record(true);
    x_link = nullptr;
    x_packet = 0;
  }
  /// So many bytes were accessed by a call.
  void accessed(const void* link, size_t length) noexcept {
    if (x_link != link || x_packet) return;
    if (!x_by_packet && x_length == length) record(false);
    x_link = nullptr;
  }

 private:
  static constexpr size_t kSmallest = 256;  ///< upper bound of the first class; four times as much
                                            ///< is that of the next
  static constexpr size_t kClasses = 4;
  static_assert(kSmallest << 2 * (kClasses - 1) == kMaxEager);
  static size_t class_of(size_t length) noexcept {
    const auto doublings = size_t(std::bit_width((length - 1) / kSmallest));
    return std::min((doublings + 1) / 2, kClasses - 1);
  }
  void record(bool by_packet) noexcept {
    x_classes[class_of(x_length)].record(x_length, by_packet, x_clock.now() - x_began);
  }

  const util::Clock& x_clock;
  WayChoice x_classes[kClasses];
  const void* x_link = nullptr;  ///< null: no operation is being timed
  bool x_by_packet = false;
  size_t x_length = 0;
  uint64_t x_packet = 0;  ///< 0: it has not left, or is no packet
  uint64_t x_began = 0;   ///< ns
};

}  // namespace erdma::transport::shm
