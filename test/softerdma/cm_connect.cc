// Addresses and connections of rdma_cm.
#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "softerdma/cm.h"
#include "softerdma/device.h"
#include "softerdma/report.h"
#include "softerdma/verbs_create.h"

using namespace softerdma;

namespace {

/// Content of a file "listen.<ip>.<port>". It is written before the name appears.
struct Registration {
  uint32_t slot;
  uint32_t generation;
  uint64_t number;
};

/// End of the name of a second link to a registration, made when its id begins to listen. Scripts
/// wait for it, as a connect between bind and listen is rejected.
constexpr const char* kListens = ".listens";

/// If `mapped`, the port is the one that the port mapper of the listener's host gave.
std::string registration_path(Process& process, uint32_t ip, uint16_t port, bool mapped) {
  return process.fabric.folder() + (mapped ? "/mapped." : "/listen.") + ip_text(ip) + "." +
         std::to_string(ntohs(port));
}

bool read_registration(const std::string& path, Registration& found) {
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  bool whole = read(fd, &found, sizeof found) == sizeof found;
  close(fd);
  return whole;
}

bool holds(Process& process, const Registration& r) {
  return r.slot < kMaxProcesses && process.fabric.alive(r.slot) &&
         process.fabric.shared().processes[r.slot].generation.load() == r.generation;
}

/// Only a host with a port mapper can ask the listener's host for the mapped port. Without an
/// answer, it uses the port as it is.
bool find_listener(Process& process, const sockaddr_in& at, Registration& found) {
  const auto is_there = [&](bool mapped) {
    return read_registration(registration_path(process, at.sin_addr.s_addr, at.sin_port, mapped),
                             found) &&
           holds(process, found);
  };
  return (process.cm->maps_ports() && is_there(true)) || is_there(false);
}

/// Returns EADDRINUSE if a living process has the name.
int register_name(CmId& id, uint32_t ip, uint16_t port) {
  Process& process = *id.process;
  std::string path = registration_path(process, ip, port, process.cm->maps_ports());
  std::string fresh = process.fabric.own_path("listen." + std::to_string(id.number));
  int fd = open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return errno;
  Registration mine{process.fabric.slot(), process.fabric.generation(), id.number};
  bool written = write(fd, &mine, sizeof mine) == sizeof mine;
  close(fd);
  int error = written ? 0 : EIO;
  while (error == 0 && link(fresh.c_str(), path.c_str()) != 0) {
    const bool exists = errno == EEXIST;
    Registration other{};
    bool taken = read_registration(path, other) && holds(process, other);
    if (!exists || taken) {
      error = EADDRINUSE;
    } else {
      unlink((path + kListens).c_str());  // a dead process left both
      unlink(path.c_str());
    }
  }
  unlink(fresh.c_str());
  if (error == 0) id.registrations.push_back(path);
  return error;
}

void show_that_it_listens(CmId& id) {
  std::vector<std::string> links;
  for (const std::string& path : id.registrations) {
    links.push_back(path + kListens);
    static_cast<void>(link(path.c_str(), links.back().c_str()));
  }
  // Removed first: then the next listener's names are its own.
  id.registrations.insert(id.registrations.begin(), links.begin(), links.end());
}

/// Takes the port in the kernel, as the device listens with a TCP socket. Addresses that this host
/// does not have exist only in the simulation.
int hold_port(CmId& id, const sockaddr_in& address) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return 0;
  int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
    id.port_holder = fd;
    return 0;
  }
  int error = errno;
  close(fd);
  return error == EADDRINUSE ? EADDRINUSE : 0;
}

bool usable(const Device& device) {
  return device.config.personality == Personality::standard;
}

Device* device_of(Process& process, uint32_t ip) {
  for (auto& device : process.devices) {
    if (device->config.ip == ip && usable(*device)) return device.get();
  }
  return nullptr;
}

/// Chooses a device as routing would: one in the same network, otherwise any active one.
Device* device_towards(Process& process, uint32_t ip) {
  if (Device* own = device_of(process, ip)) return own;
  for (uint32_t mask : {0xffffff00u, 0xffff0000u, 0u}) {
    for (auto& device : process.devices) {
      bool same = ((ntohl(device->config.ip) ^ ntohl(ip)) & mask) == 0;
      if (same && usable(*device) && device->active()) return device.get();
    }
  }
  return nullptr;
}

