#pragma once

#include "protocol/peers.h"
#include "util/pool.h"

namespace erdma::protocol {

/// Sends control packets, which a peer is owed: what finds no room on the link is kept until there
/// is some.
class Controls {
 public:
  /// Throws std::bad_alloc. A chunk of them is there from the start: the peers of an endpoint that
  /// lacks memory for a while are answered all the same.
  explicit Controls(Peers& peers);

  /// `remote key`: the payload; null: there is none.
  void send(Peer& peer, const wire::ControlHeader& header,
            const transport::RemoteKey* remote_key = nullptr) noexcept;
  void send(Peer& peer, const wire::OneSidedHeader& header,
            const transport::RemoteKey* remote_key = nullptr) noexcept {
    send(peer, wire::reread<wire::ControlHeader>(header), remote_key);
  }
  /// The last that the peer has to hear of a send that is in flight, which completes when it has
  /// left: whoever has all completions need not make progress any more, and the peer waits for it.
  void conclude(Send& send, const wire::ControlHeader& header) noexcept;
  /// Tells the initiator how its operation ended.
  void send_fin(Peer& peer, wire::RequestId initiator, int status) noexcept;
  /// The peer's link is down.
  void drop(Peer& peer) noexcept;

  void release(Control& control) noexcept;

 private:
  Control* keep(Peer& peer, const wire::ControlHeader& header,
                const transport::RemoteKey* remote_key) noexcept;
  static void too_many(Peer& peer) noexcept;

  Peers& x_peers;
  util::Pool<Control> x_controls;
};

}  // namespace erdma::protocol
