#include "protocol/unexpected_messages.h"

#include <cstring>
#include <new>

#include <rdma/fi_errno.h>

#include "protocol/inbound.h"

namespace erdma::protocol {
namespace {

/// Eager bytes that may come beyond the budget before the peer can know, and as many after: an
/// honest one looks once in 64 messages.
constexpr size_t kOvershoot = 8 << 20;
/// A peer has at most 65536 sends in flight (FI_ERDMA_TX_SIZE); one that died may have left as
/// many.
constexpr uint32_t kMaxUnexpectedRts = 2 * 65536;

size_t cost(const Unexpected& message) noexcept {
  return sizeof(Unexpected) + (message.heap ? size_t(message.header.length) : 0);
}

}  // namespace

Unexpected& UnexpectedMessages::store(Peer& peer, transport::Link& link,
                                      const wire::MessageHeader& header, const std::byte* payload,
                                      size_t length, Matcher& queues) {
  Unexpected& message = make(payload, length);
  message.source = peer.source;
  message.peer = &peer;
  message.link = &link;
  message.tag = header.tag;
  message.header = header;
  peer.unexpected_bytes += cost(message);
  if (header.op == wire::Op::eager)
    peer.eager_bytes += cost(message);
  else
    ++peer.unexpected_rts;
  queues.queue(message);
  if (peer.unexpected_bytes > x_budget && !peer.holding_back) {
    peer.holding_back = true;
    send_budget(peer);
  }
  if (peer.holding_back) throttle(peer, link);
  return message;
}

Unexpected& UnexpectedMessages::make(const std::byte* payload, size_t length) {
  std::unique_ptr<std::byte[]> heap(length > Unexpected::kInline ? new std::byte[length] : nullptr);
  Unexpected* const message = x_messages.acquire();
  if (!message) throw std::bad_alloc();
  message->heap = std::move(heap);
  if (length) std::memcpy(message->heap ? message->heap.get() : message->small, payload, length);
  return *message;
}

/// The budget is used up, and more comes. As long as the peer cannot know, its ring has to wait,
/// where the link can do that; what comes all the same, or after it was told, breaks the rules. In
/// every case memory stays bounded.
void UnexpectedMessages::throttle(Peer& peer, transport::Link& link) noexcept {
  if (peer.unexpected_rts > kMaxUnexpectedRts)
    return inbound::protocol_violation(link, "more rendezvous requests than a peer can have");
  if (peer.eager_bytes > x_budget + 2 * kOvershoot)
    return inbound::protocol_violation(link, "messages that it was to hold back");
  const bool waits = peer.budget_told || peer.held;
  if (waits || peer.eager_bytes <= x_budget + kOvershoot) return;
  peer.held = &link;
  link.hold(true);
}

void UnexpectedMessages::send_budget(Peer& peer) noexcept {
  peer.budget_told = false;
  x_controls.send(peer, wire::control(wire::Op::budget, {}, peer.holding_back ? 1 : 0));
}

void UnexpectedMessages::release(Unexpected& message) noexcept {
  Peer& peer = *message.peer;
  peer.unexpected_bytes -= cost(message);
  if (message.header.op == wire::Op::eager)
    peer.eager_bytes -= cost(message);
  else
    --peer.unexpected_rts;
  x_messages.release(message);
  if (peer.holding_back && peer.unexpected_bytes < x_budget / 2) {
    peer.holding_back = false;
    peer.release_link();
    send_budget(peer);
  }
}

void UnexpectedMessages::discard(Unexpected& message) noexcept {
  Peer& peer = *message.peer;
  const bool owed =
      message.header.op == wire::Op::rts || (message.header.flags & wire::kWantFin) != 0;
  const wire::RequestId sender{message.header.index, message.header.generation};
  if (owed && message.status == 0) x_controls.send_fin(peer, sender, 0);
  release(message);
}

}  // namespace erdma::protocol