void attach_device(CmId& id, Device& device) {
  id.verbs = id.process->cm->context(device);
  id.port_num = 1;
}

uint16_t next_port(Process& process) {
  const Limits& limits = process.devices.front()->config.limits;
  uint32_t n = process.fabric.shared().next_port.fetch_add(1);
  return htons(static_cast<uint16_t>(limits.first_port + n % limits.ports));
}

/// Takes the address and port. If `listens`, takes the TCP port, too. Caller holds Process::mutex.
int bind_id(CmId& id, const sockaddr* address, bool listens) {
  if (address->sa_family != AF_INET) return EAFNOSUPPORT;
  if (id.stage != CmStage::idle) return EINVAL;
  Process& process = *id.process;
  sockaddr_in wish{};
  std::memcpy(&wish, address, sizeof wish);
  // As in the kernel, the loopback address belongs to the host and to no device.
  if (ntohl(wish.sin_addr.s_addr) >> 24 == 127 &&
      device_of(process, wish.sin_addr.s_addr) == nullptr) {
    if (process.devices.empty() || process.devices[0]->config.limits.loopback == 0) return ENODEV;
    wish.sin_addr.s_addr = htonl(INADDR_ANY);
  }
  bool any = wish.sin_addr.s_addr == htonl(INADDR_ANY);
  Device* device = any ? nullptr : device_of(process, wish.sin_addr.s_addr);
  if (!any && device == nullptr) return EADDRNOTAVAIL;
  bool chosen = wish.sin_port != 0;
  for (int attempt = 0;; ++attempt) {
    if (!chosen) wish.sin_port = next_port(process);
    int error = 0;
    for (auto& each : process.devices) {
      if (!usable(*each) || (!any && each.get() != device) || error != 0) continue;
      error = register_name(id, each->config.ip, wish.sin_port);
    }
    if (error == 0 && listens) error = hold_port(id, wish);
    if (error == 0) break;
    for (const std::string& path : id.registrations) unlink(path.c_str());
    id.registrations.clear();
    if (error != EADDRINUSE || chosen || attempt > 1000) return error;
  }
  id.route.addr.src_sin = wish;
  id.stage = CmStage::bound;
  if (device != nullptr) attach_device(id, *device);
  return 0;
}

void fill_private(Message& message, const rdma_conn_param* param) {
  if (param == nullptr) return;
  message.responder_resources = param->responder_resources;
  message.initiator_depth = param->initiator_depth;
  if (param->private_data == nullptr) return;
  message.private_length = param->private_data_len;
  std::memcpy(message.private_data, param->private_data, param->private_data_len);
}

int check_private(const CmId& id, const rdma_conn_param* param) {
  if (param == nullptr || param->private_data == nullptr) return 0;
  uint64_t most = Context::from(id.verbs).device->config.limits.private_data;
  return param->private_data_len > most ? EINVAL : 0;
}

/// Returns the id's queue pair, or the one that the application made and names in `param`.
Qp* qp_of(CmId& id, const rdma_conn_param* param) {
  if (id.qp != nullptr) return &Qp::from(id.qp);
  return param != nullptr ? id.process->qp(param->qp_num) : nullptr;
}

