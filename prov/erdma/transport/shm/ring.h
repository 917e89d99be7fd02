#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "transport/shm/eager_streaming.h"
#include "transport/shm/layout.h"

namespace erdma::transport::shm {

/// Where one ring lies: a hot segment, or one ring of a cold chunk (then `bytes` is null).
struct RingMemory {
  Slot* slots = nullptr;
  std::byte* bytes = nullptr;
  std::atomic<uint64_t>* consumed = nullptr;
  std::atomic<uint32_t>* waiting = nullptr;
  uint32_t count = 0;

  static RingMemory hot(HotSegment& segment) noexcept {
    return {segment.slots, segment.bytes, &segment.consumed, &segment.waiting, kHotSlots};
  }
  static RingMemory cold(ColdChunk& chunk, uint32_t index) noexcept {
    ColdControl& control = chunk.controls[index];
    return {chunk.slots[index], nullptr, &control.consumed, &control.waiting, kColdSlots};
  }
};

/// Makes the ring empty at sequence number `start`. Before any sender knows of it.
void reset_ring(const RingMemory& memory, uint32_t start) noexcept;

/// First byte of a payload of `length` in the byte ring, if the previous ones end at `at`: 64-byte
/// aligned, never split. Both sides compute it, so it does not travel.
constexpr uint32_t place_payload(uint32_t at, uint32_t length) noexcept {
  const uint32_t offset = at & (kByteRing - 1);
  return offset + length > kByteRing ? at + (kByteRing - offset) : at;
}
/// Where a payload goes when everything before it was consumed: at the start of the byte ring
/// again, so that few cache lines serve a conversation in which each side waits for the other.
constexpr uint32_t restart_payload(uint32_t at) noexcept {
  return (at + kByteRing - 1) & ~(kByteRing - 1);
}
constexpr uint32_t after_payload(uint32_t at, uint32_t length) noexcept {
  return at + ((length + uint32_t(kLine) - 1) & ~(uint32_t(kLine) - 1));
}

/// Copies at most kSlotPayload bytes without a library call for the usual sizes.
inline void copy_small(std::byte* to, const std::byte* from, size_t length) noexcept {
  if (length == 8) {
    std::memcpy(to, from, 8);
  } else if (length >= 32) {
    std::memcpy(to, from, length);
  } else if (length >= 16) {
    std::byte last[16];
    std::memcpy(last, from + length - 16, 16);
    std::memcpy(to, from, 16);
    std::memcpy(to + length - 16, last, 16);
  } else if (length > 8) {
    uint64_t last;
    std::memcpy(&last, from + length - 8, 8);
    std::memcpy(to, from, 8);
    std::memcpy(to + length - 8, &last, 8);
  } else {
    for (size_t i = 0; i < length; ++i) to[i] = from[i];
  }
}

inline constexpr uint32_t kPrefetchAhead = 8;

/// The sending end of a ring. One thread. Nothing the receiver writes can make it leave the memory.
class RingSender {
 public:
  RingSender() noexcept = default;
  RingSender(const RingMemory& memory, uint32_t start,
             StreamingPolicy streaming = StreamingPolicy::calibrate) noexcept
      : x_memory(memory),
        x_mask(memory.count - 1),
        x_head(start),
        x_limit(start + memory.count),
        x_streaming(streaming) {}

  bool attached() const noexcept { return x_memory.slots != nullptr; }
  bool hot() const noexcept { return x_memory.bytes != nullptr; }

  /// False = no room now. `length` ≤ kSlotPayload, or ≤ kMaxEager in a hot ring.
  bool push(Kind kind, const void* header, const iovec* payload, size_t count,
            size_t length) noexcept {
    if (x_head == x_limit && !refresh()) [[unlikely]]
      return false;
    Slot& slot = x_memory.slots[x_head & x_mask];
    uint32_t word = uint32_t(length) | uint32_t(kind) << 24;
    if (length <= kSlotPayload) [[likely]] {
      if (count == 1) [[likely]]
        copy_small(slot.payload, static_cast<const std::byte*>(payload->iov_base), length);
      else
        gather_small(slot.payload, payload, count, length);
    } else if (!push_bytes(payload, count, uint32_t(length), word)) {
      return false;
    }
    std::memcpy(slot.header, header, kHeaderBytes);
    ++x_head;
    slot.stamp.store(uint64_t(word) << 32 | x_head, std::memory_order_release);
    // Own the line of a later entry before it is needed; not of the next, which the receiver polls.
    __builtin_prefetch(&x_memory.slots[(x_head + kPrefetchAhead) & x_mask], 1);
    return true;
  }

