#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/shm/bulk.h"
#include "transport/shm/ordering.h"
#include "transport/shm/path_choice.h"
#include "transport/shm/stream_copy.h"
#include "util/pool.h"

/// The control page of a bulk channel, and what both sides compute in the same way.
///
/// A transfer is a sequence of generations: each moves one contiguous range of the message in one
/// mode. A generation ends when every claimed chunk is done or has failed; later generations move
/// what is then left. Each word has one writer (except `claim`) and carries the number of its
/// generation, so that a late store or claim cannot affect the next one.
namespace erdma::transport::shm {

inline constexpr size_t kTickets = 4;  ///< transfers under way at a time
inline constexpr size_t kPageBytes = 4096;
inline constexpr size_t kMinChunk = size_t{16} * 1024;
inline constexpr size_t kMaxChunk = size_t{256} * 1024;
/// Keeps chunk numbers within 16 bits. The next generation moves what exceeds it.
inline constexpr uint64_t kMaxRange = uint64_t(1) << 30;
/// Remote keys that one channel can have at a time: the control page has room for their
/// revocations.
inline constexpr uint32_t kMaxShared = 1024;
/// Shared regions that the owner may help with; the owner never helps with further ones.
inline constexpr uint32_t kMaxSharedRegions = 1024;
inline constexpr uint32_t kUnhelped = UINT32_MAX;  ///< SharedRegion::index of a region without help
inline constexpr unsigned kTransientRetries = 4;   ///< for a call that failed for lack of memory
/// Upper limits of what one poll moves, because small messages wait behind it.
inline constexpr size_t kPollChunks = 2;
inline constexpr size_t kPollBytes = size_t{256} * 1024;
inline constexpr size_t kPollPieces = 4;

enum class Mode : uint8_t {
  none,
  read_only,   ///< the receiver reads
  dual,        ///< the receiver reads, the sender may write
  write_only,  ///< the sender writes
  bounce,      ///< the sender streams through the slots
  outward,     ///< into a shared region: the receiver writes, the sender may read
};

/// The content of a ticket's state word. 0 = the ticket is not in use.
struct TicketState {
  uint32_t generation = 0;
  Mode mode = Mode::none;
  Streaming streaming = Streaming::none;
  bool all_slots = false;  ///< a bounce uses all slots, not just the first kFewBounceSlots
  uint8_t first_slot = 0;  ///< bounce: where the first piece lies

