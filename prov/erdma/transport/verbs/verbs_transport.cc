#include "transport/verbs/verbs_transport.h"

#include <sys/epoll.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "util/log.h"
#include "util/process_epoch.h"

namespace erdma::transport::verbs {
namespace {

constexpr uint64_t kPollsPerClock = 256;

}  // namespace

VerbsTransport::VerbsTransport(const Options& options, Device& device, RegistrationCache& cache,
                               const util::Clock* clock)
    : x_shared(options, device, cache, ConnectionLimit::kSpareIds),
      x_completions(x_shared),
      x_inbox(x_wake),
      x_epoll(epoll_create1(EPOLL_CLOEXEC)),
      x_manager(x_shared, x_worklist, x_links, x_completions, clock ? *clock : x_own_clock),
      x_maker(*this),
      x_epoch(util::process_epoch()) {}

VerbsTransport::~VerbsTransport() {
  shutdown();
  x_connector.reset();  // its thread may still post connections until here
  x_inbox.mails.read([](Mail& mail) {
    if (mail.type == Mail::Type::leave_open) mail.connection->leave_open = true;
    mail.connection.reset();
  });
}

void VerbsTransport::operator delete(VerbsTransport* transport, std::destroying_delete_t) {
  if (transport->x_epoch != util::process_epoch()) return transport->abandon();
  transport->~VerbsTransport();
  ::operator delete(transport);
}

void VerbsTransport::abandon() noexcept {
  x_epoll.reset();
  x_wake.reset();
  x_manager.watchdog.abandon();
  if (x_connector) x_connector->abandon();
}

util::Result<std::unique_ptr<VerbsTransport>> VerbsTransport::open(
    const Options& options, Device& device, RegistrationCache& cache,
    const util::SocketAddress& name, const util::Clock* clock, StartConnector start_connector) {
  util::register_fork_handler();
  std::unique_ptr<VerbsTransport> made(new VerbsTransport(options, device, cache, clock));
  const Options& checked = made->x_shared.options;
  if (checked.max_connections < options.max_connections)
    ERDMA_INFO(EP_CTRL, "%s has %u queue pairs: at most as many connections at one time, not %u\n",
               device.name().c_str(), device.limits().max_qp, options.max_connections);
  int rc = made->x_shared.open();
  if (!rc) rc = made->make_descriptors();
  if (rc) return rc;
  auto connector = start_connector(
      {&device, checked, name, &made->x_maker, &made->x_inbox, clock ? clock : &made->x_own_clock});
  if (!connector) return connector.error();
  made->x_connector = std::move(*connector);
  made->x_manager.start(*made->x_connector);
  return made;
}

std::unique_ptr<Connection> VerbsTransport::Maker::prepare(ibv_qp_init_attr& attr) noexcept {
  uint32_t id = 0;
  if (!x_all.x_shared.table.acquire(id)) {
    ERDMA_WARN(EP_CTRL, "more connections at one time than FI_ERDMA_MAX_CONNECTIONS permits\n");
    return nullptr;
  }
  std::unique_ptr<Connection> connection(
      new (std::nothrow) Connection(x_all.x_shared, x_all.x_worklist, x_all.x_manager, id));
  if (!connection) {
    x_all.x_shared.table.release(id);
    return nullptr;
  }
  if (connection->prepare(attr)) return nullptr;
  x_all.x_shared.table.publish(id, connection.get());
  return connection;
}

void VerbsTransport::Maker::fill_terms(const util::SocketAddress& peer, Terms& terms) noexcept {
  terms.resumes = x_all.x_links.commit(peer);
  terms.credits = PacketReceiver::kSmallReceives;
  terms.receive_bytes = PacketReceiver::kSmallReceiveBytes;
  terms.heartbeat_address = x_all.x_shared.heartbeat.target_address;
  terms.heartbeat_rkey = x_all.x_shared.heartbeat.target_rkey;
}

int VerbsTransport::make_descriptors() noexcept {
  if (const int rc = x_manager.watchdog.open()) return rc;
  if (!x_wake || !x_epoll) return -FI_EMFILE;
  for (const int fd : {x_wake.fd(), x_manager.watchdog.fd(), x_shared.queues.channel_fd()}) {
    epoll_event event{};
    event.events = EPOLLIN;
    if (epoll_ctl(x_epoll.get(), EPOLL_CTL_ADD, fd, &event)) return -errno;
  }
  return 0;
}

int VerbsTransport::poll(Sink& sink) noexcept {
  ++x_shared.polls;
  if (x_shared.chain.owner) [[unlikely]]
    x_shared.chain.owner->post_chained();
  int moved = x_manager.poll(sink);
  if (x_worklist.any_dirty()) x_worklist.progress();
  const bool look = x_worklist.attention | x_check_clock | (x_shared.polls % kPollsPerClock == 0);
  if (look || x_inbox.mails.pending()) [[unlikely]]
    moved += attend(sink);
  return moved;
}

int VerbsTransport::attend(Sink& sink) noexcept {
  x_check_clock = false;
  int moved = 0;
  if (x_inbox.mails.pending())
    moved += x_inbox.mails.read([&](Mail& mail) { x_manager.on_mail(mail, sink); });
  if (x_inbox.mails.take_question()) sink.on_question();
  moved += x_worklist.dones.report(sink);
  return moved + x_manager.attend(sink);
}

util::Result<Link*> VerbsTransport::link_to(const util::SocketAddress& address) noexcept try {
  if (!address.set() || !address.port() || address.family() != name().family()) return -FI_EINVAL;
  return &x_manager.find_or_make(address);
} catch (const std::bad_alloc&) {
  return -FI_ENOMEM;
}

bool VerbsTransport::arm() noexcept {
  if (x_worklist.attention || x_check_clock || x_shared.chain.owner || x_worklist.any_dirty() ||
      x_completions.any())
    return false;
  if (!x_inbox.mails.arm() || !x_completions.arm()) {
    x_inbox.mails.disarm();
    return false;
  }
  x_manager.watchdog.arm();
  return true;
}

void VerbsTransport::disarm() noexcept {
  x_inbox.mails.disarm();
  x_wake.drain();
  x_check_clock = x_manager.watchdog.disarm() || x_check_clock;
  if (!x_shared.queues.take_events() && !std::exchange(x_channel_broken, true)) ignore_channel();
}

/// The driver was removed. Other descriptors tell that the connections are lost.
void VerbsTransport::ignore_channel() noexcept {
  ERDMA_INFO(EP_CTRL, "%s: completions wake this process no longer: %s\n",
             x_shared.device.name().c_str(), std::strerror(errno));
  (void)epoll_ctl(x_epoll.get(), EPOLL_CTL_DEL, x_shared.queues.channel_fd(), nullptr);
}

void VerbsTransport::shutdown() noexcept {
  if (x_closed || !x_connector) return;
  x_closed = true;
  x_connector->stop_listening();
  if (x_shared.chain.owner) x_shared.chain.owner->post_chained();
  x_manager.say_goodbye();
  const Counters counters = x_shared.all_counters();
  ERDMA_INFO(EP_CTRL,
             "%s: %lu bytes in packets, %lu by RDMA READ, %lu by RDMA WRITE, %lu of these copied; "
             "%lu connections asked for, %lu given up for others\n",
             name().to_string().c_str(), counters.sent_bytes, counters.read_bytes,
             counters.write_bytes, counters.bounce_bytes, counters.connects, counters.reclaimed);
}

}  // namespace erdma::transport::verbs
