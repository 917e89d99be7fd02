// What is left when a peer is gone: every operation that waits for it ends in one error completion.
#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include "protocol/engine.h"
#include "util/log.h"

namespace erdma::protocol {

void Engine::protocol_violation(Peer& peer, const char* what) noexcept {
  ERDMA_WARN(EP_DATA, "%s sent %s; its connection is closed\n", peer.address.to_string().c_str(),
             what);
  peer.link->fail(-FI_ECONNRESET);
}

/// The link to the peer is down. It may come back: later sends connect anew.
void Engine::fail_peer(Peer& peer, int status) noexcept {
  if (peer.failing) return;
  peer.failing = true;
  while (Control* control = peer.controls.pop_front()) x_controls.release(*control);
  while (Send* send = peer.flying.front()) finish_send(*send, status);
  while (Send* send = peer.queued.front()) finish_send(*send, status);
  while (Delivery* delivery = peer.starting.front()) finish_delivery(*delivery, status);
  while (Delivery* delivery = peer.active.front()) finish_delivery(*delivery, status);
  for (const bool tagged : {true, false}) {
    fail_unfetched(matcher(tagged), peer, status);
    if (status != -FI_ESHUTDOWN) fail_directed(matcher(tagged), peer, status);
  }
  auto& hook = static_cast<util::ListHook<BacklogTag>&>(peer);
  if (hook.linked()) util::IntrusiveList<Peer, BacklogTag>::erase(peer);
  peer.told_to_hold = peer.holding_back = peer.failing = false;
  peer.update_direct();
}

/// Messages whose bytes are still with the sender can no longer be had; their headers stay
/// matchable, so that their receives learn of it.
void Engine::fail_unfetched(Matcher& queues, const Peer& peer, int status) noexcept {
  for (UnexpectedEntry* entry = queues.first_unexpected(); entry;
       entry = queues.next_unexpected(*entry)) {
    Unexpected& message = static_cast<Unexpected&>(*entry);
    if (message.source == &peer) mark_unfetched(message, status);
  }
  for (Unexpected* message = x_claimed; message; message = message->next_claimed)
    if (message->source == &peer) mark_unfetched(*message, status);
}

void Engine::mark_unfetched(Unexpected& message, int status) noexcept {
  if (message.header.op == wire::Op::rts) message.status = status;
  message.header.flags = uint8_t(message.header.flags & ~wire::kWantFin);
}

/// Receives that only the dead peer could have satisfied. A peer that closed in order may come
/// back under its name: theirs stay.
void Engine::fail_directed(Matcher& queues, const Peer& peer, int status) noexcept {
  for (PostedEntry* entry = queues.first_posted(); entry;) {
    PostedEntry* next = queues.next_posted(*entry);
    Receive& receive = static_cast<Receive&>(*entry);
    if (receive.source == &peer) {
      queues.remove(receive);
      receive.posted = false;
      if (receive.multi && receive.deliveries > 0) {
        receive.cancelled = receive.exhausted = true;
      } else {
        fail_receive(receive, status);
      }
    }
    entry = next;
  }
}

/// Ends a receive that is in no queue; a multi-receive buffer that is still in use goes on.
void Engine::fail_receive(Receive& receive, int status) noexcept {
  ErrorCompletion failed;
  failed.context = receive.context;
  failed.flags = receive.completion_flags;
  failed.tag = receive.tag;
  failed.report = receive.report;
  failed.error = -status;
  const bool in_use = receive.deliveries > 0 || receive.posted || receive.held;
  const bool ends = !receive.multi || !in_use;
  if (ends) x_receives.release(receive);
  x_received.fail(failed);
}

void Engine::withdraw_all() noexcept {
  for (auto& [address, peer] : x_peers) {
    for (auto* sends : {&peer->queued, &peer->flying})
      for (Send* send = sends->front(); send; send = sends->next(*send)) withdraw(*send);
    for (Delivery* delivery = peer->active.front(); delivery;
         delivery = peer->active.next(*delivery))
      if (delivery->local.size) peer->link->withdraw(delivery->local);
  }
}

}  // namespace erdma::protocol
