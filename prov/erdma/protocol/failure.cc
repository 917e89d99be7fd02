// What is left when a peer is gone: every operation that waits for it ends in one error completion.
#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include "protocol/engine.h"
#include "util/error_text.h"
#include "util/log.h"

namespace erdma::protocol {
namespace {

/// What a user can look for.
const char* advice(int status, bool met) noexcept {
  switch (status) {
    case -FI_ETIMEDOUT:
      return met ? "no sign of life for FI_ERDMA_PEER_TIMEOUT: look at its host and the network"
                 : "it did not appear within FI_ERDMA_CONNECT_TIMEOUT: is it running?";
    case -FI_ECONNRESET:
      return "its process or the connection ended: look at its output";
    case -FI_ECONNREFUSED:
      return met ? "nobody listens there any more" : "nobody listens there, or it refuses us";
    default:
      return "FI_LOG_LEVEL=warn may tell more";
  }
}

/// Only of operations that end in errors: a peer that leaves an idle endpoint alone is no loss.
void tell_lost(const Peer& peer, const transport::Link& link, int status) noexcept {
  ERDMA_NOTICE(peer_lost, EP_DATA, "%s is lost (%s), operations with it end in errors: %s\n",
               peer.address.to_string().c_str(), util::ErrorText(-status).c_str(),
               advice(status, link.met()));
}

}  // namespace

/// A link to the peer is down; null: there is no way to it. It may come back: later sends connect
/// anew. What goes over another link of the same peer goes on.
void Engine::lose(Peer& peer, const transport::Link* link, int status) noexcept {
  if (peer.failing) return;
  peer.failing = true;
  const bool sending = peer.link == link;
  if (peer.held == link) peer.held = nullptr;
  bool lost = sending && (peer.sending() || !peer.queued.empty());
  if (sending) fail_sends(peer, status);
  lost |= fail_deliveries(peer.starting, link, status);
  lost |= fail_deliveries(peer.active, link, status);
  drop_services(peer, link);
  for (const bool tagged : {true, false}) {
    fail_unfetched(matcher(tagged), link, status);
    if (sending && status != -FI_ESHUTDOWN) lost |= fail_directed(matcher(tagged), peer, status);
  }
  if (lost && link && status != -FI_ESHUTDOWN) tell_lost(peer, *link, status);
  auto& hook = static_cast<util::ListHook<BacklogTag>&>(peer);
  if (hook.linked() && !peer.backlogged()) util::IntrusiveList<Peer, BacklogTag>::erase(peer);
  peer.failing = false;
  peer.update_direct();
}

void Engine::fail_sends(Peer& peer, int status) noexcept {
  x_controls.drop(peer);
  while (Access* access = peer.accesses.front()) finish_access(*access, status);
  while (Send* send = peer.flying.front()) finish_send(*send, status);
  while (Send* send = peer.queued.front()) finish_send(*send, status);
  report_lost(peer, status);
  peer.grants.reset();
  peer.told_to_hold = peer.holding_back = peer.budget_told = false;
  peer.release_link();  // it can't be told any more; the next message begins anew
}

bool Engine::fail_deliveries(util::IntrusiveList<Delivery>& list, const transport::Link* link,
                             int status) noexcept {
  bool any = false;
  for (Delivery* delivery = list.front(); delivery;) {
    Delivery* next = list.next(*delivery);
    const bool concerned = delivery->link == link;
    if (concerned && delivery->state == Delivery::State::settling)
      leave_link(*delivery);
    else if (concerned)
      finish_delivery(*delivery, status);
    any |= concerned;
    delivery = next;
  }
  return any;
}

/// All its bytes are here, and will be visible: it goes on without its sender, who may have closed
/// because it was done.
void Engine::leave_link(Delivery& delivery) noexcept {
  if (delivery.local.size) delivery.link->withdraw(delivery.local);
  delivery.local.size = 0;
  delivery.link = nullptr;
}

/// Messages whose bytes are still with the sender can no longer be had; their headers stay
/// matchable, so that their receives learn of it. Nobody waits for the fin of the others.
void Engine::fail_unfetched(Matcher& queues, const transport::Link* link, int status) noexcept {
  const auto mark = [&](Unexpected& message) {
    if (message.link != link) return;
    if (message.header.op == wire::Op::rts) message.status = status;
    message.header.flags = uint8_t(message.header.flags & ~wire::kWantFin);
  };
  for (UnexpectedEntry* entry = queues.first_unexpected(); entry;
       entry = queues.next_unexpected(*entry))
    mark(static_cast<Unexpected&>(*entry));
  for (Unexpected* message = x_queues->claimed; message; message = message->next_claimed)
    mark(*message);
}

/// Receives that only the dead peer could have satisfied. A peer that closed in order may come
/// back under its name: theirs stay.
bool Engine::fail_directed(Matcher& queues, const Peer& peer, int status) noexcept {
  bool any = false;
  for (PostedEntry* entry = queues.first_posted(); entry;) {
    PostedEntry* next = queues.next_posted(*entry);
    auto& receive = static_cast<Receive&>(*entry);
    if (receive.source == peer.source) {
      any = true;
      queues.remove(receive);
      receive.posted = false;
      if (receive.multi() && receive.deliveries > 0) {
        receive.cancelled = receive.exhausted = true;
      } else {
        fail_receive(receive, status);
      }
    }
    entry = next;
  }
  return any;
}

void Engine::withdraw_all() noexcept {
  for (auto& [address, peer] : x_peers.all()) {
    for (auto* sends : {&peer->queued, &peer->flying})
      for (Send* send = sends->front(); send; send = sends->next(*send)) withdraw(*send);
    for (Delivery* delivery = peer->active.front(); delivery;
         delivery = peer->active.next(*delivery))
      if (delivery->local.size) delivery->link->withdraw(delivery->local);
  }
}

void Engine::leave_shared() noexcept {
  if (!x_shared) return;
  x_shared->leave(*this);
  x_peers.leave_shared();
  for (auto& [address, peer] : x_peers.all())
    for (auto* deliveries : {&peer->starting, &peer->active}) orphan(*deliveries);
  x_shared = nullptr;
  x_queues = &x_own;
}

/// Receives of the shared context whose messages will not be whole: the context outlives us, and
/// its user waits for them.
void Engine::orphan(util::IntrusiveList<Delivery>& deliveries) noexcept {
  while (Delivery* delivery = deliveries.pop_front()) {
    ErrorCompletion cancelled;
    cancelled.context = delivery->context;
    cancelled.flags = delivery->completion_flags;
    cancelled.tag = delivery->tag;
    cancelled.error = FI_ECANCELED;
    Receive* const multi = delivery->multi;
    if (multi && return_space(*multi)) cancelled.release_buffer();
    x_deliveries.release(*delivery);
    x_queues->orphans.fail(cancelled);
    if (multi) x_queues->retire(*multi, x_queues->orphans);
  }
}

}  // namespace erdma::protocol
