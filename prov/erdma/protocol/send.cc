#include <cstring>
#include <new>

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include "hmem/copy.h"
#include "protocol/engine.h"

namespace erdma::protocol {
namespace {

constexpr unsigned kSendsPerProgress = 64;

uint8_t wire_flags(const SendArgs& args) noexcept {
  return uint8_t((args.tagged ? wire::kTagged : 0) | (args.has_data ? wire::kHasData : 0));
}

uint64_t completion_flags(bool tagged) noexcept {
  return FI_SEND | (tagged ? FI_TAGGED : FI_MSG);
}

}  // namespace

int Engine::post_send(const SendArgs& args) noexcept {
  Peer* peer = peer_at(args.destination);
  if (!peer) [[unlikely]]
    return -FI_EINVAL;
  const bool simple = !args.until_delivered && !args.fence;
  if (!peer->direct || !simple || args.length > transport::kAlwaysEager ||
      ++x_sends_since_progress >= kSendsPerProgress) [[unlikely]]
    return post_send_slow(args, *peer);

  const wire::MessageHeader header{wire::Op::eager, wire_flags(args), 0,          0,
                                   args.tag,        args.data,        args.length};
  transport::Header bytes;
  std::memcpy(&bytes, &header, sizeof(bytes));
  const int rc =
      peer->link->send(bytes, args.iov, args.count, args.length,
                       args.more ? transport::SendHint::more : transport::SendHint::none);
  if (rc != 0) [[unlikely]]
    return post_send_slow(args, *peer);
  Completion done;
  done.context = args.context;
  done.flags = completion_flags(args.tagged);
  done.report = args.report;
  x_sent.complete(done);
  return 0;
}

/// With a request: whatever does not fit one packet right now.
int Engine::post_send_slow(const SendArgs& args, Peer& peer) noexcept {
  // A caller that only ever sends must still see what its peers tell it.
  if (++x_sends_since_progress >= kSendsPerProgress) progress();
  if (args.inject && args.length > x_config.inject_size) return -FI_EMSGSIZE;
  Send* send = make_send(args, peer);
  if (!send) {
    progress();
    return -FI_EAGAIN;
  }
  const int connected = connect(peer);
  if (connected != 0) {
    finish_send(*send, connected);
    return 0;
  }
  const bool must_wait = !peer.queued.empty() || (send->fence && !peer.flying.empty());
  const int rc = must_wait ? -FI_EAGAIN : launch(*send);
  if (rc == -FI_EAGAIN) {
    peer.queued.push_back(*send);
    backlog(peer);
  } else if (rc != 0) {
    finish_send(*send, rc);
  }
  return 0;
}

Send* Engine::make_send(const SendArgs& args, Peer& peer) noexcept {
  Send* send = x_sends.acquire();
  if (!send) return nullptr;
  send->peer = &peer;
  send->buffers.count = args.count;
  send->buffers.length = args.length;
  if (args.count > 0) std::memcpy(send->buffers.iov, args.iov, args.count * sizeof(iovec));
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
  send->completion_flags = completion_flags(args.tagged);
  send->wire_flags = uint8_t(wire_flags(args) | (args.until_delivered ? wire::kWantFin : 0));
  send->fence = args.fence;
  send->report = args.report;
  send->injected = args.inject;
  if (send->injected) ++x_injected;
  return send;
}

/// Puts the first packet of a send on the wire. -FI_EAGAIN: nothing happened.
int Engine::launch(Send& send) noexcept {
  Peer& peer = *send.peer;
  const bool fits = send.buffers.length <= transport::kAlwaysEager ||
                    send.buffers.length <= peer.link->limits().eager;
  send.rendezvous = !fits || peer.told_to_hold;
  return send.rendezvous ? send_rts(send) : send_eager(send);
}

bool Engine::flush_sends(Peer& peer) noexcept {
  while (Send* send = peer.queued.front()) {
    const bool granted = send->state == Send::State::granted;
    if (!granted && send->fence && !peer.flying.empty()) return false;
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
  ErrorCompletion done;
  done.context = send.context;
  done.flags = send.completion_flags;
  done.report = send.report;
  done.error = -status;
  done.tag = send.tag;
  drop_send(send);
  if (status == 0) {
    x_sent.complete(done);
  } else {
    x_sent.fail(done);
  }
}

void Engine::drop_send(Send& send) noexcept {
  if (send.linked()) util::IntrusiveList<Send>::erase(send);
  if (send.injected) --x_injected;
  x_sends.release(send);
}

bool Engine::cancel_send(const void* context) noexcept {
  for (Peer* peer = x_backlog.front(); peer; peer = x_backlog.next(*peer)) {
    for (Send* send = peer->queued.front(); send; send = peer->queued.next(*send)) {
      if (send->context != context || send->injected || send->state != Send::State::queued)
        continue;
      finish_send(*send, -FI_ECANCELED);
      return true;
    }
  }
  return false;
}

}  // namespace erdma::protocol
