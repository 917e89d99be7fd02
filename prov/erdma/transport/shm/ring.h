#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hmem/copy.h"
#include "hmem/copy_choice.h"
#include "transport/shm/core_sharing.h"
#include "transport/shm/layout.h"
#include "transport/shm/options.h"
#include "transport/shm/ordering.h"
#include "transport/shm/recent_links.h"

namespace erdma::transport::shm {

/// Location of one ring: a hot segment, or one ring of a cold chunk (then `bytes` is null).
struct RingMemory {
  Slot* slots = nullptr;
  std::byte* bytes = nullptr;
  std::atomic<uint64_t>* consumed = nullptr;
  std::atomic<uint32_t>* waiting = nullptr;
  std::atomic<uint32_t>* take_rate = nullptr;

  uint32_t count() const noexcept { return bytes ? kHotSlots : kColdSlots; }
  static RingMemory hot(HotSegment& segment) noexcept {
    return {segment.slots, segment.bytes, &segment.consumed, &segment.waiting, &segment.take_rate};
  }
  static RingMemory cold(ColdChunk& chunk, uint32_t index) noexcept {
    ColdControl& control = chunk.controls[index];
    return {chunk.slots[index], nullptr, &control.consumed, &control.waiting, nullptr};
  }
};

/// Makes the ring empty at sequence number `start`. Call before any sender knows the ring.
void reset_ring(const RingMemory& memory, uint32_t start) noexcept;

/// First byte of a payload of `length` in the byte ring if the previous payload ended at `at`:
/// 64-byte aligned, never split, never in the last kHotControl bytes. Both sides compute it, so it
/// is not transmitted. `gap`: kBehindGap.
constexpr uint32_t place_payload(uint32_t at, uint32_t length, bool gap) noexcept {
  const uint32_t end = at & (kByteRing - 1), begin = end + (gap && end > 0 ? kPayloadGap : 0);
  return at - end + (begin + length > kPayloadEnd ? kByteRing : begin);
}
/// The same where the sender restarts at the beginning of the byte ring (kRestart).
constexpr uint32_t restart_payload(uint32_t at) noexcept {
  return (at + kByteRing - 1) & ~(kByteRing - 1);
}
/// End of a payload that lies at `at`. One line stays unused after whole pages: a stream of
/// payloads that all begin at the same offset in a page carries less (4 KiB on Intel: three
/// quarters).
constexpr uint32_t after_payload(uint32_t at, uint32_t length) noexcept {
  const uint32_t bytes = (length + uint32_t(kLine) - 1) & ~(uint32_t(kLine) - 1);
  return at + bytes + (bytes % kShmPage == 0 ? uint32_t(kLine) : 0);
}
/// From one payload of `length` to the next with a gap.
constexpr uint32_t stride_of(uint32_t length) noexcept {
  return after_payload(0, length) + kPayloadGap;
}
inline constexpr uint32_t kMostStride = stride_of(kMaxEager);

/// The slot of the entry with this sequence number, in a ring of `mask` + 1 slots.
constexpr uint32_t slot_of(uint32_t sequence, uint32_t mask) noexcept {
  return sequence * kSlotStep & mask;
}

/// A payload from this length on is long: its copy takes most of the time of its packet.
inline constexpr uint32_t kLongPayload = 4096;
/// A receiver publishes the room of its byte ring at least this often.
inline constexpr uint32_t kPublishBytes = kByteRing / 32;
/// Payloads go on to lines that were not used for a while: to write lines that are still in the
/// receiver's L1 cache is slow, and to learn that the ring is empty the sender would have to fetch
/// another line. Shorter ones than this need few lines: while there are no others, they go round in
/// kFirstRound, or in kRoundOfMany if the endpoint uses more than a few rings at a time, unless the
/// receiver lags behind there. Where sender and receiver take turns on a core, all payloads restart
/// at the beginning whenever everything before them was consumed.
inline constexpr uint32_t kLeastWholeRound = 1024;
inline constexpr uint32_t kMostShortStride = stride_of(kLeastWholeRound - 1);
static_assert(kHotSlots * kMostShortStride <= kBackedBytes);
inline constexpr uint32_t kRoundOfMany = kByteRing / 128;
/// A sender of longer payloads cycles through the whole byte ring in the end: a line that has left
/// the cache of the receiver's core is written in half the time. If the endpoint uses more than a
/// few rings at a time, each cycles through this first part where its receiver keeps up, so that
/// more of them fit into the cache that the cores share.
inline constexpr uint32_t kShortRound = kByteRing / 8;
inline constexpr size_t kFewRings = 2;
/// The first cycles are shorter, because writing a page for the first time takes as long as a few
/// messages: after kRoundsEach of one length they become twice as long.
inline constexpr uint32_t kFirstRound = kByteRing / 32;
inline constexpr unsigned kRoundsEach = 4;
/// From so many bytes of longer payloads on, few of the next ones lie on a new page.
inline constexpr uint32_t kWarm = 16 * kFirstRound;

/// Fetches a line in order to write it. Without -mprfchw, __builtin_prefetch(p, 1) fetches a copy
/// for reading, and the write must then ask the other core again.
inline void own_line(const void* line) noexcept {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
#else
  __builtin_prefetch(line, 1);
#endif
}

/// Copies word by word. The header was just stored in words, and a wider load would wait until they
/// have left the store buffer. The asm keeps the compiler from joining the words.
inline void copy_header(std::byte* to, const void* from) noexcept {
#pragma GCC unroll 4
  for (size_t i = 0; i < kHeaderBytes; i += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, static_cast<const std::byte*>(from) + i, sizeof(word));
    asm("" : "+r"(word));
    std::memcpy(to + i, &word, sizeof(word));
  }
}

