#include "protocol/inbound.h"

#include <algorithm>
#include <cstring>

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include "protocol/deliveries.h"
#include "protocol/peer.h"
#include "transport/transport.h"
#include "util/log.h"

namespace erdma::protocol::inbound {
namespace {

Verdict violation_unless(bool permitted) noexcept {
  return permitted ? Verdict::take : Verdict::violation;
}

/// Returns the bytes of results that the packets sent so far have asked the peer for.
size_t asked(const Send& send) noexcept {
  const OneSided& op = *send.one_sided;
  const bool brings = (send.completion_flags & FI_READ) && !send.remote_key.size;
  if (!brings) return 0;
  if (op.op == wire::Op::atomic) return std::min(op.sent * op.element, send.buffers.length);
  return send.state == Send::State::in_flight ? send.buffers.length : 0;
}

}  // namespace

/// A fin with success may end an operation that has received all its results; a fin with an error
/// may end any operation of which the peer has got a packet.
Verdict judge_fin(const Send* send, const Peer& peer, const wire::ControlHeader& header,
                  size_t payload) noexcept {
  if (payload > 0) return Verdict::violation;
  if (!send || send->peer != &peer) return Verdict::stale;
  const OneSided* const op = send->one_sided;
  // The target may refuse one part of an atomic operation while other parts still wait for room.
  if (send->state == Send::State::queued)
    return violation_unless(op && op->sent > 0 && header.status != 0);
  if (send->state == Send::State::written) return Verdict::take;
  if (send->state != Send::State::in_flight) return Verdict::violation;
  return violation_unless(!op || header.status != 0 || op->received >= asked(*send));
}

/// A receiver asks the sender to write only if it cannot read the message itself.
Verdict judge_cts(const Send* send, const Peer& peer, const wire::ControlHeader& header,
                  size_t payload) noexcept {
  if (payload == 0) return Verdict::violation;
  if (!send || send->peer != &peer) return Verdict::stale;
  const bool awaited = !send->one_sided && send->rendezvous &&
                       send->state == Send::State::in_flight &&
                       (!send->remote_key.size || send->remote_key.is_refusable());
  return violation_unless(awaited && header.length > 0 && header.length <= send->buffers.length);
}

Verdict judge_done(const Delivery* delivery, const Peer& peer, size_t payload) noexcept {
  if (payload > 0) return Verdict::violation;
  if (!delivery || delivery->peer != &peer) return Verdict::stale;
  return violation_unless(delivery->state == Delivery::State::granted);
}

Verdict judge_result(const Send* send, const Peer& peer, size_t payload) noexcept {
  if (!send || send->peer != &peer) return Verdict::stale;
  if (!send->one_sided || payload == 0) return Verdict::violation;
  return violation_unless(payload <= asked(*send) - send->one_sided->received);
}

Verdict judge_budget(const wire::ControlHeader& header, size_t payload) noexcept {
  const bool known = header.status >= wire::kFree && header.status <= wire::kUnexpected;
  return violation_unless(payload == 0 && known);
}

Verdict judge_grant(const wire::Segment& segment, size_t payload) noexcept {
  return violation_unless(payload > 0 && segment.length > 0 &&
                          segment.address + segment.length >= segment.address);
}

bool decode(const std::byte* payload, size_t length, transport::RemoteKey& remote_key,
            bool of_region) noexcept {
  if (length > transport::RemoteKey::kMaxBytes) return false;
  remote_key.size = uint8_t(length);
  std::memcpy(remote_key.bytes, payload, length);
  return (remote_key.kind() == transport::KeyKind::region) == of_region;
}

void protocol_violation(transport::Link& link, const char* what) noexcept {
  ERDMA_WARN(EP_DATA, "%s sent %s; its connection is closed\n", link.address().to_string().c_str(),
             what);
  link.fail(-FI_ECONNRESET);
}

bool takes(transport::Link& link, Verdict verdict, const char* what) noexcept {
  if (verdict == Verdict::violation) protocol_violation(link, what);
  return verdict == Verdict::take;
}

}  // namespace erdma::protocol::inbound
