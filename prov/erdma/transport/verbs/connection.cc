#include "transport/verbs/connection.h"

#include "transport/verbs/link.h"
#include "transport/verbs/link_manager.h"
#include "transport/verbs/worklist.h"
#include "util/log.h"

void std::default_delete<erdma::transport::verbs::Connection>::operator()(
    erdma::transport::verbs::Connection* connection) const noexcept {
  delete connection;
}

namespace erdma::transport::verbs {
namespace {

constexpr uint32_t kCreditsToTakeBack = 2;
constexpr unsigned kPiecesPerRound = 4;  ///< posting may take as long as moving the bytes

}  // namespace

Connection::Connection(Resources& shared, Worklist& worklist, LinkManager& manager,
                       uint32_t number) noexcept
    : id(number),
      sender(shared, *this),
      receiver(shared, sender, *this),
      heartbeat(shared, sender),
      transfers(shared, sender, heartbeat, *this),
      direct(shared, sender, transfers, *this),
      packet_transfers(shared, sender, transfers, *this),
      lifecycle(sender, heartbeat, *this),
      x_shared(shared),
      x_worklist(worklist),
      x_manager(manager) {}

Connection::~Connection() {
  if (leave_open && x_qp.release()) {
    x_shared.queues.leave_open(share);
    x_shared.device.leave_open();
  }
  x_qp.reset();
  x_shared.queues.release(share);
  x_shared.table.release(id);
}

int Connection::prepare(ibv_qp_init_attr& attr) noexcept {
  constexpr uint32_t kReceiveDepth = PacketReceiver::kReceiveDepth;
  const int rc = x_shared.queues.reserve(kSendDepth + kReceiveDepth, share);
  if (rc) return rc;
  if (const int memory = receiver.make()) return memory;
  attr = {};
  attr.send_cq = attr.recv_cq = share.cq;
  attr.qp_type = IBV_QPT_RC;
  attr.cap.max_send_wr = kSendDepth;
  attr.cap.max_recv_wr = kReceiveDepth;
  attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
  attr.cap.max_inline_data = x_shared.device.limits().max_inline;
  return 0;
}

int Connection::adopt(ibv_qp* queue_pair) noexcept {
  x_qp.reset(queue_pair);
  const int rc = sender.queue().start(queue_pair, id, kSendDepth);
  return rc ? rc : receiver.start(queue_pair, id);
}

int Connection::agree(const Terms& peer, bool is_active) noexcept {
  active = is_active;
  heartbeat.agree(peer);
  if (const int rc = sender.agree(peer, PacketReceiver::kSmallReceives)) return rc;
  return active ? sender.post_ready() : 0;
}

void Connection::go_up(VerbsLink& link, const Mail& mail, bool goes_first) noexcept {
  x_link = &link;
  connection_id = mail.connection_id;
  sender.count_in(link.counters);
  direct.count_in(link.counters);
  transfers.start(&link, link.counters);
  packet_transfers.start(&link, link.counters);
  lifecycle.go_up(link.session, mail.session, goes_first);
}

void Connection::on_completion(const ibv_wc& wc, Sink& sink) {
  if (!x_link) [[unlikely]]
    return early.push_back(wc);
  ++completions;
  if (wc.status != IBV_WC_SUCCESS) [[unlikely]]
    return on_failed(wc, sink);
  if (wc.wr_id & WorkId::kReceive)
    on_receive(wc, sink);
  else
    on_sent(wc, sink);
  // After most packets of an exchange there is nothing to do.
  if (receiver.has_batch() || sender.due().any() || sender.credits().must_return() ||
      transfers.any_moving() || !packet_transfers.empty())
    x_worklist.mark(*this);
}

void Connection::on_receive(const ibv_wc& wc, Sink& sink) {
  PacketReceiver::Packet packet;
  if (!receiver.take(wc, packet)) [[unlikely]]
    return;
  if (!x_heard) [[unlikely]] {
    x_heard = true;
    if (may_send()) x_link->use(*this, true);
  }
  if (packet.prefix.flags & kWantsMore) [[unlikely]]
    if (lifecycle.phase() == Phase::up) receiver.grow();
  if (packet.prefix.kind != Kind::packet) [[unlikely]]
    return on_control(packet, sink);
  if (packet.length < kHeaderBytes) [[unlikely]]
    return broken(-FI_ECONNRESET, "the peer sent a packet that is too short");
  sender.touch();
  sink.on_packet(*x_link, packet.body, packet.body + kHeaderBytes, packet.length - kHeaderBytes);
}

void Connection::on_sent(const ibv_wc& wc, Sink& sink) noexcept {
  const bool known = sender.queue().complete(wc.wr_id, [&](const Work& posted) {
    if (posted.type == Work::Type::packet) return;
    if (posted.type >= Work::Type::read) return direct.on_fast(posted, true, sink);
    const Work work = posted;  // an upcall may reuse its place
    on_work(work, true, sink);
  });
  if (!known) broken(-FI_EIO, "the device completed a request that was not posted");
  x_worklist.feed();
}

/// One failed request ends the connection. Only a request that was not flushed tells the reason.
void Connection::on_failed(const ibv_wc& wc, Sink& sink) noexcept {
  const bool receive = wc.wr_id & WorkId::kReceive;
  if (!lifecycle.ending()) {
    // A flush shows that the connection ended, not why.
    const bool flushed = wc.status == IBV_WC_WR_FLUSH_ERR;
    const char* why = ibv_wc_status_str(wc.status);
    if (!flushed)
      ERDMA_INFO(EP_DATA, "%s: a %s failed: %s (vendor code 0x%x)\n",
                 x_link->address().to_string().c_str(), receive ? "receive" : "send", why,
                 wc.vendor_err);
    broken(completion_error(wc.status), flushed ? "the peer is gone" : why);
  }
  if (receive) return receiver.skip(wc);
  (void)sender.queue().complete(wc.wr_id, [&](const Work& posted) {
    const Work work = posted;
    on_work(work, false, sink);
  });
}

/// Frees what a request held, and continues what waited for it.
void Connection::on_work(const Work& work, bool success, Sink& sink) noexcept {
  switch (work.type) {
    case Work::Type::packet:
      return;
    case Work::Type::block:
      return x_shared.packet_blocks.release(work.block);
    case Work::Type::piece:
      return transfers.on_piece(work, success, sink);
    case Work::Type::direct:
      return direct.on_direct(work, success, sink);
    case Work::Type::flush:
      return transfers.on_proof(work, success, sink);
    case Work::Type::heartbeat:
      if (success) heartbeat.answered();
      return;
    case Work::Type::read:
    case Work::Type::write:
      return direct.on_fast(work, success, sink);
  }
}

void Connection::on_control(const PacketReceiver::Packet& packet, Sink& sink) noexcept {
  const Kind kind = packet.prefix.kind;
  switch (kind) {
    case Kind::credit:
    case Kind::ready:
      return;
    case Kind::grow:
      if (!sender.on_grow(packet.body, packet.length)) break;
      return;
    case Kind::retire:
    case Kind::retire_ok:
    case Kind::retire_no:
    case Kind::retire_back:
      return lifecycle.on_packet(kind, packet.body, packet.length);
    case Kind::bye:
      orderly = true;
      return broken(-FI_ESHUTDOWN, nullptr);
    case Kind::pull:
    case Kind::data:
    case Kind::push:
    case Kind::answer:
      return packet_transfers.on_packet(kind, packet.body, packet.length, sink);
    case Kind::packet:
      break;
  }
  broken(-FI_ECONNRESET, kInvalidControlPacket);
}

void Connection::progress() noexcept {
  if (lifecycle.ending() || lifecycle.phase() == Phase::making) return;
  receiver.repost();
  if (!confirmed()) return;
  if (sender.due().any()) send_due_controls();
  const Phase phase = lifecycle.phase();
  if (phase >= Phase::closing) return;
  // A side that asked to retire still returns credits: the peer needs some for what it must send
  // first.
  if (phase == Phase::accept_sent || phase == Phase::bye_sent) return;
  if (transfers.any_moving() || !packet_transfers.empty()) [[unlikely]]
    move_transfers();
  const Credits& credits = sender.credits();
  const bool spare = phase != Phase::retire_sent || credits.available() > kCreditsToTakeBack;
  if (credits.must_return() && credits.may_send_credit() && sender.queue().room() > 0 && spare) {
    if (sender.post_chained()) (void)sender.emit(Kind::credit, nullptr, 0);
  }
}

void Connection::send_due_controls() noexcept {
  Due which;
  while (sender.next_due(which)) {
    const GrowBody grown = receiver.grown();
    const int rc =
        which == kDueGrow ? sender.emit(Kind::grow, &grown, sizeof(grown)) : lifecycle.send(which);
    if (rc) return;
    sender.due().remove(which);
  }
}

/// Sends answers, then pieces of this side's transfers, then pieces that the peer asked for.
void Connection::move_transfers() noexcept {
  packet_transfers.send_answers();
  bool more = false;
  for (unsigned posted = 0; posted < kPiecesPerRound; ++posted) {
    Transfer* transfer = transfers.next();
    if (!transfer) break;
    if (!(transfer->remote.bounced ? packet_transfers.post(*transfer)
                                   : transfers.post_piece(*transfer)))
      break;
    transfers.pass(*transfer);
    more = more || posted + 1 == kPiecesPerRound;
  }
  more = packet_transfers.move_streams() || more;
  // Later in this poll() or in the next one, after the packets of other connections.
  if (more) progress_soon();
}

void Connection::modify_to_error() noexcept {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  // The queue pair may already be in error, and the call may fail; nothing below depends on it.
  if (x_qp) (void)ibv_modify_qp(x_qp.get(), &attr, IBV_QP_STATE);
  lifecycle.drain();
}

void Connection::end(Sink& sink, int status) noexcept {
  sender.drop_chain();
  x_qp.reset();
  sender.queue().drop_all([&](Work& posted) {
    const Work work = posted;
    on_work(work, false, sink);
  });
  transfers.end_all(status, sink);
  packet_transfers.drop();
}

void Connection::broken(int status, const char* why) noexcept {
  x_manager.break_connection(*this, status, why);
}

void Connection::progress_soon() noexcept {
  x_worklist.mark(*this);
}

void Connection::await_block() noexcept {
  x_worklist.await_block(*this);
}

void Connection::phase_changed(Phase before) noexcept {
  x_manager.phase_changed(*this, before);
  x_link->use(*this, may_send());
}

void Connection::on_answer(bool agreed) noexcept {
  x_manager.on_answer(*this, agreed);
}

bool Connection::reopen() noexcept {
  return x_manager.reopen(*this);
}

}  // namespace erdma::transport::verbs
