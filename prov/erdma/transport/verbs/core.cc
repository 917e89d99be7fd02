#include "transport/verbs/core.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "util/log.h"
#include "util/process_epoch.h"

namespace erdma::transport::verbs {
namespace {

constexpr int kBatch = 32;  ///< completions of one queue in one poll()
constexpr uint64_t kPollsPerClock = 256;
constexpr uint64_t kTicksPerTimeout = 12;
constexpr uint64_t kGraceNs = 50'000'000;

int last_error() noexcept {
  return errno ? -errno : -FI_EIO;
}

}  // namespace

Core::Core(const Options& options, Device& device, RegistrationCache& cache,
           const util::Clock* clock)
    : x_queues(device),
      x_shared(options, device, cache),
      x_table(2 * x_shared.options.max_connections + kSpareIds),
      x_wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      x_mailbox(x_wake.get()),
      x_clock(clock ? clock : &x_own_clock),
      x_epoch(util::process_epoch()),
      x_tick_ns(std::clamp<uint64_t>(x_shared.options.peer_timeout_ns / kTicksPerTimeout, 100'000,
                                     1'000'000'000)),
      x_grace_ns(std::min(x_tick_ns, kGraceNs)),
      x_tick_in(x_tick_ns) {}

Core::~Core() {
  shutdown();
  x_connector.reset();  // its thread may still have posted connections
  for (Mail& mail : x_mailbox.take()) mail.connection.reset();
}

util::Result<std::unique_ptr<Core>> Core::open(const Options& options, Device& device,
                                               RegistrationCache& cache,
                                               const util::SocketAddress& name,
                                               const util::Clock* clock,
                                               StartConnector start_connector) {
  util::register_fork_handler();
  auto core = std::make_unique<Core>(options, device, cache, clock);
  if (core->x_shared.options.max_connections < options.max_connections)
    ERDMA_INFO(EP_CTRL, "%s has %u queue pairs: at most as many connections at one time, not %u\n",
               device.name().c_str(), device.limits().max_qp, options.max_connections);
  int rc = core->x_queues.open();
  if (!rc) rc = core->make_descriptors();
  if (!rc) rc = core->x_shared.open();
  if (rc) return rc;
  auto connector = start_connector(
      {&device, core->x_shared.options, name, core.get(), &core->x_mailbox, core->x_clock});
  if (!connector) return connector.error();
  core->x_connector = std::move(*connector);
  return core;
}

int Core::make_descriptors() noexcept {
  x_epoll.reset(epoll_create1(EPOLL_CLOEXEC));
  x_timer.reset(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!x_wake || !x_epoll || !x_timer) return last_error();
  for (const int fd : {x_wake.get(), x_timer.get(), x_queues.channel_fd()}) {
    epoll_event event{};
    event.events = EPOLLIN;
    if (epoll_ctl(x_epoll.get(), EPOLL_CTL_ADD, fd, &event)) return last_error();
  }
  return 0;
}

int Core::poll(Sink& sink) noexcept {
  ++x_shared.polls;
  if (x_shared.chain.owner) [[unlikely]]
    x_shared.chain.owner->flush_chain();
  int moved = poll_queues(sink);
  if (!x_dirty.empty()) settle_dirty();
  const bool look = x_attention | x_check_clock | (x_shared.polls % kPollsPerClock == 0);
  if (look || x_mailbox.pending()) [[unlikely]]
    moved += attend(sink);
  return moved;
}

int Core::poll_queues(Sink& sink) noexcept {
  int moved = 0;
  if (!x_stash.empty()) [[unlikely]] {
    const std::vector<ibv_wc> stash = std::exchange(x_stash, {});
    dispatch(stash.data(), int(stash.size()), sink);
    moved = int(stash.size());
  }
  ibv_wc completions[kBatch];
  for (uint32_t i = 0, count = x_queues.count(); i < count; ++i) {
    const int found = ibv_poll_cq(x_queues.at(i), kBatch, completions);
    if (found < 0) [[unlikely]]
      queue_is_broken();
    if (found <= 0) continue;
    dispatch(completions, found, sink);
    moved += found;
  }
  return moved;
}

void Core::dispatch(const ibv_wc* completions, int count, Sink& sink) noexcept {
  for (int i = 0; i < count; ++i) {
    Connection* connection = x_table.find(uint32_t(completions[i].wr_id >> 32));
    if (connection) connection->on_completion(completions[i], sink);
  }
}

void Core::queue_is_broken() noexcept {
  for (Connection* connection : x_connected)
    break_connection(*connection, -FI_EIO, "its completion queue is broken");
}

/// Each once: what wants more has itself listed again.
void Core::settle_dirty() noexcept {
  util::IntrusiveList<Connection, DirtyTag> now;
  while (Connection* connection = x_dirty.pop_front()) now.push_back(*connection);
  while (Connection* connection = now.pop_front()) connection->settle();
}

int Core::attend(Sink& sink) noexcept {
  x_check_clock = false;
  int moved = x_mailbox.pending() ? read_mail(sink) : 0;
  const std::vector<uint64_t> dones = std::exchange(x_dones, {});
  for (const uint64_t token : dones) sink.on_done(token, 0);
  moved += int(dones.size());
  for (VerbsLink* link : std::exchange(x_failed, {})) {
    link_is_down(*link, sink);
    ++moved;
  }
  if (!x_closing.empty()) moved += close_broken(sink);
  if (!x_waiting.empty()) moved += admit_waiting(sink);
  if (!x_connected.empty() || !x_unwatched.empty() || !x_waiting.empty()) {
    const uint64_t now = x_clock->now();
    if (now >= x_next_tick) tick(sink, now);
  }
  x_attention = !x_closing.empty() || !x_dones.empty() || !x_failed.empty();
  return moved;
}

util::Result<Link*> Core::link_to(const util::SocketAddress& address) noexcept try {
  if (!address.set() || !address.port() || address.family() != name().family()) return -FI_EINVAL;
  return &find_or_make(address);
} catch (const std::bad_alloc&) {
  return -FI_ENOMEM;
}

VerbsLink& Core::find_or_make(const util::SocketAddress& address) {
  const auto found = x_links.find(address);
  if (found != x_links.end()) return *found->second;
  auto link = std::make_unique<VerbsLink>(*this, address, address == name());
  const std::lock_guard guard(x_links_mutex);
  return *x_links.emplace(address, std::move(link)).first->second;
}

bool Core::arm() noexcept {
  if (x_attention || x_check_clock || x_shared.chain.owner || !x_dirty.empty() || !x_stash.empty())
    return false;
  const bool mail = !x_mailbox.arm();
  ibv_wc completions[kBatch];
  bool found = mail || !x_queues.arm();
  for (uint32_t i = 0; !found && i < x_queues.count(); ++i) {
    const int count = ibv_poll_cq(x_queues.at(i), kBatch, completions);
    found = count != 0;
    // Room for a batch was made when the first connection came up.
    if (count > 0) x_stash.assign(completions, completions + count);
  }
  if (found) {
    x_mailbox.disarm();
    return false;
  }
  const bool needs_timer = !x_connected.empty() || !x_unwatched.empty() || !x_waiting.empty();
  if (needs_timer && (!x_timer_ns || x_tick_in < x_timer_ns)) {
    const itimerspec when{{}, {time_t(x_tick_in / 1'000'000'000), long(x_tick_in % 1'000'000'000)}};
    if (!timerfd_settime(x_timer.get(), 0, &when, nullptr)) x_timer_ns = x_tick_in;
  }
  return true;
}

void Core::disarm() noexcept {
  x_mailbox.disarm();
  uint64_t count = 0;
  (void)eventfd_read(x_wake.get(), &count);
  // It runs on from sleep to sleep, so that it ends although messages arrive all the time.
  if (x_timer_ns && read(x_timer.get(), &count, sizeof(count)) > 0) {
    x_timer_ns = 0;
    x_check_clock = true;
  }
  x_queues.take_events();
}

void Core::shutdown() noexcept {
  if (x_closed || !x_connector) return;
  x_closed = true;
  x_connector->stop_listening();
  say_goodbye();
  ERDMA_INFO(EP_CTRL,
             "%s: %lu bytes in packets, %lu by RDMA READ, %lu by RDMA WRITE, %lu of these copied; "
             "%lu connections asked for, %lu given up for others\n",
             name().to_string().c_str(), x_shared.counters.sent_bytes, x_shared.counters.read_bytes,
             x_shared.counters.write_bytes, x_shared.counters.bounce_bytes,
             x_shared.counters.connects, x_shared.counters.reclaimed);
}

void Core::abandon() noexcept {
  x_epoll.reset();
  x_wake.reset();
  x_timer.reset();
  if (x_connector) x_connector->abandon();
}

std::unique_ptr<Connection> Core::prepare(ibv_qp_init_attr& attr) noexcept {
  uint32_t id = 0;
  if (!x_table.acquire(id)) {
    ERDMA_WARN(EP_CTRL, "more connections at once than FI_ERDMA_MAX_CONNECTIONS provides for\n");
    return nullptr;
  }
  std::unique_ptr<Connection> connection(new (std::nothrow) Connection(*this, id));
  if (!connection) {
    x_table.release(id);
    return nullptr;
  }
  if (connection->prepare(attr)) return nullptr;
  x_table.publish(id, connection.get());
  return connection;
}

int Core::adopt(Connection& connection, ibv_qp* queue_pair) noexcept {
  return connection.adopt(queue_pair);
}

void Core::fill_terms(const Connection&, const util::SocketAddress& peer, Terms& terms) noexcept {
  {
    const std::lock_guard guard(x_links_mutex);
    const auto found = x_links.find(peer);
    terms.resumes = found == x_links.end() ? 0 : found->second->session.tell();
  }
  terms.credits = PacketReceiver::kSmallReceives;
  terms.receive_bytes = PacketReceiver::kSmallReceiveBytes;
  terms.heartbeat_address = x_shared.heartbeat.target_address;
  terms.heartbeat_rkey = x_shared.heartbeat.target_rkey;
}

uint64_t Core::continues(const util::SocketAddress& peer) noexcept {
  const std::lock_guard guard(x_links_mutex);
  const auto found = x_links.find(peer);
  return found == x_links.end() ? 0 : found->second->session.claim();
}

int Core::agree(Connection& connection, const Terms& peer, bool active) noexcept {
  return connection.agree(peer, active);
}

void Core::starve(Connection& connection) noexcept try {
  if (std::find(x_starved.begin(), x_starved.end(), &connection) == x_starved.end())
    x_starved.push_back(&connection);
} catch (const std::bad_alloc&) {
  mark_dirty(connection);
}

void Core::wake_starved() noexcept {
  for (Connection* connection : std::exchange(x_starved, {})) mark_dirty(*connection);
}

int Core::defer_done(uint64_t token) noexcept try {
  x_dones.push_back(token);
  x_attention = true;
  return 0;
} catch (const std::bad_alloc&) {
  return -FI_EAGAIN;
}

}  // namespace erdma::transport::verbs