/// How the next payload of so many bytes is written into a byte ring. `copy`: null: by the loop.
hmem::CopyChoice::Choice choose_copy(hmem::CopyChoice* copy, StreamingPolicy streaming,
                                     size_t length) noexcept;

/// The sending end of a ring without a byte ring, and what a RingSender has in common with it. Most
/// peers never get another ring, so this is as small as possible. One thread. Nothing that the
/// receiver writes can make it leave the memory. Invariant: if the memory has a byte ring, this is
/// a RingSender.
class SlotSender {
 public:
  SlotSender() noexcept = default;
  SlotSender(const RingMemory& memory, uint32_t start) noexcept
      : x_memory(memory),
        x_mask(memory.count() - 1),
        x_head(start),
        x_limit(start + memory.count()),
        x_seen(start) {
    x_memory.bytes = nullptr;
  }

  /// False = no room now. `length` ≤ kSlotPayload, or ≤ kMaxEager in a hot ring. Inlined into
  /// send(), because a call would cost a fifth of the whole.
  [[gnu::always_inline]] bool push(Kind kind, const void* header, const iovec* payload,
                                   size_t count, size_t length) noexcept {
    if (x_head == x_limit && !refresh()) [[unlikely]]
      return false;
    Slot& slot = x_memory.slots[slot_of(x_head, x_mask)];
    // Not earlier: the receiver polls this line and would take it back.
    own_line(&slot);
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

  /// Pushes a packet that may be taken back under the name `sequence`. False = no room: entries
  /// that may have to be skipped fill at most half of the ring. `length` as for push().
  bool push_retractable(const void* header, const iovec* payload, size_t count, size_t length,
                        uint32_t& sequence) noexcept;
  bool retract(uint32_t sequence) noexcept;
  void retracted(uint32_t sequence, bool executed) noexcept;

  /// True if at least `slots` entries without a long payload fit.
  bool room_for(uint32_t slots) noexcept {
    return x_limit - x_head >= slots || (refresh(), x_limit - x_head >= slots);
  }
  /// The number of entries without a long payload that fit.
  uint32_t room() noexcept { return room_for(1) ? x_limit - x_head : 0; }
  /// true: asks the receiver to wake this process once it has consumed something; false: no longer.
  void set_waiting(bool on) noexcept { x_memory.waiting->store(on, std::memory_order_relaxed); }
  /// A number that changes when the receiver publishes that it has taken entries.
  uint64_t consumed() const noexcept { return x_memory.consumed->load(std::memory_order_relaxed); }
  uint32_t pushed() const noexcept { return x_head; }  ///< entries; wraps around
  /// The receiver has published that it has taken everything.
  bool drained() const noexcept { return uint32_t(consumed()) == x_head; }
  /// Consumption was published since the last refresh: a push that failed may succeed now.
  bool moved() const noexcept { return consumed() != x_seen; }

 protected:
  bool refresh() noexcept;
  static constexpr uint32_t kNoRoom = UINT32_MAX;

  RingMemory x_memory;
  uint32_t x_mask = 0;   ///< number of slots - 1
  uint32_t x_head = 0;   ///< sequence number of the next entry
  uint32_t x_limit = 0;  ///< may push while head != limit
  uint64_t x_seen = 0;   ///< the last value read from *consumed

 private:
  uint32_t put(Slot& slot, const iovec* payload, size_t count, size_t length) noexcept;

  void finish(Slot& slot, uint32_t word, const void* header) noexcept {
    copy_header(slot.header, header);
    store_release(slot.stamp, uint64_t(word) << 32 | (x_head + 1));
    ++x_head;
  }
};

/// Owns the memory of a byte ring of which only kBackedBytes are backed.
class RingBacking {
 public:
  /// Backs the rest. False: there is no memory for it.
  virtual bool back_rest() noexcept = 0;

