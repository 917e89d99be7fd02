#pragma once

#include "transport/shm/connections.h"

namespace erdma::transport::shm {

/// Inbound channels that are over. The sender may not know that yet and still write into its ring
/// and its control words. So the place stays reserved until the sender has shut down its socket,
/// which its polling thread does after its last write, or until its pidfd says that it is dead.
/// Meanwhile nothing is read from the socket. See docs/architecture.md, "Reuse". Connector's thread
/// only.
class Quarantine {
 public:
  explicit Quarantine(Connections& connections) noexcept : x_connections(connections) {}

  /// The polling thread was told that the channel is over, and still looks into its ring.
  void begin(Connection& connection) noexcept;
  /// The polling thread no longer touches the ring.
  void on_closed(Connection& connection) noexcept;
  /// The event may be left over from before: only the socket itself is reliable.
  void on_event(Connection& connection) noexcept;
  /// Watches for the end of the sender. Sets a deadline to try again if the kernel lacks memory.
  void watch(Connection& connection) noexcept;
  /// The sender writes no more.
  void on_sender_done(Connection& connection) noexcept;
  /// True if so many connections of this name are not closed that it is refused further ones.
  bool at_limit(const util::SocketAddress& name) const noexcept;

 private:
  Connections& x_connections;
};

}  // namespace erdma::transport::shm
