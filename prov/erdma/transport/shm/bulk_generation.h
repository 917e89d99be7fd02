#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "transport/shm/bulk.h"
#include "transport/shm/bulk_shared.h"
#include "transport/shm/core_sharing.h"
#include "transport/shm/path_choice.h"
#include "util/intrusive_list.h"

namespace erdma::transport::shm {

/// One inbound transfer. In exactly one of the lists of BulkIn.
struct Transfer : util::ListHook<Transfer> {
  uint64_t token = 0;
  uint64_t group = 0;
  SharedMemory remote;
  iovec local[kMaxIov];
  size_t locals = 0;
  uint64_t length = 0;
  int status = 0;
  CmaCall call = CmaCall::read;   ///< what this side does; write: into a shared region
  uint64_t base = 0;              ///< of the first byte, in a shared region as the sender knows it
  uint64_t revocations_seen = 0;  ///< when it began; of a shared region
  bool region_revoked = false;    ///< a shared region that may have been revoked since
  size_t ticket = 0;              ///< while running

  /// What no generation has taken up yet. Each failure takes a capability away (both, one, bounce),
  /// and leaves at most three parts: never full.
  static constexpr size_t kMaxLeft = 8;
  Range left[kMaxLeft];
  size_t lefts = 0;
  bool own_off = false, sender_off = false;  ///< whose calls cannot reach this message's memory
  bool copy_off = false;                     ///< the sender did not come to copy: not by choice

  // The generation under way. Of what is shared, only what the sender writes is ever read back.
  TicketState state;           ///< mode none: between generations
  Whose whose = Whose::peers;  ///< what this side moved
  bool present = false;        ///< the sender had this page when it was asked
  bool asks = false;  ///< the sender is shown the ticket; if not, claims are made here alone
  Range range;
  size_t chunk = 0;
  uint32_t chunks = 0;
  uint32_t claimed = 0;              ///< chunks that this side took, from the front
  uint32_t failed = Stop::kNoChunk;  ///< the one of them that failed
  bool closed = false;               ///< nobody can claim any more
  uint32_t by_sender = 0;            ///< once closed: chunks that the sender took, from the back
  uint32_t piece = 0;                ///< bounce: next slot to empty
  uint64_t offset = 0;               ///< bounce: bytes of the range in place
  uint32_t seen_piece = 0;           ///< bounce: slots filled when the sender was last heard of
  uint64_t heard = 0;                ///< and when that was
  Path path = Path::cma;
  /// The sender is there to do its half of any path. Without it CMA takes twice as long: a rate
  /// that says nothing about the time when there is a choice.
  bool comparable = false;
  uint64_t started = 0;

  void leave(uint64_t begin, uint64_t end) noexcept {
    if (begin >= end) return;
    if (lefts == kMaxLeft) {
      status = -EPROTO;
      return;
    }
    left[lefts++] = {begin, end};
  }
  void leave_chunk(uint32_t index) noexcept {
    const uint64_t begin = range.begin + uint64_t(index) * chunk;
    leave(begin, std::min<uint64_t>(begin + chunk, range.end));
  }
};

/// Takes transfers through their generations, each from the choice of its mode to its end. `shared`
/// outlives it; no value in there is trusted.
class Generations {
 public:
  Generations(void* shared, BulkMemory& slots, CmaCalls& calls, CmaPeer& sender,
              const Options& options, const CoreSharing& core, Counters& counters,
              const util::Clock& clock) noexcept
      : x_memory(shared),
        x_page(shared_page(shared)),
        x_backing(slots),
        x_calls(calls),
        x_peer(sender),
        x_core(core),
        x_counters(counters),
        x_clock(clock),
        x_choice(options.streaming, options.paths) {}

  /// Moves what can be moved now, a chunk or two. Returns the steps made. The transfer is over when
  /// it has a status, or no generation and nothing left.
  int step(Transfer& transfer, Budget& budget) noexcept;
  /// True if step() would do something now.
  bool ready(const Transfer& transfer) const noexcept;
  /// The sender claims no more chunks.
  void close_claims(Transfer& transfer) noexcept;
  /// It claimed chunks, and has not said yet that they are written, or failed.
  bool sender_writes(const Transfer& transfer) const noexcept;
  /// Takes the transfer off its ticket: no claim can succeed any more.
  void abandon(Transfer& transfer) noexcept;

 private:
  bool may_call(const Transfer& transfer) const noexcept {
    return x_peer.verdict(transfer.call).permission == Permission::allowed && !transfer.own_off;
  }
  Mode next_mode(const Transfer& transfer) const noexcept;
  bool may_choose_copy(const Transfer& transfer) const noexcept;
  bool must_wait(const Transfer& transfer) const noexcept;
  int choose_path(Transfer& transfer, Mode& mode) noexcept;
  bool begin(Transfer& transfer) noexcept;
  int back_slots() noexcept;
  void publish(Transfer& transfer) noexcept;
  int move_chunks(Transfer& transfer, Budget& budget) noexcept;
  uint32_t claim(Transfer& transfer) noexcept;
  void move_chunk(Transfer& transfer, uint32_t index, Budget& budget) noexcept;
  void close(Transfer& transfer) noexcept;
  int watch_sender(Transfer& transfer) noexcept;
  int empty_slots(Transfer& transfer, Budget& budget) noexcept;
  int await_sender(Transfer& transfer) noexcept;
  void end(Transfer& transfer) noexcept;
  bool revoked(const Transfer& transfer) const noexcept;
  Stop stop_of(const Transfer& transfer) const noexcept;
  uint32_t tally_of(const SharedWord& word, const Transfer& transfer) const noexcept;
  bool all_claimed(const Transfer& transfer) const noexcept;

  void* const x_memory;
  BulkShared& x_page;
  BulkMemory& x_backing;
  CmaCalls& x_calls;
  CmaPeer& x_peer;
  const CoreSharing& x_core;
  Counters& x_counters;
  const util::Clock& x_clock;
  PathChoice x_choice;
  uint32_t x_generation = 0;  ///< last one given out; unique over all tickets
  Transfer* x_bouncing = nullptr;
  bool x_backed = false;
  bool x_unaffordable = false;  ///< backing the slots failed: they are not chosen again
  uint64_t x_last_end = 0;      ///< of a generation: what begins earlier shares the time before
};

}  // namespace erdma::transport::shm
