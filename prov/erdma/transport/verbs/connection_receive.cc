#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "transport/verbs/connection.h"
#include "transport/verbs/core.h"
#include "transport/verbs/link.h"
#include "util/log.h"

/// What completions bring: packets, control packets, the end of our own requests.
namespace erdma::transport::verbs {
namespace {

/// What the application is told about a request that failed.
int status_of(ibv_wc_status status) noexcept {
  switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RNR_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
      return -FI_ETIMEDOUT;
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
    case IBV_WC_LOC_QP_OP_ERR:
    case IBV_WC_LOC_LEN_ERR:
      return -FI_EIO;
    default:
      return -FI_ECONNRESET;
  }
}

template <typename Body>
bool read_body(const std::byte* from, size_t length, Body& body) noexcept {
  if (length < sizeof(body)) return false;
  std::memcpy(&body, from, sizeof(body));
  return true;
}

}  // namespace

void Connection::on_completion(const ibv_wc& wc, Sink& sink) noexcept {
  if (!x_link) [[unlikely]] {
    try {
      x_early.push_back(wc);
    } catch (const std::bad_alloc&) {
      // A number will be missing, and that is noticed.
    }
    return;
  }
  ++x_completions;
  if (wc.status != IBV_WC_SUCCESS) [[unlikely]]
    return on_failed(wc, sink);
  if (wc.wr_id & WorkId::kReceive)
    on_receive(wc, sink);
  else
    on_sent(wc, sink);
  // Most packets of a conversation leave nothing to do.
  if (x_receives.idle() >= x_receives.batch() || wants_room()) mark_dirty();
}

void Connection::take_early(Sink& sink) noexcept {
  const std::vector<ibv_wc> early = std::exchange(x_early, {});
  for (const ibv_wc& wc : early) on_completion(wc, sink);
}

void Connection::on_receive(const ibv_wc& wc, Sink& sink) noexcept {
  ReceiveQueue::Slot slot;
  if (!x_receives.take(wc.wr_id, slot)) [[unlikely]]
    return broken(-FI_EIO, "a completion of a receive was lost");
  if (x_muted) [[unlikely]]
    return;
  Prefix prefix;
  if (wc.byte_len < sizeof(prefix) || wc.byte_len > slot.capacity) [[unlikely]]
    return broken(-FI_ECONNRESET, "the peer sent a packet of impossible length");
  std::memcpy(&prefix, slot.bytes, sizeof(prefix));
  if (!x_credits.receive(prefix.credits)) [[unlikely]]
    return broken(-FI_ECONNRESET, "the peer claims to have posted more receives than it can");
  if (!x_heard) [[unlikely]]
    first_packet();
  if (prefix.flags & kWantsMore) [[unlikely]]
    try_grow();
  const std::byte* body = slot.bytes + kPrefixBytes;
  const size_t length = wc.byte_len - kPrefixBytes;
  if (prefix.kind != Kind::packet) [[unlikely]]
    return on_control(prefix, body, length, sink);
  if (length < kHeaderBytes) [[unlikely]]
    return broken(-FI_ECONNRESET, "the peer sent a packet that is too short");
  used = x_core.polls();
  sink.on_packet(*x_link, body, body + kHeaderBytes, length - kHeaderBytes);
}

void Connection::first_packet() noexcept {
  x_heard = true;
  if (active || x_phase != Phase::up) return;
  x_may_send = true;
  x_link->may_send(*this);
}

void Connection::on_sent(const ibv_wc& wc, Sink& sink) noexcept {
  const bool known = x_send.complete(wc.wr_id, [&](const Work& posted) {
    if (posted.type == Work::Type::packet) return;
    if (posted.type >= Work::Type::read) return on_short(posted, true, sink);
    const Work work = posted;  // its place may be taken during an upcall
    on_work(work, true, sink);
  });
  if (!known) broken(-FI_EIO, "the device completed a request that was not posted");
  x_core.feed_starved();
}

/// One failed request is the end of the connection. Which one says why; flushed ones say nothing.
void Connection::on_failed(const ibv_wc& wc, Sink& sink) noexcept {
  if (x_phase != Phase::closing && !listed_closing) {
    // A flush says that the connection ended, not why.
    if (wc.status != IBV_WC_WR_FLUSH_ERR)
      ERDMA_INFO(EP_DATA, "%s: a %s failed: %s (vendor code 0x%x)\n",
                 x_link->address().to_string().c_str(),
                 wc.wr_id & WorkId::kReceive ? "receive" : "send", ibv_wc_status_str(wc.status),
                 wc.vendor_err);
    broken(status_of(wc.status),
           wc.status == IBV_WC_WR_FLUSH_ERR ? "the peer is gone" : ibv_wc_status_str(wc.status));
  }
  if (wc.wr_id & WorkId::kReceive) {
    ReceiveQueue::Slot slot;
    (void)x_receives.take(wc.wr_id, slot);
    return;
  }
  (void)x_send.complete(wc.wr_id, [&](const Work& posted) {
    const Work work = posted;
    on_work(work, false, sink);
  });
}

