#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "transport/verbs/connection.h"
#include "transport/verbs/session.h"
#include "util/intrusive_list.h"

namespace erdma::transport::verbs {

class LinkManager;
struct UnconnectedTag;  ///< the link gave its connection up, so a death of its peer goes unnoticed
struct FailedTag;       ///< the link has no connection, and its on_link_down() is due

/// Where a link is on its way to a connection. What happens between two connections is in Session.
/// The link to this endpoint itself goes there with the half that sends; the half that receives may
/// exist in any state.
///
///   idle --connect()--> connecting --it is up--> up --all its connections ended--> idle
///   idle --connect(), no place--> waiting --there is a place--> connecting
///   connecting, waiting --failed, or the peer's own attempt came up--> idle, up
///   any --shutdown()--> closed
enum class LinkState : uint8_t {
  idle,
  waiting,     ///< until another connection has been given up
  connecting,  ///< the connector is making the connection
  up,          ///< has a connection, which may not (or no longer) be usable
  closed,
};

/// The fast path of the link's connection.
class LinkFastAccess final : public FastAccess {
 public:
  bool unpack(const RemoteKey& remote, DeviceAddress& first) noexcept override;
  int get(DeviceAddress remote, void* local, size_t length, uint64_t token) noexcept override {
    return sender ? sender->direct.get(remote, local, length, token) : -FI_EAGAIN;
  }
  int put(DeviceAddress remote, const void* local, size_t length,
          uint64_t token) noexcept override {
    return sender ? sender->direct.put(remote, local, length, token) : -FI_EAGAIN;
  }

  Connection* sender = nullptr;  ///< null: not connected, or sending is not possible now
};

/// One remote endpoint, with a connection while it is in use. The link to this endpoint itself has
/// two connections: one to send, one to receive. Polling thread only.
class VerbsLink final : public Link,
                        public util::ListHook<UnconnectedTag>,
                        public util::ListHook<FailedTag> {
 public:
  VerbsLink(Resources& shared, Worklist& worklist, LinkManager& manager,
            const util::SocketAddress& address, bool to_self) noexcept
      : Link(address, {.fast = &x_fast, .registrar = &shared.registrar}),
        counters(shared.counters_of(address)),
        x_shared(shared),
        x_worklist(worklist),
        x_manager(manager),
        x_to_self(to_self) {}

  int send(const Header& header, const iovec* payload, size_t count, size_t length,
           SendHint hint) noexcept override {
    if (!x_packets) [[unlikely]]
      return not_ready();
    return x_packets->send(header, payload, count, length, hint);
  }
  LinkLimits limits() const noexcept override;
  int share(const iovec* memory, size_t count, size_t length, Access access,
            RemoteKey& remote_key) noexcept override;
  int revoke(const RemoteKey& remote_key) noexcept override;
  int get(const RemoteRange& remote, const iovec* local, size_t count,
          uint64_t token) noexcept override {
    return transfer(remote, local, count, token, true, false);
  }
  int put(const RemoteRange& remote, const iovec* local, size_t count, uint64_t token,
          bool until_placed) noexcept override {
    return transfer(remote, local, count, token, false, until_placed);
  }
  void fail(int status) noexcept override;
  bool was_up() const noexcept override { return x_was_up; }
  LinkReport report() noexcept override;

  // The transport calls these.
  LinkState state() const noexcept { return x_state; }
  /// Returns the previous state. A closed link stays closed.
  LinkState advance(LinkState to) noexcept {
    return x_state == LinkState::closed ? x_state : std::exchange(x_state, to);
  }
  void install(std::unique_ptr<Connection> connection) noexcept;
  std::unique_ptr<Connection> remove(const Connection& connection) noexcept;
  /// Packets leave, or no longer leave, on this connection.
  void use(Connection& connection, bool may_send) noexcept;
  /// The connection of that role. A link to another endpoint has only one, whichever side
  /// connected.
  Connection* connection(bool active) const noexcept {
    return x_connections[x_to_self && !active].get();
  }
  bool to_self() const noexcept { return x_to_self; }

  Counters& counters;  ///< of the peer
  uint64_t attempt = 0;
  int down_status = 0;  ///< reported once its connections are gone; 0 = the link stays up
  uint64_t since = 0;   ///< waiting, or idle after its connection was given up
  Session session;

 private:
  int not_ready() noexcept;
  int transfer(const RemoteRange& remote, const iovec* local, size_t count, uint64_t token,
               bool is_read, bool until_placed) noexcept;
  int begin(Transfer& begun, const iovec* local, size_t count) noexcept;
  int access(Transfer& begun, uint64_t offset, const iovec* local, size_t count,
             bool until_placed) noexcept;

  /// Null: not connected, or sending is not possible now.
  PacketSender* x_packets = nullptr;
  LinkFastAccess x_fast;  ///< of the connection in use
  Resources& x_shared;
  Worklist& x_worklist;
  LinkManager& x_manager;
  LinkState x_state = LinkState::idle;
  const bool x_to_self;
  bool x_was_up = false;
  std::unique_ptr<Connection> x_connections[2];
};

}  // namespace erdma::transport::verbs
