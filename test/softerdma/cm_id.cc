// Channels, ids and events of rdma_cm.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "softerdma/cm.h"
#include "softerdma/report.h"
#include "softerdma/verbs_create.h"

using namespace softerdma;

namespace softerdma {

int cm_wait(CmId& id, rdma_cm_event_type expected) {
  if (id.event != nullptr) {
    rdma_ack_cm_event(id.event);
    id.event = nullptr;
  }
  if (int rc = rdma_get_cm_event(id.channel, &id.event); rc != 0) return rc;
  int status = id.event->status;
  if (id.event->event == expected && status == 0) return 0;
  errno = status < 0 ? -status : status > 0 ? status : ECONNREFUSED;
  if (id.event->event == RDMA_CM_EVENT_REJECTED) errno = ECONNREFUSED;
  return -1;
}

namespace {

CmChannel* make_channel() {
  auto* channel = new CmChannel;
  channel->fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
  if (channel->fd >= 0) return channel;
  delete channel;
  return nullptr;
}

void release_registrations(CmId& id) {
  for (const std::string& path : id.registrations) unlink(path.c_str());
  id.registrations.clear();
  if (id.port_holder >= 0) close(id.port_holder);
  id.port_holder = -1;
}

/// Waits a second, as another thread may be about to acknowledge. librdmacm waits for ever.
void wait_for_acknowledgements(Process& process, CmId& id) {
  unsigned left = 0;
  for (int ms = 0; ms < 1000; ++ms) {
    {
      std::lock_guard guard(process.mutex);
      left = id.unacknowledged;
    }
    if (left == 0) return;
    usleep(1000);
  }
  violation("rdma_destroy_id with %u events not acknowledged: librdmacm waits forever", left);
}

/// Ends the connections of a listener that the application has not heard of yet, as the kernel
/// does. Their callers get a reset. The thread refuses later ones, as it finds no listener.
void refuse_unheard(Process& process, CmId& listener) {
  std::vector<rdma_cm_id*> unheard;
  {
    std::lock_guard guard(process.mutex);
    if (listener.stage == CmStage::listening) listener.stage = CmStage::over;
    for (const CmEvent* event : static_cast<CmChannel*>(listener.channel)->events)
      if (event->owner == &listener && event->id != &listener) unheard.push_back(event->id);
  }
  for (rdma_cm_id* id : unheard) rdma_destroy_id(id);
}

}  // namespace
}  // namespace softerdma

SOFTERDMA_API rdma_event_channel* rdma_create_event_channel() {
  return Process::get() == nullptr ? nullptr : make_channel();
}

SOFTERDMA_API void rdma_destroy_event_channel(rdma_event_channel* handle) {
  auto* channel = static_cast<CmChannel*>(handle);
  for (CmEvent* event : channel->events) delete event;
  close(channel->fd);
  delete channel;
}

SOFTERDMA_API int rdma_create_id(rdma_event_channel* channel, rdma_cm_id** out, void* context,
                                 rdma_port_space ps) {
  Process* process = Process::get();
  if (process == nullptr) return -1;
  if (ps != RDMA_PS_TCP) {  // datagrams and IPoIB are not simulated
    errno = EPROTONOSUPPORT;
    return -1;
  }
  rdma_event_channel* own = channel == nullptr ? make_channel() : nullptr;
  if (channel == nullptr && own == nullptr) return -1;
  std::lock_guard guard(process->mutex);
  CmId* id = cm_new_id(*process, own != nullptr ? own : channel, context, ps);
  id->synchronous = own != nullptr;
  *out = id;
  return 0;
}

SOFTERDMA_API int rdma_destroy_id(rdma_cm_id* handle) {
  CmId* id = &CmId::from(handle);
  Process& process = *id->process;
  if (id->event != nullptr) {
    rdma_ack_cm_event(id->event);
    id->event = nullptr;
  }
  if (&process == Process::existing()) {
    cm_wait_for_outcome(process, *id);
    wait_for_acknowledgements(process, *id);
    refuse_unheard(process, *id);
    std::lock_guard guard(process.mutex);
    if (id->bound != nullptr && id->bound->cm == id) {
      Qp& qp = *id->bound;
      if (id->stage == CmStage::connected) enter_error(process, qp);
      cm_connection_ended(process, qp, true);
      qp.cm = nullptr;
    }
    if (id->stage == CmStage::requested) {
      if (id->listener != nullptr) --id->listener->waiting;
      Message message{};
      message.type = MessageType::rejected;
      message.id = id->peer_number;
      message.status = -ECONNRESET;
      process.send(id->peer_slot, id->peer_generation, message);
    }
    for (auto& [number, other] : process.cm->ids) {
      if (other->listener == id) other->listener = nullptr;
    }
    cm_forget_events(*id);
    release_registrations(*id);
    process.cm->ids.erase(id->number);
  }
  if (id->synchronous) rdma_destroy_event_channel(id->channel);
  delete id;
  return 0;
}

