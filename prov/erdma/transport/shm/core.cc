#include "transport/shm/core.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <new>

#include <rdma/fi_errno.h>

#include "util/error_text.h"
#include "util/left_over.h"
#include "util/log.h"
#include "util/process_epoch.h"

namespace erdma::transport::shm {

Core::Core(const Options& options, CmaCalls* calls, const util::Clock* clock) noexcept
    : x_mailbox(x_doorbell),
      x_options(options),
      x_calls(calls ? calls : &x_own_calls),
      x_clock(clock ? clock : &x_own_clock),
      x_barriers(register_barriers()),
      x_epoch(util::process_epoch()),
      x_cold_rings(!x_barriers.global) {
  x_options.eager_bytes = std::clamp(options.eager_bytes, size_t(kSlotPayload), size_t(kMaxEager));
  x_options.hot_peers = std::max(options.hot_peers, 1u);
}

Core::~Core() {
  shutdown();
  util::expect_none_left("hot ring", x_granted);
  util::expect_none_left("bounce memory", x_bounces);
}

util::Result<std::unique_ptr<Core>> Core::open(const Options& options,
                                               const util::SocketAddress& name, CmaCalls* calls,
                                               const util::Clock* clock) {
  util::register_fork_handler();
  auto core = std::make_unique<Core>(options, calls, clock);
  auto doorbell = Doorbell::open();
  if (!doorbell) {
    ERDMA_WARN(EP_CTRL, "cannot make a socket to be woken by: %s\n",
               util::ErrorText(-doorbell.error()).c_str());
    return doorbell.error();
  }
  core->x_doorbell = std::move(*doorbell);
  const ConnectorConfig config{
      core->x_options, name,          &core->x_mailbox,           &core->x_cold_rings,
      core->x_calls,   core->x_clock, core->x_doorbell.address(), core->x_barriers.expedited};
  auto connector = Connector::start(config);
  if (!connector) return connector.error();
  core->x_connector = std::move(*connector);
  return core;
}

int Core::drain_cold(ChunkRings& rings, Sink& sink) noexcept {
  uint64_t bits = std::exchange(rings.again, 0);
  if (rings.chunk->ready.load(std::memory_order_relaxed))
    bits |= rings.chunk->ready.exchange(0, std::memory_order_acq_rel);
  // Upcalls may make x_chunks grow: `rings` is not touched while they run.
  const auto at = size_t(&rings - x_chunks.data());
  int moved = 0;
  uint64_t again = 0;
  for (; bits; bits &= bits - 1) {
    const auto index = uint32_t(std::countr_zero(bits));
    InChannel* channel = x_chunks[at].channels[index];
    if (channel && channel->lending().take_help()) [[unlikely]]
      channel->link().help();
    // Not known yet: its mail is on the way and makes us look again. Hot: what is in the cold ring
    // comes after what is in the hot one.
    if (!channel || channel->hot()) continue;
    const int count = channel->drain(sink);
    moved += count;
    if (!count || channel->hot()) continue;
    again |= uint64_t(1) << index;
    if (channel->sends_a_lot(count)) on_promote(*channel);
  }
  x_chunks[at].again |= again;
  return moved;
}

int Core::attend(Sink& sink) noexcept {
  int moved = deliver_deferred(sink);
  if (x_mailbox.pending()) moved += read_mail(sink);
  moved += int(std::erase_if(
      x_switching, [](ShmLink* link) { return !(link->listed_switching = !link->try_switch()); }));
  moved += int(std::erase_if(
      x_replying, [](ShmLink* link) { return !(link->listed_replying = !link->flush_replies()); }));
  moved += attend_bulk(sink);
  for (ShmLink* link : std::exchange(x_broken, {})) {
    ERDMA_WARN(EP_DATA, "closed the link to %s: %s\n", link->address().to_string().c_str(),
               link->broken);
    end(*link, link->broken_status, sink);
    ++moved;
  }
  moved += attend_endings(sink) + read_later(sink);
  x_attention = !x_switching.empty() || !x_replying.empty() || !x_bulk_ins.empty() ||
                !x_bulk_outs.empty() || !x_deferred.empty() || !x_broken.empty() ||
                !x_endings.empty();
  return moved;
}

int Core::attend_bulk(Sink& sink) noexcept {
  int moved = 0;
  for (size_t i = 0; i < x_bulk_outs.size(); ++i) {
    ShmLink& link = *x_bulk_outs[i];
    if (link.has_exposures()) moved += link.poll_bulk_out();
  }
  std::erase_if(x_bulk_outs,
                [](ShmLink* link) { return !(link->listed_bulk = link->has_exposures()); });
  for (size_t i = 0; i < x_bulk_ins.size(); ++i)
    if (!x_bulk_ins[i]->link().ending()) moved += x_bulk_ins[i]->poll_bulk(sink);
  std::erase_if(x_bulk_ins, [](InChannel* channel) { return !channel->bulk_active(); });
  return moved;
}

int Core::deliver_deferred(Sink& sink) noexcept {
  const std::vector<DeferredDone> dones = std::exchange(x_deferred, {});
  for (const DeferredDone& done : dones) sink.on_done(done.token, done.status);
  return int(dones.size());
}

util::Result<Link*> Core::link_to(const util::SocketAddress& address) noexcept try {
  if (!address.set() || !address.port()) return -FI_EINVAL;
  return &find_or_make(canonical(address));
} catch (const std::bad_alloc&) {
  return -FI_ENOMEM;
}

util::SocketAddress Core::canonical(const util::SocketAddress& address) const noexcept {
  return x_connector->canonical(address);
}

ShmLink& Core::find_or_make(const util::SocketAddress& address) {
  const auto found = x_links.find(address);
  if (found != x_links.end()) return *found->second;
  auto link = std::make_unique<ShmLink>(*this, address);
  return *x_links.emplace(address, std::move(link)).first->second;
}

bool Core::arm() noexcept {
  if (!x_sleep_announced) {
    x_cold_rings.announce_sleep();
    if (x_barriers.global && !barrier_on_all(x_barriers, false)) return false;
    x_sleep_announced = true;
  }
  const bool mail = !x_mailbox.arm();
  for (ChunkRings& rings : x_chunks) rings.chunk->wake.armed.store(1, std::memory_order_relaxed);
  const bool can_sleep = announce_waiting();
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (can_sleep && !mail && !anything_to_do()) return true;
  disarm();
  return false;
}

// Of links whose ring is full, and of those whose peer may ask this process to help it. The first
// need a barrier: the peer publishes what it consumed without a fence. It makes one before it
// looks whether to call for help.
bool Core::announce_waiting() noexcept {
  bool barrier = false;
  bool registered = true;
  for (const auto* list : {&x_starved, &x_switching, &x_replying}) {
    for (ShmLink* link : *list) {
      RingSender* ring = link->blocked_ring();
      if (!ring) continue;
      ring->set_waiting(true);
      barrier = true;
      registered = registered && link->process()->expedited;
    }
  }
  for (ShmLink* link : x_bulk_outs)
    if (RingSender* ring = link->blocked_ring()) ring->set_waiting(true);
  return !barrier || barrier_on_all(x_barriers, registered);
}

bool Core::anything_to_do() noexcept {
  for (InChannel* channel : x_hot)
    if (channel->ready() && !channel->parked()) return true;
  for (ChunkRings& rings : x_chunks)
    if (rings.again || rings.chunk->ready.load(std::memory_order_relaxed)) return true;
  for (InChannel* channel : x_bulk_ins)
    if (channel->bulk_ready()) return true;
  for (ShmLink* link : x_bulk_outs)
    if (link->bulk_out_ready()) return true;
  bool moved = false;
  for (const auto* list : {&x_starved, &x_switching, &x_replying})
    for (ShmLink* link : *list)
      if (const RingSender* ring = link->blocked_ring()) moved = moved || ring->moved();
  std::erase_if(x_starved, [](ShmLink* link) {
    const RingSender* ring = link->blocked_ring();
    return !(link->listed_starved = ring && !ring->moved());
  });
  return moved || !x_deferred.empty() || !x_broken.empty() || !x_endings.empty() ||
         x_mailbox.pending();
}

void Core::disarm() noexcept {
  x_mailbox.disarm();
  for (ChunkRings& rings : x_chunks) rings.chunk->wake.armed.store(0, std::memory_order_relaxed);
  x_doorbell.drain();
}

void Core::shutdown() noexcept {
  if (x_closed || !x_connector) return;
  x_closed = true;
  x_connector->stop_listening();
  x_endings.clear();
  x_later.clear();
  for (const auto& [address, link] : x_links) link->close(-FI_ESHUTDOWN);
  ERDMA_INFO(EP_CTRL,
             "%s: %lu bytes through rings, %lu by CMA read, %lu by CMA write, %lu copied in, "
             "%lu copied out, %lu CMA refusals\n",
             name().to_string().c_str(), x_counters.ring_bytes, x_counters.cma_read_bytes,
             x_counters.cma_write_bytes, x_counters.bounce_in_bytes, x_counters.bounce_out_bytes,
             x_counters.cma_refusals);
}

void Core::abandon() noexcept {
  x_closed = true;
  for (const auto& [address, link] : x_links) {
    if (link->out_up()) link->out()->connection->socket.reset();
    if (link->in()) link->in()->connection()->socket.reset();
  }
  x_doorbell.reset();
  if (x_connector) x_connector->abandon();
}

int Core::connect(ShmLink& link, uint32_t attempt) noexcept {
  return x_connector->connect({&link, attempt, link.address(), !link.met()});
}

int Core::trust(ShmLink& link) noexcept {
  return x_connector->trust(link.address());
}

void Core::close(const std::shared_ptr<Connection>& connection, int status) noexcept {
  x_connector->close(connection, status);
}

}  // namespace erdma::transport::shm
