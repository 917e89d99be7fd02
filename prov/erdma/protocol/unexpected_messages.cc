#include "protocol/unexpected_messages.h"

#include <new>

#include <rdma/fi_errno.h>

#include "hmem/copy.h"
#include "protocol/inbound.h"

namespace erdma::protocol {
namespace {

/// Eager bytes beyond the budget that a peer may send before it can have the budget packet, and as
/// many after that: a peer that keeps the rules polls at least once in 1024 short messages, and
/// whenever others have cost 2 MiB (Messages::must_poll()).
constexpr size_t kOvershoot = 8 << 20;
/// Most unexpected rts of one peer: it has at most 65536 sends in flight (FI_ERDMA_TX_SIZE), and an
/// earlier connection may have left as many.
constexpr uint32_t kMaxUnexpectedRts = 2 * 65536;

size_t cost(const Unexpected& message) noexcept {
  const auto bytes = size_t(message.header.length);
  return sizeof(Unexpected) + (message.heap ? SpareBuffers::room(bytes) : 0);
}

}  // namespace

size_t UnexpectedMessages::most_cost(size_t length) noexcept {
  return sizeof(Unexpected) + SpareBuffers::room(length);
}

Unexpected* UnexpectedMessages::store(Peer& peer, transport::Link& link,
                                      const wire::MessageHeader& header, const std::byte* payload,
                                      size_t length, Matcher& queues) {
  // What former connections of the peer left here counts.
  if (const char* const what = excess(peer))
    return inbound::protocol_violation(link, what), nullptr;
  const bool comes_in_packets = header.op != wire::Op::rts;
  Unexpected& message = make(payload, length, comes_in_packets ? header.length : 0);
  message.source = peer.source;
  message.peer = &peer;
  message.link = &link;
  message.tag = header.tag;
  message.header = header;
  if (comes_in_packets) message.header.op = wire::Op::eager;
  peer.unexpected_bytes += cost(message);
  if (comes_in_packets)
    peer.eager_bytes += cost(message);
  else
    ++peer.unexpected_rts;
  queues.queue(message);
  if (peer.unexpected_bytes > x_budget && !peer.holding_back) {
    peer.holding_back = true;
    send_budget(peer);
  }
  if (peer.holding_back) throttle(peer, link);
  if (header.op == wire::Op::first_fragment && header.length > LongMessages::kLong) tell(peer);
  return &message;
}

/// Tells the peer that a long message of it was unexpected; once, until what it has sent is taken.
void UnexpectedMessages::tell(Peer& peer) noexcept {
  if (!peer.told_unexpected)
    peer.told_unexpected =
        x_controls.try_send(peer, wire::control(wire::Op::budget, {}, wire::kUnexpected));
}

/// `room`: bytes of the whole message.
Unexpected& UnexpectedMessages::make(const std::byte* payload, size_t length, size_t room) {
  const bool is_long = room > Unexpected::kInline;
  SpareBuffers::Buffer heap = is_long ? x_buffers.take(room) : nullptr;
  Unexpected* const message = x_messages.acquire();
  if (!message) [[unlikely]] {
    if (is_long) x_buffers.give_back(std::move(heap), room);
    throw std::bad_alloc();
  }
  if (is_long) [[unlikely]] {
    message->heap = std::move(heap);
    hmem::copy_payload(message->heap.get(), payload, length);
  } else {
    hmem::copy_short(message->small, payload, length);
  }
  return *message;
}

/// The budget is used up, and another message has come. While the peer cannot know of it, the link
/// is put on hold if it supports that. A peer that sends too much in spite of that, or after the
/// budget packet, breaks the rules and loses its link. So memory is bounded in every case.
void UnexpectedMessages::throttle(Peer& peer, transport::Link& link) noexcept {
  if (const char* const what = excess(peer)) return inbound::protocol_violation(link, what);
  const bool waits = peer.budget_told || peer.held;
  if (waits || peer.eager_bytes <= x_budget + kOvershoot) return;
  peer.held = &link;
  link.hold(true);
}

/// Returns which rule the peer's unexpected messages break. Null: none.
const char* UnexpectedMessages::excess(const Peer& peer) const noexcept {
  if (peer.unexpected_bytes <= x_budget) return nullptr;
  if (peer.unexpected_rts > kMaxUnexpectedRts)
    return "more rendezvous requests than a peer can have";
  return peer.eager_bytes > x_budget + 2 * kOvershoot ? "messages that it was to hold back"
                                                      : nullptr;
}

void UnexpectedMessages::send_budget(Peer& peer) noexcept {
  peer.budget_told = false;
  const int status = peer.holding_back ? wire::kUsedUp : wire::kFree;
  x_controls.send(peer, wire::control(wire::Op::budget, {}, status));
}

void UnexpectedMessages::release(Unexpected& message) noexcept {
  x_released = true;
  Peer& peer = *message.peer;
  peer.unexpected_bytes -= cost(message);
  if (message.header.op == wire::Op::eager)
    peer.eager_bytes -= cost(message);
  else
    --peer.unexpected_rts;
  if (peer.eager_bytes <= LongMessages::kLong) peer.told_unexpected = false;
  if (message.heap) x_buffers.give_back(std::move(message.heap), size_t(message.header.length));
  x_messages.release(message);
  if (peer.holding_back && peer.unexpected_bytes < x_budget / 2) {
    peer.holding_back = false;
    peer.release_link();
    send_budget(peer);
  }
}

}  // namespace erdma::protocol