  constexpr uint32_t slots() const noexcept { return all_slots ? kBounceSlots : kFewBounceSlots; }
};
inline constexpr uint64_t pack(TicketState state) noexcept {
  return uint64_t(state.generation) << 32 | uint64_t(state.first_slot) << 24 |
         uint64_t(state.all_slots) << 16 | uint64_t(state.mode) << 8 | uint64_t(state.streaming);
}
inline constexpr TicketState unpack_state(uint64_t word) noexcept {
  return {uint32_t(word >> 32), Mode(uint8_t(word >> 8)), Streaming(uint8_t(word)),
          (word >> 16 & 1) != 0, uint8_t(word >> 24)};
}

/// Chunks claimed in one generation. The receiver claims from the front and the sender from the
/// back until they meet, so in repeated transfers each core keeps to the same lines and pages.
struct Claims {
  static constexpr uint32_t kMaxChunks = 0xFFFF;
  uint32_t generation = 0;
  uint32_t front = 0;
  uint32_t back = 0;
};
inline constexpr uint64_t pack(Claims claims) noexcept {
  return uint64_t(claims.generation) << 32 | uint64_t(claims.back) << 16 | claims.front;
}
inline constexpr Claims unpack_claims(uint64_t word) noexcept {
  return {uint32_t(word >> 32), uint32_t(word) & 0xFFFF, uint32_t(word) >> 16};
}

/// A count that belongs to one generation: chunks done, slots filled, slots emptied.
struct Tally {
  uint32_t generation = 0;
  uint32_t count = 0;
};
inline constexpr uint64_t pack(Tally tally) noexcept {
  return uint64_t(tally.generation) << 32 | tally.count;
}
inline constexpr Tally unpack_tally(uint64_t word) noexcept {
  return {uint32_t(word >> 32), uint32_t(word)};
}

/// Why the sender takes no further part in a generation.
struct Stop {
  static constexpr uint32_t kNoChunk = 0xFFFFFF;
  uint32_t generation = 0;
  uint32_t chunk = kNoChunk;  ///< the chunk that it claimed and could not move
  uint8_t error = 0;          ///< positive errno; 0 = no stop
};
inline constexpr uint64_t pack(Stop stop) noexcept {
  return uint64_t(stop.generation) << 32 | uint64_t(stop.chunk & 0xFFFFFF) << 8 | stop.error;
}
inline constexpr Stop unpack_stop(uint64_t word) noexcept {
  return {uint32_t(word >> 32), uint32_t(word >> 8) & 0xFFFFFF, uint8_t(word)};
}

using SharedWord = std::atomic<uint64_t>;
static_assert(SharedWord::is_always_lock_free && sizeof(SharedWord) == 8);

/// What a generation is about. The receiver writes it, `state` last. It takes one cache line unless
/// the receiver's memory is in several pieces, so that only one line crosses to a distant sender.
struct alignas(64) Ticket {
  SharedWord state;
  SharedWord remote_key;  ///< index << 16 | generation
  SharedWord begin, end;
  SharedWord base;    ///< offset in the shared memory at which offset 0 of the transfer lies
  SharedWord chunks;  ///< pieces in `iov` << 32 | bytes of a chunk
  struct Piece {
    SharedWord address, length;
  } iov[kMaxIov];  ///< the receiver's memory of the whole message
};
static_assert(offsetof(Ticket, iov[1]) == 64);

struct TicketProgress {
  alignas(64) SharedWord claim;  ///< Claims; both sides change it by compare-and-swap
  /// Tally of chunks that the sender has moved; written by the sender.
  alignas(64) SharedWord done;
  SharedWord stop;  ///< written by the sender
};

enum class WriteState : uint64_t {
  unknown,
  allowed,
  denied,
  /// Allowed, but its core is shared: the receiver asks only where it cannot move the bytes alone.
  unasked,
};

/// How long the calls of the receiver took for the message whose sender asked last.
struct ReadTime {
  uint32_t id = 0;  ///< SharedMemory::id()
  uint32_t nanoseconds = 0;
};
inline constexpr uint64_t pack(ReadTime time) noexcept {
  return uint64_t(time.id) << 32 | time.nanoseconds;
}
inline constexpr ReadTime unpack_read_time(uint64_t word) noexcept {
  return {uint32_t(word >> 32), uint32_t(word)};
}

struct BulkShared {
  Ticket ticket[kTickets];
  alignas(64) SharedWord write_state;  ///< WriteState of the sender; written by the sender
  alignas(64) SharedWord produced;     ///< Tally of slots filled; written by the sender
  alignas(64) SharedWord consumed;     ///< Tally of slots emptied; written by the receiver
  SharedWord read_time;                ///< ReadTime; written by the receiver
  TicketProgress progress[kTickets];
  /// Of each remote key index the last generation that was revoked before its receiver was done, or
  /// a later one; written by the sender. A receiver that reads without the sender's help learns
  /// from it that what it reads is no longer the message.
  std::atomic<uint16_t> revoked[kMaxShared];
};
static_assert(sizeof(BulkShared) <= kBulkControlBytes);

inline BulkShared& shared_page(void* memory) noexcept {
  return *static_cast<BulkShared*>(memory);
}
/// Within the slots, whatever the peer wrote into `state`.
inline std::byte* bounce_slot(void* memory, TicketState state, uint32_t piece) noexcept {
  return static_cast<std::byte*>(memory) + kBulkControlBytes +
         (state.first_slot + piece) % state.slots() * kBounceSlotBytes;
}

/// Length of one piece of a bounce generation. The first pieces are shorter so that the receiver
/// begins early; each piece costs some 300 ns between distant cores, so they are not shorter still.
inline constexpr size_t piece_bytes(uint32_t piece, uint64_t left) noexcept {
  return size_t(std::min<uint64_t>(left, piece < 2 ? kMinChunk : kBounceSlotBytes));
}

/// Chunks are few, because a system call costs as much as copying 16 KiB or more. If both sides
/// share the work, there are two equal halves.
inline constexpr size_t chunk_bytes(uint64_t range, bool shared) noexcept {
  if (!shared) return kMaxChunk;
  const uint64_t chunks = 2 * ((range + 2 * kMaxChunk - 1) / (2 * kMaxChunk));
  const uint64_t even = (range + chunks - 1) / chunks;
  return std::max(kMinChunk, size_t((even + kPageBytes - 1) / kPageBytes * kPageBytes));
}
inline constexpr uint32_t chunks_of(uint64_t range, uint64_t chunk) noexcept {
  return uint32_t((range + chunk - 1) / chunk);
}
static_assert(chunks_of(kMaxRange, chunk_bytes(kMaxRange, true)) <= Claims::kMaxChunks);

/// Part of a message, [begin, end).
struct Range {
  uint64_t begin = 0, end = 0;
  uint64_t length() const noexcept { return end - begin; }
};

/// What one poll may still move.
struct Budget {
  size_t chunks = kPollChunks;
  size_t bytes = kPollBytes;
  size_t pieces = kPollPieces;

