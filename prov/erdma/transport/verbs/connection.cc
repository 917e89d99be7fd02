#include "transport/verbs/connection.h"

#include <algorithm>
#include <cstring>

#include "hmem/copy.h"
#include "transport/verbs/core.h"
#include "transport/verbs/link.h"
#include "util/log.h"

void std::default_delete<erdma::transport::verbs::Connection>::operator()(
    erdma::transport::verbs::Connection* connection) const noexcept {
  delete connection;
}

/// Making and ending a connection, and its sending side.
namespace erdma::transport::verbs {
namespace {

/// What the sender sends nothing after. Its completion stands for all before it: who knows that
/// nothing is under way need not wait for the device to say so before it ends the connection.
constexpr bool is_last(Kind kind) noexcept {
  return kind == Kind::retire || kind == Kind::retire_ok || kind == Kind::bye;
}

}  // namespace

Connection::~Connection() {
  x_qp.reset();
  x_core.completion_queues().release(x_share);
  x_core.release_id(x_id);
}

int Connection::prepare(ibv_qp_init_attr& attr) noexcept {
  const DeviceLimits& limits = x_core.device().limits();
  const int rc = x_core.completion_queues().reserve(kSendDepth + kReceiveDepth, x_share);
  if (rc) return rc;
  const int memory = x_receives.make(x_core.device(), kSmallReceives, kSmallReceiveBytes);
  if (memory) return memory;
  attr = {};
  attr.send_cq = attr.recv_cq = x_share.cq;
  attr.qp_type = IBV_QPT_RC;
  attr.cap.max_send_wr = kSendDepth;
  attr.cap.max_recv_wr = kReceiveDepth;
  attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
  attr.cap.max_inline_data = limits.max_inline;
  x_inline = std::min<uint32_t>(limits.max_inline, Chain::kMaxInline);
  return 0;
}

void Connection::adopt(ibv_qp* queue_pair) noexcept {
  x_qp.reset(queue_pair);
}

int Connection::post_receives() noexcept {
  const int rc = x_send.start(qp(), x_id, kSendDepth);
  return rc ? rc : x_receives.start(qp(), x_id);
}

int Connection::agree(const Terms& peer, bool is_active) noexcept {
  if (peer.credits < Credits::kMinWindow || peer.receive_bytes < kMinReceiveBytes ||
      !peer.heartbeat_address) {
    ERDMA_WARN(EP_CTRL, "%s offers %u receives of %u bytes%s: too little\n",
               peer.name.to_string().c_str(), peer.credits, peer.receive_bytes,
               peer.heartbeat_address ? "" : " and no memory for heartbeats");
    return -FI_ECONNRESET;
  }
  active = is_active;
  x_credits.start(peer.credits, kSmallReceives);
  x_peer_small = x_peer_large = uint32_t(
      std::min<size_t>(peer.receive_bytes, kPacketOverhead + x_core.options().eager_bytes));
  x_heartbeat_address = peer.heartbeat_address;
  x_heartbeat_rkey = peer.heartbeat_rkey;
  return active ? post_ready() : 0;
}

/// The one packet that is not built: every endpoint has it registered, for this thread must not
/// touch the blocks of the other.
int Connection::post_ready() noexcept {
  const Core::HeartbeatMemory& mine = x_core.heartbeat();
  ibv_sge piece{mine.target_address, kPrefixBytes, mine.target_lkey};
  ibv_send_wr request{};
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND;
  x_send.stage(request, false).type = Work::Type::packet;
  x_credits.consume();
  ++x_sent;
  const int rc = x_send.post(request);
  if (rc) x_send.unstage();
  return rc;
}

void Connection::go_up(VerbsLink& link, const Mail& mail) noexcept {
  x_link = &link;
  connection_id = mail.connection_id;
  session = mail.session;
  x_phase = Phase::up;
  // On iWARP the passive side must stay silent until it heard something; it harms nowhere.
  x_may_send = active;
}

int Connection::send(const Header& header, const iovec* payload, size_t count, size_t length,
                     SendHint hint) noexcept {
  if (!x_credits.may_send() || x_send.room() <= kReservedPlaces || x_due) [[unlikely]] {
    if (!x_credits.may_send()) want_more();
    return -FI_EAGAIN;
  }
  if (length > eager_limit()) [[unlikely]]
    return -FI_EMSGSIZE;
  const Payload rest{payload, count, 0, length};
  const int rc = emit(Kind::packet, &header, kHeaderBytes, rest, hint);
  if (!rc) {
    used = x_core.polls();
    x_core.counters().sent_bytes += length;
  }
  return rc;
}

/// Sends one packet. The caller has seen to credits and room. -FI_EAGAIN: nothing happened.
int Connection::emit(Kind kind, const void* body, size_t body_bytes, const Payload& payload,
                     SendHint hint) noexcept {
  const size_t total = kPrefixBytes + body_bytes + payload.length;
  if (total > x_inline) return emit_block(kind, body, body_bytes, payload);
  if (x_chained || hint == SendHint::more) [[unlikely]]
    return emit_chained(kind, body, body_bytes, payload, hint);
  return emit_inline(kind, body, body_bytes, payload);
}

size_t Connection::build(std::byte* to, Kind kind, const void* body, size_t body_bytes,
                         const Payload& payload) noexcept {
  const Prefix prefix{kind, x_flags, x_credits.consume(), 0};
  std::memcpy(to, &prefix, sizeof(prefix));
  size_t at = sizeof(prefix);
  if (body_bytes) std::memcpy(to + at, body, body_bytes);
  at += body_bytes;
  if (!payload.length) return at;
  if (payload.count == 1 && payload.offset == 0) [[likely]]
    std::memcpy(to + at, payload.memory[0].iov_base, payload.length);
  else
    hmem::gather(to + at, payload.memory, payload.count, payload.offset, payload.length);
  return at + payload.length;
}

int Connection::emit_inline(Kind kind, const void* body, size_t body_bytes,
                            const Payload& payload) noexcept {
  alignas(8) std::byte bytes[Chain::kMaxInline];
  const uint32_t owed = x_credits.owed();
  const size_t length = build(bytes, kind, body, body_bytes, payload);
  ibv_sge piece{uint64_t(bytes), uint32_t(length), 0};
  ibv_send_wr request;
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND;
  request.send_flags = IBV_SEND_INLINE;
  x_send.stage(request, is_last(kind)).type = Work::Type::packet;
  return post_packet(request, uint16_t(owed - x_credits.owed()));
}

int Connection::emit_block(Kind kind, const void* body, size_t body_bytes,
                           const Payload& payload) noexcept {
  BlockPool::Block block;
  if (kPrefixBytes + body_bytes + payload.length > x_core.packet_blocks().block_bytes())
    return -FI_EMSGSIZE;
  if (!x_core.packet_blocks().acquire(block)) return no_block(x_core.packet_blocks());
  flush_chain();
  const uint32_t owed = x_credits.owed();
  const size_t length = build(block.bytes, kind, body, body_bytes, payload);
  ibv_sge piece{uint64_t(block.bytes), uint32_t(length), block.lkey};
  ibv_send_wr request;
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND;
  request.send_flags = 0;
  Work& work = x_send.stage(request, true);
  work.type = Work::Type::block;
  work.block = block;
  const int rc = post_packet(request, uint16_t(owed - x_credits.owed()));
  if (rc) x_core.packet_blocks().release(block);
  return rc;
}

/// Blocks come back with completions. If none is out, none will ever come.
int Connection::no_block(const BlockPool& pool) noexcept {
  if (pool.in_use() == 0)
    broken(-FI_ENOMEM, "no memory can be registered for what it sends");
  else
    x_core.starve(*this);
  return -FI_EAGAIN;
}

/// Posts one staged packet; takes everything back if the device does not.
int Connection::post_packet(ibv_send_wr& request, uint16_t credits) noexcept {
  const int rc = x_send.post(request);
  if (rc) [[unlikely]] {
    x_send.unstage();
    x_credits.unconsume(credits);
    return refused(rc);
  }
  ++x_sent;
  x_flags = 0;
  return 0;
}

/// The device has less room than it promised: wait for what is outstanding. Anything else, or
/// nothing to wait for, is the end.
int Connection::refused(int error) noexcept {
  if (error == -FI_EAGAIN && x_send.outstanding() > 0) {
    x_refused = true;  // for ever, if nothing that is outstanding is signalled
    x_refused_after = x_send.latest();
    return error;
  }
  broken(error == -FI_EAGAIN ? -FI_ENOMEM : error, "a send was refused by the device");
  return -FI_EAGAIN;
}

int Connection::emit_chained(Kind kind, const void* body, size_t body_bytes, const Payload& payload,
                             SendHint hint) noexcept {
  Chain& chain = x_core.chain();
  if (chain.owner && chain.owner != this) chain.owner->flush_chain();
  const unsigned at = chain.count++;
  ibv_send_wr& request = chain.requests[at];
  const size_t length = build(chain.bytes[at], kind, body, body_bytes, payload);
  chain.pieces[at] = {uint64_t(chain.bytes[at]), uint32_t(length), 0};
  request.sg_list = &chain.pieces[at];
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND;
  request.send_flags = IBV_SEND_INLINE;
  x_send.stage(request, is_last(kind)).type = Work::Type::packet;
  if (at > 0) chain.requests[at - 1].next = &request;
  chain.owner = this;
  x_chained = true;
  x_flags = 0;
  ++x_sent;
  if (hint != SendHint::more || chain.count == Chain::kLength) flush_chain();
  return 0;
}

void Connection::flush_chain() noexcept {
  if (!x_chained) return;
  Chain& chain = x_core.chain();
  chain.owner = nullptr;
  chain.count = 0;
  x_chained = false;
  // They were taken, so there is no way back.
  const int rc = x_send.post(chain.requests[0]);
  if (rc) broken(rc == -FI_EAGAIN ? -FI_ENOMEM : rc, "a chain of sends was refused by the device");
}

void Connection::post_heartbeat() noexcept {
  if (!met() || x_heartbeat_pending || !x_send.room() || x_phase == Phase::closing) return;
  flush_chain();
  const Core::HeartbeatMemory& mine = x_core.heartbeat();
  ibv_sge piece{mine.sink_address, sizeof(uint64_t), mine.sink_lkey};
  ibv_send_wr request{};
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = IBV_WR_RDMA_READ;
  request.wr.rdma.remote_addr = x_heartbeat_address;
  request.wr.rdma.rkey = x_heartbeat_rkey;
  x_send.stage(request, true).type = Work::Type::heartbeat;
  if (const int rc = x_send.post(request)) {
    x_send.unstage();
    (void)refused(rc);
    return;
  }
  x_heartbeat_pending = true;
}

void Connection::broken(int status, const char* why) noexcept {
  x_core.break_connection(*this, status, why);
}

void Connection::modify_to_error() noexcept {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  // It may be there already, and may say so: what follows does not depend on it.
  if (x_qp) (void)ibv_modify_qp(qp(), &attr, IBV_QP_STATE);
  erred = true;
}

void Connection::end(Sink& sink, int status) noexcept {
  if (x_chained) x_core.chain().owner = nullptr, x_core.chain().count = 0;
  x_chained = false;
  x_qp.reset();
  x_send.drop_all([&](Work& posted) {
    const Work work = posted;
    on_work(work, false, sink);
  });
  while (Transfer* transfer = x_moving.front()) end_transfer(*transfer, status, sink);
  while (Transfer* transfer = x_waiting.front()) end_transfer(*transfer, status, sink);
  drop_staged();
}

}  // namespace erdma::transport::verbs