/// Resolves at once, as all addresses are known, and posts the event nevertheless.
int resolve(CmId& id, const sockaddr* source, const sockaddr* target) {
  std::lock_guard guard(id.process->mutex);
  if (source != nullptr && source->sa_family != 0 && id.stage == CmStage::idle) {
    if (int error = bind_id(id, source, false); error != 0) return error;
  }
  if (target->sa_family != AF_INET) return EAFNOSUPPORT;
  if (id.stage != CmStage::idle && id.stage != CmStage::bound) return EINVAL;
  sockaddr_in& to = id.route.addr.dst_sin;
  std::memcpy(&to, target, sizeof to);
  Device* device = id.verbs != nullptr ? Context::from(id.verbs).device
                                       : device_towards(*id.process, to.sin_addr.s_addr);
  bool loopback = ntohl(to.sin_addr.s_addr) >> 24 == 127;
  bool reachable = device != nullptr && device->active() &&
                   (!loopback || device->config.ip == to.sin_addr.s_addr);
  if (!reachable) {
    cm_post(id, RDMA_CM_EVENT_ADDR_ERROR, -ENODEV);
    return 0;
  }
  attach_device(id, *device);
  sockaddr_in& from = id.route.addr.src_sin;
  from.sin_family = AF_INET;
  from.sin_addr.s_addr = device->config.ip;
  if (from.sin_port == 0) from.sin_port = next_port(*id.process);
  id.stage = CmStage::resolved;
  cm_post(id, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
  return 0;
}

/// Sends the request, or fails if there is no listener. Caller holds Process::mutex.
void request(CmId& id, Qp& qp, const rdma_conn_param* param) {
  Process& process = *id.process;
  const sockaddr_in& to = id.route.addr.dst_sin;
  const Limits& limits = qp.device->config.limits;
  id.stage = CmStage::connecting;
  id.deadline_ns = now_ns() + limits.connect_ms * 1'000'000u;
  DeviceEntry* target = process.fabric.device(to.sin_addr.s_addr, false, false);
  bool silent = target == nullptr || target->up.load() == 0 || !qp.device->active();
  if (silent) return process.tell(MessageType::kick);  // the thread must learn of the deadline
  Registration listener{};
  if (!find_listener(process, to, listener)) {
    if (limits.tcp != 0) cm_knock(to);
    id.deadline_ns = 0;
    id.stage = CmStage::over;
    return cm_post(id, RDMA_CM_EVENT_REJECTED, limits.refused != 0 ? -ECONNREFUSED : -ECONNRESET);
  }
  Message message{};
  message.type = MessageType::request;
  message.id = listener.number;
  message.peer_id = id.number;
  message.peer_qpn = qp.qp_num;
  message.source_ip = id.route.addr.src_sin.sin_addr.s_addr;
  message.source_port = id.route.addr.src_sin.sin_port;
  message.target_ip = to.sin_addr.s_addr;
  message.target_port = to.sin_port;
  fill_private(message, param);
  id.peer_slot = listener.slot;
  id.peer_generation = listener.generation;
  process.send(listener.slot, listener.generation, message);
  process.tell(MessageType::kick);
}

int connect_id(CmId& id, const rdma_conn_param* param) {
  std::lock_guard guard(id.process->mutex);
  if (id.verbs == nullptr || id.stage != CmStage::resolved) return EINVAL;
  Qp* qp = qp_of(id, param);
  if (qp == nullptr) return EINVAL;
  if (int error = check_private(id, param); error != 0) return error;
  if (qp->current() != IBV_QPS_INIT && qp->current() != IBV_QPS_RESET) return EINVAL;
  // The driver binds a TCP socket to the port. This socket only checks that the port is free.
  if (id.port_holder < 0) {
    if (int error = hold_port(id, id.route.addr.src_sin); error != 0) return error;
    close(std::exchange(id.port_holder, -1));
  }
  id.qp = qp;
  qp->cm = &id;
  id.bound = qp;
  request(id, *qp, param);
  return 0;
}

int accept_id(CmId& id, const rdma_conn_param* param) {
  std::lock_guard guard(id.process->mutex);
  if (id.stage != CmStage::requested) return EINVAL;
  Qp* qp = qp_of(id, param);
  if (qp == nullptr) return EINVAL;
  if (int error = check_private(id, param); error != 0) return error;
  {
    std::lock_guard sq(qp->sq_lock);
    if (bind_remote(*id.process, *qp, id.peer_slot, id.peer_generation, id.peer_qpn) != 0) {
      return ECONNRESET;
    }
  }
  id.qp = qp;
  qp->cm = &id;
  id.bound = qp;
  qp->passive = true;
  qp->shared().peer_qpn.store(id.peer_qpn);
  qp->become(IBV_QPS_RTS);
  if (id.listener != nullptr) --id.listener->waiting;
  id.stage = CmStage::connected;
  Message message{};
  message.type = MessageType::accepted;
  message.id = id.peer_number;
  message.peer_id = id.number;
  message.peer_qpn = qp->qp_num;
  message.qpn = id.peer_qpn;
  fill_private(message, param);
  id.process->send(id.peer_slot, id.peer_generation, message);
  // The kernel posts this event before the other side has received the message.
  cm_post(id, RDMA_CM_EVENT_ESTABLISHED, 0);
  return 0;
}

}  // namespace

