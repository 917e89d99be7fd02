// Messages to the connection manager, and the ends of connections.
#include <arpa/inet.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "softerdma/cm.h"
#include "softerdma/fault.h"
#include "softerdma/report.h"
#include "softerdma/verbs_create.h"

namespace softerdma {

CmState::~CmState() {
  close_outside();
  // Contexts with objects stay open, as an application that did not destroy its objects may still
  // use them.
  for (auto& [device, context] : x_contexts) {
    if (Context::from(context).children.load() == 0) ibv_close_device(context);
  }
}

CmId* CmState::find(uint64_t number) {
  auto found = ids.find(number);
  return found == ids.end() ? nullptr : found->second;
}

ibv_context* CmState::context(Device& device) {
  ibv_context*& context = x_contexts[&device];
  if (context == nullptr) context = open_context(x_process, device);
  return context;
}

CmId* cm_new_id(Process& process, rdma_event_channel* channel, void* context, rdma_port_space ps) {
  auto* id = new CmId;
  static_cast<rdma_cm_id&>(*id) = {};
  id->process = &process;
  id->number = process.cm->next_number++;
  id->channel = channel;
  id->context = context;
  id->ps = ps;
  id->qp_type = IBV_QPT_RC;
  process.cm->ids.emplace(id->number, id);
  return id;
}

void cm_post(CmId& owner, rdma_cm_event_type type, int status, const Message* message,
             CmId* reported) {
  auto* event = new CmEvent;
  static_cast<rdma_cm_event&>(*event) = {};
  event->owner = &owner;
  event->owner_number = owner.number;
  event->id = reported != nullptr ? reported : &owner;
  event->listen_id = reported != nullptr ? &owner : nullptr;
  event->event = type;
  event->status = status;
  if (message != nullptr) {
    rdma_conn_param& conn = event->param.conn;
    std::memcpy(event->data, message->private_data, message->private_length);
    conn.private_data = message->private_length > 0 ? event->data : nullptr;
    conn.private_data_len = message->private_length;
    conn.responder_resources = message->responder_resources;
    conn.initiator_depth = message->initiator_depth;
    conn.qp_num = message->peer_qpn;
  }
  auto* channel = static_cast<CmChannel*>(owner.channel);
  channel->events.push_back(event);
  eventfd_write(channel->fd, 1);
}

void cm_forget_events(CmId& id) {
  auto* channel = static_cast<CmChannel*>(id.channel);
  std::erase_if(channel->events, [&](CmEvent* event) {
    if (event->owner != &id && event->id != &id) return false;
    delete event;
    return true;
  });
}

void CmState::on_request(const Message& message) {
  CmId* listener = find(message.id);
  Message answer{};
  answer.type = MessageType::rejected;
  answer.id = message.peer_id;
  bool good = listener != nullptr && listener->stage == CmStage::listening;
  ConnectFault fault = fault_on_connect(ntohs(message.target_port));
  if (fault == ConnectFault::hang) return;
  const bool nobody = !good || fault == ConnectFault::refuse;
  answer.status = nobody ? -ECONNREFUSED : -ECONNRESET;
  if (nobody || listener->waiting >= listener->backlog) {
    x_process.send(message.from_slot, message.from_generation, answer);
    return;
  }
  Device* device = nullptr;
  for (auto& d : x_process.devices) {
    if (d->config.ip == message.target_ip) device = d.get();
  }
  if (device == nullptr || !device->active()) return;
  ibv_context* verbs = context(*device);
  CmId* id = cm_new_id(x_process, listener->channel, listener->context, listener->ps);
  id->verbs = verbs;
  id->port_num = 1;
  id->listener = listener;
  id->stage = CmStage::requested;
  id->peer_slot = message.from_slot;
  id->peer_generation = message.from_generation;
  id->peer_number = message.peer_id;
  id->peer_qpn = message.peer_qpn;
  sockaddr_in& source = id->route.addr.src_sin;
  source.sin_family = AF_INET;
  source.sin_port = message.target_port;
  source.sin_addr.s_addr = message.target_ip;
  sockaddr_in& target = id->route.addr.dst_sin;
  target.sin_family = AF_INET;
  target.sin_port = message.source_port;
  target.sin_addr.s_addr = message.source_ip;
  ++listener->waiting;
  cm_post(*listener, RDMA_CM_EVENT_CONNECT_REQUEST, 0, &message, id);
}

void CmState::on_accepted(const Message& message) {
  CmId* id = find(message.id);
  Qp* qp = id != nullptr ? id->bound : nullptr;
  bool good = id != nullptr && id->stage == CmStage::connecting && qp != nullptr;
  if (good) {
    std::lock_guard guard(qp->sq_lock);
    good = bind_remote(x_process, *qp, message.from_slot, message.from_generation,
                       message.peer_qpn) == 0;
  }
  if (!good) {
    // The id that asked is gone, so the other side sees the connection end.
    Message closed{};
    closed.type = MessageType::closed;
    closed.qpn = message.peer_qpn;
    closed.peer_qpn = message.qpn;
    x_process.send(message.from_slot, message.from_generation, closed);
    if (id != nullptr && id->stage == CmStage::connecting) {
      id->stage = CmStage::over;
      cm_post(*id, RDMA_CM_EVENT_CONNECT_ERROR, -ECONNRESET);
    }
    return;
  }
  id->deadline_ns = 0;
  id->stage = CmStage::connected;
  qp->cm = id;
  qp->passive = false;
  qp->shared().peer_qpn.store(message.peer_qpn);
  qp->become(IBV_QPS_RTS);
  cm_post(*id, RDMA_CM_EVENT_ESTABLISHED, 0, &message);
}

void CmState::on_rejected(const Message& message) {
  CmId* id = find(message.id);
  if (id == nullptr || id->stage != CmStage::connecting) return;
  id->deadline_ns = 0;
  id->stage = CmStage::over;
  // Drivers report every rejection by MPA as a reset. With `refused`, they report an unused port as
  // refused.
  const Qp* qp = id->bound;
  const bool told = qp == nullptr || qp->device->config.limits.refused != 0;
  cm_post(*id, RDMA_CM_EVENT_REJECTED, told ? message.status : -ECONNRESET, &message);
}

uint64_t CmState::expire(uint64_t now) {
  uint64_t next = UINT64_MAX;
  for (auto& [number, id] : ids) {
    if (id->deadline_ns == 0) continue;
    if (id->deadline_ns > now) {
      next = std::min(next, id->deadline_ns - now);
      continue;
    }
    id->deadline_ns = 0;
    id->stage = CmStage::over;
    cm_post(*id, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
  }
  return next;
}

namespace {

/// Polls, as the application need not have taken any event.
template <typename Find>
void wait_while_connecting(Process& process, Find&& find) {
  for (;; usleep(200)) {
    std::lock_guard guard(process.mutex);
    const CmId* id = find();
    if (id == nullptr || id->stage != CmStage::connecting) return;
    if (id->bound == nullptr || id->bound->device->config.limits.destroy_waits == 0) return;
  }
}

}  // namespace

void cm_wait_for_outcome(Process& process, const Qp& qp) {
  wait_while_connecting(process, [&qp] { return qp.cm; });
}

void cm_wait_for_outcome(Process& process, const CmId& id) {
  wait_while_connecting(process, [&id] { return &id; });
}

void cm_connection_ended(Process& process, Qp& qp, bool post_event) {
  CmId* id = qp.cm;
  if (id == nullptr) return;
  if (id->stage == CmStage::connected) {
    id->stage = CmStage::over;
    tell_peer(process, qp, MessageType::closed, Cause::none, true);
    if (post_event) cm_post(*id, RDMA_CM_EVENT_DISCONNECTED, 0);
  }
  if (!post_event) {  // the queue pair is being destroyed
    qp.cm = nullptr;
    if (id->qp == &qp) id->qp = nullptr;
    if (id->bound == &qp) id->bound = nullptr;
  }
}

void cm_peer_ended(Process& process, Qp& qp) {
  enter_error(process, qp);
  CmId* id = qp.cm;
  if (id == nullptr || id->stage != CmStage::connected) return;
  id->stage = CmStage::over;
  cm_post(*id, RDMA_CM_EVENT_DISCONNECTED, 0);
}

}  // namespace softerdma
