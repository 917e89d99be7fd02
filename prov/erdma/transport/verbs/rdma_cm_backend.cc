#include "transport/verbs/rdma_cm_backend.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <span>
#include <utility>

#include "util/fd.h"
#include "util/log.h"

namespace erdma::transport::verbs {
namespace {

constexpr int kBacklog = 1024;       // eRDMA allocates as many entries as are requested
constexpr int kResolveTime = 2'000;  // ms, for the route: the provider has no ARP cache
constexpr int kRouteTime = 2'000;    // ms
constexpr int kListenTries = 32;

sockaddr* mutable_data(util::SocketAddress& address) noexcept {
  return const_cast<sockaddr*>(address.data());  // librdmacm does not write to it
}

int last_error() noexcept {
  return errno ? -errno : -FI_EIO;
}

int unreachable(int status) noexcept {
  const int error = std::abs(status);
  const bool route = !error || error == EHOSTUNREACH || error == ENETUNREACH || error == ENODEV ||
                     error == EADDRNOTAVAIL || error == ETIMEDOUT || error == ENETDOWN;
  return route ? -FI_EHOSTUNREACH : -error;
}

/// Continues with an event.
int resolve(rdma_cm_id* cm, util::SocketAddress own, util::SocketAddress to) noexcept {
  own.set_port(0);
  if (!rdma_resolve_addr(cm, mutable_data(own), mutable_data(to), kResolveTime)) return 0;
  return unreachable(last_error());
}

rdma_conn_param parameters(const HelloBytes& hello, const rdma_cm_id& cm) noexcept {
  rdma_conn_param parameters{};
  parameters.private_data = &hello;
  parameters.private_data_len = sizeof(hello);
  parameters.responder_resources = RDMA_MAX_RESP_RES;
  parameters.initiator_depth = RDMA_MAX_INIT_DEPTH;
  parameters.retry_count = 7;
  parameters.qp_num = cm.qp ? cm.qp->qp_num : 0;
  return parameters;
}

}  // namespace

void RdmaCmBackend::CmIdDeleter::operator()(rdma_cm_id* id) const noexcept {
  id->qp = nullptr;  // the Connection that has the queue pair destroys it
  if (rdma_destroy_id(id)) log_leak("a connection id", errno);
}

RdmaCmBackend::RdmaCmBackend(const Device& device, const util::SocketAddress& name,
                             QueuePairs& queue_pairs)
    : ConnectionBackend(true), x_device(device), x_own(name), x_queue_pairs(queue_pairs) {
  x_channel.reset(rdma_create_event_channel());
  if (!x_channel) return;
  x_channel_fd = util::PrivateFd(x_channel->fd);
  (void)util::set_nonblocking(x_channel->fd);
  fcntl(x_channel->fd, F_SETFD, FD_CLOEXEC);
}

/// Closing the id or its channel would wait until the kernel knows the outcome of the connect.
RdmaCmBackend::~RdmaCmBackend() {
  for (auto& [id, entry] : x_entries) {
    if (entry.state != State::forsaken) continue;
    (void)entry.cm.release();
    (void)x_channel.release();
    x_channel_fd.keep_marked();
  }
}

int RdmaCmBackend::listen(util::SocketAddress& name) noexcept {
  if (!x_channel) {
    ERDMA_NOTICE(device, EP_CTRL, "no rdma_cm event channel: %s; load the module rdma_ucm",
                 fi_strerror(errno));
    return -FI_ENODEV;
  }
  int rc = 0;
  // A port that is free in rdma_cm may be taken in TCP; an iWARP device detects that when it
  // listens.
  for (int tries = name.port() ? 1 : kListenTries; tries > 0; --tries) {
    rc = bind_and_listen(name);
    if (rc != -FI_EADDRINUSE) break;
  }
  if (rc) {
    ERDMA_NOTICE(device, EP_CTRL, "%s: cannot listen at %s: %s%s", x_device.name().c_str(),
                 name.to_string().c_str(), fi_strerror(-rc), remedy_of_listening(-rc));
    return rc;
  }
  name.set_port(ntohs(rdma_get_src_port(x_listener.get())));
  return 0;
}

int RdmaCmBackend::bind_and_listen(const util::SocketAddress& name) noexcept {
  rdma_cm_id* cm = nullptr;
  if (rdma_create_id(x_channel.get(), &cm, nullptr, RDMA_PS_TCP)) return last_error();
  CmId made(cm);
  util::SocketAddress address = name;
  if (rdma_bind_addr(cm, mutable_data(address))) return last_error();
  if (!own_device(cm)) return -FI_EADDRNOTAVAIL;
  if (rdma_listen(cm, kBacklog)) return last_error();
  x_listener = std::move(made);
  return 0;
}

void RdmaCmBackend::stop_listening() noexcept {
  x_listener.reset();
}

/// librdmacm finds the device by address and opens its own context, so only the name can be
/// compared.
bool RdmaCmBackend::own_device(const rdma_cm_id* cm) const noexcept {
  if (cm->verbs && x_device.name() == ibv_get_device_name(cm->verbs->device)) return true;
  ERDMA_NOTICE(device, EP_CTRL, "rdma_cm uses %s for %s, not %s: check the routes of this host",
               cm->verbs ? ibv_get_device_name(cm->verbs->device) : "no device",
               x_own.to_string().c_str(), x_device.name().c_str());
  return false;
}

/// The parent uses the ids. Closes only the descriptor, because the fork may have left the rest in
/// any state.
void RdmaCmBackend::abandon() noexcept {
  x_channel_fd = util::PrivateFd();
  if (x_channel) ::close(x_channel->fd);
}

RdmaCmBackend::Entry* RdmaCmBackend::find(uint64_t id) noexcept {
  const auto found = x_entries.find(id);
  return found == x_entries.end() ? nullptr : &found->second;
}

int RdmaCmBackend::connect(uint64_t id, const util::SocketAddress& peer) noexcept try {
  Entry& entry = x_entries[id];
  entry.active = true;
  rdma_cm_id* cm = nullptr;
  int rc = 0;
  if (rdma_create_id(x_channel.get(), &cm, context_of(id), RDMA_PS_TCP)) {
    rc = last_error();
  } else {
    entry.cm.reset(cm);
    rc = resolve(cm, x_own, peer);
  }
  if (rc) x_entries.erase(id);
  return rc;
} catch (const std::bad_alloc&) {
  return -FI_ENOMEM;
}

ibv_qp* RdmaCmBackend::create_queue_pair(uint64_t id, ibv_qp_init_attr& attr, Path&) noexcept {
  Entry* entry = find(id);
  if (!entry) return nullptr;
  entry->cm->qp = x_queue_pairs.create(id, attr);
  return entry->cm->qp;
}

int RdmaCmBackend::greet(uint64_t id, const HelloBytes& hello) noexcept {
  Entry* entry = find(id);
  if (!entry) return -FI_ECONNRESET;
  rdma_conn_param with = parameters(hello, *entry->cm);
  if (!entry->active) return rdma_accept(entry->cm.get(), &with) ? last_error() : 0;
  if (rdma_connect(entry->cm.get(), &with)) {
    const int rc = last_error();
    // rdma_cm chose a free port of its own, and the driver binds a TCP socket to it. Another socket
    // has that port, or had a connection to this peer from it.
    const bool port = rc == -FI_EADDRINUSE || rc == -FI_EADDRNOTAVAIL;
    const bool peer = rc == -FI_ECONNREFUSED || rc == -FI_ECONNRESET || rc == -FI_ETIMEDOUT;
    return port || peer ? rc : unreachable(rc);
  }
  entry->state = State::requested;
  return 0;
}

void RdmaCmBackend::refuse(uint64_t id, const HelloPrefix& refusal) noexcept {
  if (Entry* entry = find(id)) {
    // The connection may be gone already; then no peer needs the refusal.
    (void)rdma_reject(entry->cm.get(), &refusal, sizeof(refusal));
    x_entries.erase(id);
  }
}

bool RdmaCmBackend::close(uint64_t id, bool) noexcept {
  Entry* entry = find(id);
  if (!entry) return false;
  if (entry->state == State::requested) {
    entry->state = State::forsaken;
    entry->cm->qp = nullptr;
    return true;
  }
  x_entries.erase(id);
  return false;
}

void RdmaCmBackend::dispatch(BackendEvents& events) {
  Event event;
  for (int i = 0; i < 64 && next_event(event); ++i) handle(event, events);
}

bool RdmaCmBackend::next_event(Event& event) noexcept {
  rdma_cm_event* raw = nullptr;
  if (rdma_get_cm_event(x_channel.get(), &raw)) return false;
  event.type = raw->event;
  event.status = raw->status;
  event.cm = raw->id;
  event.of_listener = raw->id == x_listener.get();
  event.id = id_of(raw->id->context);
  event.length = raw->param.conn.private_data ? raw->param.conn.private_data_len : 0;
  if (event.length) std::memcpy(event.bytes, raw->param.conn.private_data, event.length);
  rdma_ack_cm_event(raw);
  return true;
}

void RdmaCmBackend::handle(const Event& event, BackendEvents& events) {
  if (event.type == RDMA_CM_EVENT_CONNECT_REQUEST) return on_request(event, events);
  if (event.of_listener && event.type == RDMA_CM_EVENT_ADDR_CHANGE) {
    // A bond failed over to another port. The listener keeps its IP and goes on.
    ERDMA_INFO(EP_CTRL, "the network interface of %s has another hardware address now\n",
               x_own.host_string().c_str());
    return;
  }
  if (event.of_listener) {
    ERDMA_NOTICE(port, EP_CTRL, "%s at %s: no peer can connect any more",
                 rdma_event_str(event.type), x_own.to_string().c_str());
    return;
  }
  Entry* entry = find(event.id);
  if (!entry) return;
  switch (event.type) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
      return on_resolved(*entry, event, events);
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_ERROR:
      return end(*entry, event.id, -FI_EHOSTUNREACH, events);
    case RDMA_CM_EVENT_ESTABLISHED:
      return on_established(*entry, event, events);
    case RDMA_CM_EVENT_REJECTED:
      return on_rejected(*entry, event, events);
    case RDMA_CM_EVENT_UNREACHABLE:
      return end(*entry, event.id, -FI_ETIMEDOUT, events);
    case RDMA_CM_EVENT_CONNECT_ERROR:
    case RDMA_CM_EVENT_DISCONNECTED:
      return end(*entry, event.id, -FI_ECONNRESET, events);
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
      return end(*entry, event.id, -FI_ENODEV, events);
    default:
      return;
  }
}

