#include "transport/verbs/direct_access.h"

#include <algorithm>

#include "hmem/copy.h"

namespace erdma::transport::verbs {

/// Small accesses are copied through a block: where copies are cheap, that is less work than
/// finding a registration.
bool DirectAccess::takes(size_t length, bool is_read) noexcept {
  return length <= std::min(ReadBuffers::kLongBytes, x_shared.packet_blocks.block_bytes()) &&
         (!is_read || x_read_buffers.has_long(x_shared.device));
}

int DirectAccess::post(Transfer& transfer) noexcept {
  const bool flushes = transfer.proof_due;
  const bool reads = transfer.is_read || flushes;
  if (!has_room(flushes ? 2 : 1) || (reads && !x_transfers.may_read())) return -FI_EAGAIN;
  if (!x_sender.post_chained()) return -FI_EAGAIN;
  if (const int rc = post_request(transfer)) return rc;
  transfer.posted = transfer.length;
  x_transfers.wait(transfer);
  // The WRITE cannot be taken back, so a READ that the device refuses ends the connection.
  if (flushes && x_transfers.post_proof(transfer))
    x_host.broken(-FI_EIO, "a READ was refused by the device");
  return 0;
}

/// A place for a transfer that is not inline; a READ uses the buffers of its own connection.
bool DirectAccess::acquire(const Transfer& transfer, BlockPool::Block& block) noexcept {
  if (!transfer.is_read) return x_shared.packet_blocks.acquire(block);
  const uint32_t slot = x_read_buffers.acquire_long(x_shared.device);
  if (slot == ReadBuffers::kNone) return false;
  block = {x_read_buffers.bytes(slot), x_read_buffers.lkey(slot), slot};
  return true;
}

void DirectAccess::release(const Transfer& transfer, const BlockPool::Block& block) noexcept {
  if (transfer.is_read)
    x_read_buffers.release(block.slab);
  else
    x_shared.packet_blocks.release(block);
}

/// -FI_EAGAIN: nothing happened.
int DirectAccess::post_request(Transfer& transfer) noexcept {
  alignas(8) std::byte bytes[Chain::kMaxInline];
  std::byte* here = bytes;
  uint32_t lkey = 0;
  ibv_send_wr request{};
  Work work{};
  const bool fits = !transfer.is_read && transfer.length <= x_sender.inline_bytes;
  if (fits) {
    request.send_flags = IBV_SEND_INLINE;
  } else {
    if (!acquire(transfer, work.block)) return x_sender.no_block(x_shared.packet_blocks);
    here = work.block.bytes;
    lkey = work.block.lkey;
  }
  if (!transfer.is_read) hmem::gather(here, transfer.local, transfer.count, 0, transfer.length);
  ibv_sge local{uint64_t(here), uint32_t(transfer.length), lkey};
  request.sg_list = &local;
  request.num_sge = 1;
  request.opcode = transfer.is_read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
  request.wr.rdma.remote_addr = transfer.remote.pieces[0].address;
  request.wr.rdma.rkey = transfer.remote.pieces[0].rkey;
  // A WRITE that a READ follows holds only its block, if any.
  work.type = !transfer.proof_due ? Work::Type::direct
              : fits              ? Work::Type::packet
                                  : Work::Type::block;
  work.transfer = &transfer;
  x_sender.queue().append(request, !transfer.proof_due) = work;
  if (const int rc = x_sender.queue().post(request)) {
    if (!fits) release(transfer, work.block);
    return x_sender.refused(rc);
  }
  if (transfer.is_read) x_transfers.read_begins();
  // Only the READ behind it reports its completion.
  if (transfer.proof_due) x_counters->write_bytes += transfer.length;
  return 0;
}

void DirectAccess::on_direct(const Work& work, bool success, Sink& sink) noexcept {
  Transfer& transfer = *work.transfer;
  if (transfer.is_read) x_transfers.read_ends();
  if (success && transfer.is_read)
    hmem::scatter(transfer.local, transfer.count, 0, work.block.bytes, transfer.length);
  if (work.block.bytes) release(transfer, work.block);
  if (!success) return;  // it ends with its connection
  Counters& counters = *x_counters;
  (transfer.is_read ? counters.read_bytes : counters.write_bytes) += transfer.length;
  x_transfers.end(transfer, 0, sink);
}

void DirectAccess::on_fast(const Work& work, bool success, Sink& sink) noexcept {
  const uint64_t token = work.token;
  const uint32_t bytes = work.bytes;
  --x_fast_in_flight;
  if (work.type == Work::Type::read) {
    const uint32_t slot = work.block.slab;
    if (success) {
      hmem::copy_short(work.local, x_read_buffers.bytes(slot), bytes);
      x_counters->read_bytes += bytes;
    }
    x_transfers.read_ends();
    x_read_buffers.release(slot);
  } else if (success) {
    x_counters->write_bytes += bytes;
  }
  if (!success) [[unlikely]]
    return keep_failed(token, sink);
  sink.on_done(token, 0);
}

/// Keeps the transfer until its connection ends and the reason is known.
void DirectAccess::keep_failed(uint64_t token, Sink& sink) noexcept {
  Transfer* const failed = x_shared.transfers.acquire();
  if (!failed) return sink.on_done(token, -FI_EIO);
  failed->token = token;
  failed->bounces = true;
  x_transfers.wait(*failed);
}

}  // namespace erdma::transport::verbs
