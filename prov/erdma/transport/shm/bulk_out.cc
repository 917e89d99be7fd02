#include "transport/shm/bulk_out.h"

#include <cerrno>
#include <utility>

#include <rdma/fi_errno.h>

#include "hmem/copy.h"
#include "transport/shm/ordering.h"
#include "transport/shm/path_choice.h"

namespace erdma::transport::shm {
namespace {

/// The call that this side makes in that mode.
CmaCall call_of(Mode mode) noexcept {
  return mode == Mode::outward ? CmaCall::read : CmaCall::write;
}

/// Generations that wrap must not pass for revoked ones (revoked_by()).
constexpr uint16_t kToldEvery = 4096;

constexpr uint64_t id_of(util::PoolHandle named) noexcept {
  return uint64_t(named.index) << 16 | named.generation;
}

}  // namespace

int BulkOut::share(const iovec* memory, size_t count, size_t length, RemoteKey& remote_key,
                   bool timed) noexcept {
  if (count > kMaxIov || !plausible(memory, count, length)) return -FI_EINVAL;
  if (x_pool.in_use() == kMaxShared) return -FI_EAGAIN;
  SharedMemory* shared = x_pool.acquire();
  if (!shared) return -FI_ENOMEM;
  const util::PoolHandle handle = x_pool.handle(*shared);
  shared->index = handle.index;
  shared->generation = handle.generation;
  shared->count = uint8_t(count);
  shared->length = length;
  shared->timed = timed;
  std::copy_n(memory, count, shared->iov);
  x_long += length > PathChoice::kOneCopy;
  encode(*shared, remote_key);
  return 0;
}

uint32_t BulkOut::read_time(const RemoteKey& remote_key) const noexcept {
  if (!x_page) return 0;
  const ReadTime time = unpack_read_time(x_page->read_time.load(std::memory_order_relaxed));
  return time.id == id_of(name_of(remote_key)) ? time.nanoseconds : 0;
}

void BulkOut::revoke(const RemoteKey& remote_key, Receiver receiver) noexcept {
  const util::PoolHandle named = name_of(remote_key);
  SharedMemory* const shared = x_pool.find(named);
  if (!shared) return;
  x_long -= shared->length > PathChoice::kOneCopy;
  x_pool.release(*shared);
  // A ticket that a receiver which breaks the rules still has is stopped by step().
  if (receiver == Receiver::done && named.generation % kToldEvery != 0) return;
  if (!x_page) {
    x_revoked[named.index] = named.generation;
    return;
  }
  tell_before_reuse(x_page->revoked[named.index], named.generation);
  stop_all(id_of(named));
}

/// A ticket that has not been joined yet is refused when it is: join() no longer finds the remote
/// key.
void BulkOut::stop_all(uint64_t id) noexcept {
  for (size_t i = 0; i < kTickets; ++i) {
    const Joined& joined = x_tickets[i];
    if (joined.remote_key == id && !joined.stopped &&
        state_of(i).generation == joined.state.generation)
      stop(i, ECANCELED);
  }
}

void BulkOut::taken_back(uint64_t id) noexcept {
  if (x_page) stop_all(id);
}

void BulkOut::attach(void* shared) noexcept {
  x_memory = shared;
  x_page = &shared_page(shared);
  for (size_t i = 0; i < kMaxShared; ++i)
    if (const uint16_t generation = x_revoked[i]) tell_before_reuse(x_page->revoked[i], generation);
  x_revoked.reset();
  publish_write_state();
}

int BulkOut::poll() noexcept {
  if (!x_page) return 0;
  publish_write_state();
  // Oldest first: the receiver has waited for it longest.
  size_t order[kTickets];
  uint32_t generation[kTickets];
  size_t used = 0;
  for (size_t i = 0; i < kTickets; ++i) {
    const TicketState seen = state_of(i);
    if (seen.mode == Mode::none) continue;
    generation[i] = seen.generation;
    size_t at = used++;
    for (; at > 0 && int32_t(generation[order[at - 1]] - generation[i]) > 0; --at)
      order[at] = order[at - 1];
    order[at] = i;
  }
  int steps = std::exchange(x_announce, false) ? 1 : 0;
  Budget budget;
  for (size_t i = 0; i < used; ++i) steps += step(order[i], budget);
  return steps;
}

bool BulkOut::active() noexcept {
  bool found = shared() != Shared::nothing || ready();
  for (size_t i = 0; i < kTickets && x_page && !found; ++i) found = x_tickets[i].fills(state_of(i));
  return found;
}

bool BulkOut::ready() noexcept {
  if (!x_page) return false;
  if (x_announce) return true;
  for (size_t i = 0; i < kTickets; ++i)
    if (ready(i)) return true;
  return false;
}

void BulkOut::publish_write_state() noexcept {
  const Permission permission = x_peer.write.permission;
  const WriteState now = permission == Permission::untested ? WriteState::unknown
                         : !x_peer.may(CmaCall::write)      ? WriteState::denied
                         : x_core.shared()                  ? WriteState::unasked
                                                            : WriteState::allowed;
  if (now == x_told) return;
  x_told = now;
  store_release(x_page->write_state, uint64_t(now));
  x_announce = true;
}

void BulkOut::stop(size_t ticket, int error, uint32_t chunk) noexcept {
  Joined& joined = x_tickets[ticket];
  joined.stopped = true;
  store_release(x_page->progress[ticket].stop,
                pack(Stop{joined.state.generation, chunk, uint8_t(error)}));
}

int BulkOut::step(size_t ticket, Budget& budget) noexcept {
  const TicketState state = state_of(ticket);
  Joined& joined = x_tickets[ticket];
  if (state.mode == Mode::none) return 0;
  int steps = 0;
  if (state.generation != joined.state.generation) {
    if (!join(ticket, state)) return 0;
    steps = 1;
  }
  if (joined.stopped) return steps;
  const SharedMemory* shared = find(joined.remote_key);
  if (!shared) {  // only a receiver that breaks the rules asks for what it was done with
    stop(ticket, ECANCELED);
    return steps + 1;
  }
  if (joined.state.mode == Mode::bounce) return steps + fill_slots(ticket, *shared, budget);
  if (joined.state.mode == Mode::read_only) return steps;
  return steps + move_chunks(ticket, *shared, budget);
}

bool BulkOut::join(size_t ticket, TicketState state) noexcept {
  const Ticket& body = x_page->ticket[ticket];
  Joined copy;
  copy.state = state;
  copy.remote_key = load_acquire(body.remote_key);
  copy.range = {load_acquire(body.begin), load_acquire(body.end)};
  copy.base = load_acquire(body.base);
  const uint64_t chunks = load_acquire(body.chunks);
  copy.chunk = uint32_t(chunks);
  copy.iovs = chunks >> 32;
  for (size_t i = 0; i < std::min(copy.iovs, kMaxIov); ++i)
    copy.iov[i] = {remote_address(load_acquire(body.iov[i].address)),
                   load_acquire(body.iov[i].length)};
  // Bits that mean nothing are ignored here, too: otherwise they would keep this side from
  // sleeping.
  if (pack(state_of(ticket)) != pack(state)) return false;
  const int error = refusal(copy);
  if (error == 0) copy.chunks = chunks_of(copy.range.length(), copy.chunk);
  x_tickets[ticket] = copy;
  if (error != 0) stop(ticket, error);
  return true;
}

/// Positive errno if this side takes no part in the ticket. Trusts none of its values.
int BulkOut::refusal(const Joined& joined) noexcept {
  const SharedMemory* shared = find(joined.remote_key);
  if (!shared) return ECANCELED;
  const Range& range = joined.range;
  const bool outward = joined.state.mode == Mode::outward;
  if (outward ? !shared->for_writes : !shared->for_reads) return EPROTO;
  if (joined.base > shared->length || (joined.base > 0 && !SharedRegions::names(joined.remote_key)))
    return EPROTO;
  if (range.begin >= range.end || range.end > shared->length - joined.base ||
      range.length() > kMaxRange || joined.chunk < kPageBytes || joined.chunk > kMaxChunk ||
      chunks_of(range.length(), joined.chunk) > Claims::kMaxChunks || joined.iovs > kMaxIov ||
      joined.state.mode > Mode::outward || !plausible(joined.iov, joined.iovs, range.end))
    return EPROTO;
  return joined.state.mode == Mode::write_only && !x_peer.may(CmaCall::write) ? EPERM : 0;
}

/// The next chunk, or kNoChunk.
uint32_t BulkOut::claim(size_t ticket) noexcept {
  const Joined& joined = x_tickets[ticket];
  SharedWord& word = x_page->progress[ticket].claim;
  uint64_t seen = load_acquire(word);
  for (uint32_t tries = 0; tries <= joined.chunks; ++tries) {
    Claims claims = unpack_claims(seen);
    if (claims.generation != joined.state.generation || claims.front + claims.back >= joined.chunks)
      break;
    ++claims.back;
    if (compare_exchange_acq_rel(word, seen, pack(claims))) return joined.chunks - claims.back;
  }
  return Stop::kNoChunk;
}

int BulkOut::move_chunks(size_t ticket, const SharedMemory& shared, Budget& budget) noexcept {
  Joined& joined = x_tickets[ticket];
  const CmaCall call = call_of(joined.state.mode);
  uint64_t& moved = call == CmaCall::read ? x_counters.cma_read_bytes : x_counters.cma_write_bytes;
  iovec ours[kMaxIov];
  const size_t pieces =
      hmem::slice(shared.iov, shared.count, joined.base, shared.length - joined.base, ours);
  int steps = 0;
  Target target = Target::peer;  // concerns the receiver alone: if it is dead, nothing is reported
  while (budget.chunk_left()) {
    if (!x_peer.may(call)) {
      if (joined.state.mode == Mode::write_only) stop(ticket, EPERM);
      break;
    }
    const uint32_t index = claim(ticket);
    if (index == Stop::kNoChunk) break;
    ++steps;
    const uint64_t begin = joined.range.begin + uint64_t(index) * joined.chunk;
    const auto length = size_t(std::min<uint64_t>(joined.chunk, joined.range.end - begin));
    const int error = move_by_cma(x_calls, call, x_peer, {ours, pieces}, {joined.iov, joined.iovs},
                                  begin, length, moved, target);
    budget.spend_chunk(length);
    if (error != 0) {
      stop_at(ticket, index, call, error);
      break;
    }
    store_release(x_page->progress[ticket].done,
                  pack(Tally{joined.state.generation, ++joined.done}));
  }
  return steps;
}

/// A chunk could not be moved.
void BulkOut::stop_at(size_t ticket, uint32_t index, CmaCall call, int error) noexcept {
  if (classify(error) == Failure::permission) deny(x_peer, call, error, x_counters);
  // before the stop, because the receiver chooses the next mode when it sees the stop
  publish_write_state();
  stop(ticket, error, index);
}

/// Reads the receiver's word only when all slots seem full.
bool BulkOut::slot_free(Joined& joined) const noexcept {
  if (joined.piece - joined.consumed < joined.state.slots()) return true;
  const Tally tally = unpack_tally(load_acquire(x_page->consumed));
  if (tally.generation == joined.state.generation) joined.consumed = tally.count;
  // an invalid value wraps, which means none is free
  return joined.piece - joined.consumed < joined.state.slots();
}

int BulkOut::fill_slots(size_t ticket, const SharedMemory& shared, Budget& budget) noexcept {
  Joined& joined = x_tickets[ticket];
  const CopyFunction copy = joined.state.streaming == Streaming::none ? plain_copy : stream_copy;
  int steps = 0;
  while (joined.offset < joined.range.length() && budget.pieces > 0 && slot_free(joined)) {
    const size_t bytes = piece_bytes(joined.piece, joined.range.length() - joined.offset);
    copy_in(bounce_slot(x_memory, joined.state, joined.piece), shared.iov, shared.count,
            joined.base + joined.range.begin + joined.offset, bytes, copy);
    joined.offset += bytes;
    x_counters.bounce_out_bytes += bytes;
    --budget.pieces;
    ++steps;
    store_release(x_page->produced, pack(Tally{joined.state.generation, ++joined.piece}));
  }
  return steps;
}

/// True if step() would do something now.
bool BulkOut::ready(size_t ticket) noexcept {
  const TicketState state = state_of(ticket);
  Joined& joined = x_tickets[ticket];
  if (state.mode == Mode::none) return false;
  if (state.generation != joined.state.generation) return true;
  if (joined.stopped || joined.state.mode == Mode::read_only) return false;
  if (joined.state.mode == Mode::bounce)
    return joined.offset < joined.range.length() && slot_free(joined);
  const Claims claims = unpack_claims(load_acquire(x_page->progress[ticket].claim));
  return x_peer.may(call_of(joined.state.mode)) && claims.generation == state.generation &&
         claims.front + claims.back < joined.chunks;
}

}  // namespace erdma::transport::shm
