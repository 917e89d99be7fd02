#include "transport/verbs/receive_queue.h"

#include <algorithm>
#include <utility>

#include "transport/verbs/send_queue.h"

namespace erdma::transport::verbs {

int ReceiveQueue::make(ReceiveRegions& regions, uint32_t slots, uint32_t slot_bytes) noexcept {
  x_small_slots = slots;
  return x_small.make(regions, slots, slot_bytes);
}

int ReceiveQueue::start(ibv_qp* qp, uint32_t connection) noexcept {
  x_qp = qp;
  x_connection = connection;
  x_target = x_small.slots();
  x_batch = std::max(x_target / 4, 1u);
  return post(x_target);
}

int ReceiveQueue::grow(ReceiveSlots& large) noexcept {
  x_large = std::move(large);
  x_grown_from = x_posted;
  x_post_at = 0;
  x_target = x_large.slots();
  x_batch = std::max(x_target / 4, 1u);
  return post(x_target);
}

bool ReceiveQueue::take(uint64_t wr_id, Slot& slot) noexcept {
  if (((uint32_t(wr_id) ^ x_consumed) & WorkId::kNumberMask) != 0 || x_consumed == x_posted)
    return false;
  if (x_consumed == x_grown_from) x_take_at = 0;
  const ReceiveSlots& buffers = x_consumed >= x_grown_from ? x_large : x_small;
  slot = {buffers.slot(x_take_at), buffers.slot_bytes()};
  if (++x_take_at == buffers.slots()) x_take_at = 0;
  ++x_consumed;
  return true;
}

std::byte* ReceiveQueue::put_back() noexcept {
  --x_consumed;
  const ReceiveSlots& buffers = x_consumed >= x_grown_from ? x_large : x_small;
  x_take_at = (x_take_at ? x_take_at : buffers.slots()) - 1;
  return buffers.slot(x_take_at);
}

int ReceiveQueue::repost(uint32_t& count) noexcept {
  count = idle();
  return count ? post(count) : 0;
}

bool ReceiveQueue::drop_small() noexcept {
  if (!x_small || x_consumed < x_grown_from) return false;
  x_small.reset();
  return true;
}

// Posts in chains, because a doorbell costs more than a request.
int ReceiveQueue::post(uint32_t count) noexcept {
  constexpr uint32_t kChain = 16;
  ibv_recv_wr requests[kChain];
  ibv_sge pieces[kChain];
  const ReceiveSlots& buffers = x_large ? x_large : x_small;
  while (count > 0) {
    const uint32_t chained = std::min(count, kChain);
    for (uint32_t i = 0; i < chained; ++i) {
      pieces[i] = {uint64_t(buffers.slot(x_post_at)), buffers.slot_bytes(), buffers.lkey()};
      requests[i] = {WorkId::receive(x_connection, uint32_t(x_posted + i)),
                     i + 1 < chained ? &requests[i + 1] : nullptr, &pieces[i], 1};
      if (++x_post_at == buffers.slots()) x_post_at = 0;
    }
    ibv_recv_wr* bad = nullptr;
    if (const int rc = ibv_post_recv(x_qp, requests, &bad)) return -std::abs(rc);
    x_posted += chained;
    count -= chained;
  }
  return 0;
}

}  // namespace erdma::transport::verbs
