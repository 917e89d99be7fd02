#include <sched.h>

#include <algorithm>
#include <utility>

#include "transport/verbs/core.h"
#include "util/log.h"

/// How connections end, and how the death of a peer is noticed.
namespace erdma::transport::verbs {
namespace {

/// How long completions of a broken connection are waited for; a device need not deliver them.
constexpr uint64_t kDrainNs = 20'000'000;
constexpr uint64_t kGoodbyeNs = 1'000'000'000;

struct Nobody final : Sink {
  void on_packet(Link&, const std::byte*, const std::byte*, size_t) noexcept override {}
  void on_done(uint64_t, int) noexcept override {}
  void on_link_down(Link&, int) noexcept override {}
};

}  // namespace

void Core::break_connection(Connection& connection, int status, const char* why) noexcept {
  if (connection.lifecycle.phase() == Phase::making) return;
  if (connection.lifecycle.ending()) {
    // An orderly end explains a loss that was noticed first.
    if (status == -FI_ESHUTDOWN && connection.close_status == -FI_ECONNRESET)
      connection.close_status = status;
    return;
  }
  VerbsLink& link = *connection.link();
  connection.close_status = status;
  connection.close();
  const bool agreed = connection.lifecycle.agreement() != Agreement::none;
  if (why && !agreed && !x_closed)
    ERDMA_WARN(EP_DATA, "closed the connection to %s: %s\n", link.address().to_string().c_str(),
               why);
  x_closing.push_back(&connection);  // has room for all that are up
  x_attention = true;
}

void Core::fail_unconnected(VerbsLink& link, int status) noexcept try {
  if (std::find(x_failed.begin(), x_failed.end(), &link) != x_failed.end()) return;
  x_failed.push_back(&link);
  link.down_status = status;
  link.down_silently = false;
  x_attention = true;
} catch (const std::bad_alloc&) {
  ERDMA_WARN(EP_DATA, "out of memory: %s stays up\n", link.address().to_string().c_str());
}

int Core::close_broken(Sink& sink) noexcept {
  int moved = 0;
  for (size_t i = 0; i < x_closing.size();) {
    Connection& connection = *x_closing[i];
    if (!is_drained(connection)) {
      ++i;
      continue;
    }
    finish(connection, sink);  // takes it out of the list
    ++moved;
  }
  return moved;
}

/// Everything came back, or will not come. Takes a moment at most.
bool Core::is_drained(Connection& connection) noexcept {
  if (connection.lifecycle.phase() != Phase::draining) {
    connection.modify_to_error();
    connection.close_deadline = x_clock->now() + kDrainNs;
    return false;
  }
  return connection.outstanding() == 0 || x_clock->now() >= connection.close_deadline;
}

/// From here on the device touches no memory for this connection, whether it said so or not.
void Core::finish(Connection& connection, Sink& sink) noexcept {
  VerbsLink& link = *connection.link();
  const int status = connection.close_status;
  std::erase(x_closing, &connection);
  std::erase(x_connected, &connection);
  if (link.to_self()) --x_to_self;
  std::erase(x_starved, &connection);
  const std::unique_ptr<Connection> owned = link.remove(connection);
  const Agreement agreement = connection.lifecycle.agreement();
  if (agreement == Agreement::none) {
    link.down_status = status;
    link.down_silently = false;
  }
  link.in_doubt = agreement == Agreement::doubtful;
  connection.end(sink, status ? status : -FI_ECONNRESET);
  feed_starved();  // its blocks are free
  auto& hook = static_cast<util::ListHook<DirtyTag>&>(connection);
  if (hook.linked()) hook.unlink();
  x_connector->close(connection.connection_id, connection.orderly);
  for (const bool active : {true, false})
    if (Connection* other = link.connection(active))
      return break_connection(*other, status, nullptr);
  link_is_down(link, sink);
}

void Core::link_is_down(VerbsLink& link, Sink& sink) noexcept {
  leave_connecting(link);
  x_attention = true;
  const bool silently = std::exchange(link.down_silently, true);
  if (silently) return watch_for(link);
  link.session.end();
  report_down(link, link.down_status, sink);
}

void Core::report_down(VerbsLink& link, int status, Sink& sink) noexcept {
  ERDMA_INFO(EP_CTRL, "link to %s is down: %s\n", link.address().to_string().c_str(),
             fi_strerror(-status));
  sink.on_link_down(link, status);
}

/// A link without a connection does not notice that its peer dies. Where operations wait for the
/// peer, it is connected again after a while; at once where the peer may not know that the
/// connection was given up in agreement.
void Core::watch_for(VerbsLink& link) noexcept try {
  link.idle_since = x_clock->now() - (link.in_doubt ? x_shared.options.peer_timeout_ns : 0);
  x_unwatched.push_back(&link);
} catch (const std::bad_alloc&) {
  (void)connect(link);
}

void Core::tick(Sink& sink, uint64_t now) noexcept {
  bool in_grace = false;
  for (Connection* connection : x_connected) {
    watch(*connection, now);
    in_grace = in_grace || connection->lifecycle.retiring() || connection->lifecycle.agrees();
  }
  watch_given_up(sink, now);
  admit_overdue(sink, now);
  x_tick_in = in_grace || !x_waiting.empty() ? x_grace_ns : x_tick_ns;
  x_next_tick = now + x_tick_in;
  // Peers that were asked to retire may be busy with something else.
  if (!x_waiting.empty() || too_many()) retire_one(nullptr);
}

/// Operations may wait for them at any time, also for what they will never send.
void Core::watch_given_up(Sink& sink, uint64_t now) noexcept {
  size_t connects = x_shared.options.max_connections / 8 + 1;  // others need places, too
  for (size_t i = 0; i < x_unwatched.size() && connects > 0; ++i) {
    VerbsLink& link = *x_unwatched[i];
    if (link.state != VerbsLink::State::idle) continue;
    if (now - link.idle_since < x_shared.options.peer_timeout_ns / 2) continue;
    link.idle_since = now;
    if (!sink.waits_for(link)) continue;
    (void)connect(link);
    --connects;
  }
}

/// A peer that does not answer may compute, and so may one that has our consent; it has had time to
/// see that, or to take its request back. True: the connection ends.
bool Core::watch_retirement(Connection& connection, uint64_t now) noexcept {
  Lifecycle& lifecycle = connection.lifecycle;
  const uint64_t patience = lifecycle.agrees() ? 4 * x_grace_ns : x_grace_ns;
  if (now - connection.phase_since < patience) return false;
  if (lifecycle.retiring()) {
    if (!lifecycle.take_back()) return false;
    lifecycle.unanswered(connection.heard());
    x_attention = true;
    return false;
  }
  if (!lifecycle.proven()) return false;
  connection.orderly = true;
  break_connection(connection, 0, nullptr);
  return true;
}

void Core::watch(Connection& connection, uint64_t now) noexcept {
  if (connection.lifecycle.ending() || watch_retirement(connection, now)) return;
  if (connection.completions != connection.seen_completions || !connection.progress_at) {
    connection.seen_completions = connection.completions;
    connection.progress_at = now;
    return;
  }
  const uint64_t silent = now - connection.progress_at;
  const bool too_long = silent >= x_shared.options.peer_timeout_ns;
  const bool stuck = !connection.met() || connection.heartbeat.pending() ||
                     connection.sender.refused_last() || !connection.sender.queue().room();
  if (too_long && stuck)
    return break_connection(connection, -FI_ETIMEDOUT,
                            "no sign of life; FI_ERDMA_PEER_TIMEOUT says how long to wait");
  if (silent >= x_shared.options.peer_timeout_ns / 3) connection.post_heartbeat();
}

/// Everything that send() took has arrived, as far as peers live: a READ behind it proves that
/// without their help. Then all connections end.
void Core::say_goodbye() noexcept {
  Nobody nobody;
  const util::SystemClock clock;
  const uint64_t end = clock.now() + std::min(kGoodbyeNs, x_shared.options.peer_timeout_ns);
  if (x_shared.chain.owner) x_shared.chain.owner->flush_chain();
  for (Connection* connection : x_connected) {
    connection->lifecycle.stay();
    if (connection->lifecycle.phase() == Phase::up) connection->sender.due(kDueBye);
  }
  while (!goodbyes_said() && clock.now() < end) {
    const int moved = poll_queues(nobody);
    settle_dirty();
    if (!moved) sched_yield();
  }
  for (Connection* connection : x_connected) connection->modify_to_error();
  while (!x_connected.empty()) {
    Connection& connection = *x_connected.back();
    connection.orderly = true;
    finish(connection, nobody);
  }
  for (const auto& [address, link] : x_links) link->state = VerbsLink::State::closed;
  x_closing.clear();
}

bool Core::goodbyes_said() noexcept {
  bool said = true;
  for (Connection* connection : x_connected) {
    Lifecycle& lifecycle = connection->lifecycle;
    if (lifecycle.ending() || !connection->met()) continue;  // never heard of: nothing was sent
    said = lifecycle.phase() != Phase::up && lifecycle.fenced() && said;
  }
  return said;
}

}  // namespace erdma::transport::verbs
