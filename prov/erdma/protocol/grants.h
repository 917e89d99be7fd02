#pragma once

#include <cstddef>
#include <cstdint>

#include "protocol/arguments.h"
#include "protocol/controls.h"

namespace erdma::protocol {

struct Request;

/// Direct access to memory, without the processor of its owner: the grants that peers have here,
/// the grants that this endpoint has at its peers, and the packets that grant and revoke. A target
/// that has executed an operation on a region grants its peer direct access. From then on the
/// initiator checks key, range and access right itself. It sends an operation that does not fit the
/// grant in packets, and the target refuses it.
class Grants {
 public:
  Grants(Peers& peers, Controls& controls) noexcept : x_peers(peers), x_controls(controls) {}

  /// Until this call nothing is granted. `setup` outlives this object.
  void enable(const OneSidedSetup& setup) noexcept { x_setup = &setup; }

  /// Handles a packet: grant, revoke or revoked.
  void on_packet(Peer& peer, transport::Link& link, const wire::OneSidedHeader& header,
                 const std::byte* payload, size_t length) noexcept;

  // The initiator's side.
  /// Returns the grant that permits this access to the peer's memory. Null: use packets.
  Grant* permitting(Peer& peer, wire::Op op, const wire::Segment& segment) noexcept;
  /// An operation that used `grant` is over.
  void leave(Peer& peer, Grant& grant) noexcept {
    if (--grant.users == 0 && grant.revoked) [[unlikely]]
      give_back(peer, grant);
  }

  // The target's side.
  /// An operation of the peer on memory here succeeded: grants direct access if that pays.
  void after(Peer& peer, transport::Link& link, const Request& request) noexcept;
  /// Revokes the grants of one region, or of all regions. A grant counts as a user of its region
  /// until its peer has answered.
  void revoke(uint64_t key) noexcept;
  void revoke_all() noexcept;
  /// Gives up the grants of a revoked region that need not be waited for. That are shared ones
  /// whose peer accesses nothing. Of others it gives up the answers that `await` does not name, and
  /// the next answers of the same peers.
  void stop_waiting(uint64_t key, Await await) noexcept;
  /// Fails the links over which a peer is accessing the region.
  void abandon(const Region& region) noexcept;

 private:
  void on_grant(Peer& peer, transport::Link& link, const wire::OneSidedHeader& header,
                const std::byte* payload, size_t length) noexcept;
  void on_revoke(Peer& peer, transport::Link& link, uint64_t key) noexcept;
  void give_back(Peer& peer, const Grant& grant) noexcept;
  void answer_revoke(Peer& peer, uint64_t key, uint8_t flags) noexcept;
  void on_revoked(Peer& peer, const wire::OneSidedHeader& header) noexcept;
  bool grantable(const Peer& peer, const Region& region) const noexcept;
  void grant(Peer& peer, transport::Link& link, uint64_t key, Region& region) noexcept;
  void grant_to_self(Peer& peer, uint64_t key) noexcept;

  Peers& x_peers;
  Controls& x_controls;
  const OneSidedSetup* x_setup = nullptr;
};

}  // namespace erdma::protocol
