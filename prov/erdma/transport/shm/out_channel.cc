#include "transport/shm/out_channel.h"

#include <sched.h>

#include <new>
#include <utility>

#include "transport/shm/link_context.h"

namespace erdma::transport::shm {
namespace {

constexpr uint16_t kPollsPerYield = 256;  ///< a few microseconds
constexpr uint8_t kBulkYields = 64;       ///< per channel, at most

}  // namespace

void OutChannel::begin(util::Ref<Connection> connection, Memfd chunk, uint32_t index,
                       uint64_t heard) noexcept {
  x_bulk.reset();
  x_bulk_segment.reset();
  x_hot.reset();
  x_connection = std::move(connection);
  x_chunk = std::move(chunk);
  x_index = index;
  x_hot_count = 0;
  x_bulk_polls = x_yields = 0;
  x_switch = Switch::none;
  x_asked_for_hot = x_stopped = false;
  x_cold_ring = SlotSender(RingMemory::cold(this->chunk(), index), 0);
  x_borrowing = PeerGate(control(), heard);
  x_waker = &x_connection->process->waker;
  x_up = true;
  use_ring();
}

void OutChannel::stop() noexcept {
  x_ring = nullptr;
  if (x_up && !std::exchange(x_stopped, true))
    store_release(control().left, uint32_t(SenderState::sends_none));
}

void OutChannel::end() noexcept {
  x_ring = nullptr;
  x_up = false;
  x_cold = true;
}

void OutChannel::wake_later() const noexcept {
  (void)x_context.try_later();
}

void OutChannel::use_ring() noexcept {
  x_cold = !x_hot;
  x_ring = x_cold ? &x_cold_ring : &x_hot->ring;
}

// If the socket is full, the request is lost; the receiver then sees by itself that much is sent.
void OutChannel::ask_for_hot() noexcept {
  if (!std::exchange(x_asked_for_hot, true))
    (void)send_control(x_connection->socket, ControlType::promote);
}

bool OutChannel::offer_hot(Memfd segment) noexcept {
  if (x_hot) return true;
  x_hot.reset(new (std::nothrow) Hot);
  if (!x_hot) {
    (void)send_control(x_connection->socket, ControlType::no_hot_ring);
    return true;
  }
  ++x_hot_count;
  x_hot->segment = std::move(segment);
  x_hot->ring = RingSender(RingMemory::hot(x_hot->segment.as<HotSegment>()), 0, &x_hot->copy,
                           x_context.options.streaming, &x_context.core, &x_context.payloads,
                           &x_counters.byte_ring_bytes);
  x_hot->ring.limit_to_backed(*x_hot);
  x_switch = Switch::to_hot;
  x_ring = nullptr;
  return try_switch();
}

bool OutChannel::ask_cold() noexcept {
  if (!x_hot || x_switch != Switch::none) return true;
  x_switch = Switch::to_cold;
  x_ring = nullptr;
  return try_switch();
}

bool OutChannel::try_switch() noexcept {
  if (!x_up || x_stopped || x_switch == Switch::none) return true;
  SlotSender& left =
      x_switch == Switch::to_hot ? x_cold_ring : static_cast<SlotSender&>(x_hot->ring);
  const Header nothing{};
  const iovec empty{nullptr, 0};
  if (!left.push(Kind::switch_ring, &nothing, &empty, 1, 0)) return false;
  announce();
  if (x_switch == Switch::to_cold) x_hot.reset();
  x_switch = Switch::none;
  use_ring();
  return true;
}

SlotSender* OutChannel::blocked_ring() noexcept {
  if (!x_up || x_ring) return x_ring;
  return x_switch == Switch::to_hot    ? &x_cold_ring
         : x_switch == Switch::to_cold ? &x_hot->ring
                                       : nullptr;
}

ChannelBulk* OutChannel::begin_bulk(CmaPeer& cma, SharedRegions* region) noexcept try {
  if (x_bulk) return x_bulk.get();
  x_bulk = std::make_unique<ChannelBulk>(*this, x_context.calls, cma, x_context.core, x_counters);
  x_bulk->shares(region);
  if (x_bulk_segment) x_bulk->attach(x_bulk_segment->data());
  return x_bulk.get();
} catch (const std::bad_alloc&) {
  return nullptr;
}

void OutChannel::attach_bulk(Memfd&& segment) {
  if (x_bulk_segment) return;
  x_bulk_segment = std::make_unique<Memfd>(std::move(segment));
  if (x_bulk) x_bulk->attach(x_bulk_segment->data());
}

// The memory through which both sides copy arrives by way of the connection thread. That thread may
// wait for the core on which this thread spins: under a real-time policy for a whole time slice.
void OutChannel::wait_for_bulk_memory() noexcept {
  if (x_bulk->attached() || x_yields == kBulkYields) return;
  if (++x_bulk_polls < kPollsPerYield) return;
  x_bulk_polls = 0;
  ++x_yields;
  ::sched_yield();
}

int OutChannel::poll_bulk() noexcept {
  wait_for_bulk_memory();
  const int steps = x_bulk->poll();
  if (steps) wake();
  return steps;
}

/// Does not wake a peer that does not poll.
void OutChannel::ask_for_help() noexcept {
  if (!x_up) return;
  store_release(control().help, 1u);
  show_news();
}

}  // namespace erdma::transport::shm
