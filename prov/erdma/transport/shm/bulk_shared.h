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

/// The control page of a bulk channel, and what both its sides compute alike.
///
/// A transfer is a sequence of generations: each moves one contiguous range of the message in one
/// mode. A generation ends when every claimed chunk is done or has failed; what is then left
/// becomes the range of later ones. Each word has one writer, but for `claim`, and carries the
/// generation it speaks of, so that a late store or claim can never leak into the next one.
namespace erdma::transport::shm {

inline constexpr size_t kTickets = 4;  ///< transfers under way at a time
inline constexpr size_t kPageBytes = 4096;
inline constexpr size_t kMinChunk = size_t{16} * 1024;
inline constexpr size_t kMaxChunk = size_t{256} * 1024;
/// Keeps chunk numbers within 16 bits; a longer rest is left to the next generation.
inline constexpr uint64_t kMaxRange = uint64_t(1) << 30;
/// Remote keys of one channel at a time: those whose revocation fits in the control page.
inline constexpr uint32_t kMaxShared = 1024;
/// Of a shared region that may be helped with; what is shared besides is not.
inline constexpr uint32_t kMaxSharedRegions = 1024;
inline constexpr uint32_t kUnhelped = UINT32_MAX;  ///< SharedRegion::index of that
inline constexpr unsigned kTransientRetries = 4;   ///< of a call that failed for want of memory
/// One poll moves at most this: small messages wait behind it.
inline constexpr size_t kPollChunks = 2;
inline constexpr size_t kPollBytes = size_t{256} * 1024;
inline constexpr size_t kPollPieces = 4;

enum class Mode : uint8_t {
  none,
  read_only,   ///< the receiver reads
  dual,        ///< the receiver reads, the sender may write
  write_only,  ///< the sender writes
  bounce,      ///< the sender streams through the slots
  outward,     ///< the other way, into a shared region: the receiver writes, the sender may read
};

/// What a ticket's state word says. 0 = the ticket is not in use.
struct TicketState {
  uint32_t generation = 0;
  Mode mode = Mode::none;
  Streaming streaming = Streaming::none;
};
inline constexpr uint64_t pack(TicketState state) noexcept {
  return uint64_t(state.generation) << 32 | uint64_t(state.mode) << 8 | uint64_t(state.streaming);
}
inline constexpr TicketState unpack_state(uint64_t word) noexcept {
  return {uint32_t(word >> 32), Mode(uint8_t(word >> 8)), Streaming(uint8_t(word))};
}

/// Chunks claimed in one generation: the receiver takes them from the front, the sender from the
/// back, until they meet. So in repeated transfers each core keeps to the same lines and pages.
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

/// A number that belongs to one generation: chunks done, pieces produced.
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

/// Why the sender takes no (more) part in a generation.
struct Stop {
  static constexpr uint32_t kNoChunk = 0xFFFFFF;
  uint32_t generation = 0;
  uint32_t chunk = kNoChunk;  ///< claimed, and failed
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

/// What a generation is about, by the receiver; `state` last. One line, unless the receiver's
/// memory is in several pieces: what a sender far away needs crosses once.
struct alignas(64) Ticket {
  SharedWord state;
  SharedWord remote_key;  ///< index << 16 | generation
  SharedWord begin, end;
  SharedWord base;    ///< of offset 0 in the shared memory
  SharedWord chunks;  ///< pieces in `iov` << 32 | bytes of a chunk
  struct Piece {
    SharedWord address, length;
  } iov[kMaxIov];  ///< the receiver's memory of the whole message
};
static_assert(offsetof(Ticket, iov[1]) == 64);

struct TicketProgress {
  alignas(64) SharedWord claim;  ///< Claims; CAS from both sides
  alignas(64) SharedWord done;   ///< Tally: chunks that the sender has written; by the sender
  SharedWord stop;               ///< by the sender
};

enum class WriteState : uint64_t {
  unknown,
  allowed,
  denied,
  unasked,  ///< allowed; but its core is shared: it is not to help a receiver that can do without
};

struct BulkShared {
  Ticket ticket[kTickets];
  alignas(64) SharedWord write_state;  ///< WriteState of the sender; by the sender
  alignas(64) SharedWord produced;     ///< Tally: slots filled in this generation; by the sender
  alignas(64) SharedWord consumed;     ///< Tally: slots emptied; by the receiver
  TicketProgress progress[kTickets];
  /// Last revoked generation, by remote key index; by the sender. Tells a receiver that needs
  /// nobody's help that what it reads is no longer the message.
  std::atomic<uint16_t> revoked[kMaxShared];
};
static_assert(sizeof(BulkShared) <= kBulkControlBytes);

inline BulkShared& shared_page(void* memory) noexcept {
  return *static_cast<BulkShared*>(memory);
}
inline std::byte* bounce_slot(void* memory, uint32_t piece) noexcept {
  return static_cast<std::byte*>(memory) + kBulkControlBytes +
         (piece % kBounceSlots) * kBounceSlotBytes;
}

/// Length of one piece of a bounce generation: shorter ones first, so that the receiver begins
/// early. Not shorter still: between cores far apart each costs some 300 ns.
inline constexpr size_t piece_bytes(uint32_t piece, uint64_t left) noexcept {
  return size_t(std::min<uint64_t>(left, piece < 2 ? kMinChunk : kBounceSlotBytes));
}

/// As few as possible, because a system call costs as much as copying 16 KiB or more; if both sides
/// share the work, in two equal halves.
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

/// True if no element is null or wraps around the address space, and they hold `length` bytes.
bool plausible(const iovec* iov, size_t count, uint64_t length) noexcept;

/// An RemoteKey of this transport, decoded. The addresses are the sharing process's.
struct SharedMemory {
  uint32_t index = 0;
  uint16_t generation = 0;
  uint8_t count = 0;
  uint64_t length = 0;
  iovec iov[kMaxIov];
  bool region = false;  ///< a shared region: its owner need not be asked
  bool for_reads = true, for_writes = false;

