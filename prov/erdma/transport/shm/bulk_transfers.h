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

/// One inbound transfer. It is in exactly one of the lists of BulkIn.
struct Transfer : util::ListHook<Transfer> {
  uint64_t token = 0;
  uint64_t group = 0;
  SharedMemory remote;
  iovec local[kMaxIov];
  size_t locals = 0;
  uint64_t length = 0;
  int status = 0;
  CmaCall call = CmaCall::read;  ///< write: into a shared region
  /// Offset of the first byte in the region that the sender shared; 0 for messages.
  uint64_t base = 0;
  uint64_t revocations_seen = 0;  ///< when the transfer began; shared regions only
  /// The shared region may have been revoked since, or the kernel lacked memory for an access.
  bool not_now = false;
  size_t ticket = 0;  ///< while running

  /// The parts that no generation has taken up yet. Each failure removes one capability (both
  /// sides, one side, bounce) and leaves at most three parts, so the array never fills.
  static constexpr size_t kMaxLeft = 8;
  Range left[kMaxLeft];
  size_t lefts = 0;
  bool own_off = false, sender_off = false;  ///< whose calls cannot reach this message's memory
  bool copy_off = false;  ///< a copy by choice failed because the sender did not fill slots

  // The generation under way. Of the shared words, this side reads back only those that the sender
  // writes.
  TicketState state;             ///< mode none: between generations
  Target target = Target::peer;  ///< the process that this side's calls accessed
  bool present = false;          ///< the sender had attached this page when the generation began
  bool asks = false;  ///< the sender is shown the ticket; otherwise this side alone claims chunks
  Range range;
  size_t chunk = 0;
  uint32_t chunks = 0;
  uint32_t claimed = 0;              ///< chunks that this side claimed, from the front
  uint32_t failed = Stop::kNoChunk;  ///< the claimed chunk that failed
  bool closed = false;               ///< neither side can claim any more
  uint32_t by_sender = 0;            ///< once closed: chunks that the sender claimed, from the back
  uint32_t piece = 0;                ///< bounce: the next slot to empty
  uint64_t offset = 0;               ///< bounce: bytes of the range that have arrived
  uint32_t seen_piece = 0;           ///< bounce: slots filled when the sender last made progress
  uint64_t heard = 0;                ///< bounce: when that was
  Path path = Path::cma;
  bool all_slots = false;  ///< bounce: see TicketState
  /// The sender takes part in whichever path is chosen, so the rate may be compared with other
  /// paths. Without the sender CMA takes twice as long, which says nothing about those cases in
  /// which there is a choice.
  bool comparable = false;
  uint64_t chosen_for = 0;  ///< the length for which the path was chosen
  bool tried = false;       ///< a part of the message has tried a path
  uint64_t started = 0;
  uint64_t copied_ns = 0;   ///< bounce: this side's part in the first pieces
  size_t copied_bytes = 0;  ///< bounce: length of these pieces
  bool timed = false;       ///< the calls of this side are timed
  uint64_t called_ns = 0;   ///< in these calls
  size_t called_bytes = 0;  ///< moved by them
  /// This side shared memory with the sender when a generation of the transfer began, or when the
  /// transfer was queued, if it is not very long. A sender that has read that in between is as
  /// likely to read again next time.
  bool both_ways = false;
  bool follows = false;  ///< others of this sender were under way when the transfer was queued

  /// Transfers of the same kind are judged together.
  static constexpr size_t kKinds = 4;
  size_t kind() const noexcept { return 2 * size_t(follows) + size_t(both_ways); }

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

/// Takes each transfer through its generations, from the choice of a mode to the end. `shared` must
/// outlive this object; no value read from it is trusted.
class BulkTransfers {
 public:
  /// Where CMA is permitted, a message above kTriedWhole tries a copy with so many of its bytes, as
  /// a copy with streaming stores may take five times as long. The rest takes the usual path. A
  /// copy that may well be faster is tried with kTriedWhole bytes.
  static constexpr uint64_t kTrialBytes = uint64_t{256} * 1024;
  static constexpr uint64_t kTriedWhole = 4 * kTrialBytes;

  BulkTransfers(void* shared, BulkMemory& slots, CmaCalls& calls, CmaPeer& sender,
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
        x_choices{PathChoice(options.streaming, options.paths),
                  PathChoice(options.streaming, options.paths),
                  PathChoice(options.streaming, options.paths),
                  PathChoice(options.streaming, options.paths)} {}

  /// Moves what can be moved now, at most a chunk or two. Returns the steps made. The transfer is
  /// over when it has a status, or when it has neither a generation nor anything left.
  int step(Transfer& transfer, Budget& budget) noexcept;
  /// True if step() would do something now.
  bool ready(const Transfer& transfer) const noexcept;
  /// Stops the sender from claiming more chunks.
  void close_claims(Transfer& transfer) noexcept;
  /// True while the sender holds claimed chunks that it has not yet reported as written or failed.
  bool sender_writes(const Transfer& transfer) const noexcept;
  /// Takes the transfer off its ticket: no claim can succeed any more.
  void abandon(Transfer& transfer) noexcept;

 private:
  bool may_call(const Transfer& transfer) const noexcept {
    return x_peer.may(transfer.call) && !transfer.own_off;
  }
  /// What is possible for a transfer, as one load of the sender's word shows. The sender may change
  /// the word at any time, so each decision uses one such object.
  struct Outlook {
    WriteState write_state;
    Mode mode;  ///< what CMA permits; bounce: nothing; none: the sender has to announce more
    bool copy;  ///< the slots may be used although CMA could move the bytes
    /// One transfer at a time has the slots. Others that might use them wait, so that the measured
    /// time is that of the path alone. `copy` is false where that could take for ever.
    bool may_use_slots() const noexcept { return mode == Mode::bounce || copy; }
  };
  Outlook look(const Transfer& transfer) const noexcept;
  Mode next_mode(const Transfer& transfer, WriteState write_state) const noexcept;
  bool may_choose_copy(const Transfer& transfer, WriteState write_state) const noexcept;
  int choose_path(Transfer& transfer, const Outlook& now, Mode& mode) noexcept;
  bool begin(Transfer& transfer) noexcept;
  int choose_slots(Transfer& transfer, bool on_trial) noexcept;
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
  /// Where messages go both ways, copies compete for the cores that make them, and in a stream each
  /// overlaps with the next one. So these are judged apart.
  PathChoice x_choices[Transfer::kKinds];
  uint32_t x_generation = 0;  ///< the last one given out; unique over all tickets
  Transfer* x_bouncing = nullptr;
  uint32_t x_backed = 0;          ///< slots that have memory
  bool x_few_only = false;        ///< backing all of them failed
  bool x_calls_are_slow = false;  ///< calls of the kernel, as measured; false: not measured
  uint32_t x_slots_used = 0;      ///< pieces of generations that used all slots; wraps around
  bool x_unaffordable = false;    ///< backing the slots failed: they are not chosen again
  uint64_t x_last_call = 0;       ///< ns that the last call took of those that are timed
  /// End of the last generation; a generation that began earlier overlapped with it.
  uint64_t x_last_end = 0;
};

}  // namespace erdma::transport::shm
