#include "transport/verbs/packet_sender.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "hmem/copy.h"
#include "util/log.h"

namespace erdma::transport::verbs {
namespace {

/// The sender sends nothing after these packets. The completion of one implies all before it, so a
/// side that knows that nothing else is in progress can end the connection as soon as this packet
/// completes.
constexpr bool is_last(Kind kind) noexcept {
  return kind == Kind::retire || kind == Kind::retire_ok || kind == Kind::bye;
}

}  // namespace

PacketSender::PacketSender(Resources& shared, ConnectionHost& host) noexcept
    : inline_bytes(std::min<uint32_t>(shared.device.limits().max_inline, Chain::kMaxInline)),
      x_shared(shared),
      x_counters(&shared.counters),
      x_host(host) {}

int PacketSender::agree(const Terms& peer, uint32_t window) noexcept {
  if (peer.credits < Credits::kMinWindow || peer.receive_bytes < kMinReceiveBytes ||
      !peer.heartbeat_address) {
    ERDMA_WARN(EP_CTRL, "%s offers %u receives of %u bytes%s: too little\n",
               peer.name.to_string().c_str(), peer.credits, peer.receive_bytes,
               peer.heartbeat_address ? "" : " and no memory for heartbeats");
    return -FI_ECONNRESET;
  }
  x_credits.start(peer.credits, window);
  x_peer_small = x_peer_large = uint32_t(
      std::min<size_t>(peer.receive_bytes - kPacketOverhead, x_shared.options.eager_bytes));
  return 0;
}

/// This packet is not built but registered in advance, because this thread must not touch the
/// blocks of the polling thread.
int PacketSender::post_ready() noexcept {
  const ScratchMemory& mine = x_shared.heartbeat;
  ibv_sge piece{mine.target_address, kPrefixBytes, mine.target_lkey};
  ibv_send_wr request{};
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND;
  x_queue.append(request, false).type = Work::Type::packet;
  x_credits.consume();
  ++x_sent;
  const int rc = x_queue.post(request);
  if (rc) x_queue.drop_last();
  return rc;
}

int PacketSender::send(const Header& header, const iovec* payload, size_t count, size_t length,
                       SendHint hint) noexcept {
  if (!x_credits.may_send() || x_queue.room() <= kReservedPlaces || x_due.any()) [[unlikely]] {
    if (!x_credits.may_send()) want_more();
    ++x_counters->waits;
    return -FI_EAGAIN;
  }
  if (length > eager_limit()) [[unlikely]]
    return -FI_EMSGSIZE;
  const Payload rest{payload, count, 0, length};
  const int rc = emit(Kind::packet, &header, kHeaderBytes, rest, hint);
  if (rc) [[unlikely]] {
    x_counters->waits += rc == -FI_EAGAIN;
    return rc;
  }
  touch();
  x_counters->sent_bytes += length;
  return 0;
}

size_t PacketSender::build(std::byte* to, Kind kind, const void* body, size_t body_bytes,
                           const Payload& payload) noexcept {
  const Prefix prefix{kind, x_flags, x_credits.consume(), 0};
  std::memcpy(to, &prefix, sizeof(prefix));
  size_t at = sizeof(prefix);
  if (body_bytes) std::memcpy(to + at, body, body_bytes);
  at += body_bytes;
  if (!payload.length) return at;
  if (payload.count == 1 && payload.offset == 0) [[likely]]
    hmem::copy_payload(to + at, payload.memory[0].iov_base, payload.length);
  else
    hmem::gather(to + at, payload.memory, payload.count, payload.offset, payload.length);
  return at + payload.length;
}

/// Builds a packet in `block`, or at `to` for inline sending; posts it, and takes everything back
/// if the device refuses it.
[[gnu::always_inline]] inline int PacketSender::post_packet(std::byte* to,
                                                            const BlockPool::Block* block,
                                                            Kind kind, const void* body,
                                                            size_t body_bytes,
                                                            const Payload& payload) noexcept {
  const uint32_t to_return = x_credits.to_return();
  const size_t length = build(to, kind, body, body_bytes, payload);
  ibv_sge piece{uint64_t(to), uint32_t(length), block ? block->lkey : 0};
  ibv_send_wr request;
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND;
  request.send_flags = block ? 0 : IBV_SEND_INLINE;
  Work& work = x_queue.append(request, block || is_last(kind));
  work.type = block ? Work::Type::block : Work::Type::packet;
  if (block) work.block = *block;
  if (const int rc = x_queue.post(request)) [[unlikely]] {
    x_credits.unconsume(uint16_t(to_return - x_credits.to_return()));
    return refused(rc);
  }
  ++x_sent;
  x_flags = 0;
  return 0;
}

int PacketSender::emit(Kind kind, const void* body, size_t body_bytes, const Payload& payload,
                       SendHint hint) noexcept {
  const size_t total = kPrefixBytes + body_bytes + payload.length;
  if (total > inline_bytes) return emit_block(kind, body, body_bytes, payload);
  if (x_shared.chain.owner || hint == SendHint::more) [[unlikely]]
    return emit_chained(kind, body, body_bytes, payload, hint);
  alignas(8) std::byte bytes[Chain::kMaxInline];
  return post_packet(bytes, nullptr, kind, body, body_bytes, payload);
}

int PacketSender::emit_block(Kind kind, const void* body, size_t body_bytes,
                             const Payload& payload) noexcept {
  BlockPool::Block block;
  if (kPrefixBytes + body_bytes + payload.length > x_shared.packet_blocks.block_bytes())
    return -FI_EMSGSIZE;
  if (!x_shared.packet_blocks.acquire(block)) return no_block(x_shared.packet_blocks);
  const int rc = post_chained() ? post_packet(block.bytes, &block, kind, body, body_bytes, payload)
                                : -FI_EAGAIN;
  if (rc)
    x_shared.packet_blocks.release(block);
  else
    x_counters->fetched_bytes += payload.length;
  return rc;
}

/// Blocks return with completions. If none is in use, none will ever return.
int PacketSender::no_block(const BlockPool& pool) noexcept {
  if (pool.in_use() == 0)
    x_host.broken(-FI_ENOMEM, "no memory can be registered for what it sends");
  else
    x_host.await_block();
  return -FI_EAGAIN;
}

int PacketSender::post(ibv_send_wr& request, ibv_sge piece, const Work& work) noexcept {
  if (!post_chained()) return -FI_EAGAIN;
  request.sg_list = &piece;
  request.num_sge = 1;  // for a READ the device uses only the first
  x_queue.append(request, true) = work;
  const int rc = x_queue.post(request);
  return rc ? refused(rc) : 0;
}

/// The device has less room than it promised: wait for outstanding requests. Any other error, or
/// nothing to wait for, ends the connection.
int PacketSender::refused(int error) noexcept {
  x_queue.drop_last();
  if (error == -FI_EAGAIN && x_queue.outstanding() > 0) {
    x_refused = true;  // stays set if no outstanding request is signalled
    x_refused_after = x_queue.latest();
    return error;
  }
  x_host.broken(error == -FI_EAGAIN ? -FI_ENOMEM : error, "a send was refused by the device");
  return -FI_EAGAIN;
}

/// Appends a packet to the chain of this connection. If another connection has the chain, that is
/// posted first; then a packet without the hint is sent by itself.
int PacketSender::emit_chained(Kind kind, const void* body, size_t body_bytes,
                               const Payload& payload, SendHint hint) noexcept {
  Chain& chain = x_shared.chain;
  if (chain.owner != this) {
    (void)post_chained();
    if (hint != SendHint::more) return emit(kind, body, body_bytes, payload, hint);
  }
  const unsigned at = chain.count++;
  ibv_send_wr& request = chain.requests[at];
  const size_t length = build(chain.bytes[at], kind, body, body_bytes, payload);
  chain.pieces[at] = {uint64_t(chain.bytes[at]), uint32_t(length), 0};
  request.sg_list = &chain.pieces[at];
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND;
  request.send_flags = IBV_SEND_INLINE;
  x_queue.append(request, is_last(kind)).type = Work::Type::packet;
  if (at > 0) chain.requests[at - 1].next = &request;
  chain.owner = this;
  x_flags = 0;
  ++x_sent;
  if (hint != SendHint::more || chain.count == Chain::kLength) post_chained();
  return 0;
}

bool PacketSender::post_chain() noexcept {
  Chain& chain = x_shared.chain;
  PacketSender& owner = *std::exchange(chain.owner, nullptr);
  chain.count = 0;
  // send() has accepted these packets, so they cannot be taken back.
  const int rc = owner.x_queue.post(chain.requests[0]);
  if (rc)
    owner.x_host.broken(rc == -FI_EAGAIN ? -FI_ENOMEM : rc,
                        "a chain of sends was refused by the device");
  return rc == 0 || &owner != this;
}

void PacketSender::drop_chain() noexcept {
  if (x_shared.chain.owner == this) x_shared.chain.owner = nullptr, x_shared.chain.count = 0;
}

bool PacketSender::on_grow(const std::byte* body, size_t length) noexcept {
  GrowBody grow;
  if (length < sizeof(grow)) return false;
  std::memcpy(&grow, body, sizeof(grow));
  if (grow.bytes < kMinReceiveBytes) return false;
  x_peer_small = uint32_t(eager_limit());
  x_peer_large =
      uint32_t(std::min<size_t>(grow.bytes - kPacketOverhead, x_shared.options.eager_bytes));
  x_peer_large_from = x_sent + uint64_t(int64_t(int32_t(grow.from - uint32_t(x_sent))));
  return true;
}

bool PacketSender::next_due(Due& packet) const noexcept {
  if (!x_due.any()) return false;
  packet = x_due.first();
  // The very last packet may use the last credit: the peer expects no further packet.
  const bool credit = x_credits.may_send() || (packet == kDueBye && x_credits.available() > 0);
  return credit && x_queue.room() > 0;
}

}  // namespace erdma::transport::verbs
