#include <cstring>
#include <new>

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include "hmem/copy.h"
#include "protocol/engine.h"
#include "util/log.h"

namespace erdma::protocol {

/// With a request, whatever does not fit one packet right now. Where the link has no room, the peer
/// may have made some since we last looked: else this send and all behind it would need requests.
// By value: what the caller holds in registers need not be in memory for the short way.
int Engine::post_send_slow(SendArgs args, Peer& peer) noexcept {
  const bool has_no_room = goes_direct(args, peer);
  if (has_no_room || ++x_sends_since_progress >= kSendsPerProgress) progress();
  if (has_no_room && goes_direct(args, peer) && send_direct(args, peer)) return 0;
  if (args.inject && args.length > x_config.inject_size) return -FI_EMSGSIZE;
  Send* send = sends_full() ? nullptr : make_send(args, peer);
  if (!send) {
    progress();
    return -FI_EAGAIN;
  }
  return begin(*send);
}

int Engine::post_send(const SendArgs& args, CompletionSink& sink) noexcept {
  Peer* peer = x_peers.at(args.destination);
  if (!peer) return -FI_EINVAL;
  if (++x_sends_since_progress >= kSendsPerProgress) progress();
  if (args.inject && args.length > x_config.inject_size) return -FI_EMSGSIZE;
  Send* send = sends_full() ? nullptr : make_send(args, *peer);
  if (!send) {
    progress();
    return -FI_EAGAIN;
  }
  send->sink = &sink;
  return begin(*send);
}

/// Launches or queues it; from here on the completion tells how it went.
int Engine::begin(Send& send) noexcept {
  Peer& peer = *send.peer;
  const int connected = x_peers.connect(peer);
  if (connected != 0) {
    finish_send(send, connected);
    return 0;
  }
  const bool must_wait = !peer.queued.empty() || (send.fence && peer.sending());
  const int rc = must_wait ? -FI_EAGAIN : launch(send);
  if (rc == -FI_EAGAIN) {
    peer.queued.push_back(send);
    x_peers.backlog(peer);
  } else if (rc != 0) {
    finish_send(send, rc);
  }
  return 0;
}

Send* Engine::make_send(const SendArgs& args, Peer& peer) noexcept {
  Send* send = x_sends.acquire();
  if (!send) return nullptr;
  send->peer = &peer;
  send->buffers.count = args.count;
  send->buffers.length = args.length;
  for (size_t i = 0; i < args.count; ++i) {  // word by word: see finish_send()
    send->buffers.iov[i].iov_base = args.iov[i].iov_base;
    send->buffers.iov[i].iov_len = args.iov[i].iov_len;
  }
  if (args.inject && args.length > 0) {
    send->copy.reset(new (std::nothrow) std::byte[args.length]);
    if (!send->copy) {
      x_sends.release(*send);
      return nullptr;
    }
    hmem::gather(send->copy.get(), args.iov, args.count, 0, args.length);
    send->buffers.iov[0] = {send->copy.get(), args.length};
    send->buffers.count = 1;
  }
  send->tag = args.tag;
  send->data = args.data;
  send->context = args.context;
  send->completion_flags = args.completion_flags();
  send->wire_flags = uint8_t(args.wire_flags() | (args.until_delivered ? wire::kWantFin : 0));
  send->fence = args.fence;
  send->report = args.report;
  send->injected = send->owed = args.inject;
  if (send->owed) ++x_injected;
  return send;
}

/// Puts the first packet of a send on the wire. -FI_EAGAIN: nothing happened.
int Engine::launch(Send& send) noexcept {
  if (send.one_sided) return launch_one_sided(send);
  Peer& peer = *send.peer;
  const bool fits = send.buffers.length <= transport::kAlwaysEager ||
                    send.buffers.length <= peer.link->limits().eager;
  send.rendezvous = !fits || peer.told_to_hold;
  return send.rendezvous ? send_rts(send) : send_eager(send);
}

bool Engine::flush_sends(Peer& peer) noexcept {
  while (Send* send = peer.queued.front()) {
    const bool granted = send->state == Send::State::granted;
    if (!granted && send->fence && peer.sending()) return false;
    util::IntrusiveList<Send>::erase(*send);
    const int rc = granted ? write(*send) : launch(*send);
    if (rc == -FI_EAGAIN) {
      peer.queued.push_front(*send);
      return false;
    }
    if (rc != 0 && granted)
      on_write_done(*send, rc);
    else if (rc != 0)
      finish_send(*send, rc);
  }
  return true;
}

/// Takes back the memory that a send exposed, if it did.
void Engine::withdraw(Send& send) noexcept {
  const bool ours = send.state == Send::State::queued || send.state == Send::State::flying;
  if (ours && send.exposure.size) send.peer->link->withdraw(send.exposure);
}

/// The one place where a send with a request ends.
void Engine::finish_send(Send& send, int status) noexcept {
  withdraw(send);
  if (status != 0) return fail_send(send, status);
  // Word by word into the entry: whoever reads wide what he wrote narrow waits for every store
  // before it, and the last ones went to another core.
  CompletionSink& sink = sink_of(send);
  void* const context = send.context;
  const uint64_t flags = send.completion_flags;
  const uint64_t tag = send.tag;
  const bool report = send.report;
  drop_send(send);
  CompletionEntry& entry = sink.succeed(report);
  entry.context = context;
  entry.flags = flags;
  entry.length = 0;
  entry.buffer = nullptr;
  entry.data = 0;
  entry.tag = tag;
  entry.source = UINT64_MAX;
}

void Engine::fail_send(Send& send, int status) noexcept {
  ErrorCompletion done;
  done.context = send.context;
  done.flags = send.completion_flags;
  done.report = send.report;
  done.error = -status;
  done.tag = send.tag;
  done.anonymous = send.injected && !send.report && !send.context;
  if (done.anonymous) lose_injected(*send.peer, status);
  CompletionSink& sink = sink_of(send);
  drop_send(send);
  sink.fail(done);
}

CompletionSink& Engine::sink_of(const Send& send) noexcept {
  if (send.sink) return *send.sink;
  if (!send.one_sided) return x_sent;
  return send.completion_flags & FI_READ ? x_one_sided_setup->reads : x_one_sided_setup->writes;
}

/// The caller may never learn of it: a line of log says so, one for all that a dead peer leaves.
void Engine::lose_injected(Peer& peer, int status) noexcept {
  ++peer.injected_lost;
  if (!peer.failing) report_lost(peer, status);
}

void Engine::report_lost(Peer& peer, int status) noexcept {
  if (!peer.injected_lost) return;
  ERDMA_NOTICE(lost_messages, EP_DATA, "%u injected messages for %s are lost: %s\n",
               peer.injected_lost, peer.address.to_string().c_str(), fi_strerror(-status));
  peer.injected_lost = 0;
}

void Engine::drop_send(Send& send) noexcept {
  if (send.linked()) util::IntrusiveList<Send>::erase(send);
  if (send.owed) --x_injected;
  if (send.one_sided) {
    leave_way(send);
    x_one_sided.release(*send.one_sided);
  }
  x_sends.release(send);
}

bool Engine::cancel_send(const void* context) noexcept {
  auto& waiting = x_peers.waiting();
  for (Peer* peer = waiting.front(); peer; peer = waiting.next(*peer)) {
    for (Send* send = peer->queued.front(); send; send = peer->queued.next(*send)) {
      const bool begun = send->one_sided && send->one_sided->sent > 0;
      if (send->context != context || send->injected || begun || send->state != Send::State::queued)
        continue;
      finish_send(*send, -FI_ECANCELED);
      return true;
    }
  }
  return false;
}

}  // namespace erdma::protocol
