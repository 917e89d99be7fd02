#include <algorithm>
#include <cstring>
#include <span>
#include <string>

#include <rdma/fi_errno.h>

#include "transport/verbs/connection_manager.h"
#include "util/log.h"

namespace erdma::transport::verbs {
namespace {

/// Connections that we accepted and whose other side has not confirmed. Those that come later push
/// out the oldest: an honest peer confirms within a round trip.
constexpr size_t kMaxAccepting = 256;
constexpr uint64_t kConfirmTime = 10'000'000'000;
/// More than the limit on connections: half of the places that a Core has.
constexpr size_t kPlacesOfOneHost = 128;

/// Only a host knows the scope of its addresses: both names are of the same link.
util::SocketAddress with_scope_of(const util::SocketAddress& own, const util::SocketAddress& name) {
  if (name.family() != AF_INET6 || own.family() != AF_INET6) return name;
  sockaddr_in6 address;
  std::memcpy(&address, name.data(), sizeof(address));
  if (IN6_IS_ADDR_LINKLOCAL(&address.sin6_addr))
    address.sin6_scope_id = reinterpret_cast<const sockaddr_in6*>(own.data())->sin6_scope_id;
  return util::SocketAddress::from_sockaddr(&address, sizeof(address));
}

/// Whether a request was made before the hello or welcome that we know of its sender.
bool stale(const Attempt& attempt, const Hello& hello) noexcept {
  const bool known = attempt.terms.nonce == hello.terms.nonce &&
                     (!attempt.active || attempt.stage == Attempt::Stage::up);
  return known && int32_t(hello.serial - attempt.peer_serial) <= 0;
}

}  // namespace

void ConnectionManager::on_request(uint64_t id, const util::SocketAddress& from, Bytes bytes,
                                   const Path& path) {
  Hello hello;
  Refusal reason = x_closing ? Refusal::closing : x_gatekeeper.judge(from, bytes, path, hello);
  if (reason == Refusal::none) {
    const util::SocketAddress name = with_scope_of(x_config.name, hello.terms.name);
    hello.terms.name = name;
    Peer& peer = x_table.peer_of(name);
    reason = resolve_crossing(peer, hello);
    if (reason == Refusal::none) return accept(id, peer, hello);
    ERDMA_DEBUG(EP_CTRL, "%s is refused: %s\n", name.to_string().c_str(), refusal_text(reason));
    if (reason == Refusal::replay) {
      HelloPrefix prefix = encode_prefix(HelloKind::challenge);
      prefix.argument = x_gatekeeper.challenge(peer.name, ended_by(peer, hello));
      x_backend.refuse(id, prefix);
      return x_table.forget_if_idle(peer);
    }
    if (reason == Refusal::busy) ask_for_room();
    x_table.forget_if_idle(peer);
  }
  x_backend.refuse(id, encode_prefix(HelloKind::refusal, reason, own_version()));
}

/// What would be over if the request were taken for what it says: a live connection, or one that
/// was given up and is to be continued. 0 = nothing.
uint64_t ConnectionManager::ended_by(const Peer& peer, const Hello& hello) const noexcept {
  const uint64_t continues = x_config.factory->continues(peer.name);
  if (self(peer) || (continues && hello.terms.resumes == continues)) return 0;
  for (const Attempt* attempt : {peer.passive, peer.active})
    if (attempt && attempt->stage == Attempt::Stage::up) return attempt->session;
  return continues;
}

/// Makes room for a request, or says why it must go. After Refusal::none the peer has no passive
/// attempt, and no active one unless it is ourselves.
Refusal ConnectionManager::resolve_crossing(Peer& peer, const Hello& hello) {
  for (Attempt* attempt : {peer.passive, peer.active}) {
    if (!attempt || (attempt->active && self(peer))) continue;
    if (stale(*attempt, hello)) return Refusal::stale;
    if (attempt->stage == Attempt::Stage::requested &&
        name_bytes(x_config.name) < name_bytes(hello.terms.name))
      return Refusal::use_mine;
  }
  const uint64_t ended = ended_by(peer, hello);
  if (ended && hello.answer != x_gatekeeper.challenge(peer.name, ended)) return Refusal::replay;
  // One host alone is not to have all places: its names are as many as it likes.
  if (!peer.passive && !self(peer) &&
      x_table.accepted_from(peer.name) >= x_config.options.max_connections + kPlacesOfOneHost)
    return Refusal::busy;
  // From here on the request is the newest that both sides have.
  for (Attempt* attempt : {peer.passive, peer.active}) {
    if (!attempt || (attempt->active && self(peer))) continue;
    if (attempt->stage == Attempt::Stage::up)
      lose(*attempt, -FI_ECONNRESET);
    else
      discard(*attempt);
  }
  return Refusal::none;
}

void ConnectionManager::accept(uint64_t id, Peer& peer, const Hello& hello) {
  if (x_table.accepting.size() >= kMaxAccepting) passive_failed(*x_table.accepting.first());
  Attempt& attempt = x_table.add(id, peer, false);
  attempt.terms = hello.terms;
  attempt.peer_serial = hello.serial;
  x_table.time_out(
      attempt, x_config.clock->now() + std::min(kConfirmTime, x_config.options.connect_timeout_ns));
  int rc = make_connection(attempt);
  if (!rc) {
    const HelloBytes welcome = encode(own_hello(HelloKind::welcome, attempt), x_gatekeeper.key(),
                                      x_backend.path(id), std::as_bytes(std::span(hello.mac)));
    rc = x_backend.accept(id, welcome);
  }
  if (!rc) return;
  x_backend.refuse(id, encode_prefix(HelloKind::refusal, Refusal::busy));
  passive_failed(attempt);
  if (rc == -FI_ENOMEM) ask_for_room();
}

void ConnectionManager::on_established(uint64_t id) {
  if (Attempt* attempt = x_table.find(id, Attempt::Stage::accepting)) go_up(*attempt);
}

void ConnectionManager::passive_failed(Attempt& attempt) {
  Peer& peer = *attempt.peer;
  discard(attempt);
  // It stood for our own attempt.
  if (peer.wanted && !peer.active && !peer.deadline) return try_again(peer, -FI_ECONNRESET);
  x_table.forget_if_idle(peer);
}

}  // namespace erdma::transport::verbs
