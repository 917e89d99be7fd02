#include "transport/shm/link.h"

#include <sched.h>

#include <new>
#include <utility>

#include <rdma/fi_errno.h>

#include "transport/shm/core.h"
#include "transport/shm/wire.h"

namespace erdma::transport::shm {
namespace {

constexpr unsigned kPollsPerYield = 256;  ///< a few microseconds
constexpr unsigned kBulkYields = 64;      ///< per channel, at most
constexpr int kDrainsAtEnd = 8;           ///< more than both rings hold

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
    x_out->chunk().ready.fetch_or(uint64_t(1) << x_out->ring, std::memory_order_acq_rel);
  wake_if_asleep(*x_wake, *x_ringer);
}

int ShmLink::send_retractable(const Header& header, const iovec* payload, size_t count,
                              size_t length, uint64_t& packet) noexcept {
  if (!x_ring || length > kSlotPayload) return -FI_EOPNOTSUPP;
  if (x_cold) {
    ask_for_hot();
    return -FI_EOPNOTSUPP;
  }
  uint32_t sequence = 0;
  if (!x_ring->push_retractable(&header, payload, count, length, sequence)) return -FI_EAGAIN;
  packet = uint64_t(x_out->hot_count) << 32 | sequence;
  x_counters.ring_bytes += length;
  after_push();
  return 0;
}

// In a ring that was given up, everything has been taken, or will be.
bool ShmLink::retract(uint64_t packet) noexcept {
  return x_ring && !x_cold && packet >> 32 == x_out->hot_count && x_ring->retract(uint32_t(packet));
}

void ShmLink::retracted(uint64_t packet, bool executed) noexcept {
  x_ring->retracted(uint32_t(packet), executed);
  wake_if_asleep(*x_wake, *x_ringer);
}

// Lost when the socket is full: then the receiver sees by itself that much is sent.
void ShmLink::ask_for_hot() noexcept {
  if (std::exchange(x_out->asked_for_hot, true)) return;
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
  x_ringer = &x_out->connection->process->ringer;
  x_state = State::up;
  use_ring();
}

void ShmLink::use_ring() noexcept {
  x_cold = !x_out->hot;
  x_ring = x_cold ? &x_out->cold : &x_out->hot->ring;
}

void ShmLink::offer_hot(Segment segment) noexcept {
  OutChannel& out = *x_out;
  if (out.hot) return;
  out.hot.reset(new (std::nothrow) HotOut);
  if (!out.hot) return;  // as if the offer had been lost
  ++out.hot_count;
  out.hot->segment = std::move(segment);
  out.hot->ring =
      RingSender(RingMemory::hot(out.hot->segment.as<HotSegment>()), 0, x_core.options().streaming);
  out.to_hot = true;
  x_ring = nullptr;
  if (!try_switch()) x_core.add_switching(*this);
}

void ShmLink::ask_cold() noexcept {
  OutChannel& out = *x_out;
  if (!out.hot || out.to_hot || out.to_cold) return;
  out.to_cold = true;
  x_ring = nullptr;
  if (!try_switch()) x_core.add_switching(*this);
}

bool ShmLink::try_switch() noexcept {
  if (!out_up() || ending() || !(x_out->to_hot || x_out->to_cold)) return true;
  OutChannel& out = *x_out;
  RingSender& left = out.to_hot ? out.cold : out.hot->ring;
  const Header nothing{};
  const iovec empty{nullptr, 0};
  if (!left.push(Kind::switch_ring, &nothing, &empty, 1, 0)) return false;
  after_push();
  if (out.to_cold) out.hot.reset();
  out.to_hot = out.to_cold = false;
  use_ring();
  return true;
}

RingSender* ShmLink::blocked_ring() const noexcept {
  if (!out_up() || x_ring) return x_ring;
  return x_out->to_hot ? &x_out->cold : x_out->to_cold ? &x_out->hot->ring : nullptr;
}

int ShmLink::expose(const iovec* memory, size_t count, size_t length, Access access,
                    Exposure& exposure) noexcept {
  if (access == Access::remote_write) return expose_target(memory, count, length, exposure);
  if (!out_up() || ending()) return not_ready();
  if (const int rc = begin_bulk()) return rc;
  if (x_cold) ask_for_hot();
  const int rc = x_out->bulk->expose(memory, count, length, exposure);
  if (!rc) x_core.add_bulk_out(*this);
  return rc;
}

int ShmLink::begin_bulk() noexcept try {
  if (x_out->bulk) return 0;
  x_out->bulk = std::make_unique<BulkOut>(x_core.calls(), x_cma, x_core.options(),
                                          x_core.counters(), x_core.clock());
  x_out->bulk->lends(x_lent.get());
  if (x_out->bulk_segment) x_out->bulk->attach(x_out->bulk_segment.data());
  return 0;
} catch (const std::bad_alloc&) {
  return -FI_ENOMEM;
}

int ShmLink::withdraw(const Exposure& exposure) noexcept {
  if (is_target(exposure))
    withdraw_target(exposure);
  else if (x_out && x_out->bulk)
    x_out->bulk->withdraw(exposure);
  return 0;
}

int ShmLink::read(const Exposure& remote, const iovec* local, size_t count, size_t length,
                  uint64_t token) noexcept {
  if (is_target(remote)) return -FI_EINVAL;
  if (remote.is_offer()) x_files.reset();  // nobody here takes any
  return x_in ? x_in->read(remote, local, count, length, token, nullptr) : -FI_ENOTCONN;
}

// The peer's background thread reads it whether or not the peer polls.
util::Result<uint32_t> ShmLink::hand_over(const util::Fd& file) noexcept {
  if (!out_up() || ending()) return -FI_ENOTCONN;
  const Control give{ControlType::file, int32_t(x_files_given + 1)};
  const int fd = file.get();
  if (const int rc = send_message(x_out->connection->socket.get(), &give, sizeof(give), &fd, 1))
    return rc;
  return ++x_files_given;
}

util::Result<util::Fd> ShmLink::take_file(uint32_t name) noexcept {
  if (!x_in) return -FI_EOPNOTSUPP;
  if (!x_files) return -FI_EAGAIN;
  return x_files->take(name);
}

void ShmLink::keep_file(uint32_t name, util::Fd file) {
  if (!x_files) x_files = std::make_unique<HandedFiles>();
  x_files->put(name, std::move(file));
}

void ShmLink::fail(int status) noexcept {
  x_core.break_link(*this, "the protocol's rules are broken", status);
}

void ShmLink::hold(bool on) noexcept {
  if (x_in) x_in->hold(on);
}

// If there is no memory to say it, its next sender says it again.
void ShmLink::addressed() noexcept {
  if (!x_addressed) x_addressed = x_core.trust(*this) == 0;
}

void ShmLink::attach_bulk(Segment segment) noexcept {
  OutChannel& out = *x_out;
  if (out.bulk_segment) return;
  out.bulk_segment = std::move(segment);
  if (out.bulk) out.bulk->attach(out.bulk_segment.data());
}

// The memory that both sides copy through arrives by the connection thread, which may have to wait
// for the core that this thread spins on: under a real-time policy for a whole time slice.
void ShmLink::let_bulk_arrive() noexcept {
  if (x_out->bulk->attached() || x_out->yields == kBulkYields) return;
  if (++x_out->bulk_polls % kPollsPerYield != 0) return;
  ++x_out->yields;
  ::sched_yield();
}

int ShmLink::poll_bulk_out() noexcept {
  let_bulk_arrive();
  const int steps = x_out->bulk->poll();
  if (steps) wake_if_asleep(*x_wake, *x_ringer);
  return steps;
}

PeerProcess* ShmLink::process() const noexcept {
  if (out_up()) return x_out->connection->process.get();
  return x_in ? x_in->connection()->process.get() : nullptr;
}

bool ShmLink::begin_end() noexcept {
  if (settled()) return true;
  x_ring = nullptr;
  x_state = State::ending;
  return false;
}

void ShmLink::take_down(Sink& sink, int status) noexcept {
  if (x_in) {
    x_in->begin_to_end();
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
  if (x_in) {
    x_in->await_settled();
    x_in->abort_bulk(nobody, status);
  }
  x_ring = nullptr;
  end_channels(status);
  x_state = State::closed;
}

bool ShmLink::drop_unused_in() noexcept {
  if (!connecting() || x_in->brought_anything() || x_in->ready() || x_in->bulk_active())
    return false;
  end_in(-FI_ESHUTDOWN);
  return true;
}

void ShmLink::end_channels(int status) noexcept {
  if (out_up()) {
    x_out->announce_end();
    x_out->down = true;
    x_core.close(x_out->connection, status);
  }
  x_cold = true;
  if (x_remote) {
    x_remote->replies.clear();
    x_remote->target_is_named = false;
  }
  if (x_out && x_out->bulk) x_out->bulk->lends(nullptr);
  x_lent.reset();
  x_recalls_heard = x_recalls_made = 0;
  ++x_link_number;
  if (x_in) end_in(status);
}

// Closed last: from then on its ring may become another peer's.
void ShmLink::end_in(int status) noexcept {
  const std::shared_ptr<Connection> connection = x_in->connection();
  x_in->lending().end();
  x_core.forget(*x_in);
  x_in.reset();
  x_files.reset();
  x_core.close(connection, status);
}

}  // namespace erdma::transport::shm
