#pragma once

#include <cstdint>

#include "transport/verbs/connection_limit.h"
#include "transport/verbs/resources.h"
#include "util/clock.h"
#include "util/fd.h"
#include "util/intrusive_list.h"

namespace erdma::transport::verbs {

class LinkManager;

/// Notices what no completion reports: a peer that is silent or dead; a peer that does not answer a
/// request to give its connection up; and links without a connection for which operations wait.
class Watchdog {
 public:
  Watchdog(Resources& shared, ConnectionLimit& connection_limit, LinkManager& manager,
           const util::Clock& clock) noexcept;

  /// Checks everything if a tick is due.
  void tick(Sink& sink) noexcept;
  /// Requests to retire, and agreements, wait only for the grace time from now on. Returns the
  /// current time.
  uint64_t begin_grace() noexcept;

  /// A link without a connection does not notice the death of its peer. If operations wait for the
  /// peer, the link connects again after a while; at once if `in_doubt`, because the peer may not
  /// know that the connection was given up in agreement.
  void watch(VerbsLink& link, bool in_doubt) noexcept;
  static void forget(VerbsLink& link) noexcept;

  // The timer that ends a sleep in time. It keeps running from sleep to sleep, so that it expires
  // even if messages arrive all the time.
  int open() noexcept;
  int fd() const noexcept { return x_timer.get(); }
  void arm() noexcept;
  /// True: the timer had expired.
  bool disarm() noexcept;
  void abandon() noexcept { x_timer.reset(); }

 private:
  bool has_work() const noexcept {
    return !x_connection_limit.connected().empty() || !x_unconnected.empty() ||
           x_connection_limit.any_waiting();
  }
  void watch_silence(Connection& connection, uint64_t now, Sink& sink) noexcept;
  bool watch_retirement(Connection& connection, uint64_t now, Sink& sink) noexcept;
  void take_back(Connection& connection, Sink& sink) noexcept;
  void watch_unconnected(Sink& sink, uint64_t now) noexcept;

  Resources& x_shared;
  ConnectionLimit& x_connection_limit;
  LinkManager& x_manager;
  const util::Clock& x_clock;
  const uint64_t x_tick_ns;
  /// How long links wait for the answer of a peer that was asked to retire.
  const uint64_t x_grace_ns;
  uint64_t x_tick_in;  ///< the tick or the grace time
  uint64_t x_next_tick = 0;
  util::IntrusiveList<VerbsLink, UnconnectedTag> x_unconnected;
  util::Fd x_timer;
  uint64_t x_timer_ns = 0;  ///< value to which the timer was set; 0 = its expiry was noticed
};

}  // namespace erdma::transport::verbs
