#include "transport/verbs/attempt_table.h"

#include <algorithm>
#include <new>
#include <utility>

#include "transport/guarded.h"

namespace erdma::transport::verbs {

bool same_ip(const util::SocketAddress& a, const util::SocketAddress& b) noexcept {
  util::SocketAddress left = a;
  left.set_port(b.port());
  return name_bytes(left) == name_bytes(b);
}

Peer& AttemptTable::peer_of(const util::SocketAddress& name) {
  const auto [found, made] = x_peers.try_emplace(name, name);
  if (!made || retries.add(found->second)) return found->second;
  x_peers.erase(found);
  throw std::bad_alloc();
}

void AttemptTable::forget_if_idle(Peer& peer) noexcept {
  if (peer.active || peer.passive || peer.wanted || peer.held) return;
  retries.remove(peer);
  x_peers.erase(x_peers.find(peer.name));
}

Attempt* AttemptTable::add(uint64_t id, Peer& peer, bool active) noexcept try {
  Attempt& attempt = x_attempts[id];
  attempt.active = active;
  if (!deadlines(attempt).add(attempt)) {
    x_attempts.erase(id);
    throw std::bad_alloc();
  }
  attempt.id = id;
  attempt.peer = &peer;
  attempt.stage = active ? Attempt::Stage::reaching : Attempt::Stage::accepting;
  (active ? peer.active : peer.passive) = &attempt;
  return &attempt;
} catch (const std::bad_alloc&) {
  say_out_of_memory("connecting");
  return nullptr;
}

Attempt* AttemptTable::find(uint64_t id) noexcept {
  const auto found = x_attempts.find(id);
  return found == x_attempts.end() ? nullptr : &found->second;
}

Attempt* AttemptTable::find(uint64_t id, Attempt::Stage stage) noexcept {
  Attempt* const attempt = find(id);
  return attempt && attempt->stage == stage ? attempt : nullptr;
}

Attempt* AttemptTable::any_but(Attempt::Stage stage) noexcept {
  for (auto& [id, attempt] : x_attempts)
    if (attempt.stage != stage) return &attempt;
  return nullptr;
}

void AttemptTable::detach(Attempt& attempt) noexcept {
  Peer* peer = std::exchange(attempt.peer, nullptr);
  if (!peer) return;
  if (peer->active == &attempt) peer->active = nullptr;
  if (peer->passive == &attempt) peer->passive = nullptr;
}

void AttemptTable::erase(Attempt& attempt) noexcept {
  const uint64_t id = attempt.id;
  deadlines(attempt).remove(attempt);
  detach(attempt);
  x_attempts.erase(id);
}

size_t AttemptTable::accepted_from(const util::SocketAddress& name) const noexcept {
  size_t count = 0;
  for (const auto& [id, attempt] : x_attempts)
    count += attempt.peer && !attempt.active && attempt.stage == Attempt::Stage::up &&
             same_ip(attempt.peer->name, name);
  return count;
}

uint64_t AttemptTable::next_deadline() const noexcept {
  return std::min({requests.next(), accepting.next(), retries.next()});
}

}  // namespace erdma::transport::verbs
