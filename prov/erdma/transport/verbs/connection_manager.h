#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "transport/verbs/connection_backend.h"
#include "transport/verbs/connector.h"
#include "transport/verbs/deadlines.h"
#include "transport/verbs/hello.h"
#include "transport/verbs/job_key.h"
#include "util/rate_limit.h"

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

  uint64_t next_deadline() const noexcept;
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
  void on_stranger(const util::SocketAddress& from, const char* what, bool harmless) override;

 private:
  enum class Stage : uint8_t {
    reaching,   ///< active: on the way to on_reached()
    requested,  ///< active: hello sent
    accepting,  ///< passive: welcome sent
    up,         ///< the polling thread has the connection
    lost,       ///< likewise, and was told that it is dead: waits for close()
  };
  struct Peer;
  struct Attempt {
    uint64_t id = 0;
    Peer* peer = nullptr;  ///< null when lost
    Stage stage = Stage::reaching;
    bool active = false;
    uint32_t serial = 0;  ///< of our own hello or welcome
    uint32_t peer_serial = 0;
    uint64_t resumes = 0;  ///< as our own terms say
    uint64_t session = 0;  ///< up: what both ends call it
    uint64_t deadline = 0;
    Mac hello_mac{};                         ///< active: of our hello, which the welcome must know
    Terms terms;                             ///< the peer's
    std::unique_ptr<Connection> connection;  ///< until it is up
    const ibv_cq* send_queue = nullptr;      ///< to compare only
    const ibv_cq* receive_queue = nullptr;
  };
  struct Peer {
    explicit Peer(const util::SocketAddress& a_name) noexcept : name(a_name) {}
    util::SocketAddress name;
    Attempt* active = nullptr;   ///< not lost
    Attempt* passive = nullptr;  ///< not lost
    uint64_t deadline = 0;       ///< when to try again
    // What connect() asked for, while `wanted`.
    bool wanted = false;
    bool patient = false;
    uint64_t token = 0;
    uint64_t give_up = 0;
    uint64_t backoff = 0;
    uint16_t answer = 0;  ///< to its challenge
  };

  // connection_manager.cc: active side, life and death
  Peer& peer_of(const util::SocketAddress& name);
  void forget_if_idle(Peer& peer) noexcept;
  Attempt& add(uint64_t id, Peer& peer, bool active);
  Attempt* find(uint64_t id, Stage stage) noexcept;
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
  void detach(Attempt& attempt) noexcept;
  bool self(const Peer& peer) const noexcept { return peer.name == x_config.name; }
  uint8_t own_version() const noexcept { return x_config.options.protocol_version; }
  std::string text_of(Refusal reason, Bytes bytes) const;

  // connection_manager_passive.cc
  Refusal judge(const util::SocketAddress& from, Bytes bytes, const Path& path, Hello& hello);
  Refusal resolve_crossing(Peer& peer, const Hello& hello);
  bool stale(const Attempt& attempt, const Hello& hello) const noexcept;
  void accept(uint64_t id, Peer& peer, const Hello& hello);
  uint64_t ended_by(const Peer& peer, const Hello& hello) const noexcept;
  uint16_t challenge(const Peer& peer, uint64_t session) const noexcept;
  bool too_many_of(const util::SocketAddress& name) const noexcept;
  void passive_failed(Attempt& attempt);

  const ConnectorConfig& x_config;  ///< with the name that was bound
  const uint64_t x_nonce;
  ConnectionBackend& x_backend;
  const JobKey x_key;
  const JobKey x_secret;  ///< nobody else's: for challenges
  uint32_t x_serial = 0;
  bool x_closing = false;
  util::RateLimit x_strangers;
  std::unordered_map<uint64_t, Attempt> x_attempts;
  std::unordered_map<util::SocketAddress, Peer, util::SocketAddressHash> x_peers;
  Deadlines<Attempt> x_requests;   ///< active, neither up nor lost
  Deadlines<Attempt> x_accepting;  ///< passive, oldest first
  Deadlines<Peer> x_retries;
};

}  // namespace erdma::transport::verbs
