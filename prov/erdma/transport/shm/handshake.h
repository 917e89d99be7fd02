#pragma once

#include "transport/shm/cma_negotiation.h"
#include "transport/shm/connections.h"
#include "transport/shm/control_reader.h"
#include "transport/shm/quarantine.h"
#include "transport/shm/unix_socket.h"

namespace erdma::transport::shm {

/// Sets up a channel: connect, hello, welcome. Everything received is checked; a stranger costs one
/// log line. Connector's thread only.
class Handshake {
 public:
  Handshake(Connections& connections, CmaNegotiation& negotiation, ControlReader& control,
            const Quarantine& quarantine) noexcept
      : x_connections(connections),
        x_negotiation(negotiation),
        x_control(control),
        x_quarantine(quarantine) {}

  /// Begins to connect, over `socket` if it already leads to the address. The caller holds a
  /// reference to the connection, here and below.
  void begin(const ConnectRequest& request, util::Fd socket = {});
  /// Tells the waiting link.
  void fail(const ConnectRequest& request, int status);
  void on_hello(Connection& connection);
  void on_welcome(Connection& connection);
  void on_deadline(Connection& connection);
  /// Memory ran out and the message that was read is lost: tells the side that waits, the link or
  /// the peer.
  void give_up(Connection& connection);

 private:
  void connect_back(const util::SocketAddress& peer, util::Fd socket);
  void try_connect(Connection& connection);
  void connect_once(Connection& connection);
  void retry_or_fail(Connection& connection, int status, uint64_t patience);
  void fail(Connection& connection, int status);
  void accept_hello(Connection& connection, const Greeting& theirs);
  bool send_welcome(Connection& connection);
  uint64_t most_wait_for_room() const noexcept;
  void refuse(Connection& connection, const char* why);
  void turn_away(Connection& connection, int error, const char* why);
  void refuse_silently(Connection& connection);
  void send_refusal(Connection& connection) noexcept;
  int check_name(Connection& connection, const util::SocketAddress& name, uint64_t nonce,
                 util::Fd& back);
  void accept_welcome(Connection& connection);
  void await_room(Connection& connection, int lack);
  void post_up(Mail mail) noexcept;
  uint64_t now() const noexcept { return x_connections.config.clock->now(); }

  Connections& x_connections;
  CmaNegotiation& x_negotiation;
  ControlReader& x_control;
  const Quarantine& x_quarantine;
};

}  // namespace erdma::transport::shm
