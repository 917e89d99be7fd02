#include "transport/shm/shm_transport.h"

#include <algorithm>
#include <utility>

#include <rdma/fi_errno.h>

#include "util/error_text.h"
#include "util/log.h"
#include "util/process_epoch.h"

namespace erdma::transport::shm {
namespace {

Options checked(Options options) noexcept {
  options.eager_bytes = std::max(options.eager_bytes, size_t(kSlotPayload));
  options.hot_peers = std::max(options.hot_peers, 1u);
  return options;
}

/// Calls `done` for each element; elements for which it returns true leave the list.
template <typename T, typename Tag, typename Step>
int each(util::IntrusiveList<T, Tag>& list, Step&& done) noexcept {
  int left = 0;
  for (T *element = list.front(), *next; element; element = next) {
    const bool over = done(*element);
    next = list.next(*element);
    if (!over) continue;
    list.erase(*element);
    ++left;
  }
  return left;
}

}  // namespace

ShmTransport::ShmTransport(const Options& options, CmaCalls* calls,
                           const util::Clock* clock) noexcept
    : x_barriers(register_barriers()),
      x_cold_rings(!x_barriers.global),
      x_epoch(util::process_epoch()),
      x_context(checked(options), calls ? *calls : x_own_calls, clock ? *clock : x_own_clock) {}

ShmTransport::~ShmTransport() {
  shutdown();
}

void* ShmTransport::operator new(size_t bytes) {
  return ::operator new(bytes);
}

void ShmTransport::operator delete(ShmTransport* transport, std::destroying_delete_t) noexcept {
  if (transport->x_epoch != util::process_epoch()) return transport->abandon();
  transport->~ShmTransport();
  ::operator delete(transport);
}

util::Result<std::unique_ptr<ShmTransport>> ShmTransport::open(const Options& options,
                                                               const util::SocketAddress& name,
                                                               CmaCalls* calls,
                                                               const util::Clock* clock) {
  util::register_fork_handler();
  auto transport = std::make_unique<ShmTransport>(options, calls, clock);
  auto wake_socket = WakeSocket::open();
  if (!wake_socket) {
    ERDMA_WARN(EP_CTRL, "cannot make a wake socket: %s\n",
               util::ErrorText(-wake_socket.error()).c_str());
    return wake_socket.error();
  }
  transport->x_wake_socket = std::move(*wake_socket);
  LinkContext& context = transport->x_context;
  auto connector = Connector::start(
      {context.options, name, &transport->x_mailbox, &transport->x_cold_rings, &context.calls,
       &context.clock, transport->x_wake_socket.address(), transport->x_barriers.expedited});
  if (!connector) return connector.error();
  transport->x_connector = std::move(*connector);
  context.connector = transport->x_connector.get();
  return transport;
}

int ShmTransport::attend(Sink& sink) noexcept {
  LinkContext& all = x_context;
  if (all.attention & LinkContext::kCountsPolls) count_poll();
  if (!(all.attention & LinkContext::kWork) && !x_mailbox.pending()) return 0;
  const bool lacked = all.lack.felt();
  all.lack.forget();
  if (lacked) [[unlikely]]
    x_links.ring_again();
  int moved = all.deferred.report(sink);
  if (x_mailbox.pending()) moved += x_links.read(x_mailbox, sink);
  if (x_mailbox.take_question()) sink.on_question();
  moved += each(all.switching, [](ShmLink& link) { return link.out().try_switch(); });
  moved += each(all.replying, [](RemoteWrites& writes) { return writes.send_replies(); });
  moved += attend_bulk(sink);
  moved += all.ends.poll(sink);
  moved += x_links.read_later(sink);
  const bool work = all.lack.felt() || !all.switching.empty() || !all.replying.empty() ||
                    !all.bulk_ins.empty() || !all.bulk_outs.empty() || !all.deferred.empty() ||
                    !all.ends.empty() || x_links.waiting();
  all.attention =
      uint8_t((work ? LinkContext::kWork : 0) | (all.attention & LinkContext::kCountsPolls));
  return moved;
}

/// Polls count from the last sleep on. They end the time in which senders fence for this receiver.
void ShmTransport::count_poll() noexcept {
  if (x_armed || ++x_polls_awake < kPollsAwake) return;
  x_sleep_announced = !x_cold_rings.announce_polling();
  x_polls_awake = 0;
  if (!x_sleep_announced) x_context.attention &= uint8_t(~LinkContext::kCountsPolls);
}

int ShmTransport::attend_bulk(Sink& sink) noexcept {
  int moved = 0;
  each(x_context.bulk_outs, [&](ChannelBulk& bulk) {
    if (bulk.channel.bulk_active()) moved += bulk.channel.poll_bulk();
    return !bulk.channel.bulk_active();
  });
  each(x_context.bulk_ins, [&](InChannel& channel) {
    if (channel.link().phase().state != LinkState::ending) moved += channel.bulk()->poll(sink);
    return !channel.bulk()->active();
  });
  return moved;
}

util::Result<Link*> ShmTransport::link_to(const util::SocketAddress& address) noexcept try {
  if (!address.set() || !address.port()) return -FI_EINVAL;
  return &x_links.find_or_make(x_connector->canonical(address));
} catch (const std::bad_alloc&) {
  return -FI_ENOMEM;
}

bool ShmTransport::arm() noexcept {
  if (!x_sleep_announced) {
    const bool registered = x_cold_rings.announce_sleep();
    if (x_barriers.global && !barrier_on_all(x_barriers, registered)) return false;
    x_sleep_announced = true;
    // Without the slow barrier, senders fence from the beginning and for good: a peer that comes
    // later may be out of reach of the fast one.
    if (x_barriers.global && x_barriers.expedited) x_context.attention |= LinkContext::kCountsPolls;
  }
  x_polls_awake = 0;
  const bool mail = !x_mailbox.arm();
  x_context.channels.set_armed(true);
  const bool can_sleep = announce_waiting();
  std::atomic_thread_fence(std::memory_order_seq_cst);
  x_armed = can_sleep && !mail && !anything_to_do();
  if (!x_armed) disarm();
  return x_armed;
}

// Covers links whose ring is full, and links whose peer may ask this process for help. The first
// need a barrier here, because the peer publishes consumption without a fence. For help, the peer
// fences before it looks at `waiting`.
bool ShmTransport::announce_waiting() noexcept {
  bool barrier = false;
  bool registered = true;
  const auto announce = [&](ShmLink& link) {
    if (SlotSender* ring = link.out().blocked_ring()) {
      ring->set_waiting(true);
      barrier = true;
      registered = registered && link.out().connection()->process->expedited;
    }
    return false;
  };
  each(x_context.starved, announce);
  each(x_context.switching, announce);
  each(x_context.replying, [&](RemoteWrites& writes) { return announce(writes.link()); });
  each(x_context.bulk_outs, [](ChannelBulk& bulk) {
    if (SlotSender* ring = bulk.channel.blocked_ring()) ring->set_waiting(true);
    return false;
  });
  return !barrier || barrier_on_all(x_barriers, registered);
}

bool ShmTransport::anything_to_do() noexcept {
  LinkContext& all = x_context;
  bool found = all.channels.anything_to_do() || !all.deferred.empty() || !all.ends.empty() ||
               all.lack.felt() || x_links.waiting() || x_mailbox.pending();
  each(all.bulk_ins, [&](InChannel& channel) {
    found = found || channel.bulk()->ready();
    return false;
  });
  each(all.bulk_outs, [&](ChannelBulk& bulk) {
    found = found || (bulk.channel.bulk_active() && bulk.ready());
    return false;
  });
  const auto moved = [&](ShmLink& link) {
    const SlotSender* ring = link.out().blocked_ring();
    found = found || (ring && ring->moved());
    return !ring || ring->moved();
  };
  each(all.switching, [&](ShmLink& link) { return moved(link), false; });
  each(all.replying, [&](RemoteWrites& writes) { return moved(writes.link()), false; });
  each(all.starved, moved);
  return found;
}

void ShmTransport::disarm() noexcept {
  x_armed = false;
  x_mailbox.disarm();
  x_context.channels.set_armed(false);
  x_wake_socket.drain();
}

void ShmTransport::shutdown() noexcept {
  if (x_closed || !x_connector) return;
  x_closed = true;
  x_connector->stop_listening();
  x_links.close();
  const Counters moved = x_context.all_counters();
  ERDMA_INFO(EP_CTRL,
             "%s: %lu bytes through rings, %lu by CMA read, %lu by CMA write, %lu copied in, "
             "%lu copied out, %lu CMA refusals\n",
             name().to_string().c_str(), moved.ring_bytes, moved.cma_read_bytes,
             moved.cma_write_bytes, moved.bounce_in_bytes, moved.bounce_out_bytes,
             moved.cma_refusals);
}

void ShmTransport::abandon() noexcept {
  x_closed = true;
  x_links.abandon();
  x_wake_socket.reset();
  if (x_connector) x_connector->abandon();
}

}  // namespace erdma::transport::shm