  bool chunk_left() const noexcept { return chunks > 0 && bytes > 0; }
  void spend_chunk(size_t moved) noexcept {
    --chunks;
    bytes -= std::min(bytes, moved);
  }
};

/// True if no element is null or wraps around the address space and together they hold `length`
/// bytes.
bool plausible(const iovec* iov, size_t count, uint64_t length) noexcept;

/// A decoded RemoteKey of this transport. The addresses are those of the sharing process.
struct SharedMemory {
  uint32_t index = 0;
  uint16_t generation = 0;
  uint8_t count = 0;
  uint64_t length = 0;
  iovec iov[kMaxIov];
  bool region = false;  ///< a shared region: it is accessed without asking its owner
  bool for_reads = true, for_writes = false;
  bool timed = false;  ///< the receiver shall tell how long it read: BulkShared::read_time

  uint64_t id() const noexcept { return uint64_t(index) << 16 | generation; }
};
/// Generations count up from 1; 0 = none has been revoked.
inline constexpr bool revoked_by(uint16_t last, uint16_t generation) noexcept {
  return last != 0 && int16_t(uint16_t(last - generation)) >= 0;
}
void encode(const SharedMemory& memory, RemoteKey& remote_key) noexcept;
/// 0, or -FI_EINVAL for a key that encode() cannot have made.
int decode(const RemoteKey& remote_key, SharedMemory& memory) noexcept;

/// The name in a key that encode() has made.
util::PoolHandle name_of(const RemoteKey& remote_key) noexcept;

/// Tells the sender how long this side read.
void publish_read_time(BulkShared& page, const SharedMemory& memory, uint64_t nanoseconds) noexcept;

/// Like gather() and scatter() of hmem, with a choice of copy function.
void copy_in(void* slot, const iovec* iov, size_t count, uint64_t offset, size_t length,
             CopyFunction copy) noexcept;
void copy_out(const iovec* iov, size_t count, uint64_t offset, const void* slot, size_t length,
              CopyFunction copy) noexcept;

/// What a failed call means.
enum class Failure : uint8_t {
  transient,   ///< worth a few retries
  permission,  ///< this call will never work on this peer
  memory,      ///< this memory cannot be reached that way; other memory may be
};
Failure classify(int error) noexcept;

struct IovList {
  const iovec* iov;
  size_t count;
};

/// Moves [offset, offset+length) between two lists by one of the two calls; continues after a short
/// count and retries transient failures. Returns 0 or the positive errno; adds to `moved`. A
/// call is proven by a peer that exists after it. Otherwise a read fetches the peer's nonce in the
/// same call, or else by the next, which proves whose memory it read; a write, and a read that
/// ended before its last byte, prove nothing: ask was_reached(). `target` only ever changes for the
/// worse.
int move_by_cma(CmaCalls& calls, CmaCall call, const CmaPeer& peer, IovList local, IovList remote,
                uint64_t offset, size_t length, uint64_t& moved, Target& target) noexcept;

/// Ask it after calls that succeeded and before they are reported. True: they reached the peer's
/// memory. A peer that ends as soon as it sees the last byte of a write does not make it fail: once
/// no process has the pid, or the one that has it is ending, there is no memory any more that lacks
/// the bytes.
bool was_reached(CmaCalls& calls, CmaCall call, const CmaPeer& peer, Target target) noexcept;

}  // namespace erdma::transport::shm
