#include "protocol/peers.h"

#include <new>

#include <rdma/fi_errno.h>

#include "protocol/shared_receives.h"
#include "util/log.h"

namespace erdma::protocol {
namespace {

constexpr uint64_t kNoAddress = UINT64_MAX;

}  // namespace

void Peers::set_own_name(const util::SocketAddress& name) noexcept {
  x_own_name = &name;
  for (Peer* const peer : x_peers) peer->itself = peer->address == name;
}

util::SocketAddress Peers::address_of(uint64_t fi_addr) const noexcept {
  return fi_addr == kNoAddress ? util::SocketAddress() : x_book.address_of(fi_addr);
}

int Peers::refusal(uint64_t fi_addr) const noexcept {
  return address_of(fi_addr).set() ? -FI_ENOMEM : -FI_EINVAL;
}

Peer* Peers::resolve(uint64_t fi_addr) noexcept try {
  const util::SocketAddress address = address_of(fi_addr);
  if (!address.set()) return nullptr;
  Peer& peer = named(address);
  x_table.set(fi_addr, &peer);
  peer.addressed = true;
  if (peer.link) peer.link->addressed();
  return &peer;
} catch (const std::bad_alloc&) {
  return nullptr;
}

Peer& Peers::named(const util::SocketAddress& address) {
  if (Peer* const known = x_peers.find(address)) return *known;
  auto peer = std::make_unique<Peer>(address);
  peer->fi_addr = x_book.fi_addr_of(address);
  peer->receives = &x_receives;
  if (x_shared) peer->source = &x_shared->source_named(address);
  peer->itself = x_own_name && address == *x_own_name;
  return x_peers.add(std::move(peer));
}

/// Makes or finds the peer of a link that the other side opened. Sends stay on the link that they
/// use already, which keeps their order. If that link never came up, they move to the new one.
Peer& Peers::adopt(transport::Link& link) {
  Peer& peer = named(link.address());
  if (!peer.link || !peer.link->was_up()) use_link(peer, link);
  link.user = &peer;
  return peer;
}

namespace {

/// Revokes the memory of queued sends. It was shared over the link that the peer leaves, and the
/// keys are not valid on another link.
void take_back_keys(Peer& peer) noexcept {
  for (Send* send = peer.queued.front(); send; send = peer.queued.next(*send)) {
    if (send->state != Send::State::queued || !send->remote_key.size) continue;
    peer.link->revoke(send->remote_key);
    send->remote_key.size = 0;
  }
}

}  // namespace

void Peers::use_link(Peer& peer, transport::Link& link) noexcept {
  if (peer.link && peer.link != &link) take_back_keys(peer);
  if (peer.link) peer.link->user = nullptr;
  peer.link = &link;
  link.user = &peer;
  if (peer.addressed) link.addressed();
  peer.update_direct();
}

int Peers::connect(Peer& peer) noexcept {
  if (peer.link) return 0;
  util::Result<transport::Link*> link = x_router.route(peer.address);
  if (!link) {
    if (!peer.unreachable_logged)
      ERDMA_NOTICE(peer_lost, EP_CTRL, "%s cannot be reached from this endpoint: %s",
                   peer.address.to_string().c_str(), fi_strerror(-link.error()));
    peer.unreachable_logged = true;
    return link.error();
  }
  use_link(peer, **link);
  return 0;
}

void Peers::address_inserted(const util::SocketAddress& address) noexcept {
  if (Peer* const peer = x_peers.find(address)) peer->fi_addr = x_book.fi_addr_of(address);
}

void Peers::address_removed(uint64_t fi_addr, const util::SocketAddress& address) noexcept {
  x_table.erase(fi_addr);
  if (x_shared) x_shared->address_removed(fi_addr);
  // Not by x_table: it lacks the peers to which this endpoint has sent nothing.
  if (Peer* const peer = x_peers.find(address)) peer->fi_addr = x_book.fi_addr_of(address);
}

void Peers::backlog(Peer& peer) noexcept {
  peer.direct = false;
  auto& hook = static_cast<util::ListHook<BacklogTag>&>(peer);
  if (!hook.linked()) x_backlog.push_back(peer);
}

bool Peers::take_fallback(Peer& peer, transport::Link& failed, int status) noexcept {
  if (peer.link != &failed || failed.was_up()) return false;
  transport::Link* other = x_router.fallback(peer.address, status);
  if (!other || other == &failed) return false;
  use_link(peer, *other);
  return true;
}

bool Peers::reach(Peer& peer) noexcept {
  if (peer.failing) return false;
  const int connected = connect(peer);
  if (connected != 0) x_loss.lose(peer, nullptr, connected);
  return connected == 0;
}

}  // namespace erdma::protocol
