#include "protocol/engine.h"

#include <algorithm>
#include <cstring>

#include <rdma/fi_errno.h>

#include "util/log.h"

namespace erdma::protocol {

Engine::Engine(const EngineConfig& config, AddressBook& book, Router& router,
               std::vector<transport::Transport*> transports, CompletionSink& sent,
               CompletionSink& received, SharedReceives* shared)
    : x_config(config),
      x_transports(std::move(transports)),
      x_sent(sent),
      x_received(received),
      x_peers(book, router, *this, *this, shared),
      x_own(received),
      x_shared(shared),
      x_queues(shared ? &shared->queues() : &x_own) {
  if (shared) shared->join(*this, book);
}

Engine::~Engine() = default;

void Engine::enable_one_sided(const OneSidedSetup& setup) noexcept {
  x_one_sided_setup = &setup;
  x_peers.set_own_name(setup.name);
}

// --- progress -----------------------------------------------------------------------------------

int Engine::progress() noexcept {
  x_sends_since_progress = 0;
  int steps = 0;
  for (transport::Transport* transport : x_transports) steps += transport->poll(*this);
  auto& waiting = x_peers.waiting();
  if (waiting.empty()) [[likely]]
    return steps;
  for (Peer* peer = waiting.front(); peer;) {
    Peer* next = waiting.next(*peer);
    steps += work_off(*peer);
    peer = next;
  }
  return steps;
}

/// Controls first: they free memory and credits at the other side.
int Engine::work_off(Peer& peer) noexcept {
  const bool room = start_all(peer.controls) && flush_deliveries(peer) && flush_services(peer) &&
                    flush_sends(peer);
  const int spared = peer.retractable > 0 ? mind_retractable(peer) : 0;
  if (peer.backlogged()) return spared + (room && peer.waiting() ? 1 : 0);
  util::IntrusiveList<Peer, BacklogTag>::erase(peer);
  peer.update_direct();
  return 1;
}

bool Engine::owes() noexcept {
  if (x_injected > 0) return true;
  auto& waiting = x_peers.waiting();
  for (Peer* peer = waiting.front(); peer; peer = waiting.next(*peer))
    if (!peer->controls.empty()) return true;
  return false;
}

bool Engine::has_packets() noexcept {
  auto& waiting = x_peers.waiting();
  for (Peer* peer = waiting.front(); peer; peer = waiting.next(*peer)) {
    const Send* const next = peer->queued.front();
    if (!next || next->state != Send::State::queued || !peer->link) continue;
    const size_t room = std::max(transport::kAlwaysEager, peer->link->limits().eager);
    const bool writes = next->one_sided && next->one_sided->op == wire::Op::write;
    const bool message = !next->one_sided && !peer->told_to_hold;
    if ((writes || message) && next->buffers.length <= room) return true;
  }
  return false;
}

void Engine::on_done(uint64_t token, int status) noexcept {
  const util::PoolHandle handle{uint32_t(token), uint16_t(token >> 32)};
  if (token & kAccessToken) return on_access_done(handle, status);
  if (!(token & (kWriteToken | kServiceToken))) {
    Delivery* delivery = x_deliveries.find(handle);
    if (!delivery) return;
    if (delivery->device) [[unlikely]]
      return settle_delivery(*delivery, status);
    finish_delivery(*delivery, status);
  } else if (token & kWriteToken) {
    Send* send = x_sends.find(handle);
    if (send && send->one_sided && send->one_sided->way == OneSided::Way::direct &&
        (status == -FI_EBUSY || status == -FI_EOPNOTSUPP)) [[unlikely]]
      retry_direct(*send, status);
    else if (send && send->one_sided)
      finish_send(*send, status);
    else if (send)
      on_write_done(*send, status);
  } else {
    Service* service = x_services.find(handle);
    if (!service) return;
    if (x_config.device_memory) [[unlikely]]
      return settle_service(*service, status);
    finish_service(*service, status);
  }
}

void Engine::on_link_down(transport::Link& link, int status) noexcept {
  Peer* peer = static_cast<Peer*>(link.user);
  if (!peer || x_peers.take_detour(*peer, link, status)) return;
  lose(*peer, &link, status);
}

bool Engine::waits_for(const transport::Link& link) noexcept {
  Peer* peer = static_cast<Peer*>(link.user);
  if (!peer) return false;
  if (peer->sending() || !peer->active.empty()) return true;
  return peer->link == &link && (directed_at(*peer, true) || directed_at(*peer, false));
}

/// A receive that only this peer can satisfy is posted. Looked for, as hardly anyone asks.
bool Engine::directed_at(const Peer& peer, bool tagged) noexcept {
  Matcher& queues = matcher(tagged);
  for (PostedEntry* entry = queues.first_posted(); entry; entry = queues.next_posted(*entry))
    if (entry->source == peer.source) return true;
  return false;
}

}  // namespace erdma::protocol
