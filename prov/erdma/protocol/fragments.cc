#include "protocol/fragments.h"

#include <algorithm>
#include <new>

#include "hmem/copy.h"
#include "hmem/device_memory.h"
#include "protocol/inbound.h"

namespace erdma::protocol {
namespace {

Arrival* on_link(Peer& peer, const transport::Link& link) noexcept {
  if (!peer.incoming) return nullptr;
  util::IntrusiveList<Arrival>& arrivals = peer.incoming->arrivals;
  Arrival* arrival = arrivals.front();
  while (arrival && arrival->link != &link) arrival = arrivals.next(*arrival);
  return arrival;
}

}  // namespace

bool Fragments::valid(Peer& peer, const transport::Link& link, const wire::MessageHeader& header,
                      size_t length) noexcept {
  return length > 0 && length < header.length && header.length <= wire::kMaxFragmented &&
         !on_link(peer, link);
}

Arrival& Fragments::make(Peer& peer, transport::Link& link, const wire::MessageHeader& header) {
  Arrival* const arrival = peer.make_incoming() ? x_arrivals.acquire() : nullptr;
  if (!arrival) throw std::bad_alloc();
  arrival->peer = &peer;
  arrival->link = &link;
  arrival->header = header;
  peer.incoming->arrivals.push_back(*arrival);
  return *arrival;
}

void Fragments::release(Arrival& arrival) noexcept {
  arrival.unlink();
  x_arrivals.release(arrival);
}

bool Fragments::on_fragment(Peer& peer, transport::Link& link, const wire::ControlHeader& header,
                            const std::byte* payload, size_t length) noexcept {
  Arrival* const arrival = on_link(peer, link);
  const bool follows = arrival && length > 0 && header.length == arrival->received &&
                       length <= arrival->header.length - arrival->received;
  if (!follows) return inbound::protocol_violation(link, "a fragment that does not follow"), false;
  const bool completes = arrival->delivery && length == arrival->header.length - arrival->received;
  take(*arrival, payload, length);
  return completes;
}

void Fragments::take(Arrival& arrival, const std::byte* payload, size_t length) noexcept {
  if (arrival.delivery) {
    const int placed = place(*arrival.delivery, arrival.received, payload, length);
    if (placed) arrival.status = placed;
  } else if (arrival.message) {
    hmem::copy_payload(arrival.message->payload() + arrival.received, payload, length);
  }
  arrival.received += length;
  if (arrival.received == arrival.header.length) end(arrival);
}

int Fragments::place(const Delivery& delivery, size_t offset, const std::byte* payload,
                     size_t length) noexcept {
  const Buffers& target = delivery.buffers;
  if (offset >= target.length) return 0;
  length = std::min(length, target.length - offset);
  return hmem::scatter(delivery.device ? x_devices : nullptr, target.iov, target.count, offset,
                       payload, length);
}

void Fragments::deliver(Arrival& arrival, Receive& receive) noexcept {
  const Unexpected* const message = std::exchange(arrival.message, nullptr);
  x_deliveries.begin(receive, arrival);
  if (arrival.delivery && message)
    arrival.status = place(*arrival.delivery, 0, message->payload(), arrival.received);
}

void Fragments::deliver_whole(Receive& receive, Peer& peer, transport::Link& link,
                              const wire::MessageHeader& header,
                              const std::byte* payload) noexcept {
  Delivery* const delivery = x_deliveries.begin_whole(receive, peer, link, header);
  if (delivery) x_deliveries.finish(*delivery, place(*delivery, 0, payload, header.length));
}

void Fragments::end(Arrival& arrival) noexcept {
  Delivery* const delivery = arrival.delivery;
  const int status = arrival.status;
  if (arrival.message)
    arrival.message->arrival = nullptr;
  else if (!delivery && (arrival.header.flags & wire::kWantFin))
    x_controls.send_fin(*arrival.peer, {arrival.header.index, arrival.header.generation}, status);
  release(arrival);
  if (delivery) {
    delivery->arrival = nullptr;
    x_deliveries.finish(*delivery, status);
  }
}

void Fragments::drop(Peer& peer, const transport::Link* link) noexcept {
  if (!peer.incoming) return;
  util::IntrusiveList<Arrival>& arrivals = peer.incoming->arrivals;
  for (Arrival *arrival = arrivals.front(), *next; arrival; arrival = next) {
    next = arrivals.next(*arrival);
    if (arrival->link == link) release(*arrival);
  }
}

}  // namespace erdma::protocol
