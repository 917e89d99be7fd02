#include "protocol/sends.h"

#include <algorithm>
#include <new>

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include "hmem/copy.h"
#include "protocol/inbound.h"
#include "util/log.h"
#include "util/peer_status.h"

namespace erdma::protocol {

int Send::start() noexcept {
  if (fence && state == State::queued && peer->sending()) return -FI_EAGAIN;
  return initiator->launch(*this);
}

void Send::finish(int status) noexcept {
  initiator->sends.finish(*this, status);
}

// --- the beginning ------------------------------------------------------------------------------

Send* Sends::make(const SendArgs& args, Peer& peer, Initiator& initiator,
                  CompletionSink& sink) noexcept {
  Send* send = x_sends.acquire();
  if (!send) return nullptr;
  send->peer = &peer;
  send->initiator = &initiator;
  send->sink = &sink;
  send->buffers.count = args.count;
  send->buffers.length = args.length;
  for (size_t i = 0; i < args.count; ++i) {  // word by word, for the reason in finish()
    send->buffers.iov[i].iov_base = args.iov[i].iov_base;
    send->buffers.iov[i].iov_len = args.iov[i].iov_len;
  }
  if (args.inject && args.length > 0 && !keep_copy(*send, args)) {
    x_sends.release(*send);
    return nullptr;
  }
  send->tag = args.tag;
  send->data = args.data;
  send->context = args.context;
  send->completion_flags = args.completion_flags();
  send->wire_flags = uint8_t(args.wire_flags() | (args.until_delivered ? wire::kWantFin : 0));
  send->fence = args.fence;
  send->report = args.report;
  send->injected = send->inject_pending = args.inject;
  if (send->inject_pending) ++x_injected;
  return send;
}

/// Copies an injected operation's bytes: the caller may reuse its memory.
bool Sends::keep_copy(Send& send, const SendArgs& args) noexcept {
  send.copy.reset(new (std::nothrow) std::byte[args.length]);
  if (!send.copy) return false;
  hmem::gather(send.copy.get(), args.iov, args.count, 0, args.length);
  send.buffers.iov[0] = {send.copy.get(), args.length};
  send.buffers.count = 1;
  return true;
}

void Sends::begin(Send& send) noexcept {
  Peer& peer = *send.peer;
  if (const int unreachable = x_peers.connect(peer)) return finish(send, unreachable);
  x_peers.start(peer, peer.queued, send, !peer.queued.empty());
}

void Sends::queue_first(Send& send) noexcept {
  send.peer->queued.push_front(send);
  x_peers.backlog(*send.peer);
}

void Sends::clear_inject_pending(Send& send) noexcept {
  if (send.inject_pending) --x_injected;
  send.inject_pending = false;
}

// --- the end ------------------------------------------------------------------------------------

void Sends::on_fin(const Peer& peer, transport::Link& link, const wire::ControlHeader& header,
                   size_t length) noexcept {
  Send* send = x_sends.find({header.index, header.generation});
  if (!inbound::takes(link, inbound::judge_fin(send, peer, header, length),
                      "an end that nothing awaits"))
    return;
  const int status = outcome_of(util::peer_status(header.status));
  if (x_config.device_memory) [[unlikely]]
    return send->initiator->on_device_fin(*send, status);
  finish(*send, status);
}

void Sends::on_moved(util::PoolHandle handle, int status) noexcept {
  Send* const send = x_sends.find(handle);
  if (send) send->initiator->on_moved(*send, outcome_of(status));
}

/// Returns whether the remote key, if any, is that of memory that the send has shared.
bool Sends::shares(const Send& send) noexcept {
  const bool ours = send.state == Send::State::queued || send.state == Send::State::in_flight;
  return ours && send.remote_key.size;
}

void Sends::finish(Send& send, int status) noexcept {
  if (shares(send)) send.peer->link->revoke(send.remote_key);
  if (status != 0) return fail(send, status);
  // Word by word into the entry. A wide load over narrow stores waits until the store buffer is
  // empty, and its last stores went to lines of another core.
  CompletionSink& sink = *send.sink;
  void* const context = send.context;
  const uint64_t flags = send.completion_flags;
  const uint64_t tag = send.tag;
  const bool report = send.report;
  drop(send);
  CompletionEntry& entry = sink.succeed(report);
  entry.context = context;
  entry.flags = flags;
  entry.length = 0;
  entry.buffer = nullptr;
  entry.data = 0;
  entry.tag = tag;
  entry.source = UINT64_MAX;
}

void Sends::fail(Send& send, int status) noexcept {
  ErrorCompletion done(send.context, send.completion_flags, -status, send.tag);
  done.report = send.report;
  done.anonymous = send.injected && !send.report && !send.context;
  if (done.anonymous) lose_injected(*send.peer, status);
  CompletionSink& sink = *send.sink;
  drop(send);
  sink.fail(done);
}

void Sends::drop(Send& send) noexcept {
  if (send.linked()) send.unlink();
  clear_inject_pending(send);
  if (send.one_sided) send.initiator->forget(send);
  x_sends.release(send);
}

/// One line of log for all injected operations that the end of a peer loses.
void Sends::lose_injected(Peer& peer, int status) noexcept {
  ++peer.injected_lost;
  if (!peer.failing) report_lost(peer, status);
}

void Sends::report_lost(Peer& peer, int status) noexcept {
  if (!peer.injected_lost) return;
  ERDMA_NOTICE(lost_messages, EP_DATA, "%u injected messages for %s are lost: %s",
               peer.injected_lost, peer.address.to_string().c_str(), fi_strerror(-status));
  peer.injected_lost = 0;
}

bool Sends::cancel(const void* context) noexcept {
  auto& waiting = x_peers.waiting();
  for (Peer* peer = waiting.front(); peer; peer = waiting.next(*peer)) {
    for (Send* send = peer->queued.front(); send; send = peer->queued.next(*send)) {
      const bool begun = send->sent > 0 || (send->one_sided && send->one_sided->sent > 0);
      if (send->context != context || send->injected || begun || send->state != Send::State::queued)
        continue;
      finish(*send, -FI_ECANCELED);
      return true;
    }
  }
  return false;
}

void Sends::fail(Peer& peer, int status) noexcept {
  while (Send* send = peer.in_flight.front()) finish(*send, status);
  while (Send* send = peer.queued.front()) finish(*send, status);
  report_lost(peer, status);
}

void Sends::revoke_memory(Peer& peer) noexcept {
  for (auto* list : {&peer.queued, &peer.in_flight})
    for (Send* send = list->front(); send; send = list->next(*send))
      if (shares(*send)) peer.link->revoke_early(send->remote_key, transport::Early::closing);
}

bool Sends::has_packets() noexcept {
  auto& waiting = x_peers.waiting();
  for (Peer* peer = waiting.front(); peer; peer = waiting.next(*peer)) {
    const Send* const next = peer->queued.front();
    if (!next || next->state != Send::State::queued || !peer->link) continue;
    const size_t room = std::max(transport::kAlwaysEager, peer->link->limits().eager);
    const bool writes = next->one_sided && next->one_sided->op == wire::Op::write;
    const bool message = !next->one_sided && !peer->throttled_by;
    if ((writes || message) && next->buffers.length <= room) return true;
  }
  return false;
}

}  // namespace erdma::protocol
