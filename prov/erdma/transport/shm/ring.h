#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hmem/copy.h"
#include "transport/shm/eager_streaming.h"
#include "transport/shm/layout.h"
#include "transport/shm/ordering.h"

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
/// aligned, never split, never in the last kHotControl bytes. Both sides compute it: it does not
/// travel.
constexpr uint32_t place_payload(uint32_t at, uint32_t length) noexcept {
  const uint32_t offset = at & (kByteRing - 1);
  return offset + length > kPayloadEnd ? at + (kByteRing - offset) : at;
}
/// The same, of a sender that starts over at the beginning of the byte ring (kRestart).
constexpr uint32_t restart_payload(uint32_t at) noexcept {
  return (at + kByteRing - 1) & ~(kByteRing - 1);
}
constexpr uint32_t after_payload(uint32_t at, uint32_t length) noexcept {
  return at + ((length + uint32_t(kLine) - 1) & ~(uint32_t(kLine) - 1));
}

inline constexpr uint32_t kPrefetchAhead = 8;
/// Shorter payloads start over whenever everything before them was consumed, so that few lines
/// serve a conversation. Longer ones go round: to write lines that the receiver still has in its
/// first cache is slow.
inline constexpr uint32_t kLeastRound = 1024;
/// A sender whose receiver keeps up goes round in the first part of the byte ring.
inline constexpr uint32_t kRound = kByteRing / 2;

/// Fetches a line in order to write it. What __builtin_prefetch(p, 1) makes of it without -mprfchw
/// fetches a copy to read, and the write must ask the other core again.
inline void own_line(const void* line) noexcept {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
#else
  __builtin_prefetch(line, 1);
#endif
}

/// Word by word: it was stored so just before, and a wider load would wait until that has left the
/// store buffer. The compiler would join the words.
inline void copy_header(std::byte* to, const void* from) noexcept {
#pragma GCC unroll 4
  for (size_t i = 0; i < kHeaderBytes; i += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, static_cast<const std::byte*>(from) + i, sizeof(word));
    asm("" : "+r"(word));
    std::memcpy(to + i, &word, sizeof(word));
  }
}

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

  /// False = no room now. `length` ≤ kSlotPayload, or ≤ kMaxEager in a hot ring. Inlined where
  /// messages are sent: the call costs a fifth of it.
  [[gnu::always_inline]] bool push(Kind kind, const void* header, const iovec* payload,
                                   size_t count, size_t length) noexcept {
    if (x_head == x_limit && !refresh()) [[unlikely]]
      return false;
    Slot& slot = x_memory.slots[x_head & x_mask];
    uint32_t place = 0;
    if (count == 1 && length <= kSlotPayload) [[likely]] {
      hmem::copy_short(slot.payload, payload->iov_base, length);
    } else {
      place = put(slot, payload, count, length);
      if (place == kNoRoom) return false;
    }
    finish(slot, uint32_t(length) | uint32_t(kind) << 24 | place, header);
    return true;
  }

  /// Pushes a packet that may be taken back, of the name `sequence`. False = no room: no more than
  /// half of the ring is filled with what may have to be skipped. `length` ≤ kSlotPayload.
  bool push_retractable(const void* header, const iovec* payload, size_t count, size_t length,
                        uint32_t& sequence) noexcept;
  bool retract(uint32_t sequence) noexcept;
  void retracted(uint32_t sequence, bool executed) noexcept;

  /// True if at least `slots` entries without long payload fit.
  bool room_for(uint32_t slots) noexcept {
    return x_limit - x_head >= slots || (refresh(), x_limit - x_head >= slots);
  }
  /// All that was pushed is consumed.
  bool drained() noexcept {
    return uint32_t(x_seen) == x_head || (refresh(), uint32_t(x_seen) == x_head);
  }
  /// Entries without long payload that fit.
  uint32_t room() noexcept { return room_for(1) ? x_limit - x_head : 0; }
  /// The receiver is to wake this process once it consumed something; false again with off().
  void set_waiting(bool on) noexcept { x_memory.waiting->store(on, std::memory_order_relaxed); }
  /// Consumption was announced since the last refresh: a push that failed may succeed now.
  bool moved() const noexcept {
    return x_memory.consumed->load(std::memory_order_relaxed) != x_seen;
  }

 private:
  bool refresh() noexcept;
  static constexpr uint32_t kNoRoom = UINT32_MAX;
  uint32_t put(Slot& slot, const iovec* payload, size_t count, size_t length) noexcept;
  uint32_t put_bytes(const iovec* payload, size_t count, uint32_t length) noexcept;
  bool starts_over(uint32_t at, uint32_t length) noexcept;
  bool bytes_fit(uint32_t at, uint32_t length) noexcept;
  void write_bytes(std::byte* to, const void* from, uint32_t length) noexcept;

  void finish(Slot& slot, uint32_t word, const void* header) noexcept {
    copy_header(slot.header, header);
    const uint32_t head = x_head + 1;
    store_release(slot.stamp, uint64_t(word) << 32 | head);
    x_head = head;
    // Own the line of a later entry before it is needed; not of the next, which the receiver polls.
    own_line(&x_memory.slots[(head + kPrefetchAhead) & x_mask]);
  }

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
  Kind kind;  ///< kBroken: a length that no honest sender writes
  uint32_t length;
  const std::byte* header;
  const std::byte* payload;
};

