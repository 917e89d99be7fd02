#include "transport/shm/link.h"

#include <new>

#include <rdma/fi_errno.h>

#include "transport/shm/core.h"
#include "transport/shm/wire.h"

namespace erdma::transport::shm {
namespace {

constexpr uint32_t kPromoteAfter = 16;     ///< messages through a cold ring
constexpr uint32_t kAskAgainAfter = 1024;  ///< more of them, when the first request had no effect
constexpr int kDrainsAtEnd = 8;            ///< more than both rings hold

}  // namespace

ShmLink::ShmLink(Core& core, const util::SocketAddress& address) noexcept
    : Link(address), x_counters(core.counters()), x_core(core) {}

ShmLink::~ShmLink() = default;

int ShmLink::send(const Header& header, const iovec* payload, size_t count, size_t length,
                  SendHint) noexcept {
  if (!x_ring) [[unlikely]]
    return not_ready();
  if (!x_ring->push(Kind::packet, &header, payload, count, length)) [[unlikely]]
    return no_room(length);
  x_counters.ring_bytes += length;
  after_push();
  return 0;
}

void ShmLink::after_push() noexcept {
  if (x_cold) [[unlikely]]
    after_cold_push();
  wake_if_asleep(*x_wake, x_wake_fd);
}

void ShmLink::after_cold_push() noexcept {
  x_out->chunk().ready.fetch_or(uint64_t(1) << x_out->ring, std::memory_order_acq_rel);
  if (++x_out->sent_cold % kAskAgainAfter == kPromoteAfter) request_promotion();
}

// Lost when the socket is full: then it is asked again later.
void ShmLink::request_promotion() noexcept {
  const Control ask{ControlType::promote, 0};
  (void)send_message(x_out->connection->socket.get(), &ask, sizeof(ask));
}

int ShmLink::not_ready() noexcept {
  if (x_state == State::closed) return -FI_ESHUTDOWN;
  if (x_state != State::idle) return -FI_EAGAIN;
  const int rc = x_core.connect(*this, ++x_attempt);
  if (rc) return rc;
  x_state = State::connecting;
  return -FI_EAGAIN;
}

int ShmLink::no_room(size_t length) noexcept {
  if (length > limits().eager) return -FI_EMSGSIZE;
  x_core.add_starved(*this);
  return -FI_EAGAIN;
}

LinkLimits ShmLink::limits() const noexcept {
  return {x_cold ? size_t(kSlotPayload) : x_core.options().eager_bytes, true};
}

void ShmLink::install_out(std::unique_ptr<OutChannel> channel) noexcept {
  x_out = std::move(channel);
  x_wake = &x_out->chunk().wake;
  x_wake_fd = x_out->connection->process->wake.get();
  x_state = State::up;
  use_ring();
}

void ShmLink::use_ring() noexcept {
  x_cold = !x_out->hot.attached();
  x_ring = x_cold ? &x_out->cold : &x_out->hot;
}

void ShmLink::offer_hot(Segment segment) noexcept {
  OutChannel& out = *x_out;
  if (out.hot.attached() || out.to_hot || out.to_cold) return;
  out.hot_segment = std::move(segment);
  out.to_hot = true;
  x_ring = nullptr;
  if (!try_switch()) x_core.add_switching(*this);
}

void ShmLink::ask_cold() noexcept {
  OutChannel& out = *x_out;
  if (!out.hot.attached() || out.to_cold) return;
  out.to_cold = true;
  x_ring = nullptr;
  if (!try_switch()) x_core.add_switching(*this);
}

bool ShmLink::try_switch() noexcept {
  if (!out_up() || !(x_out->to_hot || x_out->to_cold)) return true;
  OutChannel& out = *x_out;
  RingSender& left = out.to_hot ? out.cold : out.hot;
  const Header nothing{};
  const iovec empty{nullptr, 0};
  if (!left.push(Kind::switch_ring, &nothing, &empty, 1, 0)) return false;
  after_push();
  if (out.to_hot) {
    out.hot = RingSender(RingMemory::hot(out.hot_segment.as<HotSegment>()), 0,
                         x_core.options().streaming);
  } else {
    out.hot = RingSender();
    out.hot_segment.reset();
    out.sent_cold = 0;
  }
  out.to_hot = out.to_cold = false;
  use_ring();
  return true;
}

RingSender* ShmLink::blocked_ring() const noexcept {
  if (!out_up() || x_ring) return x_ring;
  return x_out->to_hot ? &x_out->cold : x_out->to_cold ? &x_out->hot : nullptr;
}

int ShmLink::expose(const iovec* memory, size_t count, size_t length, Access access,
                    Exposure& exposure) noexcept {
  if (access == Access::remote_write) return expose_target(memory, count, length, exposure);
  if (!out_up()) return not_ready();
  if (!x_out->bulk) {
    x_out->bulk.reset(new (std::nothrow) BulkOut(x_core.calls(), x_cma, x_core.options(),
                                                 x_core.counters(), x_core.clock()));
    if (!x_out->bulk) return -FI_ENOMEM;
    if (x_out->bulk_segment) x_out->bulk->attach(x_out->bulk_segment.data());
    if (x_cold) request_promotion();
  }
  const int rc = x_out->bulk->expose(memory, count, length, exposure);
  if (!rc) x_core.add_bulk_out(*this);
  return rc;
}

void ShmLink::withdraw(const Exposure& exposure) noexcept {
  if (is_target(exposure))
    withdraw_target(exposure);
  else if (x_out && x_out->bulk)
    x_out->bulk->withdraw(exposure);
}

int ShmLink::read(const Exposure& remote, const iovec* local, size_t count, size_t length,
                  uint64_t token) noexcept {
  if (is_target(remote)) return -FI_EINVAL;
  return x_in ? x_in->read(remote, local, count, length, token, nullptr) : -FI_ENOTCONN;
}

void ShmLink::fail(int status) noexcept {
  x_core.break_link(*this, "the protocol's rules are broken", status);
}

void ShmLink::attach_bulk(Segment segment) noexcept {
  OutChannel& out = *x_out;
  if (out.bulk_segment) return;
  out.bulk_segment = std::move(segment);
  if (out.bulk) out.bulk->attach(out.bulk_segment.data());
}

int ShmLink::poll_bulk_out() noexcept {
  const int steps = x_out->bulk->poll();
  if (steps) wake_if_asleep(*x_wake, x_wake_fd);
  return steps;
}

PeerProcess* ShmLink::process() const noexcept {
  if (out_up()) return x_out->connection->process.get();
  return x_in ? x_in->connection()->process.get() : nullptr;
}

void ShmLink::take_down(Sink& sink, int status) noexcept {
  if (x_in) {
    for (int i = 0; i < kDrainsAtEnd && !broken && x_in->drain(sink); ++i) continue;
    x_in->abort_bulk(sink, status);
  }
  x_ring = nullptr;
  if (out_up()) x_out->announce_end();
  fail_writes(sink, status);
  end_channels(status);
  x_state = State::idle;
  ++x_attempt;  // what still comes of an attempt under way is stale
}

void ShmLink::close(int status) noexcept {
  struct Nobody final : Sink {
    void on_packet(Link&, const std::byte*, const std::byte*, size_t) noexcept override {}
    void on_done(uint64_t, int) noexcept override {}
    void on_link_down(Link&, int) noexcept override {}
  } nobody;
  if (x_in) x_in->abort_bulk(nobody, status);
  x_ring = nullptr;
  end_channels(status);
  x_state = State::closed;
}

void ShmLink::end_channels(int status) noexcept {
  if (out_up()) {
    x_out->announce_end();
    x_out->down = true;
    x_core.close(x_out->connection, status);
  }
  x_cold = true;
  x_replies.clear();
  x_target_is_named = false;
  if (!x_in) return;
  x_core.close(x_in->connection(), status);
  x_core.forget(*x_in);
  x_in.reset();
}

}  // namespace erdma::transport::shm
