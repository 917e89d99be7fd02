#include <cerrno>
#include <cstdlib>
#include <span>

#include "transport/verbs/rdma_cm_backend.h"
#include "util/log.h"

/// What rdma_cm reports, and what it means.
namespace erdma::transport::verbs {
namespace {

constexpr int kRouteTime = 2'000;  // ms

}  // namespace

void RdmaCmBackend::handle(const Event& event, BackendEvents& events) {
  if (event.type == RDMA_CM_EVENT_CONNECT_REQUEST) return on_request(event, events);
  if (event.of_listener) {
    ERDMA_NOTICE(port, EP_CTRL, "%s at %s: no peer can connect any more\n",
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
  if (entry.state == State::forsaken) {
    x_entries.erase(event.id);
    return;
  }
  entry.state = State::up;
  if (entry.active)
    events.on_accepted(event.id, std::span(event.bytes).first(event.length), Path{});
  else
    events.on_established(event.id);
}

void RdmaCmBackend::on_rejected(Entry& entry, const Event& event, BackendEvents& events) {
  // Reset, not refused: the peer was there and went, or has no room for one more.
  if (!event.length && std::abs(event.status) == ECONNRESET)
    return end(entry, event.id, -FI_ECONNRESET, events);
  if (entry.state == State::forsaken) {
    x_entries.erase(event.id);
    return;
  }
  entry.state = State::ended;
  events.on_refused(event.id, std::span(event.bytes).first(event.length));
}

void RdmaCmBackend::end(Entry& entry, uint64_t id, int status, BackendEvents& events) {
  const State state = entry.state;
  if (state == State::forsaken) x_entries.erase(id);
  if (state == State::forsaken || state == State::ended) return;
  entry.state = State::ended;
  events.on_closed(id, status);
}

}  // namespace erdma::transport::verbs
