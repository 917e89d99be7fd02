#pragma once

#include "protocol/peers.h"

namespace erdma::protocol {

class RmaInitiator;
class Sends;

/// Operations on memory that a peer on this host has shared, of lengths about which the link
/// decides (RetractableSends::suits): those that a peer that polls executes faster than this
/// process could by the system call (CMA). So the operation is sent in a packet, and retracted and
/// executed here if the peer does not look at the packet soon.
class RetractableRma {
 public:
  RetractableRma(RmaInitiator& initiator, Sends& sends, Peers& peers) noexcept
      : x_initiator(initiator), x_sends(sends), x_peers(peers) {}

  /// 0: the packet is sent. -FI_EOPNOTSUPP: access the memory another way. -FI_EAGAIN: try again.
  /// Nothing happened in both cases.
  int launch(Send& send) noexcept;
  /// Every progress() calls it for a peer with such packets. Returns the number of operations that
  /// were executed in place of the peer.
  int poll(Peer& peer) noexcept;
  /// Executes all operations that it can retract, without waiting for the peers. Returns their
  /// number.
  int execute_all_retractable() noexcept;
  /// An operation with such a packet has ended without a retraction.
  static void forget(const Send& send) noexcept;

 private:
  int execute_retractable(Peer& peer) noexcept;
  bool retract(Send& send) noexcept;

  RmaInitiator& x_initiator;
  Sends& x_sends;
  Peers& x_peers;
};

}  // namespace erdma::protocol
