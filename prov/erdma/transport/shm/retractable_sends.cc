#include "transport/shm/retractable_sends.h"

#include <algorithm>

#include <rdma/fi_errno.h>

#include "transport/shm/link_context.h"

namespace erdma::transport::shm {

// Where processes share cores, the peer does not look at the packet before this process pauses.
bool RingRetractableSends::suits(size_t length) noexcept {
  LinkContext& context = x_out.context();
  if (length <= kSlotPayload) return true;
  if (length > std::min<size_t>(context.options.eager_bytes, kMaxEager)) return false;
  context.count_message();
  if (context.core.shared()) return false;
  const bool may_call = context.options.cma && context.options.paths == PathPolicy::measure;
  return !may_call || context.rma_timer.prefers_packet(this, length, x_under_way == 0);
}

int RingRetractableSends::send(const Header& header, const iovec* payload, size_t count,
                               size_t length, uint64_t& packet) noexcept {
  SlotSender* const ring = x_out.ring();
  if (!ring || length > kMaxEager) return -FI_EOPNOTSUPP;
  if (x_out.cold()) {
    x_out.ask_for_hot();
    return -FI_EOPNOTSUPP;
  }
  uint32_t sequence = 0;
  if (!ring->push_retractable(&header, payload, count, length, sequence)) {
    ++x_out.counters().waits;
    return -FI_EAGAIN;
  }
  packet = x_out.name_of_packet(sequence);
  ++x_under_way;
  x_out.context().rma_timer.sent(this, packet);
  x_out.counters().ring_bytes += length;
  x_out.announce();
  return 0;
}

// Everything in a ring that was given up has been taken, or will be.
bool RingRetractableSends::retract(uint64_t packet) noexcept {
  return x_out.uses_hot_ring_of(packet) && x_out.ring()->retract(uint32_t(packet));
}

void RingRetractableSends::retracted(uint64_t packet, bool executed) noexcept {
  x_out.ring()->retracted(uint32_t(packet), executed);
  x_out.wake();
  if (!executed) return;
  --x_under_way;
  x_out.context().rma_timer.ended(this, packet, false);
}

void RingRetractableSends::ended(uint64_t packet) noexcept {
  --x_under_way;
  x_out.context().rma_timer.ended(this, packet, true);
}

}  // namespace erdma::transport::shm
