#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>

#include "transport/verbs/connector.h"
#include "transport/verbs/deadlines.h"
#include "transport/verbs/hello.h"
#include "transport/verbs/job_key.h"

namespace erdma::transport::verbs {

struct Peer;

/// A connection, or an attempt to make one.
struct Attempt {
  enum class Stage : uint8_t {
    reaching,   ///< active: until on_reached()
    requested,  ///< active: hello sent
    accepting,  ///< passive: welcome sent
    up,         ///< the polling thread has the connection
    lost,       ///< likewise, and was told that it is dead: waits for close()
    held,       ///< given up, but destroying it would wait for the peer
  };
  uint64_t id = 0;
  Peer* peer = nullptr;    ///< null when lost or held
  Peer* holder = nullptr;  ///< held: the peer that it belonged to
  Stage stage = Stage::reaching;
  bool active = false;
  uint32_t serial = 0;  ///< of this side's hello or welcome
  uint32_t peer_serial = 0;
  uint64_t resumes = 0;  ///< from this side's terms
  uint64_t session = 0;  ///< up: the session's name at both ends
  uint64_t deadline = 0;
  Mac hello_mac{};  ///< active: of this side's hello; the welcome must refer to it
  Terms terms;      ///< the peer's
  std::unique_ptr<Connection> connection;  ///< until it is up
  const ibv_cq* queue = nullptr;           ///< its completion queue: to compare only
};

struct Peer {
  explicit Peer(const util::SocketAddress& a_name) noexcept : name(a_name) {}
  util::SocketAddress name;
  Attempt* active = nullptr;   ///< not lost
  Attempt* passive = nullptr;  ///< not lost
  unsigned held = 0;           ///< attempts
  uint64_t deadline = 0;       ///< when to try again
  // The arguments of connect(), valid while `wanted`.
  bool wanted = false;
  bool retry_refused = false;
  uint64_t token = 0;
  uint64_t give_up = 0;
  uint64_t backoff = 0;
  // What recent attempts had in common, in a row.
  unsigned busy_ports = 0;   ///< the port was not available
  unsigned no_ports = 0;     ///< the busy_ports with -FI_EADDRNOTAVAIL
  unsigned resets = 0;       ///< not counting attempts whose port was not available
  uint64_t first_reset = 0;  ///< time of the first of these resets
  uint16_t answer = 0;       ///< to the peer's challenge
  bool spoke = false;        ///< a listener of this provider is there
};

/// The attempts of one endpoint, their peers, and their deadlines.
class AttemptTable {
 public:
  /// Throws std::bad_alloc.
  Peer& peer_of(const util::SocketAddress& name);
  /// Deletes the peer if it is idle.
  void forget_if_idle(Peer& peer) noexcept;
  /// Null: no memory, which is logged.
  Attempt* add(uint64_t id, Peer& peer, bool active) noexcept;
  Attempt* find(uint64_t id) noexcept;
  Attempt* find(uint64_t id, Attempt::Stage stage) noexcept;
  Attempt* any() noexcept { return x_attempts.empty() ? nullptr : &x_attempts.begin()->second; }
  Attempt* any_but(Attempt::Stage stage) noexcept;
  /// The attempt belongs to no peer any more. The peer may be deleted, too: callers that still need
  /// it look it up again.
  static void detach(Attempt& attempt) noexcept;
  void erase(Attempt& attempt) noexcept;
  /// Calls `visit` once for each attempt, and for those that it adds. It may erase any attempts.
  template <typename Visit>
  void for_each(Visit&& visit) {
    for (auto next = x_attempts.begin(); next != x_attempts.end();) {
      const uint64_t id = next->first;
      visit(next->second);
      next = x_attempts.upper_bound(id);
    }
  }
  /// Number of connections that peers with this IP made and that are up.
  size_t accepted_from(const util::SocketAddress& name) const noexcept;

  void time_out(Attempt& attempt, uint64_t when) noexcept { deadlines(attempt).set(attempt, when); }
  void clear_time_out(Attempt& attempt) noexcept { deadlines(attempt).clear(attempt); }
  uint64_t next_deadline() const noexcept;

  Deadlines<Attempt> requests;   ///< active, neither up nor lost
  Deadlines<Attempt> accepting;  ///< passive, oldest first
  Deadlines<Peer> retries;

 private:
  Deadlines<Attempt>& deadlines(const Attempt& attempt) noexcept {
    return attempt.active ? requests : accepting;
  }

  std::map<uint64_t, Attempt> x_attempts;  ///< a later attempt has a higher id
  std::unordered_map<util::SocketAddress, Peer, util::SocketAddressHash> x_peers;
};

/// True if both names belong to one host.
bool same_ip(const util::SocketAddress& a, const util::SocketAddress& b) noexcept;

}  // namespace erdma::transport::verbs