  /// True if at least `slots` entries without long payload fit.
  bool room_for(uint32_t slots) noexcept {
    return x_limit - x_head >= slots || (refresh(), x_limit - x_head >= slots);
  }
  /// Everything pushed was consumed.
  bool drained() noexcept;
  /// The receiver is to wake this process once it consumed something; false again with off().
  void set_waiting(bool on) noexcept { x_memory.waiting->store(on, std::memory_order_relaxed); }
  /// Consumption was announced since the last refresh: a push that failed may succeed now.
  bool moved() const noexcept {
    return x_memory.consumed->load(std::memory_order_relaxed) != x_seen;
  }

 private:
  bool refresh() noexcept;
  bool push_bytes(const iovec* payload, size_t count, uint32_t length, uint32_t& word) noexcept;
  void write_bytes(std::byte* to, const void* from, uint32_t length) noexcept;
  static void gather_small(std::byte* to, const iovec* payload, size_t count,
                           size_t length) noexcept;

  RingMemory x_memory;
  uint32_t x_mask = 0;
  uint32_t x_head = 0;   ///< sequence number of the next entry
  uint32_t x_limit = 0;  ///< may push while head != limit
  uint32_t x_byte_head = 0;
  uint32_t x_byte_tail = 0;  ///< as announced by the receiver
  uint64_t x_seen = 0;       ///< last value of *consumed
  EagerStreaming x_streaming;
};

/// One entry as the receiver sees it. header and payload point into shared memory.
struct RingEntry {
  Kind kind;
  uint32_t length;
  const std::byte* header;
  const std::byte* payload;
};

/// The receiving end. One thread. Trusts nothing in the ring.
class RingReceiver {
 public:
  RingReceiver() noexcept = default;
  RingReceiver(const RingMemory& memory, uint32_t start) noexcept
      : x_memory(memory), x_mask(memory.count - 1), x_tail(start), x_published(start) {}

  bool attached() const noexcept { return x_memory.slots != nullptr; }
  bool ready() const noexcept {
    const Slot& slot = x_memory.slots[x_tail & x_mask];
    return uint32_t(slot.stamp.load(std::memory_order_acquire)) == x_tail + 1;
  }
  /// After ready(). False = a length that no honest sender writes.
  bool peek(RingEntry& entry) noexcept {
    const Slot& slot = x_memory.slots[x_tail & x_mask];
    const uint32_t word = uint32_t(slot.stamp.load(std::memory_order_relaxed) >> 32);
    entry = {Kind(word >> 24 & 0x7f), word & 0xffffff, slot.header, slot.payload};
    if (entry.length <= kSlotPayload) [[likely]]
      return true;
    if (!x_memory.bytes || entry.length > kMaxEager) return false;
    x_byte_tail =
        word & kRestart ? restart_payload(x_byte_tail) : place_payload(x_byte_tail, entry.length);
    entry.payload = x_memory.bytes + (x_byte_tail & (kByteRing - 1));
    x_byte_tail = after_payload(x_byte_tail, entry.length);
    return true;
  }
  /// The entry that peek() gave is done with. True = its space should be announced now.
  bool advance() noexcept { return ++x_tail - x_published >= x_memory.count / 4; }
  bool unpublished() const noexcept { return x_tail != x_published; }
  /// Returns the space to the sender. True = it asked for a wake-up.
  bool publish() noexcept {
    x_published = x_tail;
    x_memory.consumed->store(uint64_t(x_byte_tail) << 32 | x_tail, std::memory_order_release);
    return x_memory.waiting->load(std::memory_order_relaxed) != 0;
  }
  /// True once per announcement of the sender that it sleeps.
  bool take_waiting() noexcept {
    return x_memory.waiting->load(std::memory_order_relaxed) &&
           x_memory.waiting->exchange(0, std::memory_order_acq_rel);
  }

 private:
  RingMemory x_memory;
  uint32_t x_mask = 0;
  uint32_t x_tail = 0;  ///< sequence number of the next entry
  uint32_t x_byte_tail = 0;
  uint32_t x_published = 0;
};

}  // namespace erdma::transport::shm
