#include "protocol/messages.h"

#include <algorithm>

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include "hmem/copy.h"
#include "protocol/inbound.h"
#include "protocol/unexpected_messages.h"

namespace erdma::protocol {
namespace {

/// Bytes of a fragment. While the sender writes one, the receiver copies the one before, so the
/// last one alone delays the message; but each costs some 100 ns.
constexpr size_t kFragment = 8192;

}  // namespace

bool Messages::send(const SendArgs& args, Peer& peer, CompletionSink* sink,
                    bool rendezvous) noexcept {
  Send* const send = sends.make(args, peer, *this, sink ? *sink : x_sent);
  if (!send) return false;
  send->asked_for_rendezvous = rendezvous;
  sends.begin(*send);
  return true;
}

/// Sends the first packet of a message, or writes to the memory that the receiver has shared.
/// -FI_EAGAIN: nothing happened.
int Messages::launch(Send& send) noexcept {
  if (send.state == Send::State::granted) return write(send);
  if (send.sent > 0) return send_fragments(send);
  Peer& peer = *send.peer;
  const size_t length = send.buffers.length;
  const bool goes_whole = fits(length, *peer.link);
  send.rendezvous = peer.throttled_by || send.asked_for_rendezvous ||
                    !(goes_whole || prefers_packets(length, peer));
  if (send.rendezvous) return send_rts(send);
  if (must_poll()) return -FI_EAGAIN;
  if (send.remote_key.size) {  // the ring had no room for the rts
    peer.link->revoke(send.remote_key);
    send.remote_key.size = 0;
  }
  return goes_whole || length <= peer.link->limits().eager ? send_eager(send)
                                                           : send_fragments(send);
}

void Messages::count_long(const Send& send, bool in_fragments) noexcept {
  if (send.buffers.length > LongMessages::kLong) send.peer->long_messages.sent(in_fragments);
}

void Messages::charge(size_t length) noexcept {
  x_unpolled += UnexpectedMessages::most_cost(length);
}

int Messages::send_eager(Send& send) noexcept {
  const util::PoolHandle id = sends.id(send);
  const transport::Header header =
      wire::encode({wire::Op::eager, send.wire_flags, id.generation, id.index, send.tag, send.data,
                    send.buffers.length});
  const int rc = send.peer->link->send(header, send.buffers.iov, send.buffers.count,
                                       send.buffers.length, transport::SendHint::none);
  if (rc != 0) return rc;
  charge(send.buffers.length);
  conclude(send);
  return 0;
}

/// Sends the fragments for which the link has room. The receiver copies one while the next is
/// written. -FI_EAGAIN: others are still to be sent.
int Messages::send_fragments(Send& send) noexcept {
  const Buffers& all = send.buffers;
  const util::PoolHandle id = sends.id(send);
  while (send.sent < all.length) {
    transport::Header header =
        wire::encode({wire::Op::first_fragment, send.wire_flags, id.generation, id.index, send.tag,
                      send.data, all.length});
    if (send.sent > 0) {
      wire::ControlHeader next = wire::control(wire::Op::fragment, {});
      next.length = send.sent;
      header = wire::reread<transport::Header>(next);
    }
    const size_t most = std::max(transport::kAlwaysEager, send.peer->link->limits().eager);
    const size_t length = std::min({all.length - send.sent, most, kFragment});
    iovec part[transport::kMaxIov];
    const size_t count = hmem::slice(all.iov, all.count, send.sent, length, part);
    const bool last = send.sent + length == all.length;
    const int rc =
        send.peer->link->send(header, part, count, length,
                              last ? transport::SendHint::none : transport::SendHint::unfinished);
    if (rc != 0) return rc;
    if (send.sent == 0) {
      charge(all.length);
      count_long(send, true);
    }
    send.sent += length;
  }
  conclude(send);
  return 0;
}

/// The link has taken all bytes of the message.
void Messages::conclude(Send& send) noexcept {
  if (!(send.wire_flags & wire::kWantFin)) return sends.finish(send, 0);
  sends.clear_inject_pending(send);
  sends.fly(send);
}

int Messages::send_rts(Send& send) noexcept {
  transport::Link& link = *send.peer->link;
  // An application need not make progress after an inject, as a cts would require: the receiver
  // should read.
  const bool prefers_read = link.limits().prefers_read;
  if ((send.injected || prefers_read) && !send.remote_key.size && send.buffers.length > 0) {
    const int rc = link.share(send.buffers.iov, send.buffers.count, send.buffers.length,
                              transport::Access::refusable_read, send.remote_key);
    if (rc == -FI_ENOMEM && !prefers_read)
      send.remote_key.size = 0;  // the receiver shares its memory instead
    else if (rc != 0)
      return rc;
  }
  const util::PoolHandle id = sends.id(send);
  const transport::Header header =
      wire::encode({wire::Op::rts, send.wire_flags, id.generation, id.index, send.tag, send.data,
                    send.buffers.length});
  const iovec payload{send.remote_key.bytes, send.remote_key.size};
  const int rc = link.send(header, &payload, send.remote_key.size ? 1 : 0, send.remote_key.size,
                           transport::SendHint::none);
  if (rc != 0) return rc;
  count_long(send, false);
  sends.fly(send);
  return 0;
}

void Messages::on_cts(Peer& peer, transport::Link& link, const wire::ControlHeader& header,
                      const std::byte* payload, size_t length) noexcept {
  Send* send = sends.find({header.index, header.generation});
  transport::RemoteKey remote_key;
  const bool names_memory = inbound::decode(payload, length, remote_key);
  if (!inbound::takes(link, inbound::judge_cts(send, peer, header, names_memory ? length : 0),
                      "a grant that no rendezvous awaits"))
    return;
  if (send->remote_key.size) peer.link->revoke_early(send->remote_key, transport::Early::refused);
  send->unlink();
  send->receiver = {header.reply_index, header.reply_generation};
  send->granted = header.length;
  send->remote_key = remote_key;
  send->state = Send::State::granted;
  if (write(*send) == -FI_EAGAIN) sends.queue_first(*send);
}

/// Starts to write to the memory that the receiver has shared. -FI_EAGAIN: nothing happened.
int Messages::write(Send& send) noexcept {
  iovec part[transport::kMaxIov];
  const size_t count = hmem::slice(send.buffers.iov, send.buffers.count, 0, send.granted, part);
  const int rc = send.peer->link->put({send.remote_key, 0, send.granted}, part, count,
                                      sends.token(send), false);
  if (rc == 0)
    sends.move(send);
  else if (rc != -FI_EAGAIN)
    on_moved(send, rc);
  return rc == -FI_EAGAIN ? rc : 0;
}

/// That the link has written the bytes does not mean that the receiver has them: a WRITE over iWARP
/// may still be on its way, and bytes for a GPU may have to be copied or flushed there.
void Messages::on_moved(Send& send, int status) noexcept {
  wire::ControlHeader header = wire::control(wire::Op::done, send.receiver, status);
  if (!status && send.wire_flags & wire::kWantFin) {
    send.state = Send::State::written;
    return x_controls.send(*send.peer, header);
  }
  if (!status) return x_controls.conclude(send, header);
  header.flags = wire::kFailed;
  x_controls.send(*send.peer, header);
  sends.finish(send, status);
}

void Messages::on_device_fin(Send& send, int status) noexcept {
  sends.finish(send, status);
}

void Messages::on_budget(Peer& peer, transport::Link& link, const wire::ControlHeader& header,
                         size_t length) noexcept {
  if (!inbound::takes(link, inbound::judge_budget(header, length), "a malformed budget")) return;
  if (header.status == wire::kUnexpected) return peer.long_messages.came_unexpected();
  peer.throttled_by = header.status == wire::kUsedUp ? &link : nullptr;
  peer.update_direct();
}

}  // namespace erdma::protocol
