#include "transport/shm/bulk_operations.h"

#include <cerrno>
#include <new>
#include <utility>

#include <rdma/fi_errno.h>

#include "transport/shm/link.h"
#include "transport/shm/link_context.h"
#include "util/lacks.h"

namespace erdma::transport::shm {
namespace {

/// How long no memory is made for peers after the kernel refused to pass some.
constexpr uint64_t kPassPause = util::kMillisecond;
/// How long this process may lack the descriptor or the memory for large transfers.
constexpr uint64_t kLackPatience = 5'000 * util::kMillisecond;
/// Inbound channels of one endpoint that have slots by choice; of these, that may use all: 14 MiB.
constexpr unsigned kBouncesByChoice = 16, kWholeBounces = 4;

/// Peers and other threads may give back what lacks. Without it, each message of the peer fails.
int await_room(LinkContext& context, int error) noexcept {
  if (!util::is_lack(error)) return error;
  const uint64_t now = context.clock.now();
  // A lack that nobody met for a while is over, though no attempt has shown it.
  if (!context.lacks_since || now - context.next_pass >= kLackPatience) context.lacks_since = now;
  if (now - context.lacks_since >= kLackPatience) return error;
  context.next_pass = now + kPassPause;
  return context.try_later();
}

}  // namespace

util::Result<std::unique_ptr<BulkOperations>> BulkOperations::share(LinkContext& context,
                                                                    InChannel& channel) try {
  if (context.clock.now() < context.next_pass) return context.try_later();
  auto segment = Memfd::create("erdma-bulk", kBulkBytes, kBulkControlBytes);
  if (segment.error() == -EFBIG) return -FI_ENOMEM;
  if (!segment) return await_room(context, segment.error());
  context.lacks_since = 0;
  auto bulk = std::make_unique<BulkOperations>(context, channel, std::move(*segment));
  const int fd = bulk->x_segment.fd();
  const int rc = send_control(channel.connection()->socket, ControlType::bulk_memory, 0, &fd);
  if (rc == -FI_EAGAIN) return context.try_later();
  if (lacks_room(rc)) {
    context.next_pass = context.clock.now() + kPassPause;
    return context.try_later();
  }
  if (rc) return -FI_ECONNRESET;
  bulk->x_segment.close_fd_unless_needed();
  return bulk;
} catch (const std::bad_alloc&) {
  return -FI_ENOMEM;
}

BulkOperations::BulkOperations(LinkContext& context, InChannel& channel, Memfd memory)
    : x_context(context),
      x_channel(channel),
      x_segment(std::move(memory)),
      x_transfers(x_segment.data(), static_cast<BulkMemory&>(*this), context.calls,
                  channel.link().direct().peer(), context.options, context.core,
                  channel.link().out().counters(), context.clock) {}

BulkOperations::~BulkOperations() {
  if (x_slots > 0) --x_context.bounces;
  if (x_slots == kBounceSlots) --x_context.whole_bounces;
}

template <typename Start>
int BulkOperations::begin(const Moving& what, Start&& start) noexcept {
  Moving* moving = x_moving.acquire(what);
  if (!moving) return -FI_ENOMEM;
  const int rc = start(x_moving.handle(*moving).number());
  if (rc)
    x_moving.release(*moving);
  else
    x_context.attend(x_context.bulk_ins, x_channel);
  return rc;
}

/// Longer reads at once move no more bytes between two polls than a poll does.
bool BulkOperations::may_read_at_once(size_t length) noexcept {
  if (length <= ShortReads::kLongest) return true;
  if (std::exchange(x_polls, x_context.polls) != x_context.polls) x_at_once = 0;
  if (x_at_once + length > kPollBytes) return false;
  x_at_once += length;
  return true;
}

int BulkOperations::read(const RemoteKey& remote, const iovec* local, size_t count, size_t length,
                         uint64_t token, const RemoteWrite* write) noexcept {
  if (length > kMaxEager) x_context.count_message();  // as at the sender
  if (!write && may_read_at_once(length)) {
    const int rc = x_transfers.read_short(remote, local, count, length);
    if (rc != -FI_EAGAIN) return rc;
  }
  const Moving what{token, write ? *write : RemoteWrite{}, write != nullptr};
  const int rc = begin(what, [&](uint64_t name) {
    return x_transfers.start(remote, local, count, length, name,
                             write ? group_of(write->target) : 0);
  });
  if (rc == 0) x_channel.wake_waiting_sender();
  return rc;
}

int BulkOperations::access(CmaCall call, const SharedRegion& region, uint64_t offset,
                           const iovec* local, size_t count, size_t length,
                           uint64_t token) noexcept {
  x_context.count_message();
  return begin({token, {}, false}, [&](uint64_t name) {
    return x_transfers.access(call, region, offset, local, count, length, name);
  });
}

int BulkOperations::poll(Sink& sink) noexcept {
  x_sink = &sink;
  const int steps = x_transfers.poll(*this);
  if (steps) x_channel.wake_waiting_sender();
  return steps;
}

/// Never 0, which is the group of all other transfers.
uint64_t BulkOperations::group_of(util::PoolHandle target) noexcept {
  return target.number();
}

void BulkOperations::cancel(Sink& sink, int status, uint64_t group) noexcept {
  Sink* const polled = std::exchange(x_sink, &sink);  // revoke() may be called within an on_done()
  x_transfers.cancel(*this, status, group);
  x_sink = polled;
}

void BulkOperations::on_done(uint64_t token, int status) noexcept {
  Moving* moving = x_moving.find(util::PoolHandle::of(token));
  if (!moving) return;
  const Moving done = *moving;
  x_moving.release(*moving);
  if (done.replies)
    x_channel.link().remote_writes()->reply(done.write.write, done.write.target, status);
  else
    x_sink->on_done(done.token, status);
}

int BulkOperations::back_bounce(uint32_t slots) noexcept {
  if (x_context.clock.now() < x_context.next_pass) return x_context.try_later();
  const size_t backed = x_slots * kBounceSlotBytes;
  const int rc = x_segment.back(kBulkControlBytes + backed, slots * kBounceSlotBytes - backed);
  // A few suffice, so a lack of the others concerns nobody else.
  if (rc) return slots == kBounceSlots ? rc : await_room(x_context, rc);
  x_context.lacks_since = 0;
  if (x_slots == 0) ++x_context.bounces;
  if (slots == kBounceSlots) ++x_context.whole_bounces;
  x_slots = slots;
  return 0;
}

uint32_t BulkOperations::affordable_slots() const noexcept {
  if (x_slots == 0 && x_context.bounces >= kBouncesByChoice) return 0;
  const bool whole = x_slots == kBounceSlots || x_context.whole_bounces < kWholeBounces;
  return whole ? kBounceSlots : kFewBounceSlots;
}

bool BulkOperations::sender_left() const noexcept {
  return x_channel.sender_left();
}

bool BulkOperations::shares_back() const noexcept {
  const BulkOut* const bulk = x_channel.link().out().bulk();
  return bulk && bulk->shared() != BulkOut::Shared::nothing;
}

bool BulkOperations::streams_back() const noexcept {
  return x_channel.link().turns().both_ways();
}

bool BulkOperations::calls_are_fast() noexcept {
  return x_context.options.paths == PathPolicy::measure &&
         x_context.fragment_limits.calls_are_fast();
}

uint64_t BulkOperations::revocations_seen() const noexcept {
  OutChannel& out = x_channel.link().out();
  return out.up() ? out.peer_gate().heard() : 0;
}

bool BulkOperations::enter(uint64_t heard) noexcept {
  OutChannel& out = x_channel.link().out();
  return out.up() && out.peer_gate().enter(heard);
}

void BulkOperations::leave() noexcept {
  x_channel.link().out().peer_gate().leave();
}

void BulkOperations::ask_for_help() noexcept {
  x_channel.link().out().ask_for_help();
}

}  // namespace erdma::transport::shm
