#include <algorithm>
#include <cstring>

#include "hmem/copy.h"
#include "transport/verbs/connection.h"
#include "transport/verbs/core.h"
#include "transport/verbs/link.h"

/// read() and write() by RDMA: in pieces, some in flight, in turn among the transfers of a
/// connection. Packets never wait for more than what is in flight.
namespace erdma::transport::verbs {
namespace {

constexpr uint64_t kPieceBytes = 1024 * 1024;
constexpr unsigned kMaxPieces = 8;               ///< in flight on one connection
constexpr uint64_t kMaxBytes = 2 * 1024 * 1024;  ///< likewise; the last may exceed it
constexpr unsigned kPiecesPerSettle = 4;         ///< posting may take as long as moving

/// The element of `list` at `offset`, and what is left of it from there.
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

void Connection::begin(Transfer& transfer) noexcept {
  transfer.owner = this;
  x_moving.push_back(transfer);
  x_core.mark_dirty(*this);
}

void Connection::move_transfers() noexcept {
  bool more = flush_answers();
  for (unsigned posted = 0; posted < kPiecesPerSettle; ++posted) {
    Transfer* transfer = x_moving.front();
    if (!transfer) break;
    const bool moved = transfer->remote.staged ? (transfer->is_read ? request_staged(*transfer)
                                                                    : push_staged(*transfer))
                                               : post_piece(*transfer);
    if (!moved) break;
    settle_transfer(*transfer);
    more = more || posted + 1 == kPiecesPerSettle;
  }
  more = move_streams() || more;
  // Later in this or in the next poll(), after the packets of others.
  if (more) x_core.mark_dirty(*this);
}

/// Its turn is over: behind the others, or among those that only wait.
void Connection::settle_transfer(Transfer& transfer) noexcept {
  util::IntrusiveList<Transfer>::erase(transfer);
  const bool asks = transfer.remote.staged && transfer.is_read;
  const bool nothing_left = asks ? transfer.requested : transfer.all_posted();
  (nothing_left ? x_waiting : x_moving).push_back(transfer);
}

/// False: no room; or the piece could not be posted.
bool Connection::post_piece(Transfer& transfer) noexcept {
  if (x_pieces >= kMaxPieces || x_piece_bytes >= kMaxBytes || x_send.room() <= kPlacesForStreams)
    return false;
  if (transfer.is_read && x_reads >= x_core.reads_in_flight()) return false;
  if (transfer.posted == transfer.length) return post_flush(transfer) == 0;
  flush_chain();
  ibv_sge local{};
  ibv_send_wr request{};
  Work described{};
  described.type = Work::Type::piece;
  described.transfer = &transfer;
  described.offset = transfer.posted;
  if (!aim(transfer, local, request, described)) return false;
  request.sg_list = &local;
  request.num_sge = 1;  // a READ looks at the first only, whatever it is given
  request.opcode = transfer.is_read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
  x_send.stage(request, true) = described;
  if (const int rc = x_send.post(request)) {
    x_send.unstage();
    if (transfer.bounces) x_core.bounce_blocks(transfer.is_read).release(described.block);
    (void)refused(rc);
    return false;
  }
  transfer.posted += described.bytes;
  ++transfer.in_flight;
  ++x_pieces;
  x_piece_bytes += described.bytes;
  if (transfer.is_read) ++x_reads;
  return true;
}

/// Both ends of the next piece: within one element of either list, and one block if it bounces.
bool Connection::aim(Transfer& transfer, ibv_sge& local, ibv_send_wr& request,
                     Work& work) noexcept {
  uint64_t remote_offset = transfer.posted;
  const RemotePiece* remote = element_at(transfer.remote.pieces, transfer.remote.count,
                                         remote_offset, [](auto& p) { return p.length; });
  uint64_t local_offset = transfer.posted;
  const iovec* memory = element_at(transfer.local, transfer.count, local_offset,
                                   [](auto& p) { return uint64_t(p.iov_len); });
  uint64_t bytes = std::min({remote->length - remote_offset, transfer.length - transfer.posted,
                             kPieceBytes, x_core.device().limits().max_message});
  if (transfer.bounces) {
    BlockPool& blocks = x_core.bounce_blocks(transfer.is_read);
    if (!blocks.acquire(work.block, x_link)) return no_block(blocks), false;
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

void Connection::on_piece(const Work& work, bool success, Sink& sink) noexcept {
  Transfer& transfer = *work.transfer;
  --x_pieces;
  x_piece_bytes -= work.bytes;
  if (transfer.is_read) --x_reads;
  --transfer.in_flight;
  if (!success && !transfer.status) transfer.status = -FI_EIO;
  if (transfer.bounces) {
    if (success && transfer.is_read)
      hmem::scatter(transfer.local, transfer.count, work.offset, work.block.bytes, work.bytes);
    x_core.bounce_blocks(transfer.is_read).release(work.block);
  }
  if (!success) return;  // ends with its connection
  Counters& counters = x_core.counters();
  (transfer.is_read ? counters.read_bytes : counters.write_bytes) += work.bytes;
  if (transfer.bounces) counters.bounce_bytes += work.bytes;
  if (transfer.all_posted() && transfer.in_flight == 0 && !transfer.status)
    end_transfer(transfer, 0, sink);
}

void Connection::end_transfer(Transfer& transfer, int status, Sink& sink) noexcept {
  util::IntrusiveList<Transfer>::erase(transfer);
  if (!transfer.bounces) release_all(x_core.cache(), transfer.registrations, transfer.count);
  const uint64_t token = transfer.token;
  x_core.transfers().release(transfer);
  sink.on_done(token, status);
}

}  // namespace erdma::transport::verbs
