#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "transport/verbs/own_memory.h"
#include "transport/verbs/refused_size.h"

namespace erdma::transport::verbs {

/// Sinks of one connection's READs that are too short to look up a registration. Not shared: on
/// iWARP the peer of a READ learns address and key of its sink, and may write there as long as it
/// is registered. Made with the first READ. Polling thread only.
class ReadBuffers {
 public:
  static constexpr uint32_t kSlots = 16;  ///< of each size; a connection has fewer READs in flight
  static constexpr size_t kShortBytes = 64;
  static constexpr size_t kLongBytes = 4096;
  static constexpr uint32_t kNone = 2 * kSlots;

  /// Returns a slot of kShortBytes, or kNone if there is no memory for it.
  uint32_t acquire_short(const Device& device) noexcept {
    return x_free & kAllShort || prepare(device, x_short, kShortBytes, kAllShort)
               ? take(x_free & kAllShort)
               : kNone;
  }
  /// Returns a slot of kLongBytes, or kNone if there is no memory for it.
  uint32_t acquire_long(const Device& device) noexcept {
    return has_long(device) ? take(x_free & ~kAllShort) : kNone;
  }
  bool has_long(const Device& device) noexcept {
    return x_free & ~kAllShort || prepare(device, x_long, kLongBytes, ~kAllShort);
  }
  void release(uint32_t slot) noexcept { x_free |= 1u << slot; }

  std::byte* bytes(uint32_t slot) const noexcept {
    return slot < kSlots ? x_short.bytes() + slot * kShortBytes
                         : x_long.bytes() + (slot - kSlots) * kLongBytes;
  }
  uint32_t lkey(uint32_t slot) const noexcept {
    return slot < kSlots ? x_short.lkey() : x_long.lkey();
  }

 private:
  static constexpr uint32_t kAllShort = (1u << kSlots) - 1;

  uint32_t take(uint32_t among) noexcept {
    const auto slot = uint32_t(std::countr_zero(among));
    x_free &= ~(1u << slot);
    return slot;
  }
  bool prepare(const Device& device, OwnMemory& memory, size_t bytes, uint32_t slots) noexcept;

  uint32_t x_free = 0;
  RefusedSize x_refused;
  OwnMemory x_short, x_long;
};

}  // namespace erdma::transport::verbs