SOFTERDMA_API int rdma_get_cm_event(rdma_event_channel* handle, rdma_cm_event** out) {
  auto* channel = static_cast<CmChannel*>(handle);
  Process* process = Process::existing();
  if (process == nullptr || out == nullptr) {
    errno = EINVAL;
    return -1;
  }
  for (;;) {
    eventfd_t count = 0;
    if (eventfd_read(channel->fd, &count) != 0) return -1;
    std::lock_guard guard(process->mutex);
    if (channel->events.empty()) continue;  // the id of this event was destroyed
    CmEvent* event = channel->events.front();
    channel->events.pop_front();
    ++event->owner->unacknowledged;
    *out = event;
    return 0;
  }
}

SOFTERDMA_API int rdma_ack_cm_event(rdma_cm_event* handle) {
  if (handle == nullptr) {
    errno = EINVAL;
    return -1;
  }
  auto* event = static_cast<CmEvent*>(handle);
  if (Process* process = Process::existing()) {
    std::lock_guard guard(process->mutex);
    CmId* owner = process->cm->find(event->owner_number);
    if (owner != nullptr && owner->unacknowledged > 0) --owner->unacknowledged;
  }
  delete event;
  return 0;
}

SOFTERDMA_API int rdma_migrate_id(rdma_cm_id* handle, rdma_event_channel* to) {
  CmId& id = CmId::from(handle);
  std::lock_guard guard(id.process->mutex);
  auto* from = static_cast<CmChannel*>(id.channel);
  bool was_synchronous = id.synchronous;
  id.synchronous = to == nullptr;
  CmChannel* target = to == nullptr ? make_channel() : static_cast<CmChannel*>(to);
  if (target == nullptr) return -1;
  // The old channel's count stays too high, so rdma_get_cm_event() looks there in vain as often.
  for (auto i = from->events.begin(); i != from->events.end();) {
    if ((*i)->owner != &id) {
      ++i;
      continue;
    }
    target->events.push_back(*i);
    eventfd_write(target->fd, 1);
    i = from->events.erase(i);
  }
  id.channel = target;
  if (was_synchronous) rdma_destroy_event_channel(from);
  return 0;
}

SOFTERDMA_API int rdma_set_option(rdma_cm_id*, int, int, void*, size_t) {
  return 0;
}
SOFTERDMA_API int rdma_notify(rdma_cm_id*, ibv_event_type) {
  return 0;
}
SOFTERDMA_API int rdma_establish(rdma_cm_id*) {
  return 0;
}

SOFTERDMA_API __be16 rdma_get_src_port(rdma_cm_id* id) {
  return id->route.addr.src_sin.sin_port;
}
SOFTERDMA_API __be16 rdma_get_dst_port(rdma_cm_id* id) {
  return id->route.addr.dst_sin.sin_port;
}

SOFTERDMA_API int rdma_join_multicast(rdma_cm_id*, sockaddr*, void*) {
  errno = EOPNOTSUPP;
  return -1;
}
SOFTERDMA_API int rdma_join_multicast_ex(rdma_cm_id*, rdma_cm_join_mc_attr_ex*, void*) {
  errno = EOPNOTSUPP;
  return -1;
}
SOFTERDMA_API int rdma_leave_multicast(rdma_cm_id*, sockaddr*) {
  errno = EOPNOTSUPP;
  return -1;
}
SOFTERDMA_API int rdma_set_local_ece(rdma_cm_id*, ibv_ece*) {
  errno = EOPNOTSUPP;
  return -1;
}
SOFTERDMA_API int rdma_get_remote_ece(rdma_cm_id*, ibv_ece*) {
  errno = EOPNOTSUPP;
  return -1;
}
