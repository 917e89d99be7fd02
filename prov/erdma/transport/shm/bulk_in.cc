#include "transport/shm/bulk_in.h"

#include <sched.h>

#include <cerrno>
#include <new>

#include <rdma/fi_errno.h>

namespace erdma::transport::shm {
namespace {

constexpr int kAbortYields = 20000;           // a few milliseconds on an idle host
constexpr uint64_t kAbortWait = 100'000'000;  // ns

/// The sender is out: no later generation can help.
bool fatal(const Stop& stop) noexcept {
  return stop.error == ECANCELED || stop.error == EPROTO;
}

}  // namespace

BulkIn::BulkIn(void* shared, BulkMemory& memory, CmaCalls& calls, CmaPeer& peer,
               const Options& options, Counters& counters, const util::Clock& clock)
    : x_state(std::make_unique<State>(shared, memory, calls, peer, options, counters, clock)) {}

BulkIn::~BulkIn() = default;

int BulkIn::start(const Exposure& remote, const iovec* local, size_t count, size_t length,
                  uint64_t token) noexcept {
  RemoteMemory memory;
  if (const int status = decode(remote, memory)) return status;
  if (memory.access != Access::remote_read || memory.index >= kMaxExposures ||
      length > memory.length || count > kMaxIov || !plausible(local, count, length))
    return -FI_EINVAL;
  Transfer* transfer = x_state->pool.acquire();
  if (!transfer) return -FI_ENOMEM;
  transfer->token = token;
  transfer->remote = memory;
  transfer->length = length;
  std::copy_n(local, count, transfer->local);
  transfer->locals = count;
  transfer->leave(0, length);
  x_state->queued.push_back(*transfer);
  ++x_state->live;
  return 0;
}

int BulkIn::poll(Sink& sink) noexcept {
  if (x_state->live == 0) return 0;
  x_state->activate();
  int steps = 0;
  Budget budget;
  for (Transfer *transfer = x_state->running.front(), *next; transfer; transfer = next) {
    next = x_state->running.next(*transfer);
    steps += x_state->step(*transfer, budget);
  }
  return steps + x_state->deliver(sink);
}

bool BulkIn::active() const noexcept {
  return x_state->live > 0;
}

bool BulkIn::ready() const noexcept {
  State& state = *x_state;
  if (!state.finished.empty()) return true;
  size_t used = 0;
  for (Transfer* transfer = state.running.front(); transfer;
       transfer = state.running.next(*transfer), ++used)
    if (state.ready(*transfer)) return true;
  return used < kTickets && !state.queued.empty();
}

void BulkIn::abort(Sink& sink, int status) noexcept {
  State& state = *x_state;
  for (Transfer* transfer = state.running.front(); transfer;
       transfer = state.running.next(*transfer))
    if (transfer->state.mode == Mode::dual || transfer->state.mode == Mode::write_only)
      if (!transfer->closed) state.close(*transfer);
  state.await_writes_under_way();
  while (Transfer* transfer = state.running.front()) state.finish(*transfer, status);
  while (Transfer* transfer = state.queued.pop_front()) {
    transfer->status = status;
    state.finished.push_back(*transfer);
  }
  state.deliver(sink);
}

void BulkIn::State::activate() noexcept {
  for (size_t ticket = 0; ticket < kTickets && !queued.empty(); ++ticket) {
    if (ticket_used[ticket]) continue;
    Transfer& transfer = *queued.pop_front();
    ticket_used[ticket] = true;
    transfer.ticket = ticket;
    running.push_back(transfer);
  }
}

int BulkIn::State::step(Transfer& transfer, Budget& budget) noexcept {
  int steps = 0;
  if (transfer.state.mode == Mode::none && transfer.lefts > 0) {
    if (withdrawn(transfer)) transfer.status = -FI_ECANCELED;
    if (transfer.status == 0) steps += begin_generation(transfer);
  }
  switch (transfer.state.mode) {
    case Mode::read_only:
    case Mode::dual:
      steps += read_chunks(transfer, budget);
      break;
    case Mode::write_only:
      steps += watch_writes(transfer);
      break;
    case Mode::bounce:
      steps += empty_slots(transfer, budget);
      break;
    case Mode::none:
      break;
  }
  const bool over = transfer.state.mode == Mode::none && transfer.lefts == 0;
  if (!over && transfer.status == 0) return steps;
  finish(transfer, transfer.status);
  return steps + 1;
}

/// Takes the transfer off its ticket: no claim can succeed any more.
void BulkIn::State::finish(Transfer& transfer, int status) noexcept {
  const Mode mode = transfer.state.mode;
  if ((mode == Mode::dual || mode == Mode::write_only) && !transfer.closed) close(transfer);
  page.state[transfer.ticket].store(0, std::memory_order_release);
  ticket_used[transfer.ticket] = false;
  if (bouncing == &transfer) bouncing = nullptr;
  transfer.status = status;
  transfer.unlink();
  finished.push_back(transfer);
}

/// Upcalls come last, when no list is being walked: they may start() or abort().
int BulkIn::State::deliver(Sink& sink) noexcept {
  util::IntrusiveList<Transfer> batch;
  while (Transfer* transfer = finished.pop_front()) batch.push_back(*transfer);
  int upcalls = 0;
  while (Transfer* transfer = batch.pop_front()) {
    const uint64_t token = transfer->token;
    const int status = transfer->status;
    pool.release(*transfer);
    --live;
    ++upcalls;
    sink.on_done(token, status);
  }
  return upcalls;
}

/// A living peer may be inside a write into memory that is about to be given back; a dead one is
/// not, and never says so: hence bounded, by time too, since a yield on a busy host takes long.
void BulkIn::State::await_writes_under_way() noexcept {
  const uint64_t deadline = clock.now() + kAbortWait;
  for (int yields = 0; yields < kAbortYields && clock.now() < deadline; ++yields) {
    bool under_way = false;
    for (Transfer* transfer = running.front(); transfer; transfer = running.next(*transfer)) {
      if (!transfer->closed || transfer->status != 0) continue;
      const uint32_t over = count_of(page.progress[transfer->ticket].done, *transfer) +
                            (stop_of(*transfer).chunk != Stop::kNoChunk ? 1 : 0);
      under_way |= over < transfer->closed_at - transfer->claimed;
    }
    if (!under_way) return;
    ::sched_yield();
  }
}

/// True if step() would do something now.
bool BulkIn::State::ready(const Transfer& transfer) const noexcept {
  if (stop_of(transfer).error != 0) return true;
  const TicketProgress& progress = page.progress[transfer.ticket];
  switch (transfer.state.mode) {
    case Mode::none:
      return next_mode(transfer) != Mode::none &&
             (next_mode(transfer) != Mode::bounce || !bouncing);
    case Mode::bounce:
      return count_of(page.produced, transfer) != transfer.piece;
    case Mode::write_only:
      if (!transfer.closed) return count_of(progress.claim, transfer) >= transfer.chunks;
      [[fallthrough]];
    case Mode::read_only:
    case Mode::dual:
      return !transfer.closed ||
             count_of(progress.done, transfer) >= transfer.closed_at - transfer.claimed;
  }
  return true;
}

Stop BulkIn::State::stop_of(const Transfer& transfer) const noexcept {
  const Stop stop =
      unpack_stop(page.progress[transfer.ticket].stop.load(std::memory_order_acquire));
  return stop.generation == transfer.state.generation && stop.error != 0 ? stop : Stop{};
}

bool BulkIn::State::withdrawn(const Transfer& transfer) const noexcept {
  const uint16_t last = page.withdrawn[transfer.remote.index].load(std::memory_order_seq_cst);
  return withdrawn_by(last, transfer.remote.generation) || backing.sender_left();
}

/// A tally that speaks of another generation counts as none.
uint32_t BulkIn::State::count_of(const SharedWord& word, const Transfer& transfer) const noexcept {
  const Tally tally = unpack_tally(word.load(std::memory_order_acquire));
  return tally.generation == transfer.state.generation ? tally.count : 0;
}

Mode BulkIn::State::next_mode(const Transfer& transfer) const noexcept {
  const auto write_state = WriteState(page.write_state.load(std::memory_order_acquire));
  const bool never_writes = transfer.write_off || (write_state != WriteState::allowed &&
                                                   write_state != WriteState::unknown);
  if (may_read(transfer)) return never_writes ? Mode::read_only : Mode::dual;
  if (never_writes) return Mode::bounce;
  return write_state == WriteState::allowed ? Mode::write_only : Mode::none;
}

int BulkIn::State::back_slots() noexcept {
  if (backed) return 0;
  const int status = backing.back_bounce();
  backed = status == 0;
  return status;
}

/// False: has to wait for the slots, or for the sender to say whether it may write.
bool BulkIn::State::begin_generation(Transfer& transfer) noexcept {
  const Mode mode = next_mode(transfer);
  if (mode == Mode::none || (mode == Mode::bounce && bouncing)) return false;
  if (mode == Mode::bounce) {
    transfer.status = back_slots();
    if (transfer.status != 0) return true;
    bouncing = &transfer;
  }
  const Range whole = transfer.left[--transfer.lefts];
  transfer.range = {whole.begin, std::min(whole.end, whole.begin + kMaxRange)};
  transfer.leave(transfer.range.end, whole.end);
  transfer.chunk = chunk_bytes(transfer.range.length(), mode == Mode::dual);
  transfer.chunks = chunks_of(transfer.range.length(), transfer.chunk);
  transfer.claimed = 0;
  transfer.failed = Stop::kNoChunk;
  transfer.closed = false;
  transfer.closed_at = 0;
  transfer.piece = 0;
  transfer.offset = 0;
  if (++generation == 0) ++generation;
  transfer.state = {generation, mode, Streaming::none};
  if (mode == Mode::bounce) {
    transfer.state.streaming = streaming.choose(transfer.range.length());
    transfer.started = clock.now();
  }
  publish(transfer);
  return true;
}

/// The state word was zero since the last generation ended. The release stores let a sender that
/// sees any of the new values also see that zero, so it never mixes two generations.
void BulkIn::State::publish(Transfer& transfer) noexcept {
  constexpr auto kRelease = std::memory_order_release;
  TicketBody& body = page.body[transfer.ticket];
  TicketProgress& progress = page.progress[transfer.ticket];
  body.exposure.store(transfer.remote.id(), kRelease);
  body.begin.store(transfer.range.begin, kRelease);
  body.end.store(transfer.range.end, kRelease);
  body.chunk.store(transfer.chunk, kRelease);
  body.iovs.store(transfer.locals, kRelease);
  for (size_t i = 0; i < transfer.locals; ++i) {
    body.address[i].store(reinterpret_cast<uintptr_t>(transfer.local[i].iov_base), kRelease);
    body.length[i].store(transfer.local[i].iov_len, kRelease);
  }
  // Zeroed, so that a number from 2^32 generations ago cannot pass for this one's.
  progress.done.store(0, kRelease);
  progress.stop.store(0, kRelease);
  progress.claim.store(pack(Tally{transfer.state.generation, 0}), kRelease);
  if (transfer.state.mode == Mode::bounce)
    page.consumed.store(pack(Tally{transfer.state.generation, 0}), kRelease);
  page.state[transfer.ticket].store(pack(transfer.state), kRelease);
}

/// The next chunk; kNoChunk if none is left now, or the word is nonsense (then status is set).
uint32_t BulkIn::State::claim(Transfer& transfer) noexcept {
  SharedWord& word = page.progress[transfer.ticket].claim;
  uint64_t seen = word.load(std::memory_order_acquire);
  for (uint32_t tries = 0; tries <= transfer.chunks; ++tries) {
    const Tally tally = unpack_tally(seen);
    if (tally.generation != transfer.state.generation || tally.count > transfer.chunks ||
        tally.count < transfer.claimed)
      break;
    if (tally.count == transfer.chunks) {
      transfer.closed = true;
      transfer.closed_at = transfer.chunks;
      return Stop::kNoChunk;
    }
    const Tally next{tally.generation, tally.count + 1};
    if (word.compare_exchange_weak(seen, pack(next), std::memory_order_acq_rel,
                                   std::memory_order_acquire)) {
      ++transfer.claimed;
      return tally.count;
    }
  }
  transfer.status = -EPROTO;
  return Stop::kNoChunk;
}

void BulkIn::State::close(Transfer& transfer) noexcept {
  const Tally all{transfer.state.generation, transfer.chunks};
  const Tally tally = unpack_tally(
      page.progress[transfer.ticket].claim.exchange(pack(all), std::memory_order_acq_rel));
  transfer.closed = true;
  transfer.closed_at = tally.count;
  if (tally.generation == transfer.state.generation && tally.count <= transfer.chunks &&
      tally.count >= transfer.claimed)
    return;
  transfer.closed_at = transfer.claimed;
  transfer.status = -EPROTO;
}

void BulkIn::State::read_chunk(Transfer& transfer, uint32_t index, Budget& budget) noexcept {
  const uint64_t begin = transfer.range.begin + uint64_t(index) * transfer.chunk;
  const auto length = size_t(std::min<uint64_t>(transfer.chunk, transfer.range.end - begin));
  const int error = move_by_cma(calls, CmaCall::read, peer.pid, {transfer.local, transfer.locals},
                                {transfer.remote.iov, transfer.remote.count}, begin, length,
                                counters.cma_read_bytes);
  budget.spend_chunk(length);
  if (error == 0) return;
  transfer.failed = index;
  if (classify(error) == Failure::permission) {
    deny(peer, CmaCall::read, error, counters);
  } else {
    transfer.read_off = transfer.write_off = true;
  }
}

int BulkIn::State::read_chunks(Transfer& transfer, Budget& budget) noexcept {
  int steps = 0;
  while (!transfer.closed && transfer.status == 0 && budget.chunk_left() &&
         !fatal(stop_of(transfer))) {
    if (!may_read(transfer)) {
      close(transfer);
      break;
    }
    const uint32_t index = claim(transfer);
    if (index == Stop::kNoChunk) break;
    read_chunk(transfer, index, budget);
    ++steps;
    if (transfer.failed != Stop::kNoChunk) close(transfer);
    // Tells at once whether that was the last one, so that the end does not wait for another poll.
    if (!transfer.closed && transfer.status == 0 &&
        count_of(page.progress[transfer.ticket].claim, transfer) >= transfer.chunks)
      close(transfer);
  }
  return steps + watch_writes(transfer);
}

/// Ends the generation once everything claimed is done or has failed.
int BulkIn::State::watch_writes(Transfer& transfer) noexcept {
  if (transfer.status != 0) return 0;
  // Read before `done`: a sender that stopped has stored its last `done` before.
  const Stop stop = stop_of(transfer);
  if (fatal(stop)) {
    transfer.status = -int(stop.error);
    return 1;
  }
  if (stop.error != 0) transfer.write_off = true;
  TicketProgress& progress = page.progress[transfer.ticket];
  if (transfer.state.mode == Mode::write_only && !transfer.closed &&
      (stop.error != 0 || count_of(progress.claim, transfer) >= transfer.chunks))
    close(transfer);
  if (!transfer.closed || transfer.status != 0) return 0;
  const uint32_t by_sender = transfer.closed_at - transfer.claimed;
  const uint32_t failed = stop.chunk != Stop::kNoChunk ? 1 : 0;
  const uint64_t over = uint64_t(count_of(progress.done, transfer)) + failed;
  if (over > by_sender || (failed && stop.chunk >= transfer.closed_at)) {
    transfer.status = -EPROTO;
    return 1;
  }
  if (over < by_sender) return 0;
  if (failed) transfer.leave_chunk(stop.chunk);
  end_generation(transfer);
  return 1;
}

int BulkIn::State::empty_slots(Transfer& transfer, Budget& budget) noexcept {
  const Stop stop = stop_of(transfer);
  const uint32_t produced = count_of(page.produced, transfer);
  if (stop.error != 0 || produced < transfer.piece || produced - transfer.piece > kBounceSlots) {
    transfer.status = fatal(stop) ? -int(stop.error) : -EPROTO;
    return 1;
  }
  const CopyFunction copy = transfer.state.streaming == Streaming::both ? stream_copy : plain_copy;
  int steps = 0;
  while (transfer.piece < produced && transfer.offset < transfer.range.length() &&
         budget.pieces > 0) {
    const size_t bytes = piece_bytes(transfer.piece, transfer.range.length() - transfer.offset);
    copy_out(transfer.local, transfer.locals, transfer.range.begin + transfer.offset,
             bounce_slot(memory, transfer.piece), bytes, copy);
    transfer.offset += bytes;
    counters.bounce_in_bytes += bytes;
    --budget.pieces;
    ++steps;
    page.consumed.store(pack(Tally{transfer.state.generation, ++transfer.piece}),
                        std::memory_order_release);
  }
  if (transfer.offset == transfer.range.length()) {
    streaming.record(transfer.range.length(), transfer.state.streaming,
                     clock.now() - transfer.started);
    bouncing = nullptr;
    end_generation(transfer);
  }
  return steps;
}

void BulkIn::State::end_generation(Transfer& transfer) noexcept {
  // A withdrawal that is not seen here came after the last byte was read.
  if (withdrawn(transfer)) transfer.status = -FI_ECANCELED;
  page.state[transfer.ticket].store(0, std::memory_order_release);
  if (transfer.state.mode != Mode::bounce) {
    if (transfer.failed != Stop::kNoChunk) transfer.leave_chunk(transfer.failed);
    transfer.leave(transfer.range.begin + uint64_t(transfer.closed_at) * transfer.chunk,
                   transfer.range.end);
  }
  transfer.state.mode = Mode::none;
}

}  // namespace erdma::transport::shm
