// Rendezvous: the header travels first, the bytes after the match, without a copy in between.
// Where the link prefers reading, the receiver read()s the sender's exposed memory and sends a fin;
// else it exposes its own (cts), the sender write()s and says done.
#include <algorithm>
#include <cstring>

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include "hmem/copy.h"
#include "protocol/engine.h"

namespace erdma::protocol {
namespace {

/// False if it is longer than an exposure can be.
bool decode(const std::byte* payload, size_t length, transport::Exposure& exposure) noexcept {
  if (length > transport::Exposure::kMaxBytes) return false;
  exposure.size = uint8_t(length);
  std::memcpy(exposure.bytes, payload, length);
  return true;
}

}  // namespace

int Engine::send_rts(Send& send) noexcept {
  transport::Link& link = *send.peer->link;
  if (link.limits().prefers_read && !send.exposure.size && send.buffers.length > 0) {
    const int rc = link.expose(send.buffers.iov, send.buffers.count, send.buffers.length,
                               transport::Access::offer, send.exposure);
    if (rc != 0) return rc;
  }
  const util::PoolHandle id = x_sends.handle(send);
  const transport::Header header =
      wire::encode({wire::Op::rts, send.wire_flags, id.generation, id.index, send.tag, send.data,
                    send.buffers.length});
  const iovec payload{send.exposure.bytes, send.exposure.size};
  const int rc = link.send(header, &payload, send.exposure.size ? 1 : 0, send.exposure.size,
                           transport::SendHint::none);
  if (rc != 0) return rc;
  send.state = Send::State::flying;
  send.peer->flying.push_back(send);
  return 0;
}

void Engine::on_rts(Peer& peer, transport::Link& link, const wire::MessageHeader& header,
                    const std::byte* payload, size_t length) noexcept {
  transport::Exposure exposure;
  if (!decode(payload, length, exposure) || header.length > SSIZE_MAX)
    return inbound::protocol_violation(link, "a malformed rendezvous request");
  PostedEntry* entry = matcher(header.flags & wire::kTagged).arrive(*peer.source, header.tag);
  if (entry) return begin_delivery(static_cast<Receive&>(*entry), peer, link, header, exposure);
  Unexpected* message = store_unexpected(peer, link, header, nullptr, 0);
  if (message) message->exposure = exposure;
}

void Engine::begin_delivery(Receive& receive, Peer& peer, transport::Link& link,
                            const wire::MessageHeader& header,
                            const transport::Exposure& exposure) noexcept {
  Delivery* delivery = x_deliveries.acquire();
  if (!delivery) {
    x_controls.send_fin(peer, {header.index, header.generation}, -FI_ENOMEM);
    return fail_receive(receive, -FI_ENOMEM);
  }
  delivery->peer = &peer;
  delivery->link = &link;
  delivery->message_length = header.length;
  delivery->tag = header.tag;
  delivery->data = header.data;
  delivery->context = receive.context;
  delivery->completion_flags = receive.completion_flags | data_flag(header);
  delivery->sender = {header.index, header.generation};
  delivery->remote = exposure;
  delivery->report = receive.report;
  delivery->sink = &x_received;
  if (receive.special) [[unlikely]] {
    delivery->sink = &receive.sink_or(x_received);
    delivery->device = receive.device();
  }
  if (receive.multi()) {
    delivery->multi = &receive;
    delivery->buffers = take_space(receive, header.length);
  } else {
    Buffers& target = delivery->buffers;
    target.length = std::min(size_t(header.length), receive.buffers.length);
    target.count = receive.buffers.count;
    if (target.count == 1) [[likely]]
      target.iov[0] = {receive.buffers.iov[0].iov_base, target.length};
    else
      target.count =
          hmem::slice(receive.buffers.iov, receive.buffers.count, 0, target.length, target.iov);
    x_queues->receives.release(receive);
  }
  const int rc = start(*delivery);
  if (rc == -FI_EAGAIN) {
    peer.starting.push_back(*delivery);
    x_peers.backlog(peer);
  } else if (rc != 0) {
    finish_delivery(*delivery, rc);
  }
}

/// Gets the bytes of a matched message moving. -FI_EAGAIN: nothing happened.
int Engine::start(Delivery& delivery) noexcept {
  Peer& peer = *delivery.peer;
  Buffers& target = delivery.buffers;
  if (target.length == 0) {
    finish_delivery(delivery, 0);
    return 0;
  }
  transport::Link& link = *delivery.link;
  const util::PoolHandle id = x_deliveries.handle(delivery);
  if (delivery.remote.size) {
    const int rc =
        link.read(delivery.remote, target.iov, target.count, target.length, token_of(id));
    if (rc == -FI_EOPNOTSUPP && delivery.remote.is_offer()) {
      delivery.remote.size = 0;  // let the sender write
      return start(delivery);
    }
    if (rc != 0) return rc;
    delivery.state = Delivery::State::reading;
  } else {
    const int rc = link.expose(target.iov, target.count, target.length,
                               transport::Access::remote_write, delivery.local);
    if (rc != 0) return rc;
    wire::ControlHeader header{};
    header.op = wire::Op::cts;
    header.generation = delivery.sender.generation;
    header.index = delivery.sender.index;
    header.reply_generation = id.generation;
    header.reply_index = id.index;
    header.length = target.length;
    delivery.state = Delivery::State::granted;
    peer.active.push_back(delivery);
    x_controls.send(peer, header, &delivery.local);
    return 0;
  }
  peer.active.push_back(delivery);
  return 0;
}

bool Engine::flush_deliveries(Peer& peer) noexcept {
  while (Delivery* delivery = peer.starting.front()) {
    util::IntrusiveList<Delivery>::erase(*delivery);
    const int rc = start(*delivery);
    if (rc == -FI_EAGAIN) {
      peer.starting.push_front(*delivery);
      return false;
    }
    if (rc != 0) finish_delivery(*delivery, rc);
  }
  return true;
}

/// All bytes are moved, or not: device memory may not show them yet.
void Engine::settle_delivery(Delivery& delivery, int status) noexcept {
  if (delivery.device && status == 0 && delivery.state != Delivery::State::settling) {
    const Buffers& target = delivery.buffers;
    delivery.state = Delivery::State::settling;
    status =
        delivery.link->settle(target.iov, target.count, token_of(x_deliveries.handle(delivery)));
    if (status == transport::kSettling) return;
  }
  finish_delivery(delivery, status);
}

/// The one place where a delivery ends: tells the sender, completes the receive.
void Engine::finish_delivery(Delivery& delivery, int status) noexcept {
  Peer& peer = *delivery.peer;
  if (delivery.linked()) util::IntrusiveList<Delivery>::erase(delivery);
  const bool tells = !delivery.local.size;  // the sender that it is over; else that one told us
  if (delivery.local.size) {
    const int rc = delivery.link->withdraw(delivery.local);
    if (rc != 0 && status == 0) status = rc;
  }
  if (delivery.link && (tells || status != 0)) x_controls.send_fin(peer, delivery.sender, status);
  ErrorCompletion done;
  done.context = delivery.context;
  done.flags = delivery.completion_flags;
  done.length = delivery.buffers.length;
  done.data = delivery.data;
  done.tag = delivery.tag;
  done.source = peer.fi_addr;
  done.report = delivery.report;
  const size_t message_length = delivery.message_length;
  Receive* const multi = delivery.multi;
  if (multi) {
    done.buffer = delivery.buffers.iov[0].iov_base;
    if (return_space(*multi)) done.release_buffer();
  }
  CompletionSink& sink = *delivery.sink;
  x_deliveries.release(delivery);
  if (status == 0) {
    complete_receive(sink, done, message_length);
  } else {
    done.error = -status;
    done.length = 0;
    sink.fail(done);
  }
  if (multi) retire(*multi);
}

/// At the sender: the receiver has granted memory to write to.
void Engine::on_cts(Peer& peer, transport::Link& link, const wire::ControlHeader& header,
                    const std::byte* payload, size_t length) noexcept {
  Send* send = x_sends.find({header.index, header.generation});
  transport::Exposure exposure;
  if (!inbound::takes(link, inbound::judge_cts(send, peer, header, length),
                      "a grant that no rendezvous awaits") ||
      !decode(payload, length, exposure))
    return;
  if (send->exposure.size) peer.link->refused(send->exposure);
  util::IntrusiveList<Send>::erase(*send);
  send->receiver = {header.reply_index, header.reply_generation};
  send->granted = header.length;
  send->exposure = exposure;
  send->state = Send::State::granted;
  const int rc = write(*send);
  if (rc == -FI_EAGAIN) {
    peer.queued.push_front(*send);
    x_peers.backlog(peer);
  } else if (rc != 0) {
    on_write_done(*send, rc);
  }
}

/// Begins to fill the memory that the receiver granted. -FI_EAGAIN: nothing happened.
int Engine::write(Send& send) noexcept {
  iovec part[transport::kMaxIov];
  const size_t count = hmem::slice(send.buffers.iov, send.buffers.count, 0, send.granted, part);
  const int rc = send.peer->link->write(send.exposure, part, count, send.granted,
                                        token_of(x_sends.handle(send)) | kWriteToken);
  if (rc != 0) return rc;
  send.state = Send::State::writing;
  send.peer->flying.push_back(send);
  return 0;
}

void Engine::on_write_done(Send& send, int status) noexcept {
  wire::ControlHeader header{};
  header.op = wire::Op::done;
  header.flags = status ? wire::kFailed : 0;
  header.generation = send.receiver.generation;
  header.index = send.receiver.index;
  header.status = status;
  x_controls.send(*send.peer, header);
  finish_send(send, status);
}

/// At the receiver: the sender's write() into our memory is over.
void Engine::on_peer_done(const Peer& peer, transport::Link& link,
                          const wire::ControlHeader& header, size_t length) noexcept {
  Delivery* delivery = x_deliveries.find({header.index, header.generation});
  if (!inbound::takes(link, inbound::judge_done(delivery, peer, length),
                      "an end of what it did not write"))
    return;
  settle_delivery(*delivery, header.flags & wire::kFailed ? -FI_EIO : 0);
}

}  // namespace erdma::protocol
