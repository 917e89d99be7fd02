#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/transport.h"
#include "util/fingerprint.h"

/// What lies in shared memory, all of it in the receiver's: sizes and structures. Changing anything
/// here changes kWireVersion (wire.h). docs/architecture.md, "Rings".
namespace erdma::transport::shm {

inline constexpr size_t kLine = 64;
inline constexpr size_t kLinePair = 128;  ///< what the adjacent-line prefetcher moves
inline constexpr size_t kShmPage = 4096;

inline constexpr uint32_t kHotSlots = 64;
inline constexpr uint32_t kColdSlots = 4;
inline constexpr uint32_t kSlotBytes = 128;
inline constexpr uint32_t kSlotPayload = kSlotBytes - sizeof(uint64_t) - uint32_t(kHeaderBytes);
inline constexpr uint32_t kByteRing = 512 * 1024;
inline constexpr uint32_t kMaxEager = 16 * 1024;  ///< so that any payload fits, wherever it starts
inline constexpr uint32_t kColdRings = 64;        ///< per chunk: one bit each in one word
inline constexpr uint32_t kColdRingBytes = kColdSlots * kSlotBytes;

/// `stamp` low half: sequence number + 1 once the entry is whole; high half: length | kind << 24 |
/// kRestart.
/// With a payload of at most 24 bytes an entry is one cache line.
struct alignas(kSlotBytes) Slot {
  std::atomic<uint64_t> stamp;
  std::byte header[kHeaderBytes];
  std::byte payload[kSlotPayload];
};
static_assert(sizeof(Slot) == kSlotBytes);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

/// The payload lies at the start of the byte ring, not behind the one before it.
inline constexpr uint32_t kRestart = uint32_t(1) << 31;

enum class Kind : uint8_t {
  packet = 0,
  switch_ring,   ///< last entry before the sender goes on in its other ring
  write_target,  ///< header: token; payload: the receiver's RemoteKey. write_source follows.
  write_source,  ///< payload: the sender's RemoteKey; header: token, length
  write_done,    ///< header: token, status
  // A packet that its sender may take back; only in hot rings, never in the byte ring.
  retractable,  ///< whoever is first makes it one of the next three
  taken,        ///< by the receiver
  retracted,    ///< by the sender, who says soon what becomes of it: retractable, or skipped
  skipped,      ///< the receiver goes on to the next
};

/// No kind that fits a stamp.
inline constexpr Kind kBroken = Kind(0xff);

/// How far the sender has given its channel up.
enum class Leave : uint32_t {
  no,
  yes,         ///< its memory is its own again
  sends_none,  ///< no entry comes after those that are there
};

/// Two to a line: silent peers seldom touch it.
struct alignas(kLine / 2) ColdControl {
  std::atomic<uint64_t> consumed;  ///< slots | bytes << 32; by the receiver
  std::atomic<uint32_t> waiting;   ///< the sender sleeps: it wants a wake-up once something moves
  std::atomic<uint32_t> left;      ///< a Leave
  std::atomic<uint64_t> revocations;  ///< of memory that was shared with the sender (region_gate.h)
  std::atomic<uint32_t> inside;       ///< the sender accesses such memory
  std::atomic<uint32_t> help;         ///< the sender wants help with that: see its tickets
};

/// Written by the sleeper and the wakers. `may_sleep` goes 0 → 1 once, so its line stays shared.
struct WakeWords {
  alignas(kLinePair) std::atomic<uint32_t> may_sleep;
  alignas(kLinePair) std::atomic<uint32_t> armed;
};

/// Packed, because each page that a peer touches is one more page in two processes: the first holds
/// everything but the rings, and the first three rings too; each other holds eight rings.
struct ColdChunk {
  WakeWords wake;
  alignas(kLinePair) std::atomic<uint64_t> ready;  ///< bit i: ring i has news
  alignas(kLinePair) ColdControl controls[kColdRings];
  alignas(kColdRingBytes) Slot slots[kColdRings][kColdSlots];
};
static_assert(offsetof(ColdChunk, slots[3]) == kShmPage);

/// The last bytes of the byte ring stay unused by payloads: the control words lie there, so that
/// the whole needs no further page.
inline constexpr uint32_t kHotControl = 2 * kLinePair;
inline constexpr uint32_t kPayloadEnd = kByteRing - kHotControl;

struct HotSegment {
  Slot slots[kHotSlots];
  std::byte bytes[kPayloadEnd];
  alignas(kLinePair) std::atomic<uint64_t> consumed;
  alignas(kLinePair) std::atomic<uint32_t> waiting;
};
static_assert(sizeof(HotSegment) == size_t{520} * 1024);

constexpr size_t whole_pages(size_t bytes) noexcept {
  return (bytes + kShmPage - 1) & ~(kShmPage - 1);
}
inline constexpr size_t kColdChunkBytes = whole_pages(sizeof(ColdChunk));
inline constexpr size_t kHotSegmentBytes = whole_pages(sizeof(HotSegment));

/// Changes with any size or place above: kWireVersion has to change then, too (wire.h).
constexpr uint64_t layout_fingerprint() noexcept {
  return util::fingerprint({kHeaderBytes,
                            kHotSlots,
                            kColdSlots,
                            kColdRings,
                            kByteRing,
                            kPayloadEnd,
                            kMaxEager,
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
                            offsetof(ColdChunk, slots),
                            kColdChunkBytes,
                            offsetof(HotSegment, bytes),
                            offsetof(HotSegment, consumed),
                            offsetof(HotSegment, waiting),
                            kHotSegmentBytes});
}

}  // namespace erdma::transport::shm