  uint64_t id() const noexcept { return uint64_t(index) << 16 | generation; }
};
/// Generations count up from 1; 0 = none was revoked yet.
inline constexpr bool revoked_by(uint16_t last, uint16_t generation) noexcept {
  return last != 0 && int16_t(uint16_t(last - generation)) >= 0;
}
void encode(const SharedMemory& memory, RemoteKey& remote_key) noexcept;
/// 0, or -FI_EINVAL for anything encode() would not have made.
int decode(const RemoteKey& remote_key, SharedMemory& memory) noexcept;

/// gather() and scatter() of hmem with a choice of copy.
void copy_in(void* slot, const iovec* iov, size_t count, uint64_t offset, size_t length,
             CopyFunction copy) noexcept;
void copy_out(const iovec* iov, size_t count, uint64_t offset, const void* slot, size_t length,
              CopyFunction copy) noexcept;

/// What a failed call means.
enum class Failure : uint8_t {
  transient,   ///< try again, a few times
  permission,  ///< this call will never work on this peer
  memory,      ///< this memory cannot be reached that way; other memory may
};
Failure classify(int error) noexcept;

struct IovList {
  const iovec* iov;
  size_t count;
};

/// Moves [offset, offset+length) between two lists by one of the two calls: goes on after a short
/// count, retries what is transient. Returns 0 or the positive errno; adds to `moved`. A read takes
/// the peer's nonce along: whose memory it was is certain then without another system call. Where
/// that read ended early, and of all writes, it is unknown: ask peer.was_called(whose). `whose`
/// only ever becomes worse.
int move_by_cma(CmaCalls& calls, CmaCall call, const CmaPeer& peer, IovList local, IovList remote,
                uint64_t offset, size_t length, uint64_t& moved, Whose& whose) noexcept;

}  // namespace erdma::transport::shm