 protected:
  ~RingBacking() = default;
};

/// The sending end of a ring that may have a byte ring.
class RingSender final : public SlotSender {
 public:
  RingSender() noexcept = default;
  /// `copy` chooses how long payloads are written; null: by the loop. `core`: null: this core is
  /// not shared. `rings`: those that the last payloads of the endpoint took; null: there is one.
  /// `byte_ring_bytes` counts the payload in the byte ring; null: it is not counted.
  RingSender(const RingMemory& memory, uint32_t start, hmem::CopyChoice* copy = nullptr,
             StreamingPolicy streaming = StreamingPolicy::calibrate,
             const CoreSharing* core = nullptr, RecentRings* rings = nullptr,
             uint64_t* byte_ring_bytes = nullptr) noexcept
      : SlotSender(memory, start),
        x_copy(copy),
        x_streaming(streaming),
        x_core(core),
        x_rings(rings),
        x_byte_ring_bytes(byte_ring_bytes) {
    x_memory.bytes = memory.bytes;
  }

  /// Payloads stay within kBackedBytes until `backing` has backed the rest. It must outlive this
  /// object.
  void limit_to_backed(RingBacking& backing) noexcept {
    x_backing = &backing;
    x_end = kBackedBytes;
  }
  /// True if payloads of so many bytes in all, with the gaps between them, fit behind the last one.
  /// They may still find the ring full: each needs a slot, and the sender may start over, which
  /// leaves bytes unused.
  bool room_for_bytes(uint32_t bytes) noexcept;
  /// The same for half of the byte ring.
  bool half_is_free() noexcept { return room_for_bytes(x_end / 2); }
  /// True if more than so many entries, with more than so many bytes of the byte ring, were not
  /// taken, as far as the receiver has published. Those that the last round left unused do not
  /// count.
  bool holds_over(uint32_t entries, uint32_t bytes) const noexcept {
    const uint64_t seen = consumed();
    const uint32_t tail = seen == x_seen ? x_byte_tail : uint32_t(seen >> 32);  // as refresh()
    return pushed() - uint32_t(seen) > entries && held_from(tail) > bytes;
  }
  /// True if most payloads of the next cycles lie on pages that were written before.
  bool warm() const noexcept { return x_first_bytes >= kWarm; }
  /// Some of the next so many bytes may lie on pages that were not written before, which takes
  /// several times as long.
  bool reaches_new_pages(uint32_t bytes) const noexcept {
    return (x_byte_head & (kByteRing - 1)) + bytes > x_written;
  }
  /// Call if there was no room just now. False: the receiver has consumed nothing
  /// during the last kPatience calls, so it is busy with something else.
  bool moves() noexcept;
  static constexpr unsigned kPatience = 1000;
  /// RingReceiver::publish_rate(); 0: the receiver has not published one.
  uint32_t take_rate() const noexcept {
    return x_memory.take_rate->load(std::memory_order_relaxed);
  }

