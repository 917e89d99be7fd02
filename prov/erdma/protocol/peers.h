#pragma once

#include <cstdint>

#include "protocol/address_book.h"
#include "protocol/peer.h"
#include "util/by_address.h"

namespace erdma::protocol {

class SharedReceives;

/// Chooses the link to an address. fabric/ implements it.
class Router {
 public:
  /// -FI_EHOSTUNREACH: no transport of this endpoint reaches the address.
  virtual util::Result<transport::Link*> route(const util::SocketAddress& address) noexcept = 0;
  /// Returns another link to an address whose link never came up and has failed with this status.
  /// Null: there is none.
  virtual transport::Link* fallback(const util::SocketAddress&, int) noexcept { return nullptr; }

 protected:
  ~Router() = default;
};

/// Implemented by Engine.
class PeerLoss {
 public:
  /// Ends every operation that waits for this link of the peer. `link` is null if no link to the
  /// peer could be had.
  virtual void lose(Peer& peer, const transport::Link* link, int status) noexcept = 0;

 protected:
  ~PeerLoss() = default;
};

/// Owns the peers of one engine and finds them by fi_addr_t, by address and by link. Keeps the link
/// of each peer, and the list of peers with operations that wait for room.
class Peers {
 public:
  Peers(AddressBook& book, Router& router, PeerLoss& loss, Receives& receives,
        SharedReceives* shared)
      : x_book(book), x_router(router), x_loss(loss), x_receives(receives), x_shared(shared) {}
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  /// Null: no operation has used this fi_addr yet.
  Peer* known(uint64_t fi_addr) const noexcept { return x_table.find(fi_addr); }
  /// Finds or makes the peer. Null: refusal() returns the reason.
  Peer* at(uint64_t fi_addr) noexcept {
    Peer* peer = x_table.find(fi_addr);
    return peer ? peer : resolve(fi_addr);
  }
  /// Why at() returned null: -FI_EINVAL if there is no such address, -FI_ENOMEM otherwise.
  int refusal(uint64_t fi_addr) const noexcept;
  /// The peer of a link, made if needed. Throws std::bad_alloc.
  Peer& peer_of(transport::Link& link) {
    auto* peer = static_cast<Peer*>(link.user);
    return peer ? *peer : adopt(link);
  }
  /// Sets the address of this endpoint. `name` outlives this object.
  void set_own_name(const util::SocketAddress& name) noexcept;
  void leave_shared() noexcept { x_shared = nullptr; }

  /// Gives the peer a link if it has none. 0, or why there is no link.
  int connect(Peer& peer) noexcept;
  /// connect(); a peer without a link is lost. False: nothing can be sent to the peer.
  bool reach(Peer& peer) noexcept;
  /// Moves the operations that wait for a link that never came up to another link. False: there is
  /// no other link.
  bool take_fallback(Peer& peer, transport::Link& failed, int status) noexcept;

  /// Has every progress() look at this peer.
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

  /// The address vector has inserted or removed this address.
  void address_inserted(const util::SocketAddress& address) noexcept;
  void address_removed(uint64_t fi_addr, const util::SocketAddress& address) noexcept;

  const util::ByAddress<Peer>& all() const noexcept { return x_peers; }

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
  util::ByAddress<Peer> x_peers;
};

}  // namespace erdma::protocol
