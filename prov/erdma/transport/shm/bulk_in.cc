#include "transport/shm/bulk_in.h"

#include <cerrno>
#include <new>

#include <rdma/fi_errno.h>

namespace erdma::transport::shm {
namespace {

/// The sender may have claimed chunks.
bool is_shared(Mode mode) noexcept {
  return mode == Mode::dual || mode == Mode::write_only || mode == Mode::outward;
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

int BulkIn::access(CmaCall call, const LentMemory& lent, uint64_t offset, const iovec* local,
                   size_t count, size_t length, uint64_t token) noexcept {
  if (count > kMaxIov || !plausible(local, count, length)) return -FI_EINVAL;
  Transfer* transfer = x_state->pool.acquire();
  if (!transfer) return -FI_ENOMEM;
  transfer->token = token;
  transfer->call = call;
  transfer->base = offset;
  transfer->remote.lent = true;
  transfer->remote.index = lent.index;
  transfer->remote.generation = uint16_t(lent.generation);
  transfer->remote.count = 1;
  transfer->remote.length = length;
  transfer->remote.iov[0] = {remote_address(lent.address + offset), length};
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

bool BulkIn::settle() noexcept {
  State& state = *x_state;
  for (Transfer* transfer = state.running.front(); transfer;
       transfer = state.running.next(*transfer))
    if (is_shared(transfer->state.mode) && !transfer->closed) state.close(*transfer);
  return !state.writes_under_way();
}

void BulkIn::abort(Sink& sink, int status) noexcept {
  State& state = *x_state;
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
    if (transfer.remote.lent && !may_call(transfer)) transfer.status = -FI_EOPNOTSUPP;
    if (withdrawn(transfer)) transfer.status = -FI_ECANCELED;
    if (transfer.status == 0) steps += begin_generation(transfer);
  }
  switch (transfer.state.mode) {
    case Mode::read_only:
    case Mode::dual:
    case Mode::outward:
      steps += move_chunks(transfer, budget);
      break;
    case Mode::write_only:
      steps += watch_sender(transfer);
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
  if (is_shared(transfer.state.mode) && !transfer.closed) close(transfer);
  page.ticket[transfer.ticket].state.store(0, std::memory_order_release);
  ticket_used[transfer.ticket] = false;
  if (bouncing == &transfer) bouncing = nullptr;
  // What was lent is being recalled, or the sender ends the link, as will be heard.
  transfer.status = transfer.remote.lent && status == -FI_ECANCELED ? -FI_EBUSY : status;
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

/// Of chunks that the sender claimed, as far as it has not said that they are written, or failed.
bool BulkIn::State::writes_under_way() noexcept {
  for (Transfer* transfer = running.front(); transfer; transfer = running.next(*transfer)) {
    if (!transfer->closed || transfer->status != 0) continue;
    const uint32_t over = count_of(page.progress[transfer->ticket].done, *transfer) +
                          (stop_of(*transfer).chunk != Stop::kNoChunk ? 1 : 0);
    if (over < transfer->by_sender) return true;
  }
  return false;
}

/// True if step() would do something now.
bool BulkIn::State::ready(const Transfer& transfer) const noexcept {
  if (stop_of(transfer).error != 0) return true;
  const TicketProgress& progress = page.progress[transfer.ticket];
  switch (transfer.state.mode) {
    case Mode::none:
      return (transfer.remote.lent && !may_call(transfer)) ||
             (next_mode(transfer) != Mode::none && !must_wait(transfer));
    case Mode::bounce:
      // Who could read instead does not sleep until the sender comes.
      return count_of(page.produced, transfer) != transfer.piece || may_call(transfer);
    case Mode::write_only:
      if (!transfer.closed) return all_claimed(transfer);
      [[fallthrough]];
    case Mode::read_only:
    case Mode::dual:
    case Mode::outward:
      return !transfer.closed || count_of(progress.done, transfer) >= transfer.by_sender;
  }
  return true;
}

}  // namespace erdma::transport::shm
