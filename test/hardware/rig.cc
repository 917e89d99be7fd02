#include "rig.h"

#include <arpa/inet.h>
#include <poll.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace erdma::hardware {
namespace {

constexpr int kRights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
constexpr double kHandshakeMs = 15'000;
constexpr int kResolveMs = 3'000;

sockaddr_in address_of(const std::string& text, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (::inet_pton(AF_INET, text.c_str(), &address.sin_addr) != 1)
    cannot("%s is no IPv4 address", text.c_str());
  return address;
}

sockaddr* generic(sockaddr_in& address) noexcept {
  return reinterpret_cast<sockaddr*>(&address);
}

rdma_conn_param parameters(const Window& mine) noexcept {
  rdma_conn_param parameters{};
  parameters.private_data = &mine;
  parameters.private_data_len = sizeof(mine);
  parameters.responder_resources = RDMA_MAX_RESP_RES;
  parameters.initiator_depth = RDMA_MAX_INIT_DEPTH;
  parameters.retry_count = parameters.rnr_retry_count = 0;
  return parameters;
}

[[noreturn]] void end(int status, const char* format, va_list arguments) {
  std::vprintf(format, arguments);
  std::printf("\n");
  std::fflush(stdout);
  std::_Exit(status);  // destructors might wait for operations under way
}

}  // namespace

void fact(const char* name, const std::string& value) {
  std::printf("fact %s %s\n", name, value.c_str());
  std::fflush(stdout);
}

void fact(const char* name, long long value) {
  fact(name, std::to_string(value));
}

void cannot(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  end(kCannot, format, arguments);
}

void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  end(1, format, arguments);
}

Region::Region(ibv_pd* pd, void* memory, size_t length) noexcept
    : x_mr(ibv_reg_mr(pd, memory, length, kRights)) {}

Region::~Region() {
  (void)revoke();
}

int Region::revoke() noexcept {
  ibv_mr* const mr = x_mr;
  x_mr = nullptr;
  return mr ? ibv_dereg_mr(mr) : 0;
}

Window Region::window() const noexcept {
  return {uint64_t(reinterpret_cast<uintptr_t>(x_mr->addr)), x_mr->length, x_mr->rkey, 0};
}

namespace {

rdma_cm_id* bound_id(rdma_event_channel* channel, const std::string& own, uint16_t port) {
  rdma_cm_id* id = nullptr;
  sockaddr_in address = address_of(own, port);
  if (rdma_create_id(channel, &id, nullptr, RDMA_PS_TCP))
    cannot("rdma_create_id: %s", std::strerror(errno));
  if (rdma_bind_addr(id, generic(address)))
    cannot("rdma_bind_addr to %s: %s", own.c_str(), std::strerror(errno));
  if (!id->verbs) cannot("no RDMA adapter has the address %s", own.c_str());
  const char* const name = ibv_get_device_name(id->verbs->device);
  fact("device", name);  // the provider may be able to use the device nevertheless
  if (id->verbs->device->transport_type != IBV_TRANSPORT_IWARP)
    cannot("%s is not in standard mode (iWARP)", name);
  return id;
}

}  // namespace

/// Like the provider, the active side does not bind its id: the port is chosen when the address is
/// resolved. Therefore another id, which stays, opens the adapter.
End::End(const Options& options) : x_options(options), x_channel(rdma_create_event_channel()) {
  if (!x_channel) cannot("no rdma_cm event channel: %s (module rdma_ucm)", std::strerror(errno));
  if (options.peer.empty()) {
    x_listener = bound_id(x_channel, options.own, options.port);
    x_device = x_listener->verbs;
  } else {
    static const rdma_cm_id* const holder = bound_id(rdma_create_event_channel(), options.own, 0);
    x_device = holder->verbs;
    if (rdma_create_id(x_channel, &x_id, nullptr, RDMA_PS_TCP))
      fail("rdma_create_id: %s", std::strerror(errno));
  }
  open_queues();
}

End::~End() {
  if (x_id && x_id->qp) rdma_destroy_qp(x_id);
  destroy_id();
  if (x_listener) (void)rdma_destroy_id(x_listener);
  if (x_cq) (void)ibv_destroy_cq(x_cq);
  if (x_events) (void)ibv_destroy_comp_channel(x_events);
  if (x_pd) (void)ibv_dealloc_pd(x_pd);
  rdma_destroy_event_channel(x_channel);
}

void End::destroy_id() noexcept {
  if (x_id) (void)rdma_destroy_id(x_id);
  x_id = nullptr;
}

