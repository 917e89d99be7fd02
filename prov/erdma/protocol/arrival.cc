// What arrives. The usual packet, a short message for a receive that is posted, is dealt with in
// one function: on_packet() with on_eager() and place_whole() in it.
#include <algorithm>
#include <cstring>

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include "hmem/copy.h"
#include "hmem/device_memory.h"
#include "protocol/engine.h"

namespace erdma::protocol {

/// place_eager() for a receive of one buffer that the message fits.
[[gnu::always_inline]] inline void Engine::place_whole(Receive& receive,
                                                       const wire::MessageHeader& header,
                                                       uint64_t source, const std::byte* payload,
                                                       size_t length) noexcept {
  hmem::copy_short(receive.buffers.iov[0].iov_base, payload, length);
  x_received.succeed(receive.report) = {
      receive.context, receive.completion_flags | data_flag(header),
      length,          nullptr,
      header.data,     header.tag,
      source};
  x_own.receives.release(receive);
}

[[gnu::always_inline]] inline void Engine::on_eager(Peer& peer, transport::Link& link,
                                                    const wire::MessageHeader& header,
                                                    const std::byte* payload,
                                                    size_t length) noexcept {
  if (header.length != length) [[unlikely]]
    return inbound::protocol_violation(link, "an eager message whose length is not its packet's");
  PostedEntry* entry = x_own.matcher(header.flags & wire::kTagged).arrive(peer, header.tag);
  if (!entry) [[unlikely]]
    return on_early(peer, link, header, payload, length);
  auto& receive = static_cast<Receive&>(*entry);
  if (!receive.special && receive.buffers.count == 1 && length <= receive.buffers.length) [[likely]]
    place_whole(receive, header, peer.fi_addr, payload, length);
  else
    return place_special(receive, peer, header, payload);
  if (header.flags & wire::kWantFin) [[unlikely]]
    x_controls.send_fin(peer, {header.index, header.generation}, 0);
}

/// An eager message for which no receive is posted here.
void Engine::on_early(Peer& peer, transport::Link& link, const wire::MessageHeader& header,
                      const std::byte* payload, size_t length) noexcept {
  if (x_shared) {
    PostedEntry* entry = matcher(header.flags & wire::kTagged).arrive(*peer.source, header.tag);
    if (entry) return place_special(static_cast<Receive&>(*entry), peer, header, payload);
  }
  store_unexpected(peer, link, header, payload, length);
}

void Engine::on_packet(transport::Link& link, const std::byte* header_bytes,
                       const std::byte* payload, size_t length) noexcept {
  Peer* peer = x_peers.behind(link);
  if (!peer) [[unlikely]]
    return link.fail(-FI_ENOMEM);
  // The header may lie in memory that the peer can still change: judge a copy.
  wire::MessageHeader header;
  std::memcpy(&header, header_bytes, sizeof(header));
  if (header.op == wire::Op::eager) [[likely]]
    return on_eager(*peer, link, header, payload, length);
  if (header.op == wire::Op::rts) return on_rts(*peer, link, header, payload, length);
  if (header.op >= wire::Op::segments) {
    wire::OneSidedHeader one_sided;
    std::memcpy(&one_sided, &header, sizeof(one_sided));
    return on_one_sided(*peer, link, one_sided, payload, length);
  }
  wire::ControlHeader control;
  std::memcpy(&control, &header, sizeof(control));
  on_control(*peer, link, control, payload, length);
}

void Engine::on_preview(transport::Link& link, const std::byte* header_bytes) noexcept {
  wire::MessageHeader header;
  std::memcpy(&header, header_bytes, sizeof(header));
  if (const auto* peer = static_cast<const Peer*>(link.user))
    x_own.matcher(header.flags & wire::kTagged).prefetch(*peer, header.tag);
}

/// Any other message for a posted receive.
void Engine::place_special(Receive& receive, Peer& peer, const wire::MessageHeader& header,
                           const std::byte* payload) noexcept {
  const int placed = place_eager(receive, header, peer.fi_addr, payload);
  if (header.flags & wire::kWantFin)
    x_controls.send_fin(peer, {header.index, header.generation}, placed);
}

/// Copies a message to the receive it matched and completes that. Returns what became of it.
int Engine::place_eager(Receive& receive, const wire::MessageHeader& header, uint64_t source,
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
    complete_placed(sink, done, header.length, placed);
    return placed;
  }
  const Buffers space = take_space(receive, header.length);
  const int placed = place(receive, space, payload, space.length);
  done.buffer = space.iov[0].iov_base;
  done.length = space.length;
  if (return_space(receive)) done.release_buffer();
  complete_placed(x_received, done, header.length, placed);
  retire(receive);
  return placed;
}

int Engine::place(const Receive& receive, const Buffers& target, const std::byte* payload,
                  size_t length) noexcept {
  if (receive.device())
    return x_config.device_memory->scatter(target.iov, target.count, 0, payload, length);
  hmem::scatter(target.iov, target.count, 0, payload, length);
  return 0;
}

void Engine::on_control(Peer& peer, transport::Link& link, const wire::ControlHeader& header,
                        const std::byte* payload, size_t length) noexcept {
  switch (header.op) {
    case wire::Op::fin:
      return on_fin(peer, link, header, length);
    case wire::Op::cts:
      return on_cts(peer, link, header, payload, length);
    case wire::Op::done:
      return on_peer_done(peer, link, header, length);
    case wire::Op::budget:
      return on_budget(peer, link, header, length);
    default:
      return inbound::protocol_violation(link, "a packet of unknown kind");
  }
}

void Engine::on_budget(Peer& peer, transport::Link& link, const wire::ControlHeader& header,
                       size_t length) noexcept {
  if (!inbound::takes(link, inbound::judge_budget(header, length), "a malformed budget")) return;
  peer.told_to_hold = header.status != 0;
  peer.update_direct();
}

}  // namespace erdma::protocol
