#pragma once

#include <cstdint>
#include <memory>

#include "transport/endpoint_thread.h"
#include "transport/mailbox.h"
#include "transport/shm/cma_negotiation.h"
#include "transport/shm/connections.h"
#include "transport/shm/control_reader.h"
#include "transport/shm/handshake.h"
#include "transport/shm/listener.h"
#include "transport/shm/quarantine.h"
#include "util/result.h"

namespace erdma::transport::shm {

/// The background thread of one endpoint, and the polling thread's interface to it. It listens,
/// connects, shakes hands, reads control sockets and watches for deaths. It reports to the polling
/// thread by mail only.
class Connector final : private EndpointThread::Work {
 public:
  static util::Result<std::unique_ptr<Connector>> start(const ConnectorConfig& config);
  ~Connector();

  /// In a forked child: closes descriptors. The object is never destroyed afterwards.
  void abandon() noexcept;

  const util::SocketAddress& name() const noexcept { return x_connections.config.name; }
  util::SocketAddress canonical(const util::SocketAddress& address) const noexcept {
    return x_connections.canonical(address);
  }
  /// Polling thread: begins to connect; out_up or out_failed follows by mail.
  int connect(const ConnectRequest& request) noexcept;
  /// Polling thread: the application itself addressed this peer. 0 or -FI_ENOMEM.
  int trust(const util::SocketAddress& peer) noexcept;
  /// Polling thread: says goodbye with `status` and ends the channel. Later mail about it is
  /// ignored.
  void close(const util::Ref<Connection>& connection, int status) noexcept;
  /// Polling thread: accepts no more connections.
  void stop_listening() noexcept;
  /// Where there is no thread (Options::background): handles at most one event in its place. False:
  /// there was none.
  bool step() noexcept { return x_thread.step(); }

 private:
  struct Command {
    enum class Type : uint8_t { connect, trust, close, stop_listening } type;
    ConnectRequest request = {};
    util::Ref<Connection> connection = nullptr;
  };

  explicit Connector(const ConnectorConfig& config);
  void on_commands() override;
  void execute(const Command& command);
  void execute_flags() noexcept;
  void on_closed(Connection& connection) noexcept;
  void on_event(uint64_t event) override;
  void on_readable(Connection& connection);
  void on_time() override;
  uint64_t next_deadline() const noexcept override;

  bool x_abandoned = false;  ///< abandon() was called: the destructor tells no peer
  Connections x_connections;
  Quarantine x_quarantine{x_connections};
  CmaNegotiation x_negotiation{x_connections};
  ControlReader x_control{x_connections, x_negotiation, x_quarantine};
  Handshake x_handshake{x_connections, x_negotiation, x_control, x_quarantine};
  Listener x_listener;
  EndpointThread x_thread;
  Mailbox<Command, util::EventFd> x_commands{x_thread.bell()};
};

}  // namespace erdma::transport::shm
