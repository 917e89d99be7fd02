#pragma once

#include "transport/shm/cma_negotiation.h"
#include "transport/shm/connections.h"
#include "transport/shm/quarantine.h"

namespace erdma::transport::shm {

/// Reads the control sockets of channels that are up, and notices their end. Connector's thread
/// only.
class ControlReader {
 public:
  ControlReader(Connections& connections, CmaNegotiation& negotiation,
                Quarantine& quarantine) noexcept
      : x_connections(connections), x_negotiation(negotiation), x_quarantine(quarantine) {}

  /// There is something to read. The caller has a share in the connection, here and below.
  void on_readable(Connection& connection);
  /// What a peer said on its other channel came before its new greeting: it may have closed that
  /// one.
  void read_controls(uint64_t nonce);
  void on_exit(uint64_t process);
  /// The channel is over: the peer hears of it, and so does the polling thread.
  void lose(Connection& connection, int status);

 private:
  bool handle(Connection& connection, const Control& control, util::Fd fd);
  bool handle_mail(Connection& connection, const Control& control, util::Fd fd);
  void report_lost_file(const Connection& connection) noexcept;
  void on_hang_up(Connection& connection);

  Connections& x_connections;
  CmaNegotiation& x_negotiation;
  Quarantine& x_quarantine;
  bool x_lost_file_logged = false;
};

}  // namespace erdma::transport::shm
