#include "transport/shm/bulk_in.h"

#include <rdma/fi_errno.h>

namespace erdma::transport::shm {
namespace {

/// 0, or -FI_EINVAL: the key or the memory here cannot be that of a message of this length.
int decode_for(const iovec* local, size_t count, size_t length, const RemoteKey& remote,
               SharedMemory& memory) noexcept {
  if (const int status = decode(remote, memory)) return status;
  const bool fits = memory.index < kMaxShared && length <= memory.length && count <= kMaxIov &&
                    plausible(local, count, length);
  return fits ? 0 : -FI_EINVAL;
}

/// If the sender has read a message of this side by the time that a longer transfer begins, it has
/// time to help.
constexpr size_t kCrossing = size_t{4} << 20;

bool is_of(uint64_t group, const Transfer& transfer) noexcept {
  return group == BulkIn::kEveryGroup || group == transfer.group;
}

}  // namespace

int BulkIn::start(const RemoteKey& remote, const iovec* local, size_t count, size_t length,
                  uint64_t token, uint64_t group) noexcept {
  SharedMemory memory;
  if (const int status = decode_for(local, count, length, remote, memory)) return status;
  return enqueue(memory, CmaCall::read, 0, local, count, length, token, group);
}

int BulkIn::read_short(const RemoteKey& remote, const iovec* local, size_t count,
                       size_t length) noexcept {
  if (length > x_short.longest()) return -FI_EAGAIN;
  SharedMemory memory;
  const int status = decode_for(local, count, length, remote, memory);
  return status ? status : x_short.read(memory, local, count, length);
}

int BulkIn::access(CmaCall call, const SharedRegion& region, uint64_t offset, const iovec* local,
                   size_t count, size_t length, uint64_t token) noexcept {
  if (count > kMaxIov || !plausible(local, count, length)) return -FI_EINVAL;
  SharedMemory memory;
  memory.region = true;
  memory.index = region.head.index;
  memory.generation = region.head.generation;
  memory.count = 1;
  memory.length = length;
  memory.iov[0] = {remote_address(region.address + offset), length};
  return enqueue(memory, call, offset, local, count, length, token, 0);
}

int BulkIn::enqueue(const SharedMemory& remote, CmaCall call, uint64_t base, const iovec* local,
                    size_t count, size_t length, uint64_t token, uint64_t group) noexcept {
  Transfer* transfer = x_pool.acquire();
  if (!transfer) return -FI_ENOMEM;
  transfer->token = token;
  transfer->group = group;
  transfer->remote = remote;
  transfer->call = call;
  transfer->base = base;
  if (remote.region) transfer->revocations_seen = x_backing.revocations_seen();
  transfer->length = length;
  std::copy_n(local, count, transfer->local);
  transfer->locals = count;
  transfer->both_ways = length <= kCrossing && x_backing.shares_back();
  transfer->follows = x_live > 0;
  transfer->leave(0, length);
  x_queued.push_back(*transfer);
  ++x_live;
  return 0;
}

int BulkIn::poll(Sink& sink) noexcept {
  if (x_live == 0) return 0;
  activate();
  int steps = 0;
  Budget budget;
  for (Transfer *transfer = x_running.front(), *next; transfer; transfer = next) {
    next = x_running.next(*transfer);
    steps += step(*transfer, budget);
  }
  return steps + deliver(sink);
}

bool BulkIn::ready() noexcept {
  if (!x_finished.empty()) return true;
  size_t used = 0;
  for (Transfer* transfer = x_running.front(); transfer;
       transfer = x_running.next(*transfer), ++used)
    if (x_transfers.ready(*transfer)) return true;
  return used < kTickets && !x_queued.empty();
}

bool BulkIn::quiesce(uint64_t group) noexcept {
  bool written = false;
  for (Transfer* transfer = x_running.front(); transfer; transfer = x_running.next(*transfer)) {
    if (!is_of(group, *transfer)) continue;
    x_transfers.close_claims(*transfer);
    written = written || x_transfers.sender_writes(*transfer);
  }
  return !written;
}

void BulkIn::cancel(Sink& sink, int status, uint64_t group) noexcept {
  for (Transfer *transfer = x_running.front(), *next; transfer; transfer = next) {
    next = x_running.next(*transfer);
    if (is_of(group, *transfer)) finish(*transfer, status);
  }
  for (Transfer *transfer = x_queued.front(), *next; transfer; transfer = next) {
    next = x_queued.next(*transfer);
    if (!is_of(group, *transfer)) continue;
    transfer->unlink();
    transfer->status = status;
    x_finished.push_back(*transfer);
  }
  deliver(sink);
}

void BulkIn::activate() noexcept {
  for (size_t ticket = 0; ticket < kTickets && !x_queued.empty(); ++ticket) {
    if (x_ticket_used[ticket]) continue;
    Transfer& transfer = *x_queued.pop_front();
    x_ticket_used[ticket] = true;
    transfer.ticket = ticket;
    x_running.push_back(transfer);
  }
}

int BulkIn::step(Transfer& transfer, Budget& budget) noexcept {
  const int steps = x_transfers.step(transfer, budget);
  const bool over = transfer.state.mode == Mode::none && transfer.lefts == 0;
  if (!over && transfer.status == 0) return steps;
  finish(transfer, transfer.status);
  return steps + 1;
}

void BulkIn::finish(Transfer& transfer, int status) noexcept {
  x_transfers.abandon(transfer);
  x_ticket_used[transfer.ticket] = false;
  // The region is being revoked, or the sender is ending the link; mail will report that.
  transfer.status = transfer.remote.region && status == -FI_ECANCELED ? -FI_EBUSY : status;
  transfer.unlink();
  x_finished.push_back(transfer);
}

/// Upcalls come last, when no list is being traversed, because they may call start() or cancel().
int BulkIn::deliver(Sink& sink) noexcept {
  util::IntrusiveList<Transfer> batch;
  while (Transfer* transfer = x_finished.pop_front()) batch.push_back(*transfer);
  int upcalls = 0;
  while (Transfer* transfer = batch.pop_front()) {
    const uint64_t token = transfer->token;
    const int status = transfer->status;
    x_pool.release(*transfer);
    --x_live;
    ++upcalls;
    sink.on_done(token, status);
  }
  return upcalls;
}

}  // namespace erdma::transport::shm