/// The receiving end. One thread. Trusts nothing in the ring.
class RingReceiver {
 public:
  RingReceiver() noexcept = default;
  RingReceiver(const RingMemory& memory, uint32_t start) noexcept
      : x_memory(memory),
        x_mask(memory.count - 1),
        x_tail(start),
        x_published(start),
        x_publish_at(start + memory.count / 4) {}

  bool ready() const noexcept { return uint32_t(stamp()) == x_tail + 1; }
  /// The entry that is ready. False = there is none.
  bool next(RingEntry& entry) noexcept {
    const uint64_t found = stamp();
    if (uint32_t(found) != x_tail + 1) return false;
    const Slot& slot = x_memory.slots[x_tail & x_mask];
    const auto word = uint32_t(found >> 32);
    entry = {Kind(word >> 24 & 0x7f), word & 0xffffff, slot.header, slot.payload};
    if (entry.length > kSlotPayload) [[unlikely]]
      find_bytes(entry, word);
    return true;
  }
  /// The entry that is ready was taken back: there is nothing to do until that is over.
  bool parked() const noexcept;
  /// The entry that next() gave is retractable: it is delivered now. False: its sender took it
  /// back.
  bool take() noexcept;
  /// The header of the entry after the one that next() gave; null = there is none yet.
  const std::byte* following() const noexcept {
    const Slot& slot = x_memory.slots[(x_tail + 1) & x_mask];
    return uint32_t(load_acquire(slot.stamp)) == x_tail + 2 ? slot.header : nullptr;
  }
  /// next() is to give the same entry again.
  void stay(const RingEntry& entry) noexcept {
    if (entry.length > kSlotPayload) x_byte_tail = x_byte_before;
  }
  /// The entry that next() gave is done with. True = its space should be announced now.
  bool advance() noexcept { return ++x_tail == x_publish_at; }
  bool unpublished() const noexcept { return x_tail != x_published; }
  /// Returns the space to the sender. True = it asked for a wake-up.
  bool publish() noexcept {
    x_published = x_tail;
    x_publish_at = x_tail + x_memory.count / 4;
    x_byte_published = x_byte_tail;
    store_release(*x_memory.consumed, uint64_t(x_byte_tail) << 32 | x_tail);
    return x_memory.waiting->load(std::memory_order_relaxed) != 0;
  }
  /// True once per announcement of the sender that it sleeps. For what it makes a barrier on this
  /// processor (ShmTransport::announce_waiting): its space in the ring.
  bool take_waiting() noexcept {
    return x_memory.waiting->load(std::memory_order_relaxed) &&
           exchange_acq_rel(*x_memory.waiting, 0u);
  }
  /// The same for whatever else was published.
  bool take_sleeper() noexcept { return shm::take_sleeper(*x_memory.waiting); }

 private:
  uint64_t stamp() const noexcept { return load_acquire(x_memory.slots[x_tail & x_mask].stamp); }
  void find_bytes(RingEntry& entry, uint32_t word) noexcept;

  RingMemory x_memory;
  uint32_t x_mask = 0;
  uint32_t x_tail = 0;  ///< sequence number of the next entry
  uint32_t x_byte_tail = 0;
  uint32_t x_byte_before = 0;  ///< before find_bytes()
  uint32_t x_published = 0;
  uint32_t x_publish_at = 0;  ///< at most a quarter of the slots after x_published
  uint32_t x_byte_published = 0;
};

}  // namespace erdma::transport::shm
