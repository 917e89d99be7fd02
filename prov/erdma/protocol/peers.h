#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "protocol/address_book.h"
#include "protocol/peer.h"

namespace erdma::protocol {

class SharedReceives;

/// Which link leads to an address: decided in fabric/.
class Router {
 public:
  /// -FI_EHOSTUNREACH if no transport of this endpoint leads there.
  virtual util::Result<transport::Link*> route(const util::SocketAddress& address) noexcept = 0;
  /// Another way to an address whose link was never up and has failed with a status; null = none.
  virtual transport::Link* fallback(const util::SocketAddress&, int) noexcept { return nullptr; }

 protected:
  ~Router() = default;
};

/// Implemented by Engine.
class PeerLoss {
 public:
  /// Every operation that waits for this link of the peer is to end; null: there is no way to it.
  virtual void lose(Peer& peer, const transport::Link* link, int status) noexcept = 0;

 protected:
  ~PeerLoss() = default;
};

/// The peers of one engine: by fi_addr_t, by address, by link, and those that wait for room. It
/// decides which link leads to each. Owns them; they live as long as it does.
class Peers {
 public:
  Peers(AddressBook& book, Router& router, PeerLoss& loss, Receives& receives,
        SharedReceives* shared)
      : x_book(book), x_router(router), x_loss(loss), x_receives(receives), x_shared(shared) {}
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  /// Null: no operation has named this address yet.
  Peer* known(uint64_t fi_addr) const noexcept { return x_table.find(fi_addr); }
  /// Null: refusal() says why.
  Peer* at(uint64_t fi_addr) noexcept {
    Peer* peer = x_table.find(fi_addr);
    return peer ? peer : resolve(fi_addr);
  }
  /// Why at() has no peer: -FI_EINVAL if there is no such address, -FI_ENOMEM otherwise.
  int refusal(uint64_t fi_addr) const noexcept;
  /// Throws std::bad_alloc.
  Peer& behind(transport::Link& link) {
    auto* peer = static_cast<Peer*>(link.user);
    return peer ? *peer : adopt(link);
  }
  /// The address of the endpoint that these are peers of.
  void set_own_name(const util::SocketAddress& name) noexcept;
  void leave_shared() noexcept { x_shared = nullptr; }

  /// Gives it a link. Else why there is none.
  int connect(Peer& peer) noexcept;
  /// The same, and the peer is lost if there is none. False: nothing can be sent to it.
  bool reach(Peer& peer) noexcept;
  /// What waits for a link that was never up waits for another one instead. False: there is no
  /// other.
  bool take_fallback(Peer& peer, transport::Link& failed, int status) noexcept;

  /// Every progress() is to look at it.
  void backlog(Peer& peer) noexcept;
  util::IntrusiveList<Peer, BacklogTag>& waiting() noexcept { return x_backlog; }
  /// Starts an operation, or keeps it until the link has room.
  template <typename Operation>
  void start(Peer& peer, PendingList<Operation>& waiting, Operation& operation,
             bool must_wait) noexcept {
    const int rc = must_wait ? -FI_EAGAIN : operation.start();
    if (rc == -FI_EAGAIN) {
      waiting.push_back(operation);
      backlog(peer);
    } else if (rc != 0) {
      operation.finish(rc);
    }
  }

  /// The address vector changed, or what it calls that address.
  void address_inserted(const util::SocketAddress& address) noexcept;
  void address_removed(uint64_t fi_addr, const util::SocketAddress& address) noexcept;

  using ByAddress =
      std::unordered_map<util::SocketAddress, std::unique_ptr<Peer>, util::SocketAddressHash>;
  const ByAddress& all() const noexcept { return x_peers; }

 private:
  util::SocketAddress address_of(uint64_t fi_addr) const noexcept;
  Peer* resolve(uint64_t fi_addr) noexcept;
  Peer& named(const util::SocketAddress& address);
  Peer& adopt(transport::Link& link);
  static void use_link(Peer& peer, transport::Link& link) noexcept;

  AddressBook& x_book;
  Router& x_router;
  PeerLoss& x_loss;
  Receives& x_receives;
  SharedReceives* x_shared;
  const util::SocketAddress* x_own_name = nullptr;  ///< null: without one-sided operations
  PeerTable x_table;
  util::IntrusiveList<Peer, BacklogTag> x_backlog;
  ByAddress x_peers;
};

}  // namespace erdma::protocol
