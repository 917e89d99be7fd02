#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/transport.h"
#include "util/fingerprint.h"

/// Sizes and structures of what lies in shared memory, all of it owned by the receiver. Any change
/// here changes kWireVersion (wire.h). See docs/architecture.md, "Rings".
namespace erdma::transport::shm {

inline constexpr size_t kLine = 64;
inline constexpr size_t kLinePair = 128;  ///< what the adjacent-line prefetcher moves
inline constexpr size_t kShmPage = 4096;

/// A window of 64 messages and those of the next one fit: a sender that finds the ring full must
/// keep the message and try again, which costs as much as two sends.
inline constexpr uint32_t kHotSlots = 256;
inline constexpr uint32_t kColdSlots = 4;
inline constexpr uint32_t kSlotBytes = 128;
inline constexpr uint32_t kSlotPayload = kSlotBytes - sizeof(uint64_t) - uint32_t(kHeaderBytes);
/// As much as the largest second-level caches and more than most (512 KiB to 1 MiB), so that lines
/// leave them before they are written again: see kShortRound.
inline constexpr uint32_t kByteRing = 2 * 1024 * 1024;
/// The part of it that is backed from the beginning. The sender has the rest backed once payloads
/// of 1 KiB and more have gone round in this part for a while, unless it shares its core or uses
/// more than a few rings.
inline constexpr uint32_t kBackedBytes = kByteRing / 2;
inline constexpr uint32_t kMaxEager = 16 * 1024;  ///< so that any payload fits, wherever it begins
/// Left unused in front of a payload (kBehindGap). A core that reads a payload fetches some lines
/// behind it ahead, and a sender that writes those waits for them: between near cores 1 to 4 KiB
/// take up to twice as long without a gap (Zen 3, where 512 bytes are enough). No number of whole
/// pages.
inline constexpr uint32_t kPayloadGap = 1024 + 64;
/// From the slot of an entry to that of the next one; odd, so that all slots are used. A core that
/// polls one slot after another at the same distance fetches the next ones ahead, too, which it
/// does not at 11 KiB and more.
inline constexpr uint32_t kSlotStep = 157;
inline constexpr uint32_t kColdRings = 64;  ///< per chunk: one bit each in one word
inline constexpr uint32_t kColdRingBytes = kColdSlots * kSlotBytes;

/// `stamp`: the low half is the sequence number + 1 once the entry is complete; the high half is
/// length | kBehindGap | kind << 24 | kRestart. An entry with a payload of at most 24 bytes is one
/// cache line.
struct alignas(kSlotBytes) Slot {
  std::atomic<uint64_t> stamp;
  std::byte header[kHeaderBytes];
  std::byte payload[kSlotPayload];
};
static_assert(sizeof(Slot) == kSlotBytes);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

inline constexpr uint32_t kLengthMask = (uint32_t(1) << 23) - 1;
/// The payload lies kPayloadGap behind the previous one, unless that ended the byte ring.
inline constexpr uint32_t kBehindGap = uint32_t(1) << 23;
/// The payload lies at the start of the byte ring, not behind the previous payload.
inline constexpr uint32_t kRestart = uint32_t(1) << 31;

enum class Kind : uint8_t {
  packet = 0,
  switch_ring,   ///< the last entry before the sender continues in its other ring
  write_target,  ///< header: token; payload: the receiver's RemoteKey. write_source follows.
  write_source,  ///< payload: the sender's RemoteKey; header: token, length
  write_done,    ///< header: token, status
  // A packet that its sender may take back; only in hot rings.
  retractable,  ///< the first side to claim it changes it into one of the next three
  taken,        ///< claimed by the receiver
  retracted,    ///< claimed by the sender, which soon makes it retractable again or skipped
  skipped,      ///< the receiver proceeds to the next entry
};

/// No valid stamp has this kind.
inline constexpr Kind kBroken = Kind(0xff);

/// How far the sender has given up its channel.
enum class SenderState : uint32_t {
  sending,
  left,        ///< the sender has its memory back
  sends_none,  ///< no entry follows those that are there
};

/// Two share a cache line: idle peers seldom touch it.
struct alignas(kLine / 2) ColdControl {
  std::atomic<uint64_t> consumed;  ///< slots | bytes << 32; written by the receiver
  std::atomic<uint32_t> waiting;   ///< the sender sleeps and wants a wake-up once something moves
  std::atomic<uint32_t> left;      ///< a SenderState
  std::atomic<uint64_t> revocations;  ///< of memory shared with the sender (region_gate.h)
  std::atomic<uint32_t> inside;       ///< the sender accesses such memory
  std::atomic<uint32_t> help;  ///< the sender wants help with such an access: see its tickets
};

/// The sleeper and those that wake it write these. `may_sleep` changes seldom, so its line
/// stays shared. `armed`: 0, or the number of the sleep.
struct WakeWords {
  alignas(kLinePair) std::atomic<uint32_t> may_sleep;
  alignas(kLinePair) std::atomic<uint32_t> armed;
};

/// Packed, because each page that a peer touches counts in two processes. The first page holds
/// everything but the rings, and the first three rings; every other page holds eight rings.
struct ColdChunk {
  WakeWords wake;
  alignas(kLinePair) std::atomic<uint64_t> ready;  ///< bit i: ring i has new entries
  alignas(kLinePair) ColdControl controls[kColdRings];
  alignas(kLinePair) std::atomic<uint64_t> core;  ///< a sign of the receiver's core (core_sign.h)
  /// Tells senders whether the receiver's process exists (util::ThreadLife). 0 says nothing: a
  /// process can show its life in one chunk only, and not every kernel can do it.
  std::atomic<uint32_t> life;
  alignas(kColdRingBytes) Slot slots[kColdRings][kColdSlots];
};
static_assert(offsetof(ColdChunk, slots[3]) == kShmPage);

/// The control words occupy the last bytes of the byte ring, which payloads do not use, so that the
/// segment needs no further page.
inline constexpr uint32_t kHotControl = 2 * kLinePair;
inline constexpr uint32_t kPayloadEnd = kByteRing - kHotControl;

struct HotSegment {
  Slot slots[kHotSlots];
  std::byte bytes[kPayloadEnd];
  alignas(kLinePair) std::atomic<uint64_t> consumed;
  std::atomic<uint32_t> take_rate;  ///< see RingReceiver::publish_rate()
  alignas(kLinePair) std::atomic<uint32_t> waiting;
};
static_assert(sizeof(HotSegment) == size_t{2080} * 1024);

constexpr size_t whole_pages(size_t bytes) noexcept {
  return (bytes + kShmPage - 1) & ~(kShmPage - 1);
}
inline constexpr size_t kColdChunkBytes = whole_pages(sizeof(ColdChunk));
inline constexpr size_t kHotSegmentBytes = whole_pages(sizeof(HotSegment));
/// Of a hot segment only these bytes and the last page, with the control words, are backed at
/// first. Then come so many others.
inline constexpr size_t kHotBackedBytes = offsetof(HotSegment, bytes) + kBackedBytes;
inline constexpr size_t kHotRestBytes = kHotSegmentBytes - kShmPage - kHotBackedBytes;
static_assert(kHotBackedBytes % kShmPage == 0);

/// Changes with any size or offset above; kWireVersion must then change, too (wire.h).
constexpr uint64_t layout_fingerprint() noexcept {
  return util::fingerprint({kHeaderBytes,
                            kHotSlots,
                            kColdSlots,
                            kColdRings,
                            kByteRing,
                            kBackedBytes,
                            kPayloadEnd,
                            kMaxEager,
                            kPayloadGap,
                            kSlotStep,
                            kLengthMask,
                            kBehindGap,
                            kRestart,
                            uint64_t(Kind::skipped),
                            sizeof(Slot),
                            offsetof(Slot, header),
                            offsetof(Slot, payload),
                            sizeof(ColdControl),
                            offsetof(ColdControl, waiting),
                            offsetof(ColdControl, left),
                            offsetof(ColdControl, revocations),
                            offsetof(ColdControl, inside),
                            offsetof(ColdControl, help),
                            offsetof(WakeWords, armed),
                            offsetof(ColdChunk, ready),
                            offsetof(ColdChunk, controls),
                            offsetof(ColdChunk, core),
                            offsetof(ColdChunk, life),
                            offsetof(ColdChunk, slots),
                            kColdChunkBytes,
                            offsetof(HotSegment, bytes),
                            offsetof(HotSegment, consumed),
                            offsetof(HotSegment, take_rate),
                            offsetof(HotSegment, waiting),
                            kHotSegmentBytes});
}

}  // namespace erdma::transport::shm
