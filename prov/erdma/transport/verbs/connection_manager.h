#pragma once

#include <cstdint>
#include <string>

#include "transport/verbs/attempt_table.h"
#include "transport/verbs/connection_backend.h"
#include "transport/verbs/connector.h"
#include "transport/verbs/gatekeeper.h"
#include "transport/verbs/hello.h"

namespace erdma::transport::verbs {

/// Decides who gets a connection: hellos, keys, crossings, retries, time limits. Knows how they
/// travel only as ConnectionBackend. Connector's thread only; passive: it is called.
///
/// Two endpoints share one connection. When both begin at once, the attempt of the smaller name
/// stands. A peer that asks although a connection is up has lost its side of it, or was restarted;
/// a request that was merely overtaken is told by its serial. An endpoint that connects to itself
/// has two: one to send, one to receive.
class ConnectionManager final : public BackendEvents {
 public:
  ConnectionManager(const ConnectorConfig& config, uint64_t nonce,
                    ConnectionBackend& backend) noexcept;
  ConnectionManager(const ConnectionManager&) = delete;
  ConnectionManager& operator=(const ConnectionManager&) = delete;

  void connect(const util::SocketAddress& peer, uint64_t token, bool patient);
  void close(uint64_t id, bool orderly) noexcept;
  void stop_listening() noexcept;
  /// Gives back by mail every connection that did not come up, and ends all.
  void finish() noexcept;

  uint64_t next_deadline() const noexcept { return x_table.next_deadline(); }
  void expire();

  // Asynchronous events of the device. Unknown ids and queues are no concern of this endpoint.
  void on_queue_pair_error(uint64_t id, const char* what);
  void on_completion_queue_error(const ibv_cq* queue);
  void on_device_gone();

  void on_reached(uint64_t id) override;
  void on_request(uint64_t id, const util::SocketAddress& from, Bytes hello,
                  const Path& path) override;
  void on_accepted(uint64_t id, Bytes welcome, const Path& path) override;
  void on_refused(uint64_t id, Bytes refusal) override;
  void on_established(uint64_t id) override;
  void on_closed(uint64_t id, int status) override;
  void on_stranger(const util::SocketAddress& from, const char* what, bool harmless) override {
    x_gatekeeper.log(from, what, harmless);
  }

 private:
  // connection_manager.cc: active side, life and death
  void start(Peer& peer);
  int make_connection(Attempt& attempt);
  void ask_for_room() noexcept;
  Hello own_hello(HelloKind kind, Attempt& attempt) noexcept;
  void attempt_failed(Attempt& attempt, int status);
  void attempt_failed(Attempt& attempt, int status, bool retry);
  void try_again(Peer& peer, int status);
  void give_up(Peer& peer, int status) noexcept;
  void go_up(Attempt& attempt);
  void announce(Attempt& attempt);
  void lose(Attempt& attempt, int status) noexcept;
  void discard(Attempt& attempt) noexcept;
  bool self(const Peer& peer) const noexcept { return peer.name == x_config.name; }
  uint8_t own_version() const noexcept { return x_config.options.protocol_version; }
  std::string text_of(Refusal reason, Bytes bytes) const;

  // connection_manager_passive.cc
  Refusal resolve_crossing(Peer& peer, const Hello& hello);
  void accept(uint64_t id, Peer& peer, const Hello& hello);
  uint64_t ended_by(const Peer& peer, const Hello& hello) const noexcept;
  void passive_failed(Attempt& attempt);

  const ConnectorConfig& x_config;  ///< with the name that was bound
  const uint64_t x_nonce;
  ConnectionBackend& x_backend;
  Gatekeeper x_gatekeeper;
  AttemptTable x_table;
  uint32_t x_serial = 0;
  bool x_closing = false;
};

}  // namespace erdma::transport::verbs
