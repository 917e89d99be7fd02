#include "protocol/messages.h"

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include "hmem/copy.h"
#include "protocol/inbound.h"

namespace erdma::protocol {

bool Messages::send(const SendArgs& args, Peer& peer, CompletionSink* sink) noexcept {
  Send* const send = sends.make(args, peer, *this, sink ? *sink : x_sent);
  if (send) sends.begin(*send);
  return send != nullptr;
}

/// Puts the first packet of a send on the wire, or fills what the receiver granted. -FI_EAGAIN:
/// nothing happened.
int Messages::launch(Send& send) noexcept {
  if (send.state == Send::State::granted) return write(send);
  Peer& peer = *send.peer;
  const bool fits = send.buffers.length <= transport::kAlwaysEager ||
                    send.buffers.length <= peer.link->limits().eager;
  send.rendezvous = !fits || peer.throttled;
  return send.rendezvous ? send_rts(send) : send_eager(send);
}

int Messages::send_eager(Send& send) noexcept {
  const util::PoolHandle id = sends.id(send);
  const transport::Header header =
      wire::encode({wire::Op::eager, send.wire_flags, id.generation, id.index, send.tag, send.data,
                    send.buffers.length});
  const int rc = send.peer->link->send(header, send.buffers.iov, send.buffers.count,
                                       send.buffers.length, transport::SendHint::none);
  if (rc != 0) return rc;
  if (send.wire_flags & wire::kWantFin) {
    sends.fly(send);
  } else {
    sends.finish(send, 0);
  }
  return 0;
}

int Messages::send_rts(Send& send) noexcept {
  transport::Link& link = *send.peer->link;
  // Whoever injects waits for nothing and need not make progress after it, as a grant would ask.
  const bool prefers_read = link.limits().prefers_read;
  if ((send.injected || prefers_read) && !send.remote_key.size && send.buffers.length > 0) {
    const int rc = link.share(send.buffers.iov, send.buffers.count, send.buffers.length,
                              transport::Access::refusable_read, send.remote_key);
    if (rc == -FI_ENOMEM && !prefers_read)
      send.remote_key.size = 0;  // it is granted memory instead
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
  if (send->remote_key.size) peer.link->revoke_refused(send->remote_key);
  send->unlink();
  send->receiver = {header.reply_index, header.reply_generation};
  send->granted = header.length;
  send->remote_key = remote_key;
  send->state = Send::State::granted;
  if (write(*send) == -FI_EAGAIN) sends.queue_first(*send);
}

/// Begins to fill the memory that the receiver granted. -FI_EAGAIN: nothing happened.
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

void Messages::on_moved(Send& send, int status) noexcept {
  wire::ControlHeader header = wire::control(wire::Op::done, send.receiver, status);
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
  peer.throttled = header.status != 0;
  peer.update_direct();
}

}  // namespace erdma::protocol