void End::open_queues() {
  x_pd = ibv_alloc_pd(x_device);
  x_events = ibv_create_comp_channel(x_device);
  if (x_pd && x_events) x_cq = ibv_create_cq(x_device, 4 * int(kDepth), nullptr, x_events, 0);
  if (!x_cq) fail("no protection domain or completion queue: %s", std::strerror(errno));
}

bool End::has_event(int limit_ms) const noexcept {
  pollfd ready{x_channel->fd, POLLIN, 0};
  return ::poll(&ready, 1, limit_ms) > 0;
}

bool End::next_event(rdma_cm_event_type& type, int& status, double limit_ms) {
  if (!has_event(int(limit_ms))) return false;
  rdma_cm_event* event = nullptr;
  if (rdma_get_cm_event(x_channel, &event)) fail("rdma_get_cm_event: %s", std::strerror(errno));
  type = event->event;
  status = event->status;
  if (type == RDMA_CM_EVENT_CONNECT_REQUEST) x_id = event->id;
  const auto& connection = event->param.conn;
  if (connection.private_data && connection.private_data_len >= sizeof(x_theirs))
    std::memcpy(&x_theirs, connection.private_data, sizeof(x_theirs));
  std::printf("event %s, status %d\n", rdma_event_str(type), status);
  rdma_ack_cm_event(event);
  return true;
}

void End::listen() {
  if (rdma_listen(x_listener, 128)) fail("rdma_listen: %s", std::strerror(errno));
  std::printf("ready\n");
  std::fflush(stdout);
}

void End::wait_for_peer() {
  rdma_cm_event_type type{};
  int status = 0;
  listen();
  if (!next_event(type, status, 60'000)) fail("nobody connected");
  if (type != RDMA_CM_EVENT_CONNECT_REQUEST) fail("%s instead of a request", rdma_event_str(type));
}

int End::reach(const std::string& peer, uint16_t port) {
  rdma_cm_event_type type{};
  int status = 0;
  sockaddr_in to = address_of(peer, port);
  sockaddr_in own = address_of(x_options.own, 0);
  if (rdma_resolve_addr(x_id, generic(own), generic(to), kResolveMs)) return errno;
  if (!next_event(type, status, kResolveMs + 1000) || type != RDMA_CM_EVENT_ADDR_RESOLVED)
    return EHOSTUNREACH;
  if (rdma_resolve_route(x_id, kResolveMs)) return errno;
  if (!next_event(type, status, kResolveMs + 1000) || type != RDMA_CM_EVENT_ROUTE_RESOLVED)
    return EHOSTUNREACH;
  return 0;
}

namespace {

ibv_qp_init_attr queue_pair(ibv_cq* cq) noexcept {
  ibv_qp_init_attr attr{};
  attr.send_cq = attr.recv_cq = cq;
  attr.qp_type = IBV_QPT_RC;
  attr.sq_sig_all = 1;
  attr.cap.max_send_wr = attr.cap.max_recv_wr = End::kDepth;
  attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
  return attr;
}

}  // namespace

void End::reach_peer() {
  if (const int error = reach(x_options.peer, x_options.port))
    cannot("%s cannot be reached: %s", x_options.peer.c_str(), std::strerror(error));
}

void End::prepare() {
  ibv_qp_init_attr attr = queue_pair(x_cq);
  if (rdma_create_qp(x_id, x_pd, &attr)) fail("rdma_create_qp: %s", std::strerror(errno));
}

int End::request(const Window& mine) {
  rdma_conn_param with = parameters(mine);
  return rdma_connect(x_id, &with) ? errno : 0;
}

rdma_cm_event_type End::try_to_establish(const Window& mine) {
  rdma_cm_event_type type{};
  int status = 0;
  if (const int error = request(mine)) cannot("rdma_connect: %s", std::strerror(error));
  if (!next_event(type, status, kHandshakeMs)) cannot("the connect had no outcome in 15 s");
  return type;
}

void End::establish(const Window& mine) {
  const rdma_cm_event_type type = try_to_establish(mine);
  if (type != RDMA_CM_EVENT_ESTABLISHED) cannot("the connect ended with %s", rdma_event_str(type));
}

void End::connect(const Window& mine) {
  reach_peer();
  prepare();
  establish(mine);
}

void End::accept(const Window& mine) {
  rdma_cm_event_type type{};
  int status = 0;
  if (!x_id->qp) prepare();
  rdma_conn_param with = parameters(mine);
  if (rdma_accept(x_id, &with)) fail("rdma_accept: %s", std::strerror(errno));
  if (!next_event(type, status, kHandshakeMs) || type != RDMA_CM_EVENT_ESTABLISHED)
    fail("no connection was established");
}

}  // namespace erdma::hardware
