#include "transport/verbs/watchdog.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>

#include "transport/verbs/connection.h"
#include "transport/verbs/link_manager.h"

namespace erdma::transport::verbs {
namespace {

constexpr uint64_t kGraceNs = 50'000'000;
constexpr uint64_t kSecond = 1'000'000'000;

}  // namespace

Watchdog::Watchdog(Resources& shared, ConnectionLimit& connection_limit, LinkManager& manager,
                   const util::Clock& clock) noexcept
    : x_shared(shared),
      x_connection_limit(connection_limit),
      x_manager(manager),
      x_clock(clock),
      x_tick_ns(shared.options.tick_ns()),
      x_grace_ns(std::min(x_tick_ns, kGraceNs)),
      x_tick_in(x_tick_ns) {}

int Watchdog::open() noexcept {
  x_timer.reset(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  return x_timer ? 0 : -errno;
}

void Watchdog::arm() noexcept {
  if (!has_work() || (x_timer_ns && x_tick_in >= x_timer_ns)) return;
  const itimerspec when{{}, {time_t(x_tick_in / kSecond), long(x_tick_in % kSecond)}};
  if (!timerfd_settime(x_timer.get(), 0, &when, nullptr)) x_timer_ns = x_tick_in;
}

bool Watchdog::disarm() noexcept {
  uint64_t count = 0;
  if (!x_timer_ns || read(x_timer.get(), &count, sizeof(count)) <= 0) return false;
  x_timer_ns = 0;
  return true;
}

uint64_t Watchdog::begin_grace() noexcept {
  const uint64_t now = x_clock.now();
  x_tick_in = x_grace_ns;
  x_next_tick = std::min(x_next_tick, now + x_grace_ns);
  return now;
}

void Watchdog::tick(Sink& sink) noexcept {
  if (!has_work()) return;
  const uint64_t now = x_clock.now();
  if (now < x_next_tick) return;
  for (Connection* connection : x_connection_limit.connected())
    if (!connection->lifecycle.ending() && !watch_retirement(*connection, now, sink))
      watch_silence(*connection, now, sink);
  const bool in_grace = std::any_of(  // checking one connection may change the phase of another
      x_connection_limit.connected().begin(), x_connection_limit.connected().end(),
      [](const Connection* connection) {
        return connection->lifecycle.retiring() || connection->lifecycle.agrees();
      });
  watch_unconnected(sink, now);
  x_connection_limit.admit_overdue(sink, now - x_grace_ns);
  x_tick_in = in_grace || x_connection_limit.any_waiting() ? x_grace_ns : x_tick_ns;
  x_next_tick = now + x_tick_in;
  // The peers that were asked to retire may be busy.
  if (x_connection_limit.any_waiting() || x_connection_limit.too_many())
    x_connection_limit.retire_one(nullptr);
}

/// The peer's consent may have arrived since the queues were last polled, which may be long ago,
/// and the peer may have ended the connection on that basis.
void Watchdog::take_back(Connection& connection, Sink& sink) noexcept {
  if (!x_manager.take_all(sink)) return;  // the next tick tries again
  Lifecycle& lifecycle = connection.lifecycle;
  if (lifecycle.retiring() && lifecycle.take_back())
    lifecycle.unanswered(connection.receiver.taken());
}

/// A peer that does not answer may be computing, and so may a peer that has this side's consent;
/// the latter has had time to see that, or to take its request back. True: the connection ends.
bool Watchdog::watch_retirement(Connection& connection, uint64_t now, Sink& sink) noexcept {
  Lifecycle& lifecycle = connection.lifecycle;
  const uint64_t patience = lifecycle.agrees() ? 4 * x_grace_ns : x_grace_ns;
  if (now < connection.phase_since + patience) return false;
  if (lifecycle.retiring()) {
    take_back(connection, sink);
    return lifecycle.ending();
  }
  if (!lifecycle.proven()) return false;
  connection.orderly = true;
  x_manager.break_connection(connection, 0, nullptr);
  return true;
}

/// This process may have been stopped for a while, in which it asked for no sign of life and took
/// none from the queues. So a heartbeat has two thirds of the timeout, however late it was posted,
/// and the queues are emptied before the end.
void Watchdog::watch_silence(Connection& connection, uint64_t now, Sink& sink) noexcept {
  const uint64_t timeout = x_shared.options.peer_timeout_ns;
  if (connection.completions != connection.seen_completions || !connection.progress_at) {
    connection.seen_completions = connection.completions;
    connection.progress_at = now;
    connection.stuck_since = 0;
  }
  const uint64_t silent = now - connection.progress_at;
  if (connection.confirmed() && silent >= timeout / 3) connection.heartbeat.post();
  const bool stuck = !connection.confirmed() || connection.heartbeat.pending() ||
                     connection.sender.refused_last() || !connection.sender.queue().room();
  if (!stuck)
    connection.stuck_since = 0;
  else if (!connection.stuck_since)
    connection.stuck_since = now;
  // A tick less, because a heartbeat that was posted a tick late must not delay the end further.
  if (!stuck || silent < timeout || now - connection.stuck_since + x_tick_ns < timeout / 3 * 2)
    return;
  const bool all_taken = x_manager.take_all(sink);  // if not, the next tick tries again
  if (all_taken && connection.completions == connection.seen_completions)
    x_manager.break_connection(connection, -FI_ETIMEDOUT,
                               "no sign of life; FI_ERDMA_PEER_TIMEOUT says how long to wait");
}

void Watchdog::watch(VerbsLink& link, bool in_doubt) noexcept {
  link.since = x_clock.now() - (in_doubt ? x_shared.options.peer_timeout_ns : 0);
  x_unconnected.push_back(link);
}

void Watchdog::forget(VerbsLink& link) noexcept {
  util::ListHook<UnconnectedTag>& hook = link;
  if (hook.linked()) hook.unlink();
}

/// Operations may wait for these peers at any time, even for a message that they will never send.
void Watchdog::watch_unconnected(Sink& sink, uint64_t now) noexcept {
  size_t connects = x_shared.options.max_connections / 8 + 1;  // other links need places, too
  for (VerbsLink* link = x_unconnected.front(); link && connects > 0;
       link = x_unconnected.next(*link)) {
    if (link->state() != LinkState::idle) continue;
    if (now - link->since < x_shared.options.peer_timeout_ns / 2) continue;
    link->since = now;
    if (!sink.waits_for(*link)) continue;
    (void)x_manager.connect(*link);
    --connects;
  }
}

}  // namespace erdma::transport::verbs
