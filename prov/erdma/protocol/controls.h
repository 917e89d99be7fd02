#pragma once

#include "protocol/peers.h"
#include "util/pool.h"

namespace erdma::protocol {

/// Sends control packets. If the link has no room, a packet is kept until there is room.
class Controls {
 public:
  /// Throws std::bad_alloc. Allocates the first chunk of the pool now, so that an endpoint which
  /// lacks memory for a while still answers its peers.
  explicit Controls(Peers& peers);

  /// `remote_key` is the payload; null: the packet has no payload.
  void send(Peer& peer, const wire::ControlHeader& header,
            const transport::RemoteKey* remote_key = nullptr) noexcept;
  void send(Peer& peer, const wire::OneSidedHeader& header,
            const transport::RemoteKey* remote_key = nullptr) noexcept {
    send(peer, wire::reread<wire::ControlHeader>(header), remote_key);
  }
  /// The same for a packet that is not to be kept. False: the link has not taken it.
  bool try_send(Peer& peer, const wire::ControlHeader& header) noexcept;
  /// Sends the last packet of a send that is in flight. The send completes once the link has taken
  /// the packet, not before: the peer waits for it, and an application that has all its completions
  /// may stop calling progress.
  void conclude(Send& send, const wire::ControlHeader& header) noexcept;
  /// Sends the fin of an operation that the peer initiated, the last packet of that operation.
  /// False: the packet is kept, and `answered` is finished once the link has taken it or cannot
  /// take it any more. Only then may this side report the operation, for the reason given above.
  bool answer(Peer& peer, wire::RequestId initiator, int status, Pending& answered) noexcept;
  /// The same where the packet is not to be kept. False: the link has no room.
  bool try_fin(Peer& peer, wire::RequestId initiator, int status) noexcept;
  /// Sends the initiator the status of its operation.
  void send_fin(Peer& peer, wire::RequestId initiator, int status) noexcept;
  /// Drops the packets that are kept for a peer whose link is down.
  void drop(Peer& peer) noexcept;

  void release(Control& control) noexcept;

 private:
  static wire::ControlHeader fin(wire::RequestId initiator, int status) noexcept;
  Control* keep(Peer& peer, const wire::ControlHeader& header,
                const transport::RemoteKey* remote_key, Pending* answered = nullptr) noexcept;
  static void too_many(Peer& peer) noexcept;

  Peers& x_peers;
  util::Pool<Control> x_controls;
};

}  // namespace erdma::protocol
