#include "protocol/receives.h"

#include <climits>

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include "hmem/device_memory.h"

namespace erdma::protocol {

Receives::Receives(const EngineConfig& config, Peers& peers, Controls& controls,
                   CompletionSink& received, SharedReceives* shared) noexcept
    : x_devices(config.device_memory),
      x_loss_fails_all(config.loss_fails_all),
      x_peers(peers),
      x_controls(controls),
      x_received(received),
      x_own(received),
      x_shared(shared),
      x_queues(shared ? &shared->queues() : &x_own),
      x_unexpected(config, controls),
      x_deliveries(peers, controls, *x_queues, received),
      x_fragments(config, controls, x_deliveries) {}

bool Receives::post(const ReceiveArgs& args, const Peer* source, CompletionSink& sink) noexcept {
  Receive* receive = x_own.make(args);
  if (!receive) return false;
  receive->source = source;
  receive->special |= Receive::kElsewhere;
  receive->sink = &sink;
  x_own.post(*receive, args.tagged);
  return true;
}

// --- arrival ------------------------------------------------------------------------------------

/// An eager message for which no receive is posted here.
void Receives::on_unexpected(Peer& peer, transport::Link& link, const wire::MessageHeader& header,
                             const std::byte* payload, size_t length) {
  Matcher& queues = matcher(header.flags & wire::kTagged);
  if (x_shared) {
    PostedEntry* entry = queues.arrive(*peer.source, header.tag);
    if (entry) return place_special(static_cast<Receive&>(*entry), peer, link, header, payload);
  }
  (void)x_unexpected.store(peer, link, header, payload, length, queues);
}

void Receives::on_rts(Peer& peer, transport::Link& link, const wire::MessageHeader& header,
                      const std::byte* payload, size_t length) {
  transport::RemoteKey remote_key;
  if (!inbound::decode(payload, length, remote_key) || header.length > SSIZE_MAX)
    return inbound::protocol_violation(link, "a malformed rendezvous request");
  Matcher& queues = matcher(header.flags & wire::kTagged);
  PostedEntry* entry = queues.arrive(*peer.source, header.tag);
  if (entry)
    return x_deliveries.begin(static_cast<Receive&>(*entry), peer, link, header, remote_key);
  Unexpected* const message = x_unexpected.store(peer, link, header, nullptr, 0, queues);
  if (message) message->remote_key = remote_key;
}

void Receives::on_first_fragment(Peer& peer, transport::Link& link,
                                 const wire::MessageHeader& header, const std::byte* payload,
                                 size_t length) {
  if (!Fragments::valid(peer, link, header, length))
    return inbound::protocol_violation(link, "a malformed first fragment");
  Arrival& arrival = x_fragments.make(peer, link, header);
  Matcher& queues = matcher(header.flags & wire::kTagged);
  if (PostedEntry* const entry = queues.arrive(*peer.source, header.tag)) {
    x_fragments.deliver(arrival, static_cast<Receive&>(*entry));
    return x_fragments.take(arrival, payload, length);
  }
  Unexpected* message = nullptr;
  try {
    message = x_unexpected.store(peer, link, header, payload, length, queues);
  } catch (...) {
    x_fragments.release(arrival);
    throw;
  }
  if (!message) return x_fragments.release(arrival);
  message->arrival = &arrival;
  arrival.message = message;
  arrival.received = length;
}

bool Receives::accept(Receive& receive, Unexpected& message) noexcept {
  Peer& peer = *message.peer;
  const auto length = size_t(message.header.length);
  if (message.is_whole() && is_plain(receive, peer, message.header, length)) [[likely]] {
    place_whole(*x_queues, receive, message.header, peer.fi_addr, message.payload(), length);
    x_unexpected.release(message);
    return false;
  }
  const bool multi = receive.multi();
  receive.held = multi;
  if (message.status != 0) {
    x_queues->fail(receive, peer, message.header, message.status, receive.sink_or(x_received));
  } else if (message.header.op == wire::Op::rts) {
    x_deliveries.begin(receive, peer, *message.link, message.header, message.remote_key);
  } else if (message.arrival) {
    x_fragments.deliver(*message.arrival, receive);
  } else {
    place_special(receive, peer, *message.link, message.header, message.payload());
  }
  x_unexpected.release(message);
  if (!multi) return false;
  receive.held = false;
  const bool wants_more = !receive.exhausted;
  x_queues->retire(receive, x_received);
  return wants_more;
}

/// Places an eager message for which place_whole() does not suffice.
void Receives::place_special(Receive& receive, Peer& peer, transport::Link& link,
                             const wire::MessageHeader& header, const std::byte* payload) noexcept {
  const bool waits = !peer.unsent.none() && x_deliveries.has_memory();
  if ((header.flags & wire::kWantFin) || waits)
    x_fragments.deliver_whole(receive, peer, link, header, payload);
  else
    place_eager(receive, header, peer.fi_addr, payload);
}

/// Copies a message into the receive that it matched and completes the receive.
void Receives::place_eager(Receive& receive, const wire::MessageHeader& header, uint64_t source,
                           const std::byte* payload) noexcept {
  Completion done;
  done.context = receive.context;
  done.flags = receive.completion_flags | data_flag(header);
  done.data = header.data;
  done.tag = header.tag;
  done.source = source;
  done.report = receive.report;
  if (!receive.multi()) {
    done.length = std::min(size_t(header.length), receive.buffers.length);
    const int placed = place(receive, receive.buffers, payload, done.length);
    CompletionSink& sink = receive.sink_or(x_received);
    x_queues->receives.release(receive);
    return ReceiveQueues::complete(sink, done, header.length, placed);
  }
  const Buffers space = x_queues->take_space(receive, header.length);
  const int placed = place(receive, space, payload, space.length);
  done.buffer = space.iov[0].iov_base;
  done.length = space.length;
  if (ReceiveQueues::return_space(receive)) done.release_buffer();
  ReceiveQueues::complete(x_received, done, header.length, placed);
  x_queues->retire(receive, x_received);
}

int Receives::place(const Receive& receive, const Buffers& target, const std::byte* payload,
                    size_t length) noexcept {
  return hmem::scatter(receive.device() ? x_devices : nullptr, target.iov, target.count, 0, payload,
                       length);
}

// --- the end of a link, or of the endpoint ------------------------------------------------------

bool Receives::fail(Peer& peer, const transport::Link* link, int status, bool sending) noexcept {
  bool lost = x_deliveries.fail(peer, link, status);
  x_queues->fail_unfetched(link, status);
  x_fragments.drop(peer, link);
  // After an orderly close the peer may return under the same address: receives that name it stay.
  if (!sending || status == -FI_ESHUTDOWN) return lost;
  lost |= x_queues->fail_posted_from(peer.source, status, x_received);
  if (x_loss_fails_all && link && link->was_up())
    lost |= x_queues->fail_posted_from(nullptr, status, x_received);
  return lost;
}

void Receives::leave_shared(Engine& engine) noexcept {
  if (!x_shared) return;
  x_shared->leave(engine, *this);
  x_peers.leave_shared();
  x_shared = nullptr;
  x_queues = &x_own;
}

void Receives::cancel_deliveries(CompletionSink& sink) noexcept {
  for (Peer* const peer : x_peers.all()) {
    x_controls.drop(*peer);  // completes what waits for its fin to leave
    x_deliveries.report_all(*peer);
    x_deliveries.cancel_all(*peer, sink);
  }
}

}  // namespace erdma::protocol
