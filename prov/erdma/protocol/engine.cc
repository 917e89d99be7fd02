#include "protocol/engine.h"

#include <algorithm>
#include <cstring>

#include <rdma/fi_errno.h>

#include "util/log.h"

namespace erdma::protocol {
namespace {

constexpr uint64_t kNoAddress = UINT64_MAX;

}  // namespace

Engine::Engine(const EngineConfig& config, AddressBook& book, Router& router,
               std::vector<transport::Transport*> transports, CompletionSink& sent,
               CompletionSink& received, SharedReceives* shared)
    : x_config(config),
      x_book(book),
      x_router(router),
      x_transports(std::move(transports)),
      x_sent(sent),
      x_received(received),
      x_own(received),
      x_shared(shared),
      x_queues(shared ? &shared->queues() : &x_own) {
  if (shared) shared->join(*this, book);
}

Engine::~Engine() = default;

void Engine::enable_one_sided(const OneSidedSetup& setup) noexcept {
  x_one_sided_setup = &setup;
  for (auto& [address, peer] : x_peers) peer->itself = address == setup.name;
}

// --- peers --------------------------------------------------------------------------------------

Peer* Engine::resolve(uint64_t fi_addr) noexcept try {
  if (fi_addr == kNoAddress) return nullptr;
  const util::SocketAddress address = x_book.address_of(fi_addr);
  if (!address.set()) return nullptr;
  Peer* peer = peer_named(address);
  if (!peer) return nullptr;
  x_table.set(fi_addr, peer);
  peer->addressed = true;
  if (peer->link) peer->link->addressed();
  return peer;
} catch (const std::bad_alloc&) {
  return nullptr;
}

Peer* Engine::peer_named(const util::SocketAddress& address) noexcept try {
  const auto found = x_peers.find(address);
  if (found != x_peers.end()) return found->second.get();
  auto peer = std::make_unique<Peer>(address);
  peer->fi_addr = x_book.fi_addr_of(address);
  peer->engine = this;
  if (x_shared) peer->source = x_shared->source_named(address);
  if (!peer->source) return nullptr;
  peer->itself = x_one_sided_setup && address == x_one_sided_setup->name;
  return x_peers.emplace(address, std::move(peer)).first->second.get();
} catch (const std::bad_alloc&) {
  return nullptr;
}

/// The peer behind a link that was opened from the other side. What we send keeps to its own link,
/// for the sake of order, unless that was never up: where the peer could not come, we won't.
Peer* Engine::adopt(transport::Link& link) noexcept {
  Peer* peer = peer_named(link.address());
  if (!peer) return nullptr;
  if (!peer->link || !peer->link->met()) use_link(*peer, link);
  link.user = peer;
  return peer;
}

void Engine::use_link(Peer& peer, transport::Link& link) noexcept {
  if (peer.link) peer.link->user = nullptr;
  peer.link = &link;
  link.user = &peer;
  if (peer.addressed) link.addressed();
  peer.update_direct();
}

int Engine::connect(Peer& peer) noexcept {
  if (peer.link) return 0;
  util::Result<transport::Link*> link = x_router.route(peer.address);
  if (!link) {
    if (!peer.unreachable_logged)
      ERDMA_NOTICE(peer_lost, EP_CTRL, "%s cannot be reached from this endpoint: %s\n",
                   peer.address.to_string().c_str(), fi_strerror(-link.error()));
    peer.unreachable_logged = true;
    return link.error();
  }
  use_link(peer, **link);
  return 0;
}

void Engine::address_inserted(const util::SocketAddress& address) noexcept {
  const auto found = x_peers.find(address);
  if (found != x_peers.end()) found->second->fi_addr = x_book.fi_addr_of(address);
}

void Engine::address_removed(uint64_t fi_addr, const util::SocketAddress& address) noexcept {
  x_table.erase(fi_addr);
  if (x_shared) x_shared->address_removed(fi_addr);
  // Not by x_table: a peer that only ever sent to us is not in it.
  const auto found = x_peers.find(address);
  if (found == x_peers.end()) return;
  found->second->fi_addr = x_book.fi_addr_of(address);
}

// --- progress -----------------------------------------------------------------------------------

int Engine::progress() noexcept {
  x_sends_since_progress = 0;
  int steps = 0;
  for (transport::Transport* transport : x_transports) steps += transport->poll(*this);
  if (x_backlog.empty()) [[likely]]
    return steps;
  for (Peer* peer = x_backlog.front(); peer;) {
    Peer* next = x_backlog.next(*peer);
    steps += work_off(*peer);
    peer = next;
  }
  return steps;
}

void Engine::backlog(Peer& peer) noexcept {
  peer.direct = false;
  auto& hook = static_cast<util::ListHook<BacklogTag>&>(peer);
  if (!hook.linked()) x_backlog.push_back(peer);
}

/// Controls first: they free memory and credits at the other side.
int Engine::work_off(Peer& peer) noexcept {
  const bool room =
      flush_controls(peer) && flush_deliveries(peer) && flush_services(peer) && flush_sends(peer);
  const int spared = peer.retractable > 0 ? mind_retractable(peer) : 0;
  if (peer.backlogged()) return spared + (room && peer.waiting() ? 1 : 0);
  util::IntrusiveList<Peer, BacklogTag>::erase(peer);
  peer.update_direct();
  return 1;
}

bool Engine::owes() noexcept {
  if (x_injected > 0) return true;
  for (Peer* peer = x_backlog.front(); peer; peer = x_backlog.next(*peer))
    if (!peer->controls.empty()) return true;
  return false;
}

bool Engine::has_packets() noexcept {
  for (Peer* peer = x_backlog.front(); peer; peer = x_backlog.next(*peer)) {
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
  if (!peer || take_detour(*peer, link, status)) return;
  fail_link(*peer, &link, status);
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

// --- control packets ----------------------------------------------------------------------------

namespace {

/// What may wait for room. A peer is owed an answer for each of its at most 65536 operations in
/// flight (FI_ERDMA_TX_SIZE) and for those of a connection before, and is told of each region that
/// it has been granted.
constexpr uint32_t kMostControls = 2 * 65536 + Grants::kMost;

int try_control(transport::Link& link, const Control& control) noexcept {
  transport::Header header;
  std::memcpy(&header, &control.header, sizeof(header));
  const iovec payload{const_cast<std::byte*>(control.exposure.bytes), control.exposure.size};
  return link.send(header, &payload, control.exposure.size ? 1 : 0, control.exposure.size,
                   transport::SendHint::none);
}

}  // namespace

void Engine::send_control(Peer& peer, const wire::ControlHeader& header,
                          const transport::Exposure* exposure) noexcept {
  if (peer.failing) return;
  const int connected = connect(peer);
  if (connected != 0) return fail_link(peer, nullptr, connected);
  if (peer.controls_kept >= kMostControls) return too_many_controls(peer);
  Control* control = x_controls.acquire();
  if (!control) return peer.link->fail(-FI_ENOMEM);
  control->header = header;
  if (exposure) control->exposure = *exposure;
  if (peer.controls.empty() && try_control(*peer.link, *control) == 0) {
    if (header.op == wire::Op::budget) budget_sent(peer, header.status != 0);
    return x_controls.release(*control);
  }
  peer.controls.push_back(*control);
  ++peer.controls_kept;
  backlog(peer);
}

/// The link goes, and with it what waits: said once, as more may ask until then.
void Engine::too_many_controls(Peer& peer) noexcept {
  if (!peer.takes_no_controls) protocol_violation(*peer.link, "requests, but takes no answers");
  peer.takes_no_controls = true;
}

/// False when the link is full.
bool Engine::flush_controls(Peer& peer) noexcept {
  while (Control* control = peer.controls.front()) {
    const int rc = try_control(*peer.link, *control);
    if (rc == -FI_EAGAIN) return false;
    if (!rc && control->header.op == wire::Op::budget)
      budget_sent(peer, control->header.status != 0);
    // Any other failure is the link's: on_link_down() follows and settles what waits for it.
    util::IntrusiveList<Control>::erase(*control);
    --peer.controls_kept;
    x_controls.release(*control);
  }
  return true;
}

}  // namespace erdma::protocol
