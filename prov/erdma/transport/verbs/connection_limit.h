#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/verbs/connector.h"
#include "transport/verbs/link.h"
#include "transport/verbs/resources.h"

namespace erdma::transport::verbs {

class LinkManager;

/// The limit on connections (FI_ERDMA_MAX_CONNECTIONS): which links have one, which wait for a
/// place, and which peer is asked to give up its place. The connection of an endpoint to itself
/// does not count, because it cannot be given up.
class ConnectionLimit {
 public:
  /// The limit may be exceeded for a while, by connections that peers make and by incomplete ones.
  static constexpr uint32_t kSpareIds = 256;

  ConnectionLimit(Resources& shared, LinkManager& manager) noexcept
      : x_shared(shared), x_manager(manager) {}
  void start(Connector& connector) noexcept { x_connector = &connector; }

  const std::vector<Connection*>& connected() const noexcept { return x_connected; }
  const std::vector<Connection*>& closing() const noexcept { return x_closing; }
  bool any_waiting() const noexcept { return !x_waiting.empty(); }

  /// Makes room for one more connection, so that add() and close() cannot fail.
  void reserve();
  /// `link` owns the connection.
  void add(Connection& connection, const VerbsLink& link) noexcept;
  void close(Connection& connection) noexcept { x_closing.push_back(&connection); }
  void reopen(Connection& connection) noexcept { std::erase(x_closing, &connection); }
  void remove(Connection& connection) noexcept;
  void count_retiring(int change) noexcept { x_retiring = unsigned(int(x_retiring) + change); }

  /// Asks the connector for a connection, or lets the link wait for a place. -FI_EAGAIN, or another
  /// error.
  int connect(VerbsLink& link) noexcept;
  /// Changes the state of a link, and counts it in its new state.
  void advance(VerbsLink& link, LinkState to) noexcept;
  /// Connects waiting links as far as there are places, and asks peers to give up places. Returns
  /// the number of steps.
  int admit(Sink& sink) noexcept;
  /// Connects links that have waited since `before`, even above the limit, as long as ids remain:
  /// the peers that were asked to retire may be computing, and no link waits for them longer than a
  /// moment.
  void admit_overdue(Sink& sink, uint64_t before) noexcept;

  /// True if there are more connections than the limit, without those that a peer was asked to give
  /// up.
  bool too_many() const noexcept;
  bool any_retiring() const noexcept { return x_retiring > 0; }
  /// Asks the peer of the least recently used connection to give it up, considering only peers that
  /// answered the last request. False: there is none.
  bool retire_one(const Connection* spared) noexcept;

 private:
  size_t taken() const noexcept { return x_connected.size() - x_to_self + x_connecting; }
  int request(VerbsLink& link) noexcept;
  void admit_first(Sink& sink) noexcept;

  Resources& x_shared;
  LinkManager& x_manager;
  Connector* x_connector = nullptr;
  std::vector<Connection*> x_connected;  ///< all connections that links own
  std::vector<Connection*> x_closing;    ///< a subset of them
  std::vector<VerbsLink*> x_waiting;     ///< the first has waited longest
  unsigned x_to_self = 0;                ///< how many of x_connected
  unsigned x_connecting = 0;
  unsigned x_retiring = 0;
};

}  // namespace erdma::transport::verbs
