#pragma once

#include <cstdint>
#include <vector>

#include "transport/verbs/places.h"
#include "transport/verbs/resources.h"
#include "util/clock.h"
#include "util/fd.h"

namespace erdma::transport::verbs {

class LinkManager;

/// Notices what no completion tells: a peer that is silent, or dead; one that does not answer a
/// request to give its connection up; and links without a connection for which somebody waits.
class Watchdog {
 public:
  Watchdog(Resources& shared, Places& places, LinkManager& manager,
           const util::Clock& clock) noexcept;

  /// Looks, if it is time.
  void tick(Sink& sink) noexcept;
  /// Who asked a peer, or agreed, waits only for a grace from now on. Returns now.
  uint64_t begin_grace() noexcept;

  /// A link without a connection does not notice that its peer dies. Where operations wait for the
  /// peer, it is connected again after a while; at once if `in_doubt`, as the peer may not know
  /// that the connection was given up in agreement.
  void watch(VerbsLink& link, bool in_doubt) noexcept;
  void forget(VerbsLink& link) noexcept { std::erase(x_unconnected, &link); }

  // The timer, which ends a sleep in time. It runs on from sleep to sleep, so that it ends although
  // messages arrive all the time.
  int open() noexcept;
  int fd() const noexcept { return x_timer.get(); }
  void arm() noexcept;
  /// True: it ended.
  bool disarm() noexcept;
  void abandon() noexcept { x_timer.reset(); }

 private:
  bool has_work() const noexcept {
    return !x_places.connected().empty() || !x_unconnected.empty() || x_places.any_waiting();
  }
  void watch_silence(Connection& connection, uint64_t now) noexcept;
  bool watch_retirement(Connection& connection, uint64_t now, Sink& sink) noexcept;
  void take_back(Connection& connection, Sink& sink) noexcept;
  void watch_unconnected(Sink& sink, uint64_t now) noexcept;

  Resources& x_shared;
  Places& x_places;
  LinkManager& x_manager;
  const util::Clock& x_clock;
  const uint64_t x_tick_ns;
  const uint64_t x_grace_ns;  ///< how long others wait for the answer of who is asked to retire
  uint64_t x_tick_in;         ///< one of both
  uint64_t x_next_tick = 0;
  std::vector<VerbsLink*> x_unconnected;  ///< gave up their connection: nobody sees a death
  util::Fd x_timer;
  uint64_t x_timer_ns = 0;  ///< for which the timer was set; 0 = its end was noticed
};

}  // namespace erdma::transport::verbs
