#pragma once

#include <cstdint>
#include <memory>

#include "transport/transport.h"
#include "transport/verbs/connection.h"
#include "transport/verbs/exposure.h"
#include "transport/verbs/open_region.h"
#include "transport/verbs/session.h"

namespace erdma::transport::verbs {

class Core;

/// One remote endpoint, with a connection while there is use for it. The link to ourselves has two:
/// one to send, one to receive. Polling thread only.
class VerbsLink final : public Link {
 public:
  enum class State : uint8_t {
    idle,
    waiting,     ///< for another connection to be given up
    connecting,  ///< the connector is at it
    up,          ///< has a connection, though perhaps one that may not be used (yet, any more)
    closed,
  };

  VerbsLink(Core& core, const util::SocketAddress& address, bool to_self) noexcept
      : Link(address), x_core(core), x_to_self(to_self) {}

  int send(const Header& header, const iovec* payload, size_t count, size_t length,
           SendHint hint) noexcept override {
    if (!x_packets) [[unlikely]]
      return not_ready();
    return x_packets->send(header, payload, count, length, hint);
  }
  LinkLimits limits() const noexcept override;
  int expose(const iovec* memory, size_t count, size_t length, Access access,
             Exposure& exposure) noexcept override;
  int withdraw(const Exposure& exposure) noexcept override;
  int read(const Exposure& remote, const iovec* local, size_t count, size_t length,
           uint64_t token) noexcept override {
    return transfer(remote, local, count, length, token, true);
  }
  int write(const Exposure& remote, const iovec* local, size_t count, size_t length,
            uint64_t token) noexcept override {
    return transfer(remote, local, count, length, token, false);
  }
  bool opens_memory() const noexcept override;
  std::unique_ptr<OpenMemory> open(const iovec& memory, bool for_reads,
                                   bool for_writes) noexcept override;
  int read_direct(const RemoteRange& remote, const iovec* local, size_t count,
                  uint64_t token) noexcept override {
    return direct(remote, local, count, token, true, false);
  }
  int write_direct(const RemoteRange& remote, const iovec* local, size_t count, uint64_t token,
                   bool until_placed) noexcept override {
    return direct(remote, local, count, token, false, until_placed);
  }
  bool resolve(const Exposure& memory, DeviceAddress& first) noexcept override;
  int read_short(DeviceAddress remote, void* local, size_t length,
                 uint64_t token) noexcept override {
    return x_sender ? x_sender->direct.read_short(remote, local, length, token) : -FI_EAGAIN;
  }
  int write_short(DeviceAddress remote, const void* local, size_t length,
                  uint64_t token) noexcept override {
    return x_sender ? x_sender->direct.write_short(remote, local, length, token) : -FI_EAGAIN;
  }
  void fail(int status) noexcept override;
  bool met() const noexcept override { return x_met; }

  // By Core and connections.
  void install(std::unique_ptr<Connection> connection) noexcept;
  std::unique_ptr<Connection> remove(const Connection& connection) noexcept;
  void may_send(Connection& connection) noexcept;
  void may_not_send(const Connection& connection) noexcept;
  /// The connection of that role; a link to another endpoint has only one, whoever connected.
  Connection* connection(bool active) const noexcept { return x_connections[slot(active)].get(); }
  bool connected() const noexcept { return x_connections[0] || x_connections[1]; }
  bool to_self() const noexcept { return x_to_self; }

  State state = State::idle;
  uint64_t attempt = 0;
  int down_status = 0;  ///< to be reported once its connections are gone
  bool down_silently = true;
  uint64_t idle_since = 0;  ///< when its connection was given up
  bool in_doubt = false;    ///< likewise: the peer may not know
  uint64_t waiting_since = 0;
  Session session;

 private:
  size_t slot(bool active) const noexcept { return x_to_self && !active ? 1 : 0; }
  int not_ready() noexcept;
  int transfer(const Exposure& remote, const iovec* local, size_t count, size_t length,
               uint64_t token, bool is_read) noexcept;
  int direct(const RemoteRange& remote, const iovec* local, size_t count, uint64_t token,
             bool is_read, bool until_placed) noexcept;
  void prepare(Transfer& transfer, const iovec* local, size_t count) noexcept;

  /// Null: not connected, or nothing may be sent now.
  PacketSender* x_packets = nullptr;
  Connection* x_sender = nullptr;  ///< to which they belong
  Core& x_core;
  const bool x_to_self;
  bool x_met = false;
  std::unique_ptr<Connection> x_connections[2];
};

}  // namespace erdma::transport::verbs