SOFTERDMA_API int rdma_bind_addr(rdma_cm_id* handle, sockaddr* address) {
  CmId& id = CmId::from(handle);
  std::lock_guard guard(id.process->mutex);
  int error = bind_id(id, address, true);
  return error != 0 ? fail(error) : 0;
}

SOFTERDMA_API int rdma_resolve_addr(rdma_cm_id* handle, sockaddr* source, sockaddr* target, int) {
  CmId& id = CmId::from(handle);
  if (int error = resolve(id, source, target); error != 0) return fail(error);
  return id.synchronous ? cm_wait(id, RDMA_CM_EVENT_ADDR_RESOLVED) : 0;
}

SOFTERDMA_API int rdma_resolve_route(rdma_cm_id* handle, int) {
  CmId& id = CmId::from(handle);
  {
    std::lock_guard guard(id.process->mutex);
    if (id.stage != CmStage::resolved) return fail(EINVAL);
    cm_post(id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
  }
  return id.synchronous ? cm_wait(id, RDMA_CM_EVENT_ROUTE_RESOLVED) : 0;
}

SOFTERDMA_API int rdma_listen(rdma_cm_id* handle, int backlog) {
  CmId& id = CmId::from(handle);
  std::lock_guard guard(id.process->mutex);
  if (id.stage == CmStage::idle) {
    sockaddr_in any{};
    any.sin_family = AF_INET;
    if (int error = bind_id(id, reinterpret_cast<sockaddr*>(&any), true); error != 0)
      return fail(error);
  }
  if (id.stage != CmStage::bound) return fail(EINVAL);
  id.backlog = backlog > 0 ? backlog : 1024;
  id.stage = CmStage::listening;
  if (id.process->devices.front()->config.limits.tcp != 0) cm_listen_in_tcp(id);
  show_that_it_listens(id);
  return 0;
}

SOFTERDMA_API int rdma_connect(rdma_cm_id* handle, rdma_conn_param* param) {
  CmId& id = CmId::from(handle);
  if (int error = connect_id(id, param); error != 0) return fail(error);
  return id.synchronous ? cm_wait(id, RDMA_CM_EVENT_ESTABLISHED) : 0;
}

SOFTERDMA_API int rdma_accept(rdma_cm_id* handle, rdma_conn_param* param) {
  CmId& id = CmId::from(handle);
  if (int error = accept_id(id, param); error != 0) return fail(error);
  return id.synchronous ? cm_wait(id, RDMA_CM_EVENT_ESTABLISHED) : 0;
}

SOFTERDMA_API int rdma_reject(rdma_cm_id* handle, const void* data, uint8_t length) {
  CmId& id = CmId::from(handle);
  std::lock_guard guard(id.process->mutex);
  if (id.stage != CmStage::requested) return fail(EINVAL);
  if (id.listener != nullptr) --id.listener->waiting;
  id.stage = CmStage::over;
  Message message{};
  message.type = MessageType::rejected;
  message.id = id.peer_number;
  message.status = -ECONNRESET;
  if (data != nullptr) {
    message.private_length = length;
    std::memcpy(message.private_data, data, length);
  }
  id.process->send(id.peer_slot, id.peer_generation, message);
  return 0;
}

SOFTERDMA_API int rdma_reject_ece(rdma_cm_id* id, const void* data, uint8_t length) {
  return rdma_reject(id, data, length);
}

SOFTERDMA_API int rdma_disconnect(rdma_cm_id* handle) {
  CmId& id = CmId::from(handle);
  std::lock_guard guard(id.process->mutex);
  if (id.qp == nullptr) return fail(EINVAL);
  if (id.stage != CmStage::connected) return id.stage == CmStage::over ? 0 : fail(EINVAL);
  Qp& qp = Qp::from(id.qp);
  // As on any iWARP device, requests are not flushed before the application moves the queue pair to
  // ERR.
  if (qp.current() == IBV_QPS_RTS) qp.become(IBV_QPS_SQD);
  quiesce(*id.process, qp);
  cm_connection_ended(*id.process, qp, true);
  return 0;
}
