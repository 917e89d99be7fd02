#include "transport/shm/bulk_transfers.h"

#include <rdma/fi_errno.h>

#include "transport/shm/ordering.h"

namespace erdma::transport::shm {
namespace {

/// How long a receiver that could read waits for the sender's half of a copy, in ns. A sender that
/// polls may be inside system calls that move two chunks for another transfer. Where calls were
/// slow here, they may be there.
constexpr uint64_t kSenderWait = 200'000;
constexpr uint64_t kLongestSenderWait = 2'000'000;
constexpr uint64_t kSlowCalls = 4;
uint64_t sender_wait(uint64_t last_call) noexcept {
  return std::clamp(kSlowCalls * last_call, kSenderWait, kLongestSenderWait);
}

/// So many pieces tell how fast this side copies.
constexpr uint32_t kTimedPieces = 4;

/// The sender has revoked the memory, or broke the rules: no later generation can help.
bool fatal(const Stop& stop) noexcept {
  return stop.error == ECANCELED || stop.error == EPROTO;
}

/// Both sides move chunks.
bool is_divided(Mode mode) noexcept {
  return mode == Mode::dual || mode == Mode::outward;
}

/// The sender may have claimed chunks.
bool is_shared(Mode mode) noexcept {
  return is_divided(mode) || mode == Mode::write_only;
}

/// True if the sender shall take part in the generation that begins. Where it left its half of the
/// previous ones to this side, moving whole chunks alone is faster: it needs half the system calls,
/// and a sender on this core cannot delay the end by a chunk that it claimed and has no time to
/// move. `shared`: other threads use this core, so the sender's time is not free either. Nor is it
/// where messages go both ways, as it reads here at the same time.
bool asks_sender(PathChoice& choice, const Transfer& transfer, Mode mode, bool shared) noexcept {
  if (mode == Mode::read_only || transfer.remote.index == kUnhelped) return false;
  if (is_divided(mode) && (shared || transfer.both_ways)) return false;
  if (mode == Mode::outward && transfer.sender_off) return false;
  return !is_divided(mode) || choice.expects_help(transfer.range.length());
}

/// Copies the next piece of the message out of its slot.
void copy_piece(Transfer& transfer, const void* slot, size_t bytes,
                const util::Clock& clock) noexcept {
  const CopyFunction copy = transfer.state.streaming == Streaming::both ? stream_copy : plain_copy;
  const bool timed = transfer.both_ways && transfer.piece < kTimedPieces;
  const uint64_t start = timed ? clock.now() : 0;
  copy_out(transfer.local, transfer.locals, transfer.range.begin + transfer.offset, slot, bytes,
           copy);
  if (!timed) return;
  transfer.copied_ns += clock.now() - start;
  transfer.copied_bytes += bytes;
}

/// How long the calls of the side that moved more took, if those of the sender are as fast. The
/// transfer took `took`, which counts if this side makes none: the sender moves one transfer after
/// another.
uint64_t time_of_calls(const Transfer& transfer, uint64_t took) noexcept {
  const uint64_t here = transfer.called_bytes, all = transfer.range.length();
  if (here == 0) return took;
  const uint64_t most = std::max(here, all - std::min(here, all));
  return uint64_t(double(transfer.called_ns) * double(most) / double(here));
}

/// What copies take where both sides copy, in times of the part of one side: it copies as much for
/// the other direction, and each waits for slots that the other one fills.
constexpr uint64_t kCopiesBothWays = 3;

/// The nanoseconds of a transfer that compare with those of other paths; it took `took`. Where
/// messages go both ways, each side copies into and out of slots, and while it moves bytes by CMA,
/// the other side's copies stand still. So the time of a copy that was tried beside the peer's CMA
/// would keep both sides from copying for good. And the time of CMA that was tried beside the
/// peer's copies would keep both sides from CMA. What counts is the time of the copies or calls
/// alone. So it is for the calls of a stream, because several transfers are under way by CMA, and
/// of these one may end right after another; the sender moves its chunks at the same time. A copy
/// with streaming stores competes by its own time, because this side does not see what they cost.
uint64_t comparable_time(const Transfer& transfer, uint64_t took) noexcept {
  if (transfer.path == Path::cma && transfer.follows) return time_of_calls(transfer, took);
  if (transfer.path == Path::cma && transfer.both_ways && !transfer.asks)
    return std::min(took, transfer.called_ns);
  if (transfer.path != Path::copy || transfer.copied_bytes == 0) return took;
  return std::min(
      took, kCopiesBothWays * transfer.copied_ns * transfer.range.length() / transfer.copied_bytes);
}

/// What the whole length for which the path was chosen would have taken, in ns.
uint64_t scaled(const Transfer& transfer, uint64_t took) noexcept {
  const auto moved = double(transfer.range.length());
  return uint64_t(double(took) * (double(transfer.chosen_for) / moved));
}

uint32_t claim_alone(Transfer& transfer) noexcept {
  if (transfer.claimed < transfer.chunks) return transfer.claimed++;
  transfer.closed = true;
  return Stop::kNoChunk;
}

}  // namespace

int BulkTransfers::step(Transfer& transfer, Budget& budget) noexcept {
  int steps = 0;
  if (transfer.state.mode == Mode::none && transfer.lefts > 0) {
    if (transfer.remote.region && !may_call(transfer)) transfer.status = -FI_EOPNOTSUPP;
    if (revoked(transfer)) transfer.status = -FI_ECANCELED;
    if (transfer.status == 0) steps += begin(transfer);
  }
  switch (transfer.state.mode) {
    case Mode::read_only:
    case Mode::dual:
    case Mode::outward:
      return steps + move_chunks(transfer, budget);
    case Mode::write_only:
      return steps + watch_sender(transfer);
    case Mode::bounce:
      return steps + empty_slots(transfer, budget);
    case Mode::none:
      return steps;
  }
  return steps;
}

void BulkTransfers::close_claims(Transfer& transfer) noexcept {
  if (is_shared(transfer.state.mode) && !transfer.closed) close(transfer);
}

bool BulkTransfers::sender_writes(const Transfer& transfer) const noexcept {
  if (!transfer.closed || transfer.status != 0) return false;
  const uint32_t over = tally_of(x_page.progress[transfer.ticket].done, transfer) +
                        (stop_of(transfer).chunk != Stop::kNoChunk ? 1 : 0);
  return over < transfer.by_sender;
}

void BulkTransfers::abandon(Transfer& transfer) noexcept {
  close_claims(transfer);
  store_release(x_page.ticket[transfer.ticket].state, 0u);
  if (x_bouncing == &transfer) x_bouncing = nullptr;
}

Stop BulkTransfers::stop_of(const Transfer& transfer) const noexcept {
  if (!transfer.asks) return {};
  const Stop stop = unpack_stop(load_acquire(x_page.progress[transfer.ticket].stop));
  return stop.generation == transfer.state.generation && stop.error != 0 ? stop : Stop{};
}

bool BulkTransfers::revoked(const Transfer& transfer) const noexcept {
  if (transfer.remote.region) return x_backing.sender_left();  // enter() covers the rest
  const uint16_t last = look_after_reading(x_page.revoked[transfer.remote.index]);
  return revoked_by(last, transfer.remote.generation) || x_backing.sender_left();
}

/// A tally of another generation counts as none.
uint32_t BulkTransfers::tally_of(const SharedWord& word, const Transfer& transfer) const noexcept {
  if (!transfer.asks) return 0;
  const Tally tally = unpack_tally(load_acquire(word));
  return tally.generation == transfer.state.generation ? tally.count : 0;
}

bool BulkTransfers::all_claimed(const Transfer& transfer) const noexcept {
  if (!transfer.asks) return transfer.claimed >= transfer.chunks;
  const Claims claims = unpack_claims(load_acquire(x_page.progress[transfer.ticket].claim));
  return claims.generation == transfer.state.generation &&
         claims.front + claims.back >= transfer.chunks;
}

BulkTransfers::Outlook BulkTransfers::look(const Transfer& transfer) const noexcept {
  const auto write_state = WriteState(load_acquire(x_page.write_state));
  return {write_state, next_mode(transfer, write_state), may_choose_copy(transfer, write_state)};
}

Mode BulkTransfers::next_mode(const Transfer& transfer, WriteState write_state) const noexcept {
  if (transfer.call == CmaCall::write) return Mode::outward;
  const bool unasked = write_state == WriteState::unasked;
  const bool writes = write_state == WriteState::allowed || unasked;
  const bool never = transfer.sender_off || !(writes || write_state == WriteState::unknown);
  if (may_call(transfer)) return never || unasked ? Mode::read_only : Mode::dual;
  if (never) return Mode::bounce;
  return writes ? Mode::write_only : Mode::none;
}

/// Chooses the slots for a generation, and gives them memory. 0, or why there is none.
int BulkTransfers::choose_slots(Transfer& transfer, bool on_trial) noexcept {
  const bool all =
      !x_few_only && !on_trial && !x_core.shared() && x_backing.affordable_slots() == kBounceSlots;
  uint32_t slots = all ? kBounceSlots : kFewBounceSlots;
  while (x_backed < slots) {
    const int status = x_backing.back_bounce(slots);
    if (status == 0) {
      x_backed = slots;
    } else if (slots == kBounceSlots) {
      x_few_only = status != -FI_EAGAIN;
      slots = kFewBounceSlots;
    } else {
      return status;
    }
  }
  transfer.all_slots = slots == kBounceSlots;
  // The first time, each slot costs page faults.
  if (transfer.all_slots && x_slots_used < kBounceSlots) transfer.comparable = false;
  return 0;
}

/// True if this transfer may use the slots although CMA could move it. A sender that has not yet
/// announced whether it may write is not polling, so it cannot copy either. Where cores are shared,
/// each half of a copy waits for its turn.
bool BulkTransfers::may_choose_copy(const Transfer& transfer,
                                    WriteState write_state) const noexcept {
  // Memory that CMA cannot reach has the slots until its sender has polled. What this side can read
  // alone does not wait for that.
  if (x_bouncing && !may_call(*x_bouncing) && may_call(transfer)) return false;
  return !transfer.copy_off && !x_core.shared() && write_state != WriteState::unasked &&
         !x_unaffordable && transfer.call == CmaCall::read && transfer.remote.index != kUnhelped &&
         x_backing.affordable_slots() > 0 && write_state != WriteState::unknown;
}

/// `mode` is what CMA permits on entry; it becomes Mode::bounce if the bytes shall be copied.
/// Returns 0, or why they cannot be.
int BulkTransfers::choose_path(Transfer& transfer, const Outlook& now, Mode& mode) noexcept {
  if (mode == Mode::outward) {
    transfer.path = Path::cma;
    transfer.comparable = false;
    return 0;
  }
  const bool cma = mode != Mode::bounce;
  const size_t length = transfer.range.length();
  PathChoice& choice = x_choices[transfer.kind()];
  // The first answer takes some 50 us, so nobody asks before it matters.
  const bool matters = may_call(transfer) && now.copy &&
                       (transfer.follows || choice.trial_is_due(length)) &&
                       length > PathChoice::never_copied(x_backed > 0);
  const bool fast = matters && x_backing.calls_are_fast();
  if (matters) x_calls_are_slow = !fast;
  // Both ways a longer trial costs more than it tells, since the other side may take another path.
  const bool long_trials =
      x_calls_are_slow && !transfer.both_ways && x_backing.affordable_slots() == kBounceSlots;
  // Amid calls both ways, the time of a copy tells nothing of what it costs the other core.
  const bool amid_calls =
      fast && transfer.both_ways && transfer.follows && x_backing.streams_back();
  const bool copy = !cma || (now.copy && !amid_calls);
  transfer.comparable = copy;
  transfer.chosen_for = length;
  transfer.path = choice.choose(
      length, {.cma = cma,
               .copy = copy,
               .backed = x_backed > 0,
               .tries = !transfer.tried,
               .rarely = fast,
               .long_trials = long_trials,
               .likely = matters && !fast && transfer.follows && length > PathChoice::kOneCopy});
  if (!copies(transfer.path)) return 0;
  const bool on_trial = cma && choice.tries(length);
  const bool is_long = on_trial && long_trials && transfer.path == Path::copy;
  const int status = choose_slots(transfer, on_trial && !is_long);
  if (status != 0) {
    x_unaffordable = status != -FI_EAGAIN;
    transfer.path = Path::cma;
    return cma ? 0 : status;
  }
  if (is_long && !transfer.comparable) choice.repeat_trial(length);
  mode = Mode::bounce;
  x_bouncing = &transfer;
  if (on_trial && length > kTriedWhole) {
    transfer.range.end = transfer.range.begin + (is_long ? kTriedWhole : kTrialBytes);
    transfer.tried = true;
  }
  return 0;
}

/// False: the transfer must wait for the slots, for their memory, or until the sender announces
/// whether it may write.
bool BulkTransfers::begin(Transfer& transfer) noexcept {
  const Outlook now = look(transfer);
  Mode mode = now.mode;
  if (mode == Mode::none || (x_bouncing && now.may_use_slots())) return false;
  const Range whole = transfer.left[transfer.lefts - 1];
  transfer.range = {whole.begin, std::min(whole.end, whole.begin + kMaxRange)};
  transfer.both_ways = transfer.both_ways || x_backing.shares_back();
  const int status = choose_path(transfer, now, mode);
  if (status == -FI_EAGAIN) return false;
  --transfer.lefts;
  transfer.leave(transfer.range.end, whole.end);
  transfer.status = status;
  if (status != 0) return true;
  transfer.present = now.write_state != WriteState::unknown;
  transfer.asks = asks_sender(x_choices[transfer.kind()], transfer, mode, x_core.shared());
  transfer.chunk = chunk_bytes(transfer.range.length(), transfer.asks && is_divided(mode));
  transfer.chunks = chunks_of(transfer.range.length(), transfer.chunk);
  transfer.claimed = 0;
  transfer.target = Target::peer;
  transfer.failed = Stop::kNoChunk;
  transfer.closed = false;
  transfer.by_sender = 0;
  transfer.piece = 0;
  transfer.offset = 0;
  transfer.seen_piece = 0;
  transfer.copied_ns = transfer.copied_bytes = transfer.called_ns = transfer.called_bytes = 0;
  transfer.timed = transfer.both_ways || transfer.follows || transfer.remote.timed;
  if (++x_generation == 0) ++x_generation;
  transfer.state = {x_generation, mode, streaming_of(transfer.path)};
  // The slots that were not used for longest are next; few stay in the cache in any case.
  if (mode == Mode::bounce && transfer.all_slots) {
    transfer.state.all_slots = true;
    transfer.state.first_slot = uint8_t(x_slots_used % kBounceSlots);
  }
  transfer.started = transfer.heard = x_clock.now();
  if (transfer.asks) publish(transfer);
  return true;
}

/// The state word has been zero since the last generation ended. Because of the release stores, a
/// sender that sees any new value also sees that zero, so it never mixes two generations. Words
/// that a bounce does not use are not written: each line costs a transfer from the sender's core
/// and back.
void BulkTransfers::publish(Transfer& transfer) noexcept {
  Ticket& ticket = x_page.ticket[transfer.ticket];
  TicketProgress& progress = x_page.progress[transfer.ticket];
  store_release(ticket.remote_key, transfer.remote.id());
  store_release(ticket.begin, transfer.range.begin);
  store_release(ticket.end, transfer.range.end);
  store_release(ticket.base, transfer.base);
  store_release(ticket.chunks, uint64_t(transfer.locals) << 32 | transfer.chunk);
  for (size_t i = 0; i < transfer.locals; ++i) {
    const iovec& piece = transfer.local[i];
    store_release(ticket.iov[i].address, reinterpret_cast<uintptr_t>(piece.iov_base));
    store_release(ticket.iov[i].length, piece.iov_len);
  }
  // Zeroed, so that a value from 2^32 generations ago cannot pass for a current one.
  if (progress.stop.load(std::memory_order_relaxed) != 0) store_release(progress.stop, 0u);
  if (transfer.state.mode == Mode::bounce) {
    store_release(x_page.consumed, pack(Tally{transfer.state.generation, 0}));
  } else {
    store_release(progress.done, 0u);
    store_release(progress.claim, pack(Claims{transfer.state.generation, 0, 0}));
  }
  store_release(ticket.state, pack(transfer.state));
  if (transfer.remote.region) x_backing.ask_for_help();
}

/// Claims the next chunk. kNoChunk: none is left now, or the word is invalid (then status is set).
uint32_t BulkTransfers::claim(Transfer& transfer) noexcept {
  if (!transfer.asks) return claim_alone(transfer);
  SharedWord& word = x_page.progress[transfer.ticket].claim;
  uint64_t seen = load_acquire(word);
  for (uint32_t tries = 0; tries <= transfer.chunks; ++tries) {
    Claims claims = unpack_claims(seen);
    if (claims.generation != transfer.state.generation || claims.front != transfer.claimed ||
        claims.front + claims.back > transfer.chunks)
      break;
    if (claims.front + claims.back == transfer.chunks) {
      transfer.closed = true;
      transfer.by_sender = claims.back;
      return Stop::kNoChunk;
    }
    ++claims.front;
    if (compare_exchange_acq_rel(word, seen, pack(claims))) return transfer.claimed++;
  }
  transfer.status = -EPROTO;
  return Stop::kNoChunk;
}

void BulkTransfers::close(Transfer& transfer) noexcept {
  transfer.closed = true;
  transfer.by_sender = 0;
  if (!transfer.asks) return;
  const Claims all{transfer.state.generation, transfer.chunks, 0};
  const Claims claims =
      unpack_claims(exchange_acq_rel(x_page.progress[transfer.ticket].claim, pack(all)));
  if (claims.generation == transfer.state.generation && claims.front == transfer.claimed &&
      claims.front + claims.back <= transfer.chunks) {
    transfer.by_sender = claims.back;
    return;
  }
  transfer.status = -EPROTO;
}

void BulkTransfers::move_chunk(Transfer& transfer, uint32_t index, Budget& budget) noexcept {
  const uint64_t begin = transfer.range.begin + uint64_t(index) * transfer.chunk;
  const auto length = size_t(std::min<uint64_t>(transfer.chunk, transfer.range.end - begin));
  const bool region = transfer.remote.region;
  if (region && !x_backing.enter(transfer.revocations_seen)) {
    // The owner may still be inside a chunk of this side's memory: that must end first.
    transfer.not_now = true;
    transfer.failed = index;
    return;
  }
  const bool reads = transfer.call == CmaCall::read;
  const uint64_t start = transfer.timed ? x_clock.now() : 0;
  const int error =
      move_by_cma(x_calls, transfer.call, x_peer, {transfer.local, transfer.locals},
                  {transfer.remote.iov, transfer.remote.count}, begin, length,
                  reads ? x_counters.cma_read_bytes : x_counters.cma_write_bytes, transfer.target);
  if (region) x_backing.leave();
  if (transfer.timed && error == 0) {
    x_last_call = x_clock.now() - start;
    transfer.called_ns += x_last_call;
    transfer.called_bytes += length;
  }
  budget.spend_chunk(length);
  if (error == 0) {
    if (region) x_counters.region_bytes += length;
    return;
  }
  transfer.failed = index;
  const Failure failure = classify(error);
  transfer.not_now = region && failure == Failure::transient;
  if (failure == Failure::permission) {
    deny(x_peer, transfer.call, error, x_counters);
  } else {
    transfer.own_off = transfer.sender_off = true;
  }
}

int BulkTransfers::move_chunks(Transfer& transfer, Budget& budget) noexcept {
  int steps = 0;
  while (!transfer.closed && transfer.status == 0 && budget.chunk_left() &&
         !fatal(stop_of(transfer))) {
    if (!may_call(transfer)) {
      close(transfer);
      break;
    }
    if (!transfer.asks && revoked(transfer)) {  // no other word tells this side
      transfer.status = -FI_ECANCELED;
      return steps + 1;
    }
    const uint32_t index = claim(transfer);
    if (index == Stop::kNoChunk) break;
    move_chunk(transfer, index, budget);
    ++steps;
    if (transfer.failed != Stop::kNoChunk) close(transfer);
    // Close at once after the last chunk, so that the end does not wait for another poll.
    if (!transfer.closed && transfer.status == 0 && all_claimed(transfer)) close(transfer);
  }
  return steps + watch_sender(transfer);
}

/// Ends the generation once every claimed chunk is done or has failed.
int BulkTransfers::watch_sender(Transfer& transfer) noexcept {
  if (transfer.status != 0) return 0;
  // Loaded before `done`: a sender that stops has stored its last `done` earlier.
  const Stop stop = stop_of(transfer);
  if (fatal(stop)) {
    transfer.status = -int(stop.error);
    return 1;
  }
  if (stop.error != 0) transfer.sender_off = true;
  TicketProgress& progress = x_page.progress[transfer.ticket];
  if (transfer.state.mode == Mode::write_only && !transfer.closed &&
      (stop.error != 0 || all_claimed(transfer)))
    close(transfer);
  if (!transfer.closed || transfer.status != 0) return 0;
  const uint32_t failed = stop.chunk != Stop::kNoChunk ? 1 : 0;
  const uint64_t over = uint64_t(tally_of(progress.done, transfer)) + failed;
  // A sender stops at the chunk that failed, so that is the last one it claimed. It has moved the
  // others, so this side must not wait, without sleep, for more.
  if (over > transfer.by_sender || (stop.error != 0 && over < transfer.by_sender) ||
      (failed && stop.chunk != transfer.chunks - transfer.by_sender)) {
    transfer.status = -EPROTO;
    return 1;
  }
  if (over < transfer.by_sender) return 0;
  if (failed) {
    transfer.leave_chunk(stop.chunk);
    transfer.comparable = false;
  }
  end(transfer);
  return 1;
}

int BulkTransfers::empty_slots(Transfer& transfer, Budget& budget) noexcept {
  const Stop stop = stop_of(transfer);
  const uint32_t produced = tally_of(x_page.produced, transfer);
  if (stop.error != 0 || produced < transfer.piece ||
      produced - transfer.piece > transfer.state.slots()) {
    transfer.status = fatal(stop) ? -int(stop.error) : -EPROTO;
    return 1;
  }
  int steps = 0;
  while (transfer.piece < produced && transfer.offset < transfer.range.length() &&
         budget.pieces > 0) {
    const size_t bytes = piece_bytes(transfer.piece, transfer.range.length() - transfer.offset);
    copy_piece(transfer, bounce_slot(x_memory, transfer.state, transfer.piece), bytes, x_clock);
    transfer.offset += bytes;
    x_counters.bounce_in_bytes += bytes;
    --budget.pieces;
    ++steps;
    store_release(x_page.consumed, pack(Tally{transfer.state.generation, ++transfer.piece}));
  }
  if (transfer.offset == transfer.range.length()) end(transfer);
  return steps ? steps : await_sender(transfer);
}

/// No slot is filled. A sender that computes may not poll for long; what it shared is then read by
/// CMA. If it fills another slot, that slot is never read.
int BulkTransfers::await_sender(Transfer& transfer) noexcept {
  if (!may_call(transfer)) return 0;
  const uint64_t now = x_clock.now();
  if (transfer.seen_piece != transfer.piece) {
    transfer.seen_piece = transfer.piece;
    transfer.heard = now;
  }
  if (now - transfer.heard < sender_wait(x_last_call)) return 0;
  x_choices[transfer.kind()].sender_absent();
  x_last_call = 0;  // the calls of this side may be fast again
  transfer.copy_off = true;
  end(transfer);
  return 1;
}

void BulkTransfers::end(Transfer& transfer) noexcept {
  // A revocation that this load does not see came after the last byte was read. The owner of a
  // region has not revoked it while this side was inside: enter().
  if (!transfer.remote.region && revoked(transfer)) transfer.status = -FI_ECANCELED;
  // Covers all that this side moved by pid.
  if (!was_reached(x_calls, transfer.call, x_peer, transfer.target))
    transfer.status = transfer.remote.region ? -FI_EBUSY : -FI_ECONNRESET;
  if (transfer.not_now) transfer.status = -FI_EBUSY;
  if (transfer.asks) store_release(x_page.ticket[transfer.ticket].state, 0u);
  const size_t lefts = transfer.lefts;
  const uint64_t now = x_clock.now();
  // Others took part of the time, which says too much about the little that a trial moves.
  const bool overlapped = transfer.tried && x_last_end > transfer.started;
  // Others of a stream may have ended by CMA meanwhile. A copy has the slots for itself, and what
  // does not follow others began alone.
  const bool among_others = transfer.path == Path::cma && transfer.follows;
  const uint64_t since = among_others ? std::max(transfer.started, x_last_end) : transfer.started;
  const uint64_t took = comparable_time(transfer, now - since);
  // While this side was in calls for others, the sender moved all of this one: nobody timed that.
  if (among_others && is_divided(transfer.state.mode) && transfer.called_bytes == 0)
    transfer.comparable = false;
  if (transfer.state.mode == Mode::bounce) {
    x_bouncing = nullptr;
    if (transfer.state.all_slots) x_slots_used += transfer.piece;
    transfer.leave(transfer.range.begin + transfer.offset, transfer.range.end);
  } else {
    if (transfer.failed != Stop::kNoChunk) transfer.leave_chunk(transfer.failed);
    const uint64_t back = uint64_t(transfer.chunks - transfer.by_sender) * transfer.chunk;
    transfer.leave(transfer.range.begin + uint64_t(transfer.claimed) * transfer.chunk,
                   std::min(transfer.range.begin + back, transfer.range.end));
  }
  if (transfer.asks && transfer.present && is_divided(transfer.state.mode))
    x_choices[transfer.kind()].helped(transfer.range.length(), transfer.by_sender > 0);
  transfer.state.mode = Mode::none;
  if (transfer.lefts == lefts && transfer.status == 0) {
    if (transfer.comparable && !overlapped)
      x_choices[transfer.kind()].record(transfer.chosen_for, transfer.path, scaled(transfer, took));
    if (transfer.remote.timed && transfer.called_bytes > 0)
      publish_read_time(x_page, transfer.remote,
                        transfer.called_ns * transfer.length / transfer.called_bytes);
  }
  x_last_end = now;
}

bool BulkTransfers::ready(const Transfer& transfer) const noexcept {
  if (stop_of(transfer).error != 0) return true;
  const TicketProgress& progress = x_page.progress[transfer.ticket];
  switch (transfer.state.mode) {
    case Mode::none: {
      const Outlook now = look(transfer);
      return (transfer.remote.region && !may_call(transfer)) ||
             (now.mode != Mode::none && !(x_bouncing && now.may_use_slots()));
    }
    case Mode::bounce:
      // A receiver that could read instead does not sleep while it waits for the sender.
      return tally_of(x_page.produced, transfer) != transfer.piece || may_call(transfer);
    case Mode::write_only:
      if (!transfer.closed) return all_claimed(transfer);
      [[fallthrough]];
    case Mode::read_only:
    case Mode::dual:
    case Mode::outward:
      return !transfer.closed || tally_of(progress.done, transfer) >= transfer.by_sender;
  }
  return true;
}

}  // namespace erdma::transport::shm
