#include "transport/shm/in_channel.h"

#include <sched.h>

#include <algorithm>
#include <new>

#include <rdma/fi_errno.h>

#include "transport/shm/core.h"
#include "transport/shm/link.h"
#include "transport/shm/wire.h"
#include "util/log.h"

namespace erdma::transport::shm {
namespace {

constexpr int kEntriesPerPoll = 64;
constexpr uint64_t kSettleWait = 100'000'000;  // ns
constexpr unsigned kBouncesByChoice = 16;      ///< inbound channels of one endpoint: 8 MiB

}  // namespace

InChannel::InChannel(Core& core, ShmLink& link, std::shared_ptr<Connection> connection) noexcept
    : x_current(&x_cold),
      x_core(core),
      x_link(link),
      x_cold(RingMemory::cold(*connection->place.chunk, connection->place.index), 0),
      x_connection(std::move(connection)),
      x_lending(x_connection->place.chunk->controls[x_connection->place.index], link.number(),
                link.recalls_made()) {}

int InChannel::drain(Sink& sink) noexcept {
  RingReceiver& ring = *x_current;
  int count = 0;
  bool previews = false;
  RingEntry entry;
  while (count < kEntriesPerPoll && !x_stopped && ring.next(entry)) {
    if (count == 1) previews = sink.wants_previews();  // one alone has none to look ahead to
    if (previews) [[unlikely]]
      if (const std::byte* header = ring.following()) sink.on_preview(x_link, header);
    if (entry.kind == Kind::packet) [[likely]] {
      sink.on_packet(x_link, entry.header, entry.payload, entry.length);
    } else if (const Next next = handle(entry, sink); next != Next::more) {
      if (next == Next::wait) break;
      if (next == Next::broken) x_core.break_link(x_link, "its ring holds an invalid entry");
      return count + 1;
    }
    ++count;
    if (ring.advance()) publish(ring);
  }
  if (ring.unpublished()) publish(ring);
  x_brought = x_brought || count;
  x_last_active = x_core.count_entries(count);
  return count;
}

void InChannel::hold(bool on) noexcept {
  if (x_ending || x_stopped == on) return;
  x_stopped = on;
  x_core.attend_to(*this, !on);
}

void InChannel::begin_to_end() noexcept {
  if (!x_ending) x_stopped = false;
  x_ending = true;
}

void InChannel::publish(RingReceiver& ring) noexcept {
  if (ring.publish() && ring.take_waiting()) x_connection->process->ringer.ring();
}

InChannel::Next InChannel::handle(const RingEntry& entry, Sink& sink) noexcept {
  switch (entry.kind) {
    case Kind::switch_ring:
      return switch_ring();
    case Kind::write_target:
    case Kind::write_source:
    case Kind::write_done:
      return x_link.on_write_entry(entry, sink) ? Next::more : Next::broken;
    case Kind::retractable:
      if (!hot()) return Next::broken;
      if (!x_current->take()) return Next::wait;
      sink.on_packet(x_link, entry.header, entry.payload, entry.length);
      return Next::more;
    case Kind::retracted:
      return hot() ? Next::wait : Next::broken;
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
    x_last_active = x_core.count_entries(1);
    x_core.add_hot(*this);
  } else {
    x_current = &x_cold;
    x_demoting = false;
    x_until_promotion = kPromoteAfter;
    x_core.remove_hot(*this);
    x_hot.reset();
  }
  return Next::switched;
}

bool InChannel::sends_a_lot(int count) noexcept {
  if (uint32_t(count) < x_until_promotion) {
    x_until_promotion -= uint32_t(count);
    return false;
  }
  x_until_promotion = x_pause;
  return true;
}

void InChannel::put_off_promotion() noexcept {
  x_pause = std::min(x_pause * 8, kLongestPause);
  x_until_promotion = x_pause;
}

int InChannel::grant_hot() noexcept {
  std::unique_ptr<Hot> hot(new (std::nothrow) Hot);
  if (!hot) return -FI_ENOMEM;
  auto segment = Segment::create("erdma-hot", kHotSegmentBytes, kHotSegmentBytes);
  if (!segment) return segment.error();
  const Control offer{ControlType::hot_ring, 0};
  const int fd = segment->fd();
  if (const int rc = send_message(x_connection->socket.get(), &offer, sizeof(offer), &fd, 1))
    return rc;
  segment->close_fd();
  hot->segment = std::move(*segment);
  hot->ring = RingReceiver(RingMemory::hot(hot->segment.as<HotSegment>()), 0);
  x_hot = std::move(hot);
  x_pause = kAskAgainAfter;
  return 0;
}

void InChannel::ask_to_demote() noexcept {
  const Control ask{ControlType::demote, 0};
  x_demoting = !send_message(x_connection->socket.get(), &ask, sizeof(ask));
}

int InChannel::read(const Exposure& remote, const iovec* local, size_t count, size_t length,
                    uint64_t token, const RemoteWrite* write) noexcept {
  if (!x_bulk)
    if (const int rc = share_bulk_memory()) return rc;
  Moving* moving =
      x_bulk->moving.acquire(Moving{token, write ? *write : RemoteWrite{}, write != nullptr});
  if (!moving) return -FI_ENOMEM;
  const util::PoolHandle handle = x_bulk->moving.handle(*moving);
  if (const int rc = x_bulk->transfers.start(remote, local, count, length,
                                             uint64_t(handle.generation) << 32 | handle.index)) {
    x_bulk->moving.release(*moving);
    return remote.is_offer() ? -FI_EOPNOTSUPP : rc;
  }
  wake_waiting_sender();
  x_core.add_bulk(*this);
  return 0;
}

int InChannel::access(CmaCall call, const LentMemory& lent, uint64_t offset, const iovec* local,
                      size_t count, size_t length, uint64_t token) noexcept {
  if (!x_bulk)
    if (const int rc = share_bulk_memory()) return rc;
  Moving* moving = x_bulk->moving.acquire(Moving{token, {}, false});
  if (!moving) return -FI_ENOMEM;
  const util::PoolHandle handle = x_bulk->moving.handle(*moving);
  if (const int rc = x_bulk->transfers.access(call, lent, offset, local, count, length,
                                              uint64_t(handle.generation) << 32 | handle.index)) {
    x_bulk->moving.release(*moving);
    return rc;
  }
  x_core.add_bulk(*this);
  return 0;
}

bool InChannel::enter() noexcept {
  return x_link.out_up() && x_link.out()->borrowing.enter();
}

void InChannel::leave() noexcept {
  x_link.out()->borrowing.leave();
}

void InChannel::ask_for_help() noexcept {
  x_link.ask_for_help();
}

InChannel::Bulk::Bulk(Segment&& memory, InChannel& channel)
    : segment(std::move(memory)),
      transfers(segment.data(), static_cast<BulkMemory&>(channel), channel.x_core.calls(),
                channel.x_link.cma(), channel.x_core.options(), channel.x_core.counters(),
                channel.x_core.clock()) {}

int InChannel::share_bulk_memory() noexcept try {
  auto segment = Segment::create("erdma-bulk", kBulkBytes, kBulkControlBytes);
  if (!segment) return segment.error();
  auto bulk = std::make_unique<Bulk>(std::move(*segment), *this);
  const Control offer{ControlType::bulk_memory, 0};
  const int fd = bulk->segment.fd();
  if (const int rc = send_message(x_connection->socket.get(), &offer, sizeof(offer), &fd, 1))
    return rc == -FI_EAGAIN ? rc : -FI_ECONNRESET;
  bulk->segment.close_fd_unless_needed();
  x_bulk = std::move(bulk);
  return 0;
} catch (const std::bad_alloc&) {
  return -FI_ENOMEM;
}

int InChannel::back_bounce() noexcept {
  const int rc = x_bulk->segment.back(kBulkControlBytes, kBulkBytes - kBulkControlBytes);
  if (rc) return rc;
  x_has_bounce = true;
  x_core.count_bounce();
  return 0;
}

bool InChannel::bounce_affordable() const noexcept {
  return x_has_bounce || x_core.bounces() < kBouncesByChoice;
}

bool InChannel::sender_left() const noexcept {
  const ColdPlace& place = x_connection->place;
  return look_after_reading(place.chunk->controls[place.index].left) != 0;
}

int InChannel::poll_bulk(Sink& sink) noexcept {
  x_bulk->sink = &sink;
  const int steps = x_bulk->transfers.poll(*this);
  if (steps) wake_waiting_sender();
  return steps;
}

// The dead claim chunks and never say that they are written: their writes ended with them.
bool InChannel::sender_dead() const noexcept {
  return x_connection->process->life->exited();
}

bool InChannel::settle_bulk() noexcept {
  x_lending.end();
  const bool settled = (!x_bulk || x_bulk->transfers.settle()) && !x_lending.inside();
  return settled || sender_dead();
}

void InChannel::await_settled() noexcept {
  const util::Clock& clock = x_core.clock();
  const uint64_t start = clock.now();
  while (!settle_bulk() && clock.now() - start < kSettleWait) ::sched_yield();
}

void InChannel::abort_bulk(Sink& sink, int status) noexcept {
  if (!x_bulk) return;
  x_bulk->sink = &sink;
  x_bulk->transfers.abort(*this, status);
}

void InChannel::on_done(uint64_t token, int status) noexcept {
  Moving* moving = x_bulk->moving.find({uint32_t(token), uint16_t(token >> 32)});
  if (!moving) return;
  const Moving done = *moving;
  x_bulk->moving.release(*moving);
  if (done.replies)
    x_link.reply_write(done.write.write, done.write.target, status);
  else
    x_bulk->sink->on_done(done.token, status);
}

// A sender with exposed memory sleeps with `waiting` set; a ticket was published. Once per step of
// a bulk transfer a fence does not matter.
void InChannel::wake_waiting_sender() noexcept {
  const bool hot_waits = x_hot && x_hot->ring.take_sleeper();
  if (x_cold.take_sleeper() || hot_waits) x_connection->process->ringer.ring();
}

}  // namespace erdma::transport::shm
