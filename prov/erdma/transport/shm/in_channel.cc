#include "transport/shm/in_channel.h"

#include <sched.h>

#include <algorithm>
#include <new>

#include <rdma/fi_errno.h>

#include "transport/guarded.h"
#include "transport/shm/link.h"
#include "transport/shm/link_context.h"

namespace erdma::transport::shm {
namespace {

constexpr uint64_t kEntriesPerPoll = 64;
constexpr int kDrainsAtEnd = 8;               ///< more drains than both rings can fill
constexpr uint64_t kQuietWait = 100'000'000;  // ns

template <typename Settled>
void wait_until(const util::Clock& clock, Settled quiet) noexcept {
  const uint64_t start = clock.now();
  while (!quiet() && clock.now() - start < kQuietWait) ::sched_yield();
}

}  // namespace

InChannel::InChannel(LinkContext& context, ShmLink& link, util::Ref<Connection> connection) noexcept
    : x_current(&x_cold),
      x_context(context),
      x_link(link),
      x_cold(RingMemory::cold(*connection->chunk, connection->ring), 0),
      x_connection(std::move(connection)) {
  owner_gate().open(link.direct().link_number(), link.direct().revocations_made());
}

int InChannel::drain(Sink& sink) noexcept {
  RingReceiver& ring = *x_current;
  uint64_t count = 0;
  bool previews = false;
  bool left = false;  // the next drain() tries the entry again
  RingEntry entry;
  try {
    while (count < kEntriesPerPoll && x_intake <= Intake::ending && ring.next(entry)) {
      if (count == 1) previews = sink.wants_previews();  // a single entry has none to look ahead to
      if (previews) [[unlikely]]
        if (const std::byte* header = ring.following()) sink.on_preview(x_link, header);
      if (entry.kind == Kind::packet) [[likely]] {
        if (entry.length < kLongPayload) [[likely]]
          sink.on_packet(x_link, entry.header, entry.payload, entry.length);
        else
          x_hot->take_long(entry, x_link, sink, x_context.clock);
      } else if (const Next then = handle(entry, sink); then != Next::more) {
        left = then == Next::later;
        if (then == Next::wait) ring.stay(entry);
        if (then == Next::wait || left) break;
        if (then == Next::broken) x_context.ends.break_link(x_link, LinkFault::invalid_entry);
        x_delivered = x_delivered || count;
        return int(count + 1);
      }
      ++count;
      if (ring.advance()) publish(ring);
      if (sink.take_served() && x_intake != Intake::ending) {
        x_context.channels.leave_rest();
        break;
      }
    }
  } catch (const std::bad_alloc&) {
    say_out_of_memory("taking a packet");
    left = true;
  }
  if (left) [[unlikely]] {
    x_left = true;
    ring.stay(entry);
    if (!hot()) x_context.channels.watch(*this);
  }
  if (ring.unpublished()) publish(ring);
  x_delivered = x_delivered || count;
  x_last_active = x_context.channels.count_entries(count);
  return int(count);
}

void InChannel::hold(bool on) noexcept {
  const Intake now = on ? Intake::held : Intake::open;
  if (x_intake == now || (x_intake != Intake::open && x_intake != Intake::held)) return;
  x_intake = now;
  if (on)
    x_context.channels.unwatch(*this);
  else
    x_context.channels.watch(*this);
}

bool InChannel::deliver_rest(Sink& sink, bool silent) noexcept {
  x_silent = silent;
  if (x_intake != Intake::stopped) x_intake = Intake::ending;
  for (int i = 0; i < kDrainsAtEnd; ++i) {
    x_left = false;
    if (!drain(sink)) break;
  }
  return !x_left;
}

void InChannel::end() noexcept {
  owner_gate().end();
  x_context.channels.forget(*this);
  if (linked()) unlink();
}

void InChannel::publish(RingReceiver& ring) noexcept {
  if (ring.publish() && ring.take_waiting()) wake_sender();
}

/// Times some of the payloads, so that the sender can tell whether a rendezvous is faster.
void InChannel::Hot::take_long(const RingEntry& entry, ShmLink& link, Sink& sink,
                               const util::Clock& clock) {
  link.turns().takes(entry.length);
  if (++long_payloads % kTimedEvery)
    return sink.on_packet(link, entry.header, entry.payload, entry.length);
  const uint64_t start = clock.now();
  sink.on_packet(link, entry.header, entry.payload, entry.length);
  rates.add(entry.length, clock.now() - start);
  ring.publish_rate(uint32_t(rates.typical() * 1000));
}

InChannel::Next InChannel::handle(const RingEntry& entry, Sink& sink) {
  switch (entry.kind) {
    case Kind::switch_ring:
      return switch_ring();
    case Kind::write_target:
    case Kind::write_source:
    case Kind::write_done:
      return on_write_entry(entry, sink);
    // A sender that died in the middle of a retraction may have executed the read or write or not.
    // Later operations must not overtake it, so it is executed, perhaps for a second time.
    case Kind::retracted:
    case Kind::retractable:
    case Kind::taken:  // on_packet() lacked memory before
      if (!hot()) return Next::broken;
      if (entry.kind == Kind::retracted && !x_silent) return Next::wait;
      if (entry.kind == Kind::retractable && !x_current->take()) return Next::wait;
      sink.on_packet(x_link, entry.header, entry.payload, entry.length);
      return Next::more;
    case Kind::skipped:
      return hot() ? Next::more : Next::broken;
    default:
      return Next::broken;
  }
}

InChannel::Next InChannel::switch_ring() noexcept {
  RingReceiver& left = *x_current;
  left.advance();
  if (!hot()) {
    publish(left);
    if (!granted()) return Next::broken;
    x_current = &x_hot->ring;
    x_pause = kAskAgainAfter;
    x_last_active = x_context.channels.count_entries(1);
    x_context.channels.watch(*this);
    // The sender ignores a request that comes before it has begun to use the ring.
    if (x_demoting) ask_to_demote();
  } else {
    x_current = &x_cold;
    x_demoting = false;
    x_until_promotion = kPromoteAfter;
    x_hot.reset();
    x_context.channels.unwatch(*this);
    x_context.channels.watch(*this);
    x_context.channels.give_back(*this);
  }
  return Next::switched;
}

InChannel::Next InChannel::on_write_entry(const RingEntry& entry, Sink& sink) {
  RemoteWrites* const writes = x_link.remote_writes();
  if (!writes) throw std::bad_alloc();
  using Taken = RemoteWrites::Taken;
  const Taken taken = writes->on_entry(entry, sink);
  return taken == Taken::yes ? Next::more : taken == Taken::later ? Next::later : Next::broken;
}

bool InChannel::should_promote(int count) noexcept {
  if (uint32_t(count) < x_until_promotion) {
    x_until_promotion -= uint32_t(count);
    return false;
  }
  x_until_promotion = x_pause;
  return true;
}

void InChannel::put_off_promotion() noexcept {
  x_demoting = false;
  x_hot.reset();
  x_pause = std::min(x_pause * 8, kLongestPause);
  x_until_promotion = x_pause;
}

int InChannel::grant_hot() noexcept {
  std::unique_ptr<Hot> hot(new (std::nothrow) Hot);
  if (!hot) return -FI_ENOMEM;
  auto segment = Memfd::create("erdma-hot", kHotSegmentBytes, kHotBackedBytes);
  if (!segment) return segment.error();
  if (const int rc = segment->back(kHotSegmentBytes - kShmPage, kShmPage)) return rc;
  const int fd = segment->fd();
  if (const int rc = send_control(x_connection->socket, ControlType::hot_ring, 0, &fd)) return rc;
  segment->close_fd();
  hot->segment = std::move(*segment);
  hot->ring = RingReceiver(RingMemory::hot(hot->segment.as<HotSegment>()), 0);
  x_hot = std::move(hot);
  return 0;
}

void InChannel::ask_to_demote() noexcept {
  x_demoting = !send_control(x_connection->socket, ControlType::demote);
}

int InChannel::share_bulk() noexcept {
  if (x_bulk) return 0;
  auto bulk = BulkOperations::share(x_context, *this);
  if (!bulk) return bulk.error();
  x_bulk = std::move(*bulk);
  return 0;
}

int InChannel::read(const RemoteKey& remote, const iovec* local, size_t count, size_t length,
                    uint64_t token, const RemoteWrite* write) noexcept {
  if (const int rc = share_bulk()) return rc;
  return x_bulk->read(remote, local, count, length, token, write);
}

int InChannel::access(CmaCall call, const SharedRegion& region, uint64_t offset, const iovec* local,
                      size_t count, size_t length, uint64_t token) noexcept {
  if (const int rc = share_bulk()) return rc;
  return x_bulk->access(call, region, offset, local, count, length, token);
}

bool InChannel::sender_left() const noexcept {
  return look_after_reading(x_connection->control().left) == uint32_t(SenderState::left);
}

// A dead peer may have claimed chunks that it never reports as written; its writes ended with it.
bool InChannel::sender_dead() const noexcept {
  return x_connection->process->life().exited();
}

bool InChannel::quiesce() noexcept {
  owner_gate().end();
  const bool quiet = (!x_bulk || x_bulk->quiesce()) && !owner_gate().inside();
  return quiet || sender_dead();
}

void InChannel::await_quiet() noexcept {
  wait_until(x_context.clock, [this] { return quiesce(); });
}

void InChannel::end_writes(util::PoolHandle target, Sink& sink, int status) noexcept {
  if (!x_bulk) return;
  const uint64_t group = BulkOperations::group_of(target);
  wait_until(x_context.clock, [&] { return x_bulk->quiesce(group) || sender_dead(); });
  x_bulk->cancel(sink, status, group);
}

// A sender with shared memory sleeps with `waiting` set, and a ticket was published. The fence does
// not matter once per step of a bulk transfer.
void InChannel::wake_waiting_sender() noexcept {
  const bool hot_waits = x_hot && x_hot->ring.take_sleeper();
  if (x_cold.take_sleeper() || hot_waits) wake_sender();
}

void InChannel::wake_sender() noexcept {
  if (!x_connection->process->waker.ring()) (void)x_context.try_later();
}

}  // namespace erdma::transport::shm
