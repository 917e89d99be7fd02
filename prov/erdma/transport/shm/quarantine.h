#pragma once

#include "transport/shm/connections.h"

namespace erdma::transport::shm {

/// Inbound channels that are over. The sender of one may not know it yet and write into its ring
/// and its control words; so the place stays its own until it has shut its socket down, which its
/// polling thread does after its last write, or is dead, as its pidfd says. Nothing is read from
/// the socket meanwhile. docs/architecture.md, "Reuse". Connector's thread only.
class Quarantine {
 public:
  explicit Quarantine(Connections& connections) noexcept : x_connections(connections) {}

  /// The polling thread was told that the channel is over, and still looks into its ring.
  void begin(Connection& connection) noexcept;
  /// The polling thread touches its ring no more.
  void on_closed(Connection& connection) noexcept;
  /// The event may be one from before: only the socket itself tells.
  void on_event(Connection& connection) noexcept;
  /// The sender writes no more.
  void on_sender_done(Connection& connection) noexcept;
  /// So many connections of this name are not closed that it gets no more.
  bool crowded(const util::SocketAddress& name) const noexcept;

 private:
  Connections& x_connections;
};

}  // namespace erdma::transport::shm