/// What a request held is free, and what waited for it goes on.
void Connection::on_work(const Work& work, bool success, Sink& sink) noexcept {
  switch (work.type) {
    case Work::Type::packet:
      return;
    case Work::Type::block:
      return x_core.packet_blocks().release(work.block);
    case Work::Type::piece:
      return on_piece(work, success, sink);
    case Work::Type::direct:
      return on_direct(work, success, sink);
    case Work::Type::flush:
      return on_flush(work, success, sink);
    case Work::Type::heartbeat:
      if (success) x_heartbeat_pending = false;
      return;
    case Work::Type::read:
    case Work::Type::write:
      return on_short(work, success, sink);
  }
}

void Connection::on_control(const Prefix& prefix, const std::byte* body, size_t length,
                            Sink& sink) noexcept {
  switch (prefix.kind) {
    case Kind::credit:
    case Kind::ready:
      return;
    case Kind::grow:
      return on_grow(body, length);
    case Kind::retire:
    case Kind::retire_ok:
    case Kind::retire_no:
    case Kind::retire_back:
      return on_retirement(prefix.kind, body, length);
    case Kind::bye:
      orderly = true;
      return x_core.break_connection(*this, -FI_ESHUTDOWN, nullptr);
    case Kind::pull:
    case Kind::data:
    case Kind::push:
    case Kind::answer:
      return on_staged(prefix.kind, body, length, sink);
    case Kind::packet:
      break;
  }
  broken(-FI_ECONNRESET, "the peer sent a control packet that makes no sense");
}

void Connection::on_grow(const std::byte* body, size_t length) noexcept {
  GrowBody grow;
  if (!read_body(body, length, grow) || grow.bytes < kMinReceiveBytes)
    return broken(-FI_ECONNRESET, "the peer sent a control packet that makes no sense");
  x_peer_small = uint32_t(eager_limit() + kPacketOverhead);
  x_peer_large =
      uint32_t(std::min<size_t>(grow.bytes, kPacketOverhead + x_core.options().eager_bytes));
  x_peer_large_from = x_sent + uint64_t(int64_t(int32_t(grow.from - uint32_t(x_sent))));
}

void Connection::due(Due packets) noexcept {
  x_due |= packets;
  mark_dirty();
}

void Connection::try_grow() noexcept {
  if (x_receives.grown() || x_phase != Phase::up) return;
  Slab slab;
  const auto bytes = uint32_t(kPacketOverhead + x_core.options().eager_bytes + 63) & ~63u;
  if (!x_core.may_grow()) return;
  if (slab.make(x_core.device(), kLargeReceives, bytes)) return x_core.stop_growing();
  if (const int rc = x_receives.grow(slab)) return broken(rc, "a receive could not be posted");
  x_core.count_grown(1);
  x_credits.grow(kLargeReceives);
  due(kDueGrow);
}

void Connection::repost() noexcept {
  if (x_receives.idle() < x_receives.batch()) return;
  uint32_t count = 0;
  if (const int rc = x_receives.repost(count)) return broken(rc, "a receive could not be posted");
  x_credits.repost(count);
  if (x_receives.drop_small()) x_credits.shrink(x_receives.small_slots());
}

void Connection::mark_dirty() noexcept {
  x_core.mark_dirty(*this);
}

void Connection::settle() noexcept {
  if (x_phase == Phase::closing || x_phase == Phase::making) return;
  repost();
  if (!met()) return;
  if (x_due) flush_due();
  // Who asked to retire still returns credits: the peer needs some for what it has to send first.
  if (x_phase == Phase::agreed || x_phase == Phase::parting) return;
  if (!x_moving.empty() || !x_streams.empty() || !x_answers.empty()) [[unlikely]]
    move_transfers();
  const bool spare = x_phase != Phase::asked || x_credits.available() > kCreditsToTakeBack;
  if (x_credits.must_return() && x_credits.may_send_credit() && x_send.room() > 0 && spare) {
    flush_chain();
    (void)emit_control(Kind::credit, nullptr, 0);
  }
}

void Connection::flush_due() noexcept {
  for (const Due which : {kDueGrow, kDueRetireNo, kDueRetire, kDueRetireOk, kDueBye}) {
    if (!(x_due & which)) continue;
    // The last packet of all may take the last credit: nobody waits for more from us.
    const bool room = x_credits.may_send() || (which == kDueBye && x_credits.available() > 0);
    if (!room || x_send.room() == 0 || send_due(which)) return;
    x_due = uint8_t(x_due & ~which);
    if (which >= kDueRetire) sent_last(which);
  }
}

int Connection::send_due(Due which) noexcept {
  switch (which) {
    case kDueGrow: {
      const GrowBody body{uint32_t(x_receives.grown_from()), x_receives.large_bytes()};
      return emit_control(Kind::grow, &body, sizeof(body));
    }
    case kDueRetireNo:
      return emit_request(Kind::retire_no, x_peers_request);
    case kDueRetire:
      x_link->session.offer(session);  // before the peer can go by it
      return emit_request(Kind::retire, x_request);
    case kDueRetireOk:
      x_link->session.offer(session);
      return emit_request(Kind::retire_ok, x_peers_request);
    case kDueBye:
      return emit_control(Kind::bye, nullptr, 0);
  }
  return 0;
}

int Connection::emit_request(Kind kind, uint32_t request) noexcept {
  const RetireBody body{request};
  return emit_control(kind, &body, sizeof(body));
}

}  // namespace erdma::transport::verbs
