#pragma once

#include "transport/shm/cma_negotiation.h"
#include "transport/shm/connections.h"
#include "transport/shm/quarantine.h"

namespace erdma::transport::shm {

/// Reads the control sockets of channels that are up, and notices when they end. Connector's thread
/// only.
class ControlReader {
 public:
  ControlReader(Connections& connections, CmaNegotiation& negotiation,
                Quarantine& quarantine) noexcept
      : x_connections(connections), x_negotiation(negotiation), x_quarantine(quarantine) {}

  /// The socket is readable. Takes so many messages that other connections have their turn soon.
  /// The caller holds a reference to the connection, here and below.
  void on_readable(Connection& connection) { read(connection, kAtOnce); }
  /// Looks again for the descriptor or the memory that lacked, at the deadline.
  void resume(Connection& connection);
  /// Reads what the peer sent on its other channel before its new greeting: it may have closed that
  /// channel.
  void read_controls(uint64_t nonce);
  void on_exit(uint64_t process);
  /// Nothing told why the socket was closed.
  void on_grace_over(Connection& connection);
  /// A message could not be sent. The peer may have closed the channel.
  void on_unsent(Connection& connection);
  /// The channel is over: tells the peer and the polling thread.
  void lose(Connection& connection, int status);

 private:
  static constexpr unsigned kAtOnce = 32;  ///< messages
  /// More than a socket holds. A forked child of the peer may go on sending.
  static constexpr unsigned kAll = 2048;

  void read(Connection& connection, unsigned most);
  bool must_wait(Connection& connection) noexcept;
  void wait(Connection& connection) noexcept;
  bool map_bulk_memory(Connection& connection);
  bool handle(Connection& connection, const Control& control, util::Fd fd);
  bool handle_mail(Connection& connection, const Control& control, util::Fd fd);
  bool post(Mail mail);
  void report_lost_file(const Connection& connection) noexcept;
  void report_lost_ring(const Connection& connection) noexcept;
  void on_hang_up(Connection& connection);

  Connections& x_connections;
  CmaNegotiation& x_negotiation;
  Quarantine& x_quarantine;
  bool x_lost_file_logged = false;
};

}  // namespace erdma::transport::shm
