#pragma once

#include "transport/verbs/completions.h"
#include "transport/verbs/connection_limit.h"
#include "transport/verbs/connector.h"
#include "transport/verbs/link_table.h"
#include "transport/verbs/watchdog.h"
#include "transport/verbs/worklist.h"

namespace erdma::transport::verbs {

/// Brings links up as the connector reports connections, and down as connections end. Polling
/// thread only.
class LinkManager {
 public:
  LinkManager(Resources& shared, Worklist& worklist, LinkTable& links, Completions& completions,
              const util::Clock& clock) noexcept;
  void start(Connector& connector) noexcept {
    x_connector = &connector;
    connection_limit.start(connector);
  }

  VerbsLink& find_or_make(const util::SocketAddress& address);
  /// Throws std::bad_alloc; the caller then calls it again.
  void on_mail(Mail& mail, Sink& sink);
  /// Ends connections that are due to end, and connects waiting links. Returns the number of steps.
  int attend(Sink& sink) noexcept;
  /// Hands completions to their connections. Returns their number.
  int poll(Sink& sink) noexcept {
    bool broken = false;
    const int moved = x_completions.poll(sink, broken);
    if (broken) [[unlikely]]
      for (Connection* connection : connection_limit.connected())
        end_if_blind(*connection, x_shared.queues);
    return moved;
  }
  /// Makes sure that everything that send() accepted has arrived at the peers that are alive: a
  /// READ behind it proves that without their help. Then ends all connections.
  void say_goodbye() noexcept;

  // For connections, links and the watchdog.
  /// Takes all completions that are in the queues now. False: some lacked memory.
  bool take_all(Sink& sink) noexcept;
  /// Ends the connection in a later poll().
  void break_connection(Connection& connection, int status, const char* why) noexcept;
  void phase_changed(Connection& connection, Phase before) noexcept;
  /// The peer answered this side's request to give the connection up.
  void on_answer(Connection& connection, bool agreed) noexcept;
  /// See LifecycleHost::reopen().
  bool reopen(Connection& connection) noexcept;
  /// Never 0; -FI_EAGAIN = the link is being connected.
  int connect(VerbsLink& link) noexcept;
  /// The attempt to connect a link failed.
  void down(VerbsLink& link, int status, Sink& sink) noexcept;
  /// See Link::fail().
  void fail(VerbsLink& link, int status) noexcept;

  ConnectionLimit connection_limit;
  Watchdog watchdog;

 private:
  void on_up(Mail& mail, Sink& sink);
  bool resume(VerbsLink& link, const Mail& mail, Sink& sink) noexcept;
  void attempt_failed(const Mail& mail, int status, Sink& sink) noexcept;
  void drop(Mail& mail) noexcept;
  int report_failed(Sink& sink) noexcept;
  void report_failure(VerbsLink& link, Sink& sink) noexcept;
  bool is_drained(Connection& connection, Sink& sink) noexcept;
  void finish(Connection& connection, Sink& sink) noexcept;
  void link_is_down(VerbsLink& link, bool in_doubt, Sink& sink) noexcept;
  void report_down(VerbsLink& link, int status, Sink& sink) noexcept;
  bool goodbyes_said() noexcept;

  Resources& x_shared;
  Worklist& x_worklist;
  LinkTable& x_links;
  Completions& x_completions;
  const util::Clock& x_clock;
  Connector* x_connector = nullptr;
  util::IntrusiveList<VerbsLink, FailedTag> x_failed;
  bool x_closed = false;
};

}  // namespace erdma::transport::verbs
