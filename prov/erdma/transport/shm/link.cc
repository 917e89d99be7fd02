#include "transport/shm/link.h"

#include <algorithm>
#include <new>
#include <utility>

#include <rdma/fi_errno.h>

#include "transport/shm/link_choice.h"
#include "transport/shm/link_context.h"
#include "transport/shm/mail.h"

namespace erdma::transport::shm {
namespace {

uint32_t take_rate_of(const OutChannel& out) noexcept {
  return out.hot_ring() ? out.hot_ring()->take_rate() : 0;
}

FragmentTimer::Receiver receiver_of(const OutChannel& out, const InChannel* in) noexcept {
  const uint64_t consumed = out.hot_ring() ? out.hot_ring()->consumed() : 0;
  return {take_rate_of(out), in && in->ready(), consumed};
}

void end_share(BulkOut* bulk, RemoteWrites* writes, const RemoteKey& remote_key,
               BulkOut::Receiver receiver) noexcept {
  if (!RemoteWrites::is_target(remote_key)) {
    if (bulk) bulk->revoke(remote_key, receiver);
  } else if (writes) {
    writes->revoke(remote_key);
  }
}

}  // namespace

ShmLink::ShmLink(LinkContext& context, const util::SocketAddress& address) noexcept
    : Link(address, {.sharing = context.options.cma ? &x_direct : nullptr,
                     .retractable = &x_retractable,
                     .files = &x_files}),
      x_out(context, context.counters_of(address)) {}

int ShmLink::send(const Header& header, const iovec* payload, size_t count, size_t length,
                  SendHint hint) noexcept {
  SlotSender* const ring = x_out.ring();
  if (!ring) [[unlikely]]
    return connect();
  if (!ring->push(Kind::packet, &header, payload, count, length)) [[unlikely]]
    return no_room(length);
  x_out.counters().ring_bytes += length;
  if (hint == SendHint::unfinished) [[unlikely]] {
    if (x_out.cold()) x_out.show_news();
    x_turns.sends(length);
    if (context().fragments.times(this)) [[unlikely]]
      context().fragments.written(length, receiver_of(x_out, x_in.get()));
  } else {
    if (length >= kLongPayload) [[unlikely]] {
      x_turns.sends(length);
      if (length > FragmentChoice::kShortest && context().fragments.times(this))
        context().fragments.written(length, receiver_of(x_out, x_in.get()));
    }
    x_out.announce();
  }
  return 0;
}

int ShmLink::connect() noexcept {
  if (x_phase.state == LinkState::closed) return -FI_ESHUTDOWN;
  if (x_phase.state != LinkState::idle) return -FI_EAGAIN;
  if (const int rc = context().connector->connect({this, ++x_attempt, x_address, !x_was_up})) {
    (void)context().try_later();
    return rc;
  }
  ++x_out.counters().connects;
  x_phase.state = LinkState::connecting;
  return -FI_EAGAIN;
}

int ShmLink::no_room(size_t length) noexcept {
  if (length > limits().eager) return -FI_EMSGSIZE;
  ++x_out.counters().waits;
  context().fragments.wait(this);
  x_out.wake();  // the packets in the ring may have been sent as unfinished
  LinkContext::join(context().starved, *this);
  return -FI_EAGAIN;
}

LinkReport ShmLink::report() noexcept {
  constexpr const char* kStates[] = {"idle", "connecting", "up", "broken", "ending", "closed"};
  SlotSender* const ring = x_out.ring();
  return {"shm", kStates[size_t(x_phase.state)], ring ? ring->room() : 0};
}

LinkLimits ShmLink::limits() const noexcept {
  if (x_out.cold()) return {kSlotPayload, true};
  const size_t most = std::min<size_t>(context().options.eager_bytes, kMaxEager);
  return {most, true,
          may_measure(context(), x_direct.peer()) ? FragmentChoice::kShortest : SIZE_MAX};
}

bool ShmLink::prefers_packets(size_t length, bool expected) noexcept {
  return shm::prefers_packets(*this, length, expected);
}

bool ShmLink::awaits(const ConnectRequest& request) const noexcept {
  const bool connecting = x_phase.state == LinkState::connecting;
  if (request.link) return connecting && request.attempt == x_attempt;
  return connecting || (x_phase.state == LinkState::idle && x_in);
}

// The second channel to the same process brings no news about CMA.
void ShmLink::install_in(const Mail& mail) {
  if (!process()) x_direct.learn(mail);
  auto channel = std::make_unique<InChannel>(context(), *this, mail.connection);
  context().channels.add(*channel);
  mail.connection->link = this;
  x_in = std::move(channel);
  x_was_up = true;
}

void ShmLink::install_out(Mail& mail) noexcept {
  if (!process()) x_direct.learn(mail);
  mail.connection->link = this;
  x_out.begin(mail.connection, std::move(mail.segment), mail.ring, x_direct.revocations_seen());
  x_direct.peer().life = &x_out.chunk().life;
  x_phase.state = LinkState::up;
  x_was_up = true;
}

/// The channel may have ended since the mail was sent.
bool ShmLink::on_mail(Mail& mail, Sink& sink) {
  using Type = Mail::Type;
  const bool is_in = x_in && x_in->connection() == mail.connection;
  const bool is_out = x_out.up() && x_out.connection() == mail.connection;
  if (!is_in && !is_out) return false;
  if (mail.type == Type::lost) {
    // While the link connects, the end of a channel that brought nothing is not reported: the
    // outcome of the attempt under way is.
    if (is_in && x_phase.state == LinkState::connecting && !x_in->in_use())
      end_in(-FI_ESHUTDOWN);
    else
      context().ends.end(*this, mail.status, sink);
  } else if (mail.type == Type::verdict) {
    x_direct.learn(mail);
  } else if (mail.type == Type::promote && is_in) {
    context().channels.promote(*x_in);
  } else if (mail.type == Type::no_hot_ring && is_in) {
    context().channels.take_back(*x_in);
  } else if (mail.type == Type::hot_ring && is_out) {
    if (!x_out.offer_hot(std::move(mail.segment))) context().attend(context().switching, *this);
  } else if (mail.type == Type::demote && is_out) {
    if (!x_out.ask_cold()) context().attend(context().switching, *this);
  } else if (mail.type == Type::bulk && is_out) {
    x_out.attach_bulk(std::move(mail.segment));
  } else if (mail.type == Type::file && is_in) {
    x_files.put(mail.number, std::move(mail.file));
  }
  return true;
}

int ShmLink::share(const iovec* memory, size_t count, size_t length, Access access,
                   RemoteKey& remote_key) noexcept {
  if (access == Access::remote_write)
    return remote_writes() ? x_remote_writes->share(memory, count, length, remote_key) : -FI_ENOMEM;
  if (!x_out.up() || x_out.stopped()) return connect();
  ChannelBulk* const bulk = x_out.begin_bulk(x_direct.peer(), x_direct.region());
  if (!bulk) return -FI_ENOMEM;
  if (x_out.cold()) x_out.ask_for_hot();
  const bool timed = context().fragments.times_read(this, length);
  const int rc = bulk->share(memory, count, length, remote_key, timed);
  if (rc) return rc;
  context().fragments.shared(this, length, remote_key);
  x_turns.sends(length);
  if (access == Access::refusable_read) x_turns.expect_fin();
  context().large_messages.add(this);
  if (length > kMaxEager) context().count_message();
  context().attend(context().bulk_outs, *bulk);
  return 0;
}

int ShmLink::revoke(const RemoteKey& remote_key) noexcept {
  if (context().fragments.times(this) && x_out.bulk()) [[unlikely]]
    context().fragments.revoked(remote_key, x_out.bulk()->read_time(remote_key),
                                take_rate_of(x_out));
  end_share(x_out.bulk(), x_remote_writes.get(), remote_key, BulkOut::Receiver::done);
  return 0;
}

void ShmLink::revoke_early(const RemoteKey& remote_key, Early) noexcept {
  context().fragments.forget(this);
  end_share(x_out.bulk(), x_remote_writes.get(), remote_key, BulkOut::Receiver::may_read);
}

int ShmLink::get(const RemoteRange& remote, const iovec* local, size_t count,
                 uint64_t token) noexcept {
  if (remote.memory.kind() == KeyKind::region)
    return x_direct.access(CmaCall::read, remote, local, count, token);
  if (remote.memory.is_refusable()) return x_files.drop_received(), -FI_EOPNOTSUPP;
  if (!x_in) return -FI_ENOTCONN;
  const int rc = x_in->read(remote.memory, local, count, remote.length, token, nullptr);
  if (rc >= 0) x_turns.takes(remote.length);
  return rc;
}

int ShmLink::put(const RemoteRange& remote, const iovec* local, size_t count, uint64_t token,
                 bool) noexcept {
  if (remote.memory.kind() == KeyKind::region)
    return x_direct.access(CmaCall::write, remote, local, count, token);
  if (!RemoteWrites::is_target(remote.memory)) return -FI_EINVAL;
  if (!x_out.ring()) return connect();
  if (!x_out.ring()->room_for(2)) return no_room(0);
  if (!remote_writes()) return -FI_ENOMEM;
  return x_remote_writes->start(remote.memory, local, count, remote.length, token);
}

RemoteWrites* ShmLink::remote_writes() noexcept {
  if (!x_remote_writes) x_remote_writes.reset(new (std::nothrow) RemoteWrites(context(), *this));
  return x_remote_writes.get();
}

void ShmLink::help() noexcept {
  if (!x_direct.region() || !x_out.up()) return;
  ChannelBulk* const bulk = x_out.begin_bulk(x_direct.peer(), x_direct.region());
  if (bulk && bulk->active()) context().attend(context().bulk_outs, *bulk);
}

void ShmLink::fail(int status) noexcept {
  context().ends.break_link(*this, LinkFault::broken_rules, status);
}

void ShmLink::hold(bool on) noexcept {
  if (x_in) x_in->hold(on);
}

// If there is no memory for the order, the next call tries again.
void ShmLink::addressed() noexcept {
  if (!x_addressed) x_addressed = context().connector->trust(x_address) == 0;
}

PeerProcess* ShmLink::process() const noexcept {
  if (x_out.up()) return x_out.connection()->process.get();
  return x_in ? x_in->connection()->process.get() : nullptr;
}

void ShmLink::take_down(Sink& sink, int status) noexcept {
  if (x_in && x_in->bulk()) x_in->bulk()->cancel(sink, status);
  x_out.stop();
  if (x_out.up()) x_out.announce_end();
  if (x_remote_writes) x_remote_writes->fail(sink, status);
  end_channels(status);
  x_phase = {};
  ++x_attempt;  // later outcomes of an attempt under way are stale
}

void ShmLink::close(int status) noexcept {
  NullSink nobody;
  if (x_in) {
    x_in->await_quiet();
    if (x_in->bulk()) x_in->bulk()->cancel(nobody, status);
  }
  end_channels(status);
  x_phase.state = LinkState::closed;
}

void ShmLink::end_channels(int status) noexcept {
  if (x_out.up()) {
    x_out.stop();
    x_out.announce_end();
    context().connector->close(x_out.connection(), status);
  }
  x_out.end();
  if (x_remote_writes) x_remote_writes->forget_peer();
  x_direct.end();
  x_turns = {};
  if (x_in) end_in(status);
}

// Closed last: from then on another peer may get its ring.
void ShmLink::end_in(int status) noexcept {
  const util::Ref<Connection> connection = x_in->connection();
  x_in->end();
  x_in.reset();
  x_files.drop_received();
  context().connector->close(connection, status);
}

}  // namespace erdma::transport::shm
