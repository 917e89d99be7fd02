#include <algorithm>
#include <new>
#include <utility>

#include "transport/verbs/core.h"
#include "util/log.h"

/// Connections that come and go: what the connector reports, and the limit on their number.
namespace erdma::transport::verbs {

int Core::read_mail(Sink& sink) noexcept {
  std::vector<Mail> mails = x_mailbox.take();
  for (Mail& mail : mails) {
    try {
      open_mail(mail, sink);
    } catch (const std::bad_alloc&) {
      ERDMA_WARN(EP_CTRL, "out of memory: a connection is dropped\n");
      drop(std::move(mail.connection), mail.connection_id);
      if (mail.type == Mail::Type::up) attempt_failed(mail.peer, -FI_ENOMEM, sink);
    }
  }
  return int(mails.size());
}

void Core::open_mail(Mail& mail, Sink& sink) {
  switch (mail.type) {
    case Mail::Type::up:
      if (x_closed) return drop(std::move(mail.connection), mail.connection_id);
      return on_up(mail, sink);
    case Mail::Type::failed:
      return on_failed(mail, sink);
    case Mail::Type::lost:
      return on_lost(mail);
    case Mail::Type::dispose:
      return drop(std::move(mail.connection), 0);
    case Mail::Type::crowded:
      // It comes again with backoff, and others meanwhile: one place at a time.
      if (!x_retiring) retire_one(nullptr);
      return;
  }
}

void Core::drop(std::unique_ptr<Connection> connection, uint64_t connection_id) noexcept {
  connection.reset();
  if (connection_id) x_connector->close(connection_id, false);
}

void Core::on_up(Mail& mail, Sink& sink) {
  VerbsLink& link = find_or_make(mail.peer);
  x_connected.reserve(x_connected.size() + 2);
  x_closing.reserve(x_connected.capacity());
  x_stash.reserve(64);
  // The peer made a new one: it has given up the one that we know.
  if (Connection* old = link.connection(mail.active)) {
    break_connection(*old, -FI_ECONNRESET, "the peer connected anew");
    poll_queues(sink);  // what arrived before comes first
    finish(*old, sink);
  }
  if (mail.active || !link.to_self()) leave_connecting(link);
  if (!link.to_self() && !resume(link, mail, sink))
    return drop(std::move(mail.connection), mail.connection_id);
  Connection& connection = *mail.connection;
  connection.go_up(link, mail);
  x_connected.push_back(&connection);
  connection.sender.used = connection.came_up = x_shared.polls - 1;
  if (link.to_self()) ++x_to_self;
  link.install(std::move(mail.connection));
  connection.take_early(sink);
  if (too_many()) retire_one(&connection);
}

/// What waited for the peer goes on if both sides said so, and ends else. False: they did, and it
/// did not last until now; the peer has to learn that.
bool Core::resume(VerbsLink& link, const Mail& mail, Sink& sink) noexcept {
  const bool agreed = mail.resumes && mail.resumes == mail.terms.resumes;
  if (agreed && link.session.claim() != mail.resumes) return false;
  const bool over = !agreed && link.session.claim();
  link.session.end();
  if (!over) return true;
  link.state = VerbsLink::State::up;  // nobody is to connect it meanwhile
  report_down(link, -FI_ECONNRESET, sink);
  return true;
}

/// Its attempt is over, one way or another.
void Core::leave_connecting(VerbsLink& link) noexcept {
  if (link.state == VerbsLink::State::connecting) --x_connecting;
  if (link.state == VerbsLink::State::waiting) std::erase(x_waiting, &link);
  if (link.state != VerbsLink::State::closed) link.state = VerbsLink::State::idle;
  std::erase(x_unwatched, &link);
}

void Core::on_failed(const Mail& mail, Sink& sink) {
  const auto found = x_links.find(mail.peer);
  if (found != x_links.end() && found->second->attempt == mail.attempt)
    attempt_failed(mail.peer, mail.status, sink);
}

void Core::attempt_failed(const util::SocketAddress& peer, int status, Sink& sink) noexcept {
  const auto found = x_links.find(peer);
  if (found == x_links.end()) return;
  VerbsLink& link = *found->second;
  if (link.state != VerbsLink::State::connecting) return;
  leave_connecting(link);
  down(link, status, sink);
}

/// A link whose attempt failed; to ourselves, the other half may exist.
void Core::down(VerbsLink& link, int status, Sink& sink) noexcept {
  link.down_status = status;
  link.down_silently = false;
  if (Connection* other = link.connection(false))
    break_connection(*other, status, "the connection to ourselves failed");
  else
    link_is_down(link, sink);
}

void Core::on_lost(const Mail& mail) noexcept {
  for (Connection* connection : x_connected)
    if (connection->connection_id == mail.connection_id)
      return break_connection(*connection, mail.status, "it was lost");
}

int Core::connect(VerbsLink& link) noexcept try {
  if (x_closed) return -FI_ESHUTDOWN;
  if (to_others() + x_connecting < x_shared.options.max_connections) {
    const int rc = request(link);
    return rc ? rc : -FI_EAGAIN;
  }
  x_waiting.push_back(&link);
  link.state = VerbsLink::State::waiting;
  link.waiting_since = begin_grace();
  x_attention = true;
  return -FI_EAGAIN;
} catch (const std::bad_alloc&) {
  return -FI_ENOMEM;
}

int Core::request(VerbsLink& link) noexcept {
  const int rc = x_connector->connect(link.address(), ++link.attempt, !link.met());
  if (rc) return rc;
  link.state = VerbsLink::State::connecting;
  ++x_connecting;
  ++x_shared.counters.connects;
  return 0;
}

/// Connects the links that wait for it, as far as there are places; and makes places.
int Core::admit_waiting(Sink& sink) noexcept {
  int moved = 0;
  for (; !x_waiting.empty() && to_others() + x_connecting < x_shared.options.max_connections;
       ++moved)
    admit_first(sink);
  while (x_retiring + x_closing.size() < x_waiting.size() && retire_one(nullptr)) ++moved;
  return moved;
}

void Core::admit_first(Sink& sink) noexcept {
  VerbsLink& link = *x_waiting.front();
  x_waiting.erase(x_waiting.begin());
  link.state = VerbsLink::State::idle;
  if (const int rc = request(link)) down(link, rc, sink);
}

/// The peers that were asked to retire may compute: nobody waits for that longer than a moment, as
/// long as there is anything to connect with.
void Core::admit_overdue(Sink& sink, uint64_t now) noexcept {
  const size_t reserve = kSpareIds / 2;  // for who connects to us
  const size_t ids = 2 * x_shared.options.max_connections + kSpareIds - reserve;
  const size_t most = std::min<size_t>(
      ids, std::max(x_shared.options.max_connections, x_shared.device.limits().max_qp));
  while (!x_waiting.empty() && now - x_waiting.front()->waiting_since >= x_grace_ns &&
         to_others() + x_connecting < most)
    admit_first(sink);
}

/// Asks the peer of the least recently used connection to give it up, among those that answered the
/// last time. False: there is none.
bool Core::retire_one(const Connection* spared) noexcept {
  Connection* oldest = nullptr;
  for (Connection* connection : x_connected) {
    if (connection == spared || !connection->may_retire()) continue;
    // Somebody wanted it: he has until the next tick to use it.
    if (connection->sender.used == connection->came_up && !connection->progress_at) continue;
    if (!oldest || connection->sender.used < oldest->sender.used) oldest = connection;
  }
  if (!oldest) return false;
  oldest->lifecycle.retire();
  return true;
}

/// The peer agreed, and everything that either side sent has arrived.
void Core::retired(Connection& connection) noexcept {
  connection.orderly = true;
  ++x_shared.counters.reclaimed;
  break_connection(connection, 0, nullptr);
}

uint64_t Core::begin_grace() noexcept {
  const uint64_t now = x_clock->now();
  x_tick_in = x_grace_ns;
  x_next_tick = std::min(x_next_tick, now + x_grace_ns);
  return now;
}

}  // namespace erdma::transport::verbs
