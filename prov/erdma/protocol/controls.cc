#include "protocol/controls.h"

#include <cstring>
#include <new>

#include <rdma/fi_errno.h>

#include "protocol/inbound.h"

namespace erdma::protocol {
namespace {

/// Most control packets that are kept for one peer. The endpoint answers each of the peer's
/// operations in flight (at most 65536, FI_ERDMA_TX_SIZE) and those of an earlier connection, and
/// revokes each region that it has granted to the peer.
constexpr uint32_t kMostControls = 2 * 65536 + PeerGrants::kMost;

int transmit(Peer& peer, const wire::ControlHeader& header,
             const transport::RemoteKey* remote_key) noexcept {
  transport::Header encoded;
  std::memcpy(&encoded, &header, sizeof(encoded));
  iovec payload{};
  if (remote_key) payload = {const_cast<std::byte*>(remote_key->bytes), remote_key->size};
  const int rc = peer.link->send(encoded, &payload, payload.iov_len ? 1 : 0, payload.iov_len,
                                 transport::SendHint::none);
  if (rc == 0 && header.op == wire::Op::budget && header.status != wire::kUnexpected)
    peer.budget_sent(header.status == wire::kUsedUp);
  return rc;
}

/// Returns whether UnsentAnswers counts the packet.
bool is_unreported_fin(const Control& control) noexcept {
  return control.header.op == wire::Op::fin && !control.answered;
}

}  // namespace

Controls::Controls(Peers& peers) : x_peers(peers) {
  if (!x_controls.reserve()) throw std::bad_alloc();
}

/// The packet waits for memory as it waits for room: a link may lack the memory to connect.
int Control::start() noexcept {
  const int rc = transmit(*peer, header, &remote_key);
  if (rc == -FI_EAGAIN || rc == -FI_ENOMEM) return -FI_EAGAIN;
  finish(rc);
  return 0;
}

/// After a failure of the link on_link_down() follows, and ends `concluded` as well. The bytes of
/// `answered` are here in any case.
void Control::finish(int status) noexcept {
  Send* const told = concluded;
  Pending* const over = answered;
  controls->release(*this);
  if (told && status == 0) told->finish(0);
  if (over) over->finish(0);
}

void Controls::send(Peer& peer, const wire::ControlHeader& header,
                    const transport::RemoteKey* remote_key) noexcept {
  if (!x_peers.reach(peer)) return;
  if (peer.controls.empty() && transmit(peer, header, remote_key) == 0) return;
  (void)keep(peer, header, remote_key);
}

bool Controls::try_send(Peer& peer, const wire::ControlHeader& header) noexcept {
  return x_peers.reach(peer) && peer.controls.empty() && transmit(peer, header, nullptr) == 0;
}

void Controls::conclude(Send& send, const wire::ControlHeader& header) noexcept {
  Peer& peer = *send.peer;
  if (peer.failing || (peer.controls.empty() && transmit(peer, header, nullptr) == 0))
    return send.finish(0);
  if (Control* const control = keep(peer, header, nullptr)) control->concluded = &send;
}

/// Returns null if the packet cannot be kept. The link fails then, and with it every operation
/// that waits for the peer.
Control* Controls::keep(Peer& peer, const wire::ControlHeader& header,
                        const transport::RemoteKey* remote_key, Pending* answered) noexcept {
  if (peer.controls_kept >= kMostControls) {
    too_many(peer);
    return nullptr;
  }
  Control* const control = x_controls.acquire();
  if (!control) {
    peer.link->fail(-FI_ENOMEM);
    return nullptr;
  }
  control->controls = this;
  control->peer = &peer;
  control->header = header;
  control->answered = answered;
  if (remote_key) control->remote_key = *remote_key;
  if (is_unreported_fin(*control)) peer.unsent.keep_fin();
  peer.controls.push_back(*control);
  ++peer.controls_kept;
  x_peers.backlog(peer);
  return control;
}

bool Controls::try_fin(Peer& peer, wire::RequestId initiator, int status) noexcept {
  if (!x_peers.reach(peer)) return true;
  return peer.controls.empty() && transmit(peer, fin(initiator, status), nullptr) == 0;
}

bool Controls::answer(Peer& peer, wire::RequestId initiator, int status,
                      Pending& answered) noexcept {
  if (try_fin(peer, initiator, status)) return true;
  return !keep(peer, fin(initiator, status), nullptr, &answered);
}

wire::ControlHeader Controls::fin(wire::RequestId initiator, int status) noexcept {
  // Member by member, because a small write takes this path.
  wire::ControlHeader header{};
  header.op = wire::Op::fin;
  header.generation = initiator.generation;
  header.index = initiator.index;
  header.status = status;
  return header;
}

void Controls::send_fin(Peer& peer, wire::RequestId initiator, int status) noexcept {
  send(peer, fin(initiator, status));
}

/// Fails the link. It logs the reason once, although further packets may come before the link is
/// down.
void Controls::too_many(Peer& peer) noexcept {
  if (!peer.takes_no_controls)
    inbound::protocol_violation(*peer.link, "requests, but takes no answers");
  peer.takes_no_controls = true;
}

void Controls::drop(Peer& peer) noexcept {
  while (Control* control = peer.controls.pop_front()) {
    Pending* const over = control->answered;
    release(*control);
    if (over) over->finish(0);
  }
  peer.takes_no_controls = false;
}

void Controls::release(Control& control) noexcept {
  --control.peer->controls_kept;
  if (is_unreported_fin(control)) control.peer->unsent.drop_fin();
  x_controls.release(control);
}

}  // namespace erdma::protocol