void RdmaCmBackend::on_request(const Event& event, BackendEvents& events) {
  CmId cm(event.cm);
  const uint64_t id = next_connection_id();
  Entry& entry = x_entries[id];
  cm->context = context_of(id);
  entry.cm = std::move(cm);
  entry.state = State::asked;
  const sockaddr* from = rdma_get_peer_addr(entry.cm.get());
  events.on_request(id, util::SocketAddress::from_sockaddr(from, sizeof(sockaddr_in6)),
                    std::span(event.bytes).first(event.length), Path{});
}

void RdmaCmBackend::on_resolved(Entry& entry, const Event& event, BackendEvents& events) {
  if (entry.state != State::resolving) return;
  if (event.type == RDMA_CM_EVENT_ADDR_RESOLVED) {
    if (!own_device(entry.cm.get()) || rdma_resolve_route(entry.cm.get(), kRouteTime))
      end(entry, event.id, -FI_EHOSTUNREACH, events);
    return;
  }
  entry.state = State::reached;
  events.on_reached(event.id);
}

void RdmaCmBackend::on_established(Entry& entry, const Event& event, BackendEvents& events) {
  // From now on the polling thread may destroy the queue pair at any time.
  entry.cm->qp = nullptr;
  if (entry.state == State::forsaken) return release(event.id, events);
  entry.state = State::up;
  if (entry.active)
    events.on_accepted(event.id, std::span(event.bytes).first(event.length), Path{});
  else
    events.on_established(event.id);
}

void RdmaCmBackend::on_rejected(Entry& entry, const Event& event, BackendEvents& events) {
  // A reset rather than a refusal: the peer was there and left, or has no room, or there is no
  // listener.
  if (!event.length && std::abs(event.status) == ECONNRESET)
    return end(entry, event.id, -FI_ECONNRESET, events);
  if (entry.state == State::forsaken) return release(event.id, events);
  entry.state = State::ended;
  events.on_refused(event.id, std::span(event.bytes).first(event.length));
}

void RdmaCmBackend::release(uint64_t id, BackendEvents& events) {
  x_entries.erase(id);
  events.on_closed(id, -FI_ECONNRESET);
}

void RdmaCmBackend::end(Entry& entry, uint64_t id, int status, BackendEvents& events) {
  const State state = entry.state;
  if (state == State::forsaken) return release(id, events);
  if (state == State::ended) return;
  entry.state = State::ended;
  events.on_closed(id, status);
}

}  // namespace erdma::transport::verbs
