#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include "hmem/copy.h"
#include "protocol/engine.h"

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

int Engine::post_receive(const ReceiveArgs& args, CompletionSink& sink) noexcept {
  const Peer* source = args.source == kAnySource ? nullptr : x_peers.at(args.source);
  if (!source && args.source != kAnySource) return -FI_EINVAL;
  Receive* receive = x_own.make(args);
  if (!receive) return -FI_EAGAIN;
  receive->source = source;
  receive->special |= Receive::kElsewhere;
  receive->sink = &sink;
  UnexpectedEntry* message = x_own.matcher(args.tagged).post(*receive);
  if (message)
    x_own.satisfy(*receive, static_cast<Unexpected&>(*message));
  else
    receive->posted = true;
  return 0;
}

bool Engine::accept(Receive& receive, Unexpected& message) noexcept {
  Peer& peer = *message.peer;
  const bool multi = receive.multi();
  const wire::RequestId sender{message.header.index, message.header.generation};
  receive.held = multi;
  if (message.status != 0) {
    fail_receive(receive, message.status);
  } else if (message.header.op == wire::Op::rts) {
    begin_delivery(receive, peer, *message.link, message.header, message.exposure);
  } else {
    const int placed = place_eager(receive, message.header, peer.fi_addr, message.payload());
    if (message.header.flags & wire::kWantFin) x_controls.send_fin(peer, sender, placed);
  }
  release_unexpected(message);
  if (!multi) return false;
  receive.held = false;
  const bool wants_more = !receive.exhausted;
  retire(receive);
  return wants_more;
}

// --- multi-receive buffers ----------------------------------------------------------------------

/// The next part of the buffer for a message of `length` bytes; less if less is left. Its first
/// piece tells where the message lies even if that has no bytes.
Buffers Engine::take_space(Receive& multi, size_t length) noexcept {
  Buffers part;
  part.iov[0] = multi.buffers.iov[0];
  (void)hmem::slice(multi.buffers.iov, multi.buffers.count, multi.used, 1, part.iov);
  part.length = std::min(length, multi.buffers.length - multi.used);
  part.count =
      hmem::slice(multi.buffers.iov, multi.buffers.count, multi.used, part.length, part.iov);
  multi.used += part.length;
  ++multi.deliveries;
  if (multi.buffers.length - multi.used < std::max<size_t>(x_queues->min_multi_recv, 1)) {
    multi.exhausted = true;
    if (multi.posted) matcher(multi.completion_flags & FI_TAGGED).remove(multi);
    multi.posted = false;
  }
  return part;
}

/// A message is placed. True if its completion is the buffer's last (FI_MULTI_RECV).
bool Engine::return_space(Receive& multi) noexcept {
  --multi.deliveries;
  return multi.exhausted && multi.deliveries == 0 && !multi.cancelled;
}

// --- unexpected messages ------------------------------------------------------------------------

Unexpected* Engine::store_unexpected(Peer& peer, transport::Link& link,
                                     const wire::MessageHeader& header, const std::byte* payload,
                                     size_t length) noexcept {
  Unexpected* message = x_unexpected.acquire();
  if (message && length > Unexpected::kInline) {
    message->heap.reset(new (std::nothrow) std::byte[length]);
    if (!message->heap) {
      x_unexpected.release(*message);
      message = nullptr;
    }
  }
  if (!message) {
    link.fail(-FI_ENOMEM);
    return nullptr;
  }
  if (length) std::memcpy(message->heap ? message->heap.get() : message->small, payload, length);
  message->source = peer.source;
  message->peer = &peer;
  message->link = &link;
  message->tag = header.tag;
  message->header = header;
  peer.unexpected_bytes += cost(*message);
  if (header.op == wire::Op::eager)
    peer.eager_bytes += cost(*message);
  else
    ++peer.unexpected_rts;
  matcher(header.flags & wire::kTagged).queue(*message);
  if (peer.unexpected_bytes > x_config.unexpected_bytes && !peer.holding_back) {
    peer.holding_back = true;
    send_budget(peer);
  }
  if (peer.holding_back) restrain(peer, link);
  return message;
}

/// The budget is used up, and more comes. As long as the peer cannot know, its ring has to wait,
/// where the link can do that; what comes all the same, or after it was told, breaks the rules. In
/// every case memory stays bounded.
void Engine::restrain(Peer& peer, transport::Link& link) noexcept {
  if (peer.unexpected_rts > kMaxUnexpectedRts)
    return inbound::protocol_violation(link, "more rendezvous requests than a peer can have");
  if (peer.eager_bytes > x_config.unexpected_bytes + 2 * kOvershoot)
    return inbound::protocol_violation(link, "messages that it was to hold back");
  const bool waits = peer.budget_told || peer.held;
  if (waits || peer.eager_bytes <= x_config.unexpected_bytes + kOvershoot) return;
  peer.held = &link;
  link.hold(true);
}

void Engine::send_budget(Peer& peer) noexcept {
  wire::ControlHeader header{};
  header.op = wire::Op::budget;
  header.status = peer.holding_back ? 1 : 0;
  peer.budget_told = false;
  x_controls.send(peer, header);
}

/// The message is off the matcher.
void Engine::release_unexpected(Unexpected& message) noexcept {
  Peer& peer = *message.peer;
  peer.unexpected_bytes -= cost(message);
  if (message.header.op == wire::Op::eager)
    peer.eager_bytes -= cost(message);
  else
    --peer.unexpected_rts;
  x_unexpected.release(message);
  if (peer.holding_back && peer.unexpected_bytes < x_config.unexpected_bytes / 2) {
    peer.holding_back = false;
    peer.release_link();
    send_budget(peer);
  }
}

void Engine::discard(Unexpected& message) noexcept {
  Peer& peer = *message.peer;
  const bool owed =
      message.header.op == wire::Op::rts || (message.header.flags & wire::kWantFin) != 0;
  const wire::RequestId sender{message.header.index, message.header.generation};
  if (owed && message.status == 0) x_controls.send_fin(peer, sender, 0);
  release_unexpected(message);
}

// --- FI_PEEK, FI_CLAIM, FI_DISCARD --------------------------------------------------------------

int Engine::probe(const ReceiveArgs& args, Probe kind) noexcept {
  if (is_claim(kind)) return x_own.probe(args, kind, nullptr);
  const Peer* source = args.source == kAnySource ? nullptr : x_peers.at(args.source);
  if (args.source != kAnySource && !source) return -FI_EINVAL;
  progress();
  return x_own.probe(args, kind, source);
}

// --- the end of a receive -----------------------------------------------------------------------

/// Success, or FI_ETRUNC if the message was longer than what it was placed into.
void Engine::complete_receive(CompletionSink& sink, const Completion& done,
                              size_t message_length) noexcept {
  if (message_length <= done.length) [[likely]]
    return sink.complete(done);
  ErrorCompletion truncated;
  static_cast<Completion&>(truncated) = done;
  truncated.error = FI_ETRUNC;
  truncated.overflow = message_length - done.length;
  sink.fail(truncated);
}

/// The same, unless the bytes could not be placed.
void Engine::complete_placed(CompletionSink& sink, const Completion& done, size_t message_length,
                             int status) noexcept {
  if (status == 0) return complete_receive(sink, done, message_length);
  ErrorCompletion failed;
  static_cast<Completion&>(failed) = done;
  failed.error = -status;
  failed.length = 0;
  sink.fail(failed);
}

int Engine::cancel(const void* context) noexcept {
  return x_own.cancel(context) || cancel_send(context) ? 0 : -FI_ENOENT;
}

}  // namespace erdma::protocol
