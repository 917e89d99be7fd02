#include "transport/verbs/rdma_cm_backend.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "util/log.h"

namespace erdma::transport::verbs {
namespace {

constexpr int kBacklog = 1024;       // eRDMA allocates as many as are asked for
constexpr int kResolveTime = 2'000;  // ms, for the route: there is no ARP cache of ours
constexpr int kPortTries = 32;

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

/// Goes on with an event.
int resolve(rdma_cm_id* cm, util::SocketAddress own, util::SocketAddress to) noexcept {
  own.set_port(0);
  if (!rdma_resolve_addr(cm, mutable_data(own), mutable_data(to), kResolveTime)) return 0;
  return unreachable(last_error());
}

}  // namespace

void RdmaCmBackend::CmIdDeleter::operator()(rdma_cm_id* id) const noexcept {
  id->qp = nullptr;  // given away: its Connection destroys it
  if (rdma_destroy_id(id)) log_leak("a connection id", errno);
}

RdmaCmBackend::RdmaCmBackend(const Device& device, const util::SocketAddress& name,
                             QueuePairs& queue_pairs)
    : x_device(device), x_own(name), x_queue_pairs(queue_pairs) {
  x_channel.reset(rdma_create_event_channel());
  if (!x_channel) return;
  x_channel_fd = util::PrivateFd(x_channel->fd);
  const int flags = fcntl(x_channel->fd, F_GETFL);
  fcntl(x_channel->fd, F_SETFL, flags | O_NONBLOCK);
  fcntl(x_channel->fd, F_SETFD, FD_CLOEXEC);
}

RdmaCmBackend::~RdmaCmBackend() = default;

int RdmaCmBackend::listen(util::SocketAddress& name) noexcept {
  if (!x_channel) {
    ERDMA_NOTICE(device, EP_CTRL, "no rdma_cm event channel: %s; load the module rdma_ucm\n",
                 fi_strerror(errno));
    return -FI_ENODEV;
  }
  int rc = 0;
  // A free port of rdma_cm may be taken in TCP, which an iWARP device finds out when it listens.
  for (int tries = name.port() ? 1 : kPortTries; tries > 0; --tries) {
    rc = bind_and_listen(name, x_listener);
    if (rc != -FI_EADDRINUSE) break;
  }
  if (rc) {
    ERDMA_NOTICE(device, EP_CTRL, "%s: cannot listen at %s: %s\n", x_device.name().c_str(),
                 name.to_string().c_str(), fi_strerror(-rc));
    return rc;
  }
  name.set_port(ntohs(rdma_get_src_port(x_listener.get())));
  return 0;
}

int RdmaCmBackend::bind_and_listen(const util::SocketAddress& name, CmId& listener) noexcept {
  rdma_cm_id* cm = nullptr;
  if (rdma_create_id(x_channel.get(), &cm, nullptr, RDMA_PS_TCP)) return last_error();
  CmId made(cm);
  util::SocketAddress address = name;
  if (rdma_bind_addr(cm, mutable_data(address))) return last_error();
  if (!own_device(cm)) return -FI_EADDRNOTAVAIL;
  if (rdma_listen(cm, kBacklog)) return last_error();
  listener = std::move(made);
  return 0;
}

void RdmaCmBackend::stop_listening() noexcept {
  x_listener.reset();
}

/// librdmacm finds the device by the address, and opens it again for itself: only the name tells.
bool RdmaCmBackend::own_device(const rdma_cm_id* cm) const noexcept {
  if (cm->verbs && x_device.name() == ibv_get_device_name(cm->verbs->device)) return true;
  ERDMA_NOTICE(device, EP_CTRL, "rdma_cm uses %s for %s, not %s: check the routes of this host\n",
               cm->verbs ? ibv_get_device_name(cm->verbs->device) : "no device",
               x_own.to_string().c_str(), x_device.name().c_str());
  return false;
}

/// The parent uses the ids: only its descriptor goes, whatever state the fork found the rest in.
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

ibv_qp* RdmaCmBackend::create_queue_pair(uint64_t id, ibv_qp_init_attr& attr) noexcept {
  Entry* entry = find(id);
  if (!entry) return nullptr;
  entry->cm->qp = x_queue_pairs.create(id, attr);
  return entry->cm->qp;
}

namespace {

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

int RdmaCmBackend::request(uint64_t id, const HelloBytes& hello) noexcept {
  Entry* entry = find(id);
  if (!entry) return -FI_ECONNRESET;
  rdma_conn_param with = parameters(hello, *entry->cm);
  if (rdma_connect(entry->cm.get(), &with)) {
    const int rc = last_error();
    return rc == -FI_ECONNREFUSED || rc == -FI_ECONNRESET || rc == -FI_ETIMEDOUT ? rc
                                                                                 : unreachable(rc);
  }
  entry->state = State::requested;
  return 0;
}

int RdmaCmBackend::accept(uint64_t id, const HelloBytes& welcome) noexcept {
  Entry* entry = find(id);
  if (!entry) return -FI_ECONNRESET;
  rdma_conn_param with = parameters(welcome, *entry->cm);
  return rdma_accept(entry->cm.get(), &with) ? last_error() : 0;
}

void RdmaCmBackend::refuse(uint64_t id, const HelloPrefix& refusal) noexcept {
  if (Entry* entry = find(id)) {
    // It may be gone already; then there is nobody to tell.
    (void)rdma_reject(entry->cm.get(), &refusal, sizeof(refusal));
    x_entries.erase(id);
  }
}

void RdmaCmBackend::close(uint64_t id, bool) noexcept {
  Entry* entry = find(id);
  if (!entry) return;
  if (entry->state == State::requested) {
    entry->state = State::forsaken;
    entry->cm->qp = nullptr;
    return;
  }
  x_entries.erase(id);
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

}  // namespace erdma::transport::verbs
