#pragma once

#include "protocol/peers.h"

namespace erdma::protocol {

class RmaInitiator;
class Sends;

/// Small operations on memory that a peer of this host has shared: where it polls, its processor is
/// several times as fast as the system call with which we would access the memory ourselves. So a
/// packet asks it, and is retracted if it does not look at it soon.
class RetractableRma {
 public:
  RetractableRma(RmaInitiator& initiator, Sends& sends, Peers& peers) noexcept
      : x_initiator(initiator), x_sends(sends), x_peers(peers) {}

  /// -FI_EOPNOTSUPP: not this way. -FI_EAGAIN: nothing happened.
  int launch(Send& send) noexcept;
  /// Called by every progress() for a peer with such packets. Returns the number of operations that
  /// were executed in place of the peer.
  int poll(Peer& peer) noexcept;
  /// Executes all that it can at once: nobody may call progress() for a while.
  int execute_all_retractable() noexcept;
  /// An operation with such a packet ends.
  static void forget(Peer& peer) noexcept;

 private:
  int execute_retractable(Peer& peer) noexcept;
  bool retract(Send& send) noexcept;

  RmaInitiator& x_initiator;
  Sends& x_sends;
  Peers& x_peers;
};

}  // namespace erdma::protocol
