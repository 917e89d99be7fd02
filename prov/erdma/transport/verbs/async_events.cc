#include "transport/verbs/async_events.h"

#include <atomic>
#include <cerrno>
#include <memory>
#include <mutex>
#include <vector>

#include "transport/verbs/connection_backend.h"
#include "util/fd.h"
#include "util/log.h"
#include "util/process_epoch.h"

namespace erdma::transport::verbs {
namespace {

struct Subscriber {
  const ibv_context* context;
  AsyncListener* listener;
};
/// There is one per process: the parent's registry, whose mutex may be locked, is not touched after
/// a fork.
struct Registry {
  uint32_t epoch = util::process_epoch();
  std::mutex mutex;
  std::vector<Subscriber> subscribers;
  Registry* older = nullptr;
};
std::atomic<Registry*> g_registry = nullptr;

/// Null: nothing subscribed in this process yet.
Registry* known_registry() noexcept {
  Registry* const latest = g_registry.load(std::memory_order_acquire);
  return latest && latest->epoch == util::process_epoch() ? latest : nullptr;
}

Registry& registry() {
  if (Registry* const known = known_registry()) return *known;
  Registry* latest = g_registry.load(std::memory_order_acquire);
  auto made = std::make_unique<Registry>();
  made->older = latest;
  if (g_registry.compare_exchange_strong(latest, made.get())) latest = made.release();
  return *latest;
}

}  // namespace

void tell_all(const ibv_context* context, const DeviceEvent& event) noexcept {
  Registry* const all = known_registry();
  if (!all) return;
  const std::lock_guard guard(all->mutex);
  for (const Subscriber& subscriber : all->subscribers)
    if (subscriber.context == context) subscriber.listener->on_device_event(event);
}

AsyncEvents::AsyncEvents(const Device& device, AsyncListener& listener)
    : x_device(device), x_listener(listener) {
  (void)util::set_nonblocking(fd());
  Registry& all = registry();
  const std::lock_guard guard(all.mutex);
  all.subscribers.push_back({device.context(), &listener});
}

AsyncEvents::~AsyncEvents() {
  Registry* const all = known_registry();
  if (!all) return;  // a forked child: the parent's registry has the listener
  const std::lock_guard guard(all->mutex);
  std::erase_if(all->subscribers,
                [this](const Subscriber& entry) { return entry.listener == &x_listener; });
}

int AsyncEvents::fd() const noexcept {
  return x_device.context()->async_fd;
}

bool AsyncEvents::dispatch() noexcept {
  ibv_async_event event;
  // Destroying the object of an event waits until the event is acknowledged.
  while (!ibv_get_async_event(x_device.context(), &event)) {
    handle(event);
    ibv_ack_async_event(&event);
  }
  return errno == EAGAIN || errno == EINTR;
}

void AsyncEvents::handle(const ibv_async_event& event) const noexcept {
  const char* what = ibv_event_type_str(event.event_type);
  const char* name = x_device.name().c_str();
  switch (event.event_type) {
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
      return tell_all(x_device.context(), {id_of(event.element.qp->qp_context), nullptr, what});
    case IBV_EVENT_CQ_ERR:
      ERDMA_NOTICE(port, EP_CTRL, "%s: a completion queue failed: its connections are lost", name);
      return tell_all(x_device.context(), {0, event.element.cq, what});
    case IBV_EVENT_DEVICE_FATAL:
      ERDMA_NOTICE(port, EP_CTRL, "%s: %s: all its connections are lost", name, what);
      x_device.is_gone();
      return tell_all(x_device.context(), {0, nullptr, what});
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_PORT_ACTIVE:
      return tell_of_port(event.element.port_num, event.event_type == IBV_EVENT_PORT_ACTIVE);
    default:
      ERDMA_INFO(EP_CTRL, "%s: %s\n", name, what);
  }
}

/// Another port carries no connection of this process.
void AsyncEvents::tell_of_port(int port, bool active) const noexcept {
  const char* name = x_device.name().c_str();
  if (port != x_device.port())
    ERDMA_INFO(EP_CTRL, "%s: port %d, which is not used, is %s\n", name, port,
               active ? "active" : "down");
  else if (active)
    ERDMA_NOTICE(port, EP_CTRL, "%s: port %d is active again", name, port);
  else
    ERDMA_NOTICE(port, EP_CTRL, "%s: port %d is down: connections die unless it comes back soon",
                 name, port);
}

}  // namespace erdma::transport::verbs