 private:
  friend class SlotSender;  // put_bytes() and taken_up_to()
  uint32_t put_bytes(const iovec* payload, size_t count, uint32_t length) noexcept;
  bool leaves_gap(size_t count, uint32_t length) const noexcept;
  bool starts_over(uint32_t at, uint32_t length) noexcept;
  bool ends_round(uint32_t offset) noexcept;
  bool goes_beyond_backed() noexcept;
  bool ends_short_round(uint32_t offset) const noexcept;
  bool restarts_if_empty() noexcept;
  bool one_of_many(RecentLinks RecentRings::*which) const noexcept {
    return x_rings && (x_rings->*which).links_with(this) > kFewRings;
  }
  bool bytes_fit(uint32_t at, uint32_t length) noexcept;
  /// Where everything before the last restart was taken, what the round left unused is room.
  void taken_up_to(uint32_t tail) noexcept {
    x_byte_tail = tail == x_round_end ? tail + x_unused : tail;
  }
  /// Bytes that hold payloads, from the first one that was not taken.
  uint32_t held_from(uint32_t tail) const noexcept {
    const uint32_t all = x_byte_head - tail;
    return x_byte_head - x_round_end <= all ? all - x_unused : all;
  }
  void write_bytes(std::byte* to, const void* from, uint32_t length) noexcept;

  uint32_t x_byte_head = 0;
  uint32_t x_round_end = 0;          ///< where the last payload before a restart ended
  uint32_t x_unused = 0;             ///< bytes from there to the beginning
  uint32_t x_end = kByteRing;        ///< of the part that has memory
  RingBacking* x_backing = nullptr;  ///< null: there is no more memory to ask for
  unsigned x_ends = 0;               ///< cycles that reached the end of the backed part
  uint32_t x_byte_tail = 0;          ///< as published by the receiver
  bool x_only_short = true;          ///< all payloads since the beginning of the ring were
  uint32_t x_first_bytes = 0;        ///< put into the byte ring; counts to kWarm
  uint32_t x_written = 0;            ///< from the beginning of the byte ring: was written once
  uint32_t x_round = kFirstRound;
  unsigned x_rounds = 0;   ///< of this length
  uint32_t x_counted = 0;  ///< end of the cycle whose round was counted last
  hmem::CopyChoice* x_copy = nullptr;
  StreamingPolicy x_streaming = StreamingPolicy::calibrate;
  const CoreSharing* x_core = nullptr;
  RecentRings* x_rings = nullptr;
  uint64_t x_stuck_at = 0;  ///< x_seen at the last call of moves()
  unsigned x_stuck = 0;     ///< calls of moves() since the receiver consumed something
  uint64_t* x_byte_ring_bytes = nullptr;
};

/// One entry as the receiver sees it. `header` and `payload` point into shared memory.
struct RingEntry {
  Kind kind;  ///< kBroken: a length that no honest sender writes
  uint32_t length;
  const std::byte* header;
  const std::byte* payload;
};

/// The receiving end. One thread. It trusts nothing in the ring.
class RingReceiver {
 public:
  RingReceiver() noexcept = default;
  RingReceiver(const RingMemory& memory, uint32_t start) noexcept
      : x_memory(memory),
        x_mask(memory.count() - 1),
        x_tail(start),
        x_published(start),
        x_publish_at(start + memory.count() / 4) {}

