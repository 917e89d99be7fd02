#include "protocol/retractable_rma.h"

#include <algorithm>

#include <rdma/fi_errno.h>

#include "protocol/rma_initiator.h"

namespace erdma::protocol {
namespace {

/// Calls of progress() without an answer before a retraction. They take some microseconds, several
/// times as long as an answer about a few bytes and twice as long as one about 16 KiB.
constexpr uint32_t kPatience = 128;
/// Operations after a retraction that use no packet: the first pause, and the longest one.
constexpr uint32_t kFirstPause = 64, kLongestPause = 4096;

}  // namespace

int RetractableRma::launch(Send& send) noexcept {
  Peer& peer = *send.peer;
  OneSided& op = *send.one_sided;
  transport::RetractableSends* const sends = peer.link->optional().retractable;
  if (!sends || !sends->suits(send.buffers.length) || op.device || peer.itself)
    return -FI_EOPNOTSUPP;
  PeerGrants& grants = *peer.grants;
  // The operation must not overtake earlier operations that cannot be retracted.
  if (peer.one_sided_packets != peer.retractable || grants.reads > 0) return -FI_EOPNOTSUPP;
  if (grants.pause > 0 && peer.retractable == 0) return --grants.pause, -FI_EOPNOTSUPP;
  uint64_t packet = 0;
  if (const int rc = x_initiator.send_transfer(send, false, &packet))
    return rc == -FI_EAGAIN && peer.retractable > 0 ? rc : -FI_EOPNOTSUPP;
  x_initiator.launched(send, false);
  op.packet = packet;
  ++peer.retractable;
  x_peers.backlog(peer);
  return 0;
}

int RetractableRma::poll(Peer& peer) noexcept {
  return ++peer.grants->polls < kPatience ? 0 : execute_retractable(peer);
}

/// Executes operations in the order of their packets. Stops at the first one that the peer has
/// taken or that cannot be executed here, because later ones must not overtake it.
int RetractableRma::execute_retractable(Peer& peer) noexcept {
  PeerGrants& grants = *peer.grants;
  grants.polls = 0;
  int executed = 0;
  for (Send *send = peer.in_flight.front(), *next; send; send = next) {
    next = peer.in_flight.next(*send);
    if (!send->one_sided || !send->one_sided->packet) continue;
    if (!retract(*send)) break;
    ++executed;
  }
  if (executed == 0) return 0;
  grants.next_pause = std::clamp(grants.next_pause * 2, kFirstPause, kLongestPause);
  grants.pause = grants.next_pause;
  return executed;
}

/// Executes the operation in place of the peer. False: the peer executes it.
bool RetractableRma::retract(Send& send) noexcept {
  Peer& peer = *send.peer;
  OneSided& op = *send.one_sided;
  Grant* const grant = x_initiator.usable_grant(send);
  transport::RetractableSends& sends = *peer.link->optional().retractable;
  if (!grant || !sends.retract(op.packet)) return false;
  const int rc = access_directly(send, *grant, true);
  sends.retracted(op.packet, rc == transport::kDone);
  if (rc != transport::kDone) return false;
  op.packet = 0;
  --peer.retractable;
  x_sends.finish(send, 0);
  return true;
}

int RetractableRma::execute_all_retractable() noexcept {
  int executed = 0;
  auto& waiting = x_peers.waiting();
  for (Peer *peer = waiting.front(), *next; peer; peer = next) {
    next = waiting.next(*peer);
    if (peer->retractable > 0) executed += execute_retractable(*peer);
  }
  return executed;
}

void RetractableRma::forget(const Send& send) noexcept {
  Peer& peer = *send.peer;
  peer.link->optional().retractable->ended(send.one_sided->packet);
  --peer.retractable;
  peer.grants->polls = peer.grants->pause = peer.grants->next_pause = 0;
}

}  // namespace erdma::protocol
