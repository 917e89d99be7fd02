#include "transport/verbs/connection_limit.h"

#include <algorithm>
#include <new>

#include "transport/verbs/connection.h"
#include "transport/verbs/link_manager.h"

namespace erdma::transport::verbs {

void ConnectionLimit::reserve() {
  x_connected.reserve(x_connected.size() + 2);
  x_closing.reserve(x_connected.capacity());
}

void ConnectionLimit::add(Connection& connection, const VerbsLink& link) noexcept {
  x_connected.push_back(&connection);
  connection.sender.used = connection.came_up = x_shared.polls - 1;
  if (link.to_self()) ++x_to_self;
}

void ConnectionLimit::remove(Connection& connection) noexcept {
  std::erase(x_closing, &connection);
  std::erase(x_connected, &connection);
  if (connection.link()->to_self()) --x_to_self;
}

void ConnectionLimit::advance(VerbsLink& link, LinkState to) noexcept {
  const LinkState before = link.advance(to);
  if (before == LinkState::connecting) --x_connecting;
  if (before == LinkState::waiting) std::erase(x_waiting, &link);
  if (to == LinkState::connecting) ++x_connecting;
}

int ConnectionLimit::connect(VerbsLink& link) noexcept try {
  if (taken() < x_shared.options.max_connections) {
    const int rc = request(link);
    return rc ? rc : -FI_EAGAIN;
  }
  x_waiting.push_back(&link);
  advance(link, LinkState::waiting);
  return -FI_EAGAIN;
} catch (const std::bad_alloc&) {
  return -FI_ENOMEM;
}

int ConnectionLimit::request(VerbsLink& link) noexcept {
  const int rc = x_connector->connect(link.address(), ++link.attempt, !link.was_up());
  if (rc) return rc;
  advance(link, LinkState::connecting);
  ++link.counters.connects;
  return 0;
}

int ConnectionLimit::admit(Sink& sink) noexcept {
  int moved = 0;
  for (; any_waiting() && taken() < x_shared.options.max_connections; ++moved) admit_first(sink);
  while (x_retiring + x_closing.size() < x_waiting.size() && retire_one(nullptr)) ++moved;
  return moved;
}

void ConnectionLimit::admit_first(Sink& sink) noexcept {
  VerbsLink& link = *x_waiting.front();
  advance(link, LinkState::idle);
  if (const int rc = request(link)) x_manager.down(link, rc, sink);
}

void ConnectionLimit::admit_overdue(Sink& sink, uint64_t before) noexcept {
  const unsigned limit = x_shared.options.max_connections;
  // half of the spare ids remain for peers that connect here
  const size_t ids = 2 * limit + kSpareIds / 2;
  const size_t most = std::min<size_t>(ids, std::max(limit, x_shared.device.limits().max_qp));
  while (any_waiting() && x_waiting.front()->since <= before && taken() < most) admit_first(sink);
}

bool ConnectionLimit::too_many() const noexcept {
  return x_connected.size() - x_to_self >
         x_shared.options.max_connections + x_retiring + x_closing.size();
}

bool ConnectionLimit::retire_one(const Connection* spared) noexcept {
  Connection* oldest = nullptr;
  for (Connection* connection : x_connected) {
    if (connection == spared || !connection->confirmed() || connection->link()->to_self() ||
        !connection->lifecycle.may_retire(connection->receiver.taken()))
      continue;
    // A new connection that carried no packet may stay until the next tick, because an operation
    // wanted it.
    if (connection->sender.used == connection->came_up && !connection->progress_at) continue;
    if (!oldest || connection->sender.used < oldest->sender.used) oldest = connection;
  }
  if (oldest) oldest->lifecycle.retire();
  return oldest != nullptr;
}

}  // namespace erdma::transport::verbs
