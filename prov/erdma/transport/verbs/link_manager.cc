#include "transport/verbs/link_manager.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "util/log.h"

namespace erdma::transport::verbs {
namespace {

/// How long to wait for completions of a broken connection; a device need not deliver them.
constexpr uint64_t kDrainNs = 20'000'000;
/// At the end of the endpoint: how long to wait for peers to take the goodbye. The rest of
/// Connector::kEndTime is for peers that have not answered.
constexpr uint64_t kGoodbyeNs = 500'000'000;

/// Any order is right that both sides compute in the same way.
bool smaller(const util::SocketAddress& a, const util::SocketAddress& b) noexcept {
  return a.size() != b.size() ? a.size() < b.size() : std::memcmp(a.data(), b.data(), a.size()) < 0;
}

/// True if on_link_down() was due for a link without a connection; it no longer is.
bool take_failed(VerbsLink& link) noexcept {
  util::ListHook<FailedTag>& failed = link;
  if (!failed.linked()) return false;
  failed.unlink();
  return true;
}

}  // namespace

LinkManager::LinkManager(Resources& shared, Worklist& worklist, LinkTable& links,
                         Completions& completions, const util::Clock& clock) noexcept
    : connection_limit(shared, *this),
      watchdog(shared, connection_limit, *this, clock),
      x_shared(shared),
      x_worklist(worklist),
      x_links(links),
      x_completions(completions),
      x_clock(clock) {}

VerbsLink& LinkManager::find_or_make(const util::SocketAddress& address) {
  if (VerbsLink* const found = x_links.find(address)) return *found;
  return x_links.add(std::make_unique<VerbsLink>(x_shared, x_worklist, *this, address,
                                                 address == x_connector->name()));
}

void LinkManager::on_mail(Mail& mail, Sink& sink) {
  switch (mail.type) {
    case Mail::Type::up:
      return x_closed ? drop(mail) : on_up(mail, sink);
    case Mail::Type::failed: {
      const VerbsLink* const link = x_links.find(mail.peer);
      if (link && link->attempt == mail.attempt) attempt_failed(mail, mail.status, sink);
      return;
    }
    case Mail::Type::lost:
      for (Connection* connection : connection_limit.connected())
        if (connection->connection_id == mail.connection_id)
          return break_connection(*connection, mail.status, "it was lost");
      return;
    case Mail::Type::dispose:
    case Mail::Type::leave_open:  // only at the end of the endpoint
      return mail.connection.reset();
    case Mail::Type::crowded:
      // The attempt is retried with backoff, as are others: free one place at a time.
      if (!connection_limit.any_retiring()) connection_limit.retire_one(nullptr);
      return;
  }
}

void LinkManager::drop(Mail& mail) noexcept {
  mail.connection.reset();
  if (mail.connection_id) x_connector->close(mail.connection_id, false);
}

void LinkManager::on_up(Mail& mail, Sink& sink) {
  VerbsLink& link = find_or_make(mail.peer);
  connection_limit.reserve();
  x_completions.reserve(mail.connection->early.size());
  // The peer made a new connection, so it has given up the known one.
  if (Connection* old = link.connection(mail.active)) {
    break_connection(*old, -FI_ECONNRESET, "the peer connected anew");
    if (!take_all(sink)) throw std::bad_alloc();  // what arrived earlier must be delivered first
    finish(*old, sink);
  }
  report_failure(link, sink);
  // A link to this endpoint itself is up once it can send.
  const bool sends = mail.active || !link.to_self();
  if (sends) {
    connection_limit.advance(link, LinkState::idle);
    watchdog.forget(link);
  }
  if (!link.to_self() && !resume(link, mail, sink)) return drop(mail);
  Connection& connection = *mail.connection;
  connection_limit.add(connection, link);
  link.install(std::move(mail.connection));
  if (sends) connection_limit.advance(link, LinkState::up);
  connection.go_up(link, mail, smaller(x_connector->name(), link.address()));
  x_completions.put_first(std::exchange(connection.early, {}));
  end_if_blind(connection, x_shared.queues);
  if (connection_limit.too_many()) connection_limit.retire_one(&connection);
}

/// A link that failed is down before it gets a new connection. Its session ends, so that resume()
/// refuses a connection on which the peer would go on as before.
void LinkManager::report_failure(VerbsLink& link, Sink& sink) noexcept {
  if (!take_failed(link)) return;
  link.session.end();
  connection_limit.advance(link, LinkState::up);  // so that nothing connects it meanwhile
  report_down(link, std::exchange(link.down_status, 0), sink);
  if (!link.connection(true) && !link.connection(false))
    connection_limit.advance(link, LinkState::idle);
}

/// Operations that wait for the peer continue if both sides agreed to that, and fail otherwise.
/// False: both agreed, but this side's agreement has ended since; the peer must learn that.
bool LinkManager::resume(VerbsLink& link, const Mail& mail, Sink& sink) noexcept {
  const bool agreed = mail.resumes && mail.resumes == mail.terms.resumes;
  if (agreed && link.session.claim() != mail.resumes) return false;
  const bool over = !agreed && link.session.claim();
  link.session.end();
  if (!over) return true;
  connection_limit.advance(link, LinkState::up);  // so that nothing connects it meanwhile
  report_down(link, -FI_ECONNRESET, sink);
  return true;
}

void LinkManager::attempt_failed(const Mail& mail, int status, Sink& sink) noexcept {
  VerbsLink* const link = x_links.find(mail.peer);
  if (!link || link->state() != LinkState::connecting) return;
  connection_limit.advance(*link, LinkState::idle);
  down(*link, status, sink);
}

int LinkManager::connect(VerbsLink& link) noexcept {
  if (x_closed) return -FI_ESHUTDOWN;
  const int rc = connection_limit.connect(link);
  if (link.state() == LinkState::waiting) {
    link.since = watchdog.begin_grace();
    x_worklist.attention = true;
  }
  // A sender that waits tries again; nothing else would wake this process for that.
  if (rc == -FI_ENOMEM) x_worklist.attention = true;
  return rc;
}

/// A link to this endpoint itself may have its other half.
void LinkManager::down(VerbsLink& link, int status, Sink& sink) noexcept {
  link.down_status = status;
  Connection* const other = link.connection(false);
  if (!other) return link_is_down(link, false, sink);
  connection_limit.advance(link, LinkState::up);  // so that nothing connects it meanwhile
  // If it is already ending, the status of the attempt is better than that of a loss.
  if (!other->receiver.muted()) other->close_status = 0;
  break_connection(*other, status, "the connection to ourselves failed");
}

void LinkManager::break_connection(Connection& connection, int status, const char* why) noexcept {
  Lifecycle& lifecycle = connection.lifecycle;
  if (lifecycle.phase() == Phase::making) return;
  if (lifecycle.ending()) {
    // An orderly end explains a loss that was noticed first.
    if (status == -FI_ESHUTDOWN && connection.close_status == -FI_ECONNRESET)
      connection.close_status = status;
    if (!connection.close_status) connection.close_status = status;
    return;
  }
  if (status == -FI_ENOMEM && x_shared.device.gone()) status = -FI_ENODEV;
  connection.close_status = status;
  lifecycle.close(connection.receiver.muted());
  if (why && lifecycle.agreement() == Agreement::none && !x_closed)
    ERDMA_WARN(EP_DATA, "closed the connection to %s: %s\n",
               connection.link()->address().to_string().c_str(), why);
  connection_limit.close(connection);
  x_worklist.attention = true;
}

void LinkManager::phase_changed(Connection& connection, Phase before) noexcept {
  const bool retired = before == Phase::retire_due || before == Phase::retire_sent;
  connection_limit.count_retiring(int(connection.lifecycle.retiring()) - int(retired));
  if (connection.lifecycle.retiring() || connection.lifecycle.agrees())
    connection.phase_since = watchdog.begin_grace();
  if (x_closed && connection.lifecycle.phase() == Phase::up) connection.sender.due().add(kDueBye);
}

void LinkManager::on_answer(Connection& connection, bool agreed) noexcept {
  x_worklist.attention = true;
  if (!agreed) return connection.sender.touch();
  connection.orderly = true;
  ++x_shared.counters.reclaimed;
  break_connection(connection, 0, nullptr);
}

bool LinkManager::reopen(Connection& connection) noexcept {
  connection.orderly = false;
  if (connection.lifecycle.phase() == Phase::closing && !connection.close_status) {
    connection_limit.reopen(connection);
    return true;
  }
  if (!connection.close_status) connection.close_status = -FI_ECONNRESET;
  return false;
}

void LinkManager::fail(VerbsLink& link, int status) noexcept {
  bool connected = false;
  for (const bool active : {true, false}) {
    Connection* const connection = link.connection(active);
    if (!connection) continue;
    connected = true;
    connection->receiver.mute();
    connection->lifecycle.void_agreement();
    break_connection(*connection, status, "the protocol's rules are broken");
  }
  if (connected || static_cast<util::ListHook<FailedTag>&>(link).linked()) return;
  x_failed.push_back(link);
  link.down_status = status;
  x_worklist.attention = true;
}

int LinkManager::attend(Sink& sink) noexcept {
  int moved = report_failed(sink);
  for (size_t i = 0; i < connection_limit.closing().size();) {
    Connection& connection = *connection_limit.closing()[i];
    if (is_drained(connection, sink))
      finish(connection, sink), ++moved;  // finish() removes it from the list
    else
      ++i;
  }
  if (connection_limit.any_waiting()) moved += connection_limit.admit(sink);
  watchdog.tick(sink);
  x_worklist.attention =
      !connection_limit.closing().empty() || !x_failed.empty() || !x_worklist.dones.empty();
  return moved;
}

/// The upcalls may fail further links, which the next call reports. An upcall of on_up() may have
/// failed a link that has a connection since.
int LinkManager::report_failed(Sink& sink) noexcept {
  int reported = 0;
  util::IntrusiveList<VerbsLink, FailedTag> now;
  while (VerbsLink* link = x_failed.pop_front()) now.push_back(*link);
  for (; VerbsLink* link = now.pop_front(); ++reported)
    if (link->connection(true) || link->connection(false))
      fail(*link, std::exchange(link->down_status, 0));
    else
      link_is_down(*link, false, sink);
  return reported;
}

/// True if all requests have completed, or will not complete. Takes a moment at most, once there is
/// memory.
bool LinkManager::is_drained(Connection& connection, Sink& sink) noexcept {
  if (connection.lifecycle.phase() != Phase::draining) {
    connection.modify_to_error();
    connection.close_deadline = x_clock.now() + kDrainNs;
    return false;
  }
  return connection.sender.queue().outstanding() + connection.receiver.outstanding() == 0 ||
         (x_clock.now() >= connection.close_deadline && take_all(sink));
}

/// What arrived before the end of a connection is still delivered. The queues may never be empty,
/// because other connections keep receiving, so the number of polls is limited.
bool LinkManager::take_all(Sink& sink) noexcept {
  for (uint32_t left = x_completions.polls_for_all(); left > 0 && poll(sink); --left) {
  }
  return !x_completions.any();
}

/// From here on the device touches no memory for this connection, whether or not it reported that.
void LinkManager::finish(Connection& connection, Sink& sink) noexcept {
  VerbsLink& link = *connection.link();
  const Agreement agreement = connection.lifecycle.agreement();
  const int status = connection.close_status ? connection.close_status : -FI_ECONNRESET;
  // This was the half that only receives, of a link to this endpoint itself. The attempt to connect
  // tells whether the link is down, unless the protocol failed it.
  const bool only_receives = link.to_self() && !connection.active &&
                             link.state() != LinkState::up && !connection.receiver.muted();
  connection_limit.remove(connection);
  x_completions.forget(connection.id);
  const std::unique_ptr<Connection> owned = link.remove(connection);
  if (agreement == Agreement::none && !only_receives) link.down_status = status;
  connection.end(sink, status);
  x_worklist.feed();  // the blocks of the connection are free
  x_worklist.forget(connection);
  x_connector->close(connection.connection_id, connection.orderly);
  for (const bool active : {true, false})
    if (Connection* other = link.connection(active))
      return break_connection(*other, status, nullptr);
  if (!only_receives) link_is_down(link, agreement == Agreement::doubtful, sink);
}

void LinkManager::link_is_down(VerbsLink& link, bool in_doubt, Sink& sink) noexcept {
  connection_limit.advance(link, LinkState::idle);
  watchdog.forget(link);
  x_worklist.attention = true;
  const int status = std::exchange(link.down_status, 0);
  (void)take_failed(link);  // the upcall that was due comes now, and may fail the link again
  if (!status) return watchdog.watch(link, in_doubt);
  link.session.end();
  report_down(link, status, sink);
}

void LinkManager::report_down(VerbsLink& link, int status, Sink& sink) noexcept {
  ERDMA_INFO(EP_CTRL, "link to %s is down: %s\n", link.address().to_string().c_str(),
             fi_strerror(-status));
  sink.on_link_down(link, status);
}

void LinkManager::say_goodbye() noexcept {
  x_closed = true;
  NullSink nobody;
  const util::SystemClock clock;
  const uint64_t begin = clock.now();
  const uint64_t end = begin + std::min(kGoodbyeNs, x_shared.options.peer_timeout_ns);
  x_connector->end_by(begin + Connector::kEndTime);
  for (Connection* connection : connection_limit.connected()) {
    connection->lifecycle.stay();
    if (connection->lifecycle.phase() == Phase::up) connection->sender.due().add(kDueBye);
  }
  while (!goodbyes_said() && clock.now() < end) {
    const int moved = poll(nobody);
    x_worklist.progress();
    if (!moved) sched_yield();
  }
  for (Connection* connection : connection_limit.connected()) connection->modify_to_error();
  while (!connection_limit.connected().empty()) {
    Connection& connection = *connection_limit.connected().back();
    connection.orderly = true;
    finish(connection, nobody);
  }
  x_links.for_each([&](VerbsLink& link) { connection_limit.advance(link, LinkState::closed); });
}

bool LinkManager::goodbyes_said() noexcept {
  bool said = true;
  for (Connection* connection : connection_limit.connected()) {
    Lifecycle& lifecycle = connection->lifecycle;
    // This side sent nothing to a peer that it has not heard from.
    if (lifecycle.ending() || !connection->confirmed()) continue;
    said = lifecycle.phase() != Phase::up && lifecycle.fenced() && said;
  }
  return said;
}

}  // namespace erdma::transport::verbs