  bool ready() const noexcept { return uint32_t(stamp()) == x_tail + 1; }
  /// Gives the entry that is ready. False = there is none.
  bool next(RingEntry& entry) noexcept {
    const uint64_t found = stamp();
    if (uint32_t(found) != x_tail + 1) return false;
    const Slot& slot = x_memory.slots[slot_of(x_tail, x_mask)];
    const auto word = uint32_t(found >> 32);
    entry = {Kind(word >> 24 & 0x7f), word & kLengthMask, slot.header, slot.payload};
    if (entry.length > kSlotPayload) [[unlikely]]
      find_bytes(entry, word);
    return true;
  }
  /// The entry that is ready is retracted: nothing to do until its sender has decided about it.
  bool parked() const noexcept;
  /// Claims the retractable entry that next() gave, in order to deliver it. False: its sender took
  /// it back.
  bool take() noexcept;
  /// The header of the entry after the one that next() gave; null = there is none yet.
  const std::byte* following() const noexcept {
    const Slot& slot = x_memory.slots[slot_of(x_tail + 1, x_mask)];
    return uint32_t(load_acquire(slot.stamp)) == x_tail + 2 ? slot.header : nullptr;
  }
  /// next() shall give the same entry again.
  void stay(const RingEntry& entry) noexcept {
    if (entry.length > kSlotPayload) x_byte_tail = x_byte_before;
  }
  /// The entry that next() gave is finished. True = its space should be published now.
  bool advance() noexcept { return ++x_tail == x_publish_at; }
  uint32_t taken() const noexcept { return x_tail; }  ///< entries; wraps around
  bool unpublished() const noexcept { return x_tail != x_published; }
  /// Returns the space to the sender. True = the sender asked for a wake-up.
  bool publish() noexcept {
    x_published = x_tail;
    x_publish_at = x_tail + x_mask / 4 + 1;
    x_byte_published = x_byte_tail;
    store_release(*x_memory.consumed, uint64_t(x_byte_tail) << 32 | x_tail);
    return x_memory.waiting->load(std::memory_order_relaxed) != 0;
  }
  /// Tells the sender how fast this side takes long payloads out of the byte ring; bytes per us.
  /// Only in a hot ring.
  void publish_rate(uint32_t rate) noexcept {
    x_memory.take_rate->store(rate, std::memory_order_relaxed);
  }
  /// True once for each time that the sender announced its sleep. Used only for space in the ring:
  /// the sender's barrier (ShmTransport::announce_waiting) replaces a fence here.
  bool take_waiting() noexcept {
    return x_memory.waiting->load(std::memory_order_relaxed) &&
           exchange_acq_rel(*x_memory.waiting, 0u);
  }
  /// The same for anything else that was published; fences.
  bool take_sleeper() noexcept { return shm::take_sleeper(*x_memory.waiting); }

 private:
  uint64_t stamp() const noexcept {
    return load_acquire(x_memory.slots[slot_of(x_tail, x_mask)].stamp);
  }
  void find_bytes(RingEntry& entry, uint32_t word) noexcept;

  RingMemory x_memory;
  uint32_t x_mask = 0;  ///< number of slots - 1
  uint32_t x_tail = 0;  ///< sequence number of the next entry
  uint32_t x_byte_tail = 0;
  uint32_t x_byte_before = 0;  ///< before find_bytes()
  uint32_t x_published = 0;
  uint32_t x_publish_at = 0;  ///< at most a quarter of the slots after x_published
  uint32_t x_byte_published = 0;
};

}  // namespace erdma::transport::shm
