#pragma once

#include <cstdint>

#include "transport/verbs/async_events.h"
#include "transport/verbs/attempt_table.h"
#include "transport/verbs/connection_backend.h"
#include "transport/verbs/connector.h"
#include "transport/verbs/hello.h"
#include "transport/verbs/hello_checker.h"

namespace erdma::transport::verbs {

/// Makes connections: attempts, crossings, retries, time limits. HelloChecker knows what hellos
/// say, and ConnectionBackend how they travel. Connector's thread only; passive: others call it.
///
/// Two endpoints share one connection. When both begin at once, the attempt of the smaller name
/// stands. A peer that asks although a connection is up has lost its side of it, or was restarted.
/// A request that was merely overtaken is recognized by its serial number. An endpoint that
/// connects to itself has two connections: one to send, one to receive.
class ConnectionManager final : public BackendEvents {
 public:
  ConnectionManager(const ConnectorConfig& config, uint64_t nonce, ConnectionBackend& backend);
  /// Strands the connections that the back end still holds.
  ~ConnectionManager();
  ConnectionManager(const ConnectionManager&) = delete;
  ConnectionManager& operator=(const ConnectionManager&) = delete;

  void connect(const util::SocketAddress& peer, uint64_t token, bool retry_refused);
  void close(uint64_t id, bool orderly) noexcept;
  void stop_listening() noexcept;
  /// Returns by mail every connection that did not come up, and ends all others. True: the back end
  /// holds some connections, which follow when it releases them.
  bool finish() noexcept;

  uint64_t next_deadline() const noexcept { return x_table.next_deadline(); }
  void expire();

  /// Handles an asynchronous event. Unknown ids and queues belong to other endpoints.
  void on_device_event(const DeviceEvent& event);

  void on_reached(uint64_t id) override;
  void on_request(uint64_t id, const util::SocketAddress& from, Bytes hello,
                  const Path& path) override;
  void on_accepted(uint64_t id, Bytes welcome, const Path& path) override;
  void on_refused(uint64_t id, Bytes refusal) override;
  void on_established(uint64_t id) override;
  void on_closed(uint64_t id, int status) override;
  void on_stranger(const util::SocketAddress& from, const char* what, bool harmless) override {
    x_hello_checker.log(from, what, harmless);
  }

 private:
  void start(Peer& peer);
  int make_connection(Attempt& attempt, Path& path);
  void accept(uint64_t id, Peer& peer, const Hello& hello);
  void attempt_failed(Attempt& attempt, int status);
  void attempt_failed(Attempt& attempt, int status, bool retry);
  void passive_failed(Peer& peer, Attempt* attempt) noexcept;
  void try_again(Peer& peer, int status) noexcept;
  void give_up(Peer& peer, int status) noexcept;
  void go_up(Attempt& attempt);
  void lose(Attempt& attempt, int status) noexcept;
  void discard(Attempt& attempt) noexcept;

  const ConnectorConfig& x_config;  ///< with the name that was bound
  ConnectionBackend& x_backend;
  HelloChecker x_hello_checker;
  AttemptTable x_table;
  size_t x_held = 0;
  bool x_any_connected = false;  ///< some peer was reached, so this host's mode matches theirs
  bool x_closing = false;
};

}  // namespace erdma::transport::verbs
