#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transport/endpoint_thread.h"
#include "transport/shm/cold_rings.h"
#include "transport/shm/connection.h"
#include "transport/shm/mail.h"
#include "transport/shm/options.h"
#include "transport/shm/wire.h"
#include "util/by_id.h"
#include "util/clock.h"
#include "util/result.h"
#include "util/thread_life.h"

namespace erdma::transport::shm {

/// What epoll reports to the connector's thread about a descriptor: its sort in the lowest two
/// bits, then an id.
enum EventSort : uint64_t { kListener, kSocket, kProcess, kQuestion };
constexpr uint64_t event_of(EventSort sort, uint64_t id) noexcept {
  return id << 2 | sort;
}

/// Why a peer's greeting is not acceptable; empty = it is. `whole`: its size is that of this
/// version.
std::string fault_of(const Greeting& theirs, bool whole, const Greeting& ours);

struct ConnectorConfig {
  Options options;
  util::SocketAddress name;  ///< port 0 = pick one
  ConnectorMailbox* mailbox;
  ColdRings* rings;
  CmaCalls* calls;
  const util::Clock* clock;
  WakeAddress wake_socket;
  bool expedited;  ///< this process has registered for barriers
};

/// All control sockets of one endpoint, the processes at their other ends, and the state that the
/// parts of the connector share. Connector's thread only, except for members that never change once
/// it runs.
class Connections {
 public:
  Connections(const ConnectorConfig& with, EndpointThread& watched_by) noexcept;

  /// In a host-wide scope every peer is on this host, whichever of the host's IP addresses it uses.
  util::SocketAddress canonical(const util::SocketAddress& address) const noexcept;
  /// The greeting of this endpoint.
  Greeting greeting() const noexcept;
  /// False: no peer asks for admission, because none is told that it needs any.
  bool asks_for_admission() const noexcept { return x_identity.ptrace_scope == 1; }

  Connection& add(util::Ref<Connection> connection);
  /// Where an outbound connection leads, as it was requested.
  util::SocketAddress address_of(const Connection& connection) const noexcept;
  /// The connection is established, and what only its attempt needed is freed.
  void forget_attempt(Connection& connection) const noexcept;
  util::Ref<Connection> find(uint64_t id) const noexcept;
  util::Ref<Connection> outbound_to(const util::SocketAddress& address) const noexcept;
  /// Calls `step` for each connection to the process, oldest first. `step` may end any of them.
  template <typename Step>
  void each_of(const PeerProcess& process, Step&& step) const {
    for (uint64_t last = 0;;) {
      util::Ref<Connection> next;
      for (const auto& connection : x_connections)
        if (!next && connection->id > last && connection->process.get() == &process)
          next = connection;
      if (!next) return;
      last = next->id;
      step(*next);
    }
  }
  /// Any connection that the polling thread has closed and Quarantine::on_closed() does not know
  /// of; null if there is none.
  util::Ref<Connection> closed_here() const noexcept;
  /// The caller holds a reference to the connection. Does nothing if it was dropped before.
  void drop(Connection& connection) noexcept;
  /// 0 or a negative errno, logged.
  int watch(const Connection& connection, uint32_t what = EPOLLIN) noexcept;
  void unwatch(const Connection& connection) noexcept;
  void go_up(Connection& connection) noexcept;
  size_t pending_hellos() const noexcept { return x_pending_hellos; }
  /// The connections that came before this time, and whose hello has not come.
  std::vector<util::Ref<Connection>> silent_since(uint64_t time) const;
  uint64_t next_deadline() const noexcept;  ///< UINT64_MAX = none
  std::vector<util::Ref<Connection>> due(uint64_t now) const;

  /// Finds or makes the process of a connection that greeted. Returns 0 or an error, and the reason
  /// in `why`.
  int find_or_add_process(Connection& connection, const Greeting& theirs, const char** why);
  util::Ref<PeerProcess> process_of(uint64_t nonce) const noexcept;
  util::Ref<PeerProcess> process(uint64_t id) const noexcept;
  void unwatch_exit(const PeerProcess& process) noexcept;
  const util::ById<PeerProcess>& processes() const noexcept { return x_processes; }
  const util::ById<Connection>& all() const noexcept { return x_connections; }

  ConnectorConfig config;
  const uint64_t nonce;
  const uint64_t boot;
  /// Set before the first socket is shut down, so that no peer's channel that ends for that reason
  /// is set up again.
  std::atomic<bool> closing = false;
  /// Of the connector's thread, if it has one, shown in the first chunk that a peer gets.
  util::ThreadLife life;
  /// How many connections in succession ended without a hello that was accepted.
  unsigned strangers = 0;

 private:
  util::Result<util::Ref<PeerProcess>> add_process(int socket, pid_t pid, const Greeting& theirs,
                                                   const char** why);

  EndpointThread& x_thread;
  const CmaIdentity x_identity;
  uint64_t x_next_id = 1;
  size_t x_pending_hellos = 0;
  util::ById<Connection> x_connections;
  util::ById<PeerProcess> x_processes;
};

}  // namespace erdma::transport::shm
