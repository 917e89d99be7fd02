#include "transport/verbs/transfers.h"

#include <algorithm>

#include "hmem/copy.h"
namespace erdma::transport::verbs {
namespace {

constexpr uint64_t kPieceBytes = 1024 * 1024;
constexpr unsigned kMaxPieces = 8;               ///< in flight on one connection
constexpr uint64_t kMaxBytes = 2 * 1024 * 1024;  ///< likewise; the last piece may exceed it

/// The element of `list` at `offset`; `offset` becomes the offset within it.
template <typename Piece, typename Length>
const Piece* element_at(const Piece* list, size_t count, uint64_t& offset, Length length_of) {
  for (size_t i = 0; i < count; ++i) {
    const uint64_t length = length_of(list[i]);
    if (offset < length) return &list[i];
    offset -= length;
  }
  return nullptr;
}

}  // namespace

bool Transfers::begin(Transfer& transfer, const iovec* local, size_t count) noexcept {
  transfer.count = hmem::slice(local, count, 0, transfer.length, transfer.local);
  const int rights =
      transfer.is_read ? sink_rights(x_shared.device.transport_type()) : kSourceRights;
  transfer.bounces = false;
  if (!transfer.remote.bounced)
    if (const int rc = register_all(x_shared.cache, transfer.local, transfer.count, rights,
                                    transfer.registrations))
      if (!bounce(transfer, rc)) return false;
  transfer.owner = this;
  x_moving.push_back(transfer);
  x_host.progress_soon();
  return true;
}

/// False: DirectSource could register this memory of a GPU a moment ago, and now it cannot.
bool Transfers::bounce(Transfer& transfer, int rc) noexcept {
  if (!x_shared.cache.copies(transfer.local, transfer.count)) return false;
  count_refused(copy_reason_of(x_shared.cache, transfer.local, transfer.count, rc), transfer.length,
                *x_counters);
  return transfer.bounces = true;
}

void Transfers::wait(Transfer& transfer) noexcept {
  transfer.owner = this;
  x_waiting.push_back(transfer);
}

void Transfers::pass(Transfer& transfer) noexcept {
  util::IntrusiveList<Transfer>::erase(transfer);
  const bool asks = transfer.remote.bounced && transfer.is_read;
  const bool nothing_left = asks ? transfer.requested : transfer.all_posted();
  (nothing_left ? x_waiting : x_moving).push_back(transfer);
}

bool Transfers::post_piece(Transfer& transfer) noexcept {
  if (x_pieces >= kMaxPieces || x_piece_bytes >= kMaxBytes ||
      x_sender.queue().room() <= PacketSender::kPlacesForStreams)
    return false;
  if (transfer.is_read && !may_read()) return false;
  if (transfer.posted == transfer.length) return post_proof(transfer) == 0;
  ibv_sge local{};
  ibv_send_wr request{};
  Work described{};
  described.type = Work::Type::piece;
  described.transfer = &transfer;
  described.offset = transfer.posted;
  if (!aim(transfer, local, request, described)) return false;
  request.opcode = transfer.is_read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
  if (x_sender.post(request, local, described)) {
    if (transfer.bounces) x_shared.bounce_blocks(transfer.is_read).release(described.block);
    return false;
  }
  transfer.posted += described.bytes;
  ++transfer.in_flight;
  ++x_pieces;
  x_piece_bytes += described.bytes;
  if (transfer.is_read) read_begins();
  return true;
}

/// Sets both ends of the next piece: within one element of either list, and within one block if it
/// bounces.
bool Transfers::aim(Transfer& transfer, ibv_sge& local, ibv_send_wr& request, Work& work) noexcept {
  uint64_t remote_offset = transfer.posted;
  const RemotePiece* remote = element_at(transfer.remote.pieces, transfer.remote.count,
                                         remote_offset, [](auto& p) { return p.length; });
  uint64_t local_offset = transfer.posted;
  const iovec* memory = element_at(transfer.local, transfer.count, local_offset,
                                   [](auto& p) { return uint64_t(p.iov_len); });
  uint64_t bytes = std::min({remote->length - remote_offset, transfer.length - transfer.posted,
                             kPieceBytes, x_shared.device.limits().max_message});
  if (transfer.bounces) {
    BlockPool& blocks = x_shared.bounce_blocks(transfer.is_read);
    if (!blocks.acquire(work.block, x_peer)) return x_sender.no_block(blocks), false;
    bytes = std::min<uint64_t>(bytes, blocks.block_bytes());
    local = {uint64_t(work.block.bytes), uint32_t(bytes), work.block.lkey};
    if (!transfer.is_read)
      hmem::gather(work.block.bytes, transfer.local, transfer.count, transfer.posted, bytes);
  } else {
    bytes = std::min(bytes, memory->iov_len - local_offset);
    local = {uint64_t(memory->iov_base) + local_offset, uint32_t(bytes),
             transfer.registrations[memory - transfer.local].lkey};
  }
  request.wr.rdma.remote_addr = remote->address + remote_offset;
  request.wr.rdma.rkey = remote->rkey;
  work.bytes = uint32_t(bytes);
  return true;
}

void Transfers::on_piece(const Work& work, bool success, Sink& sink) noexcept {
  Transfer& transfer = *work.transfer;
  --x_pieces;
  x_piece_bytes -= work.bytes;
  if (transfer.is_read) read_ends();
  --transfer.in_flight;
  if (!success && !transfer.status) transfer.status = -FI_EIO;
  if (transfer.bounces) {
    if (success && transfer.is_read)
      hmem::scatter(transfer.local, transfer.count, work.offset, work.block.bytes, work.bytes);
    x_shared.bounce_blocks(transfer.is_read).release(work.block);
  }
  if (!success) return;  // it ends with its connection
  (transfer.is_read ? x_counters->read_bytes : x_counters->write_bytes) += work.bytes;
  if (transfer.bounces) x_counters->bounce_bytes += work.bytes;
  if (transfer.all_posted() && transfer.in_flight == 0 && !transfer.status) end(transfer, 0, sink);
}

void Transfers::end(Transfer& transfer, int status, Sink& sink) noexcept {
  util::IntrusiveList<Transfer>::erase(transfer);
  if (!transfer.bounces) release_all(x_shared.cache, transfer.registrations, transfer.count);
  const uint64_t token = transfer.token;
  x_shared.transfers.release(transfer);
  sink.on_done(token, status);
}

void Transfers::end_all(int status, Sink& sink) noexcept {
  while (Transfer* transfer = x_moving.front()) end(*transfer, status, sink);
  while (Transfer* transfer = x_waiting.front()) end(*transfer, status, sink);
}

int Transfers::post_proof(Transfer& transfer) noexcept {
  if (x_sender.queue().room() == 0 || !may_read()) return -FI_EAGAIN;
  if (const int rc = x_heartbeat.post(Work::Type::flush, &transfer)) return rc;
  transfer.proof_due = false;
  ++transfer.in_flight;
  read_begins();
  return 0;
}

void Transfers::on_proof(const Work& work, bool success, Sink& sink) noexcept {
  Transfer& transfer = *work.transfer;
  read_ends();
  --transfer.in_flight;
  if (!success) {
    transfer.status = -FI_EIO;
  } else if (transfer.all_posted() && transfer.in_flight == 0 && !transfer.status) {
    end(transfer, 0, sink);
  }
}

Transfer* Transfers::find(util::PoolHandle handle) noexcept {
  Transfer* transfer = x_shared.transfers.find(handle);
  return transfer && transfer->owner == this ? transfer : nullptr;
}

}  // namespace erdma::transport::verbs
