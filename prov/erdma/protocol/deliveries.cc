#include "protocol/deliveries.h"

#include <algorithm>

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include "hmem/copy.h"
#include "protocol/fragments.h"
#include "protocol/inbound.h"

namespace erdma::protocol {
namespace {

/// Detaches a delivery from its link. All its bytes are here and the flush will end without the
/// sender, which may have closed its endpoint because its send was complete or fails with
/// the link.
void leave_link(Delivery& delivery) noexcept {
  if (delivery.local.size) delivery.link->revoke(delivery.local);
  delivery.local.size = 0;
  delivery.link = nullptr;
}

/// The fragments that are still to come are not for this delivery.
void leave_arrival(Delivery& delivery) noexcept {
  if (delivery.arrival) delivery.arrival->delivery = nullptr;
}

}  // namespace

int Delivery::start() noexcept {
  return owner->start(*this);
}

void Delivery::finish(int status) noexcept {
  owner->finish(*this, status);
}

void Deliveries::begin(Receive& receive, Peer& peer, transport::Link& link,
                       const wire::MessageHeader& header,
                       const transport::RemoteKey& remote_key) noexcept {
  Delivery* const delivery = make(receive, peer, link, header);
  if (!delivery) return x_controls.send_fin(peer, {header.index, header.generation}, -FI_ENOMEM);
  delivery->remote = remote_key;
  x_peers.start(peer, peer.incoming->starting, *delivery, false);
}

Delivery* Deliveries::begin_whole(Receive& receive, Peer& peer, transport::Link& link,
                                  const wire::MessageHeader& header) noexcept {
  Delivery* const delivery = make(receive, peer, link, header);
  if (delivery)
    delivery->state = Delivery::State::arriving;
  else
    x_controls.send_fin(peer, {header.index, header.generation}, -FI_ENOMEM);
  return delivery;
}

void Deliveries::begin(Receive& receive, Arrival& arrival) noexcept {
  Delivery* const delivery = make(receive, *arrival.peer, *arrival.link, arrival.header);
  arrival.delivery = delivery;
  if (!delivery) {
    arrival.status = -FI_ENOMEM;
    return;
  }
  delivery->arrival = &arrival;
  delivery->state = Delivery::State::arriving;
  arrival.peer->incoming->active.push_back(*delivery);
}

/// Null: out of memory, and the receive has failed.
Delivery* Deliveries::make(Receive& receive, Peer& peer, transport::Link& link,
                           const wire::MessageHeader& header) noexcept {
  Delivery* const delivery = make(peer, link, header);
  if (delivery)
    fill_in(*delivery, receive);
  else
    x_queues.fail(receive, peer, header, -FI_ENOMEM, receive.sink_or(x_received));
  return delivery;
}

/// Makes a delivery without a receive. Null: out of memory.
Delivery* Deliveries::make(Peer& peer, transport::Link& link,
                           const wire::MessageHeader& header) noexcept {
  Delivery* const delivery = peer.make_incoming() ? x_deliveries.acquire() : nullptr;
  if (!delivery) return nullptr;
  delivery->owner = this;
  delivery->peer = &peer;
  delivery->link = &link;
  delivery->message_length = header.length;
  delivery->tag = header.tag;
  delivery->data = header.data;
  delivery->completion_flags = data_flag(header);
  delivery->sender = {header.index, header.generation};
  delivery->wants_fin = header.flags & wire::kWantFin;
  delivery->sink = &x_received;
  return delivery;
}

/// Takes over what the receive says. Releases the receive unless it is a multi-receive buffer.
void Deliveries::fill_in(Delivery& delivery, Receive& receive) noexcept {
  const size_t length = delivery.message_length;
  delivery.context = receive.context;
  delivery.completion_flags |= receive.completion_flags;
  delivery.report = receive.report;
  if (receive.special) [[unlikely]] {
    delivery.sink = &receive.sink_or(x_received);
    delivery.device = receive.device();
  }
  if (receive.multi()) {
    delivery.multi = &receive;
    delivery.buffers = x_queues.take_space(receive, length);
  } else {
    Buffers& target = delivery.buffers;
    target.length = std::min(length, receive.buffers.length);
    target.count = receive.buffers.count;
    if (target.count == 1) [[likely]]
      target.iov[0] = {receive.buffers.iov[0].iov_base, target.length};
    else
      target.count =
          hmem::slice(receive.buffers.iov, receive.buffers.count, 0, target.length, target.iov);
    x_queues.receives.release(receive);
  }
}

/// If there is no memory, the report may come too early.
void Deliveries::discard(Unexpected& message, const Completion& found) noexcept {
  const bool announced = message.header.op == wire::Op::rts;
  const bool answer_due = announced || (message.header.flags & wire::kWantFin);
  Arrival* const arrival = std::exchange(message.arrival, nullptr);
  if (arrival) arrival->message = nullptr;
  const bool waits = arrival || answer_due || !message.peer->unsent.none();
  if (message.status != 0 || !waits) return x_received.complete(found);
  Delivery* const delivery = make(*message.peer, *message.link, message.header);
  if (!delivery) {
    // The last fragment of a message that is still arriving is answered in any case.
    if (!arrival && answer_due)
      x_controls.send_fin(*message.peer, {message.header.index, message.header.generation}, 0);
    return x_received.complete(found);
  }
  delivery->context = found.context;
  delivery->completion_flags = found.flags;
  delivery->report = delivery->discards = true;
  if (!announced) delivery->state = Delivery::State::arriving;
  if (!arrival) return finish(*delivery, 0);
  arrival->delivery = delivery;
  delivery->arrival = arrival;
  message.peer->incoming->active.push_back(*delivery);
}

/// Starts to move the bytes of a matched message. -FI_EAGAIN: nothing happened.
int Deliveries::start(Delivery& delivery) noexcept {
  const Buffers& target = delivery.buffers;
  if (target.length == 0) {
    finish(delivery, 0);
    return 0;
  }
  if (!delivery.remote.size) return let_write(delivery);
  const uint64_t token = make_token(TokenOf::delivery, x_deliveries.handle(delivery));
  const int rc =
      delivery.link->get({delivery.remote, 0, target.length}, target.iov, target.count, token);
  if (rc == -FI_EOPNOTSUPP && delivery.remote.is_refusable()) {
    delivery.remote.size = 0;
    return let_write(delivery);
  }
  if (rc == transport::kDone) return flush_or_finish(delivery, 0), 0;
  if (rc != 0) return rc;
  delivery.state = Delivery::State::reading;
  delivery.peer->incoming->active.push_back(delivery);
  return 0;
}

/// Shares the receive's memory with the sender. -FI_EAGAIN: nothing happened.
int Deliveries::let_write(Delivery& delivery) noexcept {
  const Buffers& target = delivery.buffers;
  const int rc = delivery.link->share(target.iov, target.count, target.length,
                                      transport::Access::remote_write, delivery.local);
  if (rc != 0) return rc;
  const util::PoolHandle id = x_deliveries.handle(delivery);
  wire::ControlHeader header = wire::control(wire::Op::cts, delivery.sender);
  header.reply_generation = id.generation;
  header.reply_index = id.index;
  header.length = target.length;
  delivery.state = Delivery::State::granted;
  delivery.peer->incoming->active.push_back(delivery);
  x_controls.send(*delivery.peer, header, &delivery.local);
  return 0;
}

void Deliveries::on_moved(util::PoolHandle handle, int status) noexcept {
  Delivery* const delivery = x_deliveries.find(handle);
  if (delivery) flush_or_finish(*delivery, status);
}

void Deliveries::on_peer_done(const Peer& peer, transport::Link& link,
                              const wire::ControlHeader& header, size_t length) noexcept {
  Delivery* delivery = x_deliveries.find({header.index, header.generation});
  if (!inbound::takes(link, inbound::judge_done(delivery, peer, length),
                      "an end of what it did not write"))
    return;
  flush_or_finish(*delivery, header.flags & wire::kFailed ? -FI_EIO : 0);
}

/// Ends a delivery whose transfer is over. Bytes in device memory may have to be flushed first.
void Deliveries::flush_or_finish(Delivery& delivery, int status) noexcept {
  if (delivery.device && status == 0 && delivery.state != Delivery::State::flushing) {
    const Buffers& target = delivery.buffers;
    delivery.state = Delivery::State::flushing;
    status = delivery.link->flush(target.iov, target.count,
                                  make_token(TokenOf::delivery, x_deliveries.handle(delivery)));
    if (status == transport::kFlushing) return;
  }
  finish(delivery, status);
}

/// Ends a delivery: sends the fin and completes the receive. The receive completes once the link
/// has taken the fin, not before: the sender waits for it, and an application that has all its
/// completions may stop calling progress. Every delivery ends here, or in cancel_all().
void Deliveries::finish(Delivery& delivery, int status) noexcept {
  if (delivery.linked()) delivery.unlink();
  if (delivery.state == Delivery::State::answered) return report(delivery);
  leave_arrival(delivery);
  const bool by_fragments = delivery.state == Delivery::State::arriving;
  // A sender that sent or wrote the bytes itself has completed its send, unless it waits for the
  // delivery.
  const bool tells = delivery.wants_fin || (!by_fragments && !delivery.local.size);
  if (delivery.local.size) {
    const int rc = delivery.link->revoke(delivery.local);
    delivery.local.size = 0;
    if (rc != 0 && status == 0) status = rc;
  }
  Peer& peer = *delivery.peer;
  delivery.state = Delivery::State::answered;
  delivery.outcome = outcome_of(status);
  delivery.mark = peer.unsent.latest();
  const bool answers = delivery.link && (tells || (status != 0 && !by_fragments));
  if (!answers || x_controls.answer(peer, delivery.sender, delivery.outcome, delivery))
    report(delivery);
  else
    peer.incoming->active.push_back(delivery);
}

/// Completes the receive once the answers to earlier operations of the peer have left, too. Nobody
/// here need know of those operations, so this may be the last event for which the application
/// waits. Receives complete in the order of their marks: those that wait for fewer answers first.
void Deliveries::report(Delivery& delivery) noexcept {
  Peer& peer = *delivery.peer;
  if (peer.failing) {
    report_all(peer);
    return complete(delivery);
  }
  report_rest(peer);
  if (peer.unsent.gone(delivery.mark)) return complete(delivery);
  // An older mark is that of a message that waited for its own fin.
  PendingList<Delivery>& unreported = peer.incoming->unreported;
  Delivery* later = nullptr;
  if (peer.unsent.latest().is_after(delivery.mark)) later = unreported.front();
  while (later && !later->mark.is_after(delivery.mark)) later = unreported.next(*later);
  if (later)
    unreported.insert_before(*later, delivery);
  else
    unreported.push_back(delivery);
}

void Deliveries::report_rest(Peer& peer) noexcept {
  if (!peer.incoming) return;
  PendingList<Delivery>& unreported = peer.incoming->unreported;
  for (Delivery* next; (next = unreported.front()) && peer.unsent.gone(next->mark);) {
    next->unlink();
    complete(*next);
  }
}

void Deliveries::report_all(Peer& peer) noexcept {
  if (!peer.incoming) return;
  while (Delivery* const next = peer.incoming->unreported.pop_front()) complete(*next);
}

/// Completes the receive, and releases the delivery.
void Deliveries::complete(Delivery& delivery) noexcept {
  int status = delivery.outcome;
  Completion done;
  done.context = delivery.context;
  done.flags = delivery.completion_flags;
  done.length = delivery.discards ? delivery.message_length : delivery.buffers.length;
  done.data = delivery.data;
  done.tag = delivery.tag;
  done.source = delivery.peer->fi_addr;
  done.report = delivery.report;
  const size_t message_length = delivery.message_length;
  Receive* const multi = delivery.multi;
  if (multi) {
    done.buffer = delivery.buffers.iov[0].iov_base;
    if (ReceiveQueues::return_space(*multi)) done.release_buffer();
  }
  CompletionSink& sink = *delivery.sink;
  if (delivery.discards) status = 0;  // whatever becomes of the message
  x_deliveries.release(delivery);
  ReceiveQueues::complete(sink, done, message_length, status);
  if (multi) x_queues.retire(*multi, x_received);
}

// --- the end of a link, or of the endpoint ------------------------------------------------------

bool Deliveries::fail(Peer& peer, const transport::Link* link, int status) noexcept {
  if (!peer.incoming) return false;
  const bool starting = fail(peer.incoming->starting, link, status);
  return fail(peer.incoming->active, link, status) || starting;
}

bool Deliveries::fail(PendingList<Delivery>& list, const transport::Link* link,
                      int status) noexcept {
  bool any = false;
  for (Delivery* delivery = list.front(); delivery;) {
    Delivery* next = list.next(*delivery);
    // An answered delivery waits for the link of the fin, whose end ends the fin.
    const bool concerned = delivery->link == link && delivery->state != Delivery::State::answered;
    if (concerned && delivery->state == Delivery::State::flushing)
      leave_link(*delivery);
    else if (concerned)
      delivery->finish(status);
    any |= concerned;
    delivery = next;
  }
  return any;
}

void Deliveries::fail_granted(Peer& peer, const transport::Link& ended, int status) noexcept {
  if (!peer.incoming) return;
  PendingList<Delivery>& active = peer.incoming->active;
  for (Delivery* delivery = active.front(); delivery; delivery = active.next(*delivery))
    if (delivery->state == Delivery::State::granted && delivery->link != &ended)
      delivery->link->fail(status);
}

void Deliveries::revoke_memory(Peer& peer) noexcept {
  if (!peer.incoming) return;
  PendingList<Delivery>& active = peer.incoming->active;
  for (Delivery* delivery = active.front(); delivery; delivery = active.next(*delivery))
    if (delivery->local.size)
      delivery->link->revoke_early(delivery->local, transport::Early::closing);
}

void Deliveries::cancel_all(Peer& peer, CompletionSink& sink) noexcept {
  if (!peer.incoming) return;
  for (auto* deliveries : {&peer.incoming->starting, &peer.incoming->active})
    cancel_all(*deliveries, sink);
}

void Deliveries::cancel_all(PendingList<Delivery>& deliveries, CompletionSink& sink) noexcept {
  while (Delivery* delivery = deliveries.pop_front()) {
    Receive* const multi = delivery->multi;
    ErrorCompletion failed(delivery->context, delivery->completion_flags,
                           multi ? kGivenUp : FI_ECANCELED, delivery->tag);
    failed.data = delivery->data;
    failed.source = delivery->peer->fi_addr;
    leave_arrival(*delivery);
    if (multi) failed.buffer = delivery->buffers.iov[0].iov_base;
    if (multi && ReceiveQueues::return_space(*multi)) failed.release_buffer();
    x_deliveries.release(*delivery);
    sink.fail(failed);
    if (multi) x_queues.retire(*multi, sink);
  }
}

}  // namespace erdma::protocol
