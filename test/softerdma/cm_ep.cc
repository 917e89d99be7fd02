// Queue pairs of ids, waiting calls, and rdma_getaddrinfo of rdma_cm.
#include <netdb.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "softerdma/cm.h"
#include "softerdma/verbs_create.h"

using namespace softerdma;

namespace {

/// Makes completion queues for an id if the application gave none.
int make_cqs(CmId& id, ibv_qp_init_attr& init) {
  auto make = [&id](uint32_t entries, ibv_comp_channel*& channel) {
    channel = ibv_create_comp_channel(id.verbs);
    ibv_cq* cq = nullptr;
    if (channel != nullptr) {
      cq = ibv_create_cq(id.verbs, static_cast<int>(entries), &id, channel, 0);
    }
    return cq;
  };
  if (init.recv_cq == nullptr) {
    init.recv_cq = id.recv_cq = make(init.cap.max_recv_wr, id.recv_cq_channel);
  }
  if (init.send_cq == nullptr) {
    init.send_cq = id.send_cq = make(init.cap.max_send_wr, id.send_cq_channel);
  }
  id.made_cqs = true;
  return init.recv_cq == nullptr || init.send_cq == nullptr ? ENOMEM : 0;
}

void destroy_cqs(CmId& id) {
  for (auto [cq, channel] :
       {std::pair(&id.recv_cq, &id.recv_cq_channel), std::pair(&id.send_cq, &id.send_cq_channel)}) {
    if (*cq != nullptr) ibv_destroy_cq(*cq);
    if (*channel != nullptr) ibv_destroy_comp_channel(*channel);
    *cq = nullptr;
    *channel = nullptr;
  }
  id.made_cqs = false;
}

/// Makes one PD per device for ids without one. It lives as long as the device is open.
ibv_pd* default_pd(CmId& id) {
  static auto& pds = *new std::map<ibv_context*, ibv_pd*>;
  static std::mutex pds_mutex;
  std::lock_guard guard(pds_mutex);
  ibv_pd*& pd = pds[id.verbs];
  if (pd == nullptr) pd = ibv_alloc_pd(id.verbs);
  return pd;
}

sockaddr* copy_address(const sockaddr* address, socklen_t length, socklen_t& copied) {
  if (address == nullptr || length == 0) return nullptr;
  auto* copy = static_cast<sockaddr*>(std::malloc(length));
  if (copy == nullptr) return nullptr;
  std::memcpy(copy, address, length);
  copied = length;
  return copy;
}

/// Combines the hints with the result of the look-up, if there is one.
rdma_addrinfo* convert(const addrinfo* info, const rdma_addrinfo* hints, bool passive) {
  auto* out = static_cast<rdma_addrinfo*>(std::calloc(1, sizeof(rdma_addrinfo)));
  if (out == nullptr) return nullptr;
  out->ai_flags = hints != nullptr ? hints->ai_flags : 0;
  out->ai_family = AF_INET;
  out->ai_qp_type = IBV_QPT_RC;
  out->ai_port_space = RDMA_PS_TCP;
  if (info != nullptr) {
    (passive ? out->ai_src_addr : out->ai_dst_addr) =
        copy_address(info->ai_addr, info->ai_addrlen, passive ? out->ai_src_len : out->ai_dst_len);
  }
  if (hints == nullptr) return out;
  if (out->ai_src_addr == nullptr) {
    out->ai_src_addr = copy_address(hints->ai_src_addr, hints->ai_src_len, out->ai_src_len);
  }
  if (out->ai_dst_addr == nullptr && info == nullptr) {
    out->ai_dst_addr = copy_address(hints->ai_dst_addr, hints->ai_dst_len, out->ai_dst_len);
  }
  return out;
}

}  // namespace

SOFTERDMA_API int rdma_create_qp(rdma_cm_id* handle, ibv_pd* pd, ibv_qp_init_attr* init) {
  CmId& id = CmId::from(handle);
  if (id.verbs == nullptr || id.qp != nullptr) return fail(EINVAL);
  if (pd == nullptr) pd = default_pd(id);
  if (pd == nullptr) return -1;
  if (pd->context != id.verbs) return fail(EINVAL);
  id.pd = pd;
  if (init->send_cq == nullptr || init->recv_cq == nullptr) {
    if (int error = make_cqs(id, *init); error != 0) {
      destroy_cqs(id);
      return fail(error);
    }
  }
  ibv_qp* qp = ibv_create_qp(pd, init);
  if (qp == nullptr) {
    int error = errno;
    destroy_cqs(id);
    return fail(error);
  }
  std::lock_guard guard(id.process->mutex);
  id.qp = qp;
  Qp::from(qp).cm = &id;
  id.bound = &Qp::from(qp);
  Qp::from(qp).become(IBV_QPS_INIT);
  return 0;
}

SOFTERDMA_API int rdma_create_qp_ex(rdma_cm_id* handle, ibv_qp_init_attr_ex* init) {
  uint32_t mask = init->comp_mask;
  if ((mask & ~uint32_t{IBV_QP_INIT_ATTR_PD}) != 0) return fail(EOPNOTSUPP);
  return rdma_create_qp(handle, (mask & IBV_QP_INIT_ATTR_PD) != 0 ? init->pd : nullptr,
                        reinterpret_cast<ibv_qp_init_attr*>(init));
}

SOFTERDMA_API void rdma_destroy_qp(rdma_cm_id* handle) {
  CmId& id = CmId::from(handle);
  ibv_qp* qp = id.qp;
  if (qp != nullptr) ibv_destroy_qp(qp);
  id.qp = nullptr;
  if (id.made_cqs) destroy_cqs(id);
}

SOFTERDMA_API int rdma_create_srq(rdma_cm_id*, ibv_pd*, ibv_srq_init_attr*) {
  return fail(EOPNOTSUPP);
}
SOFTERDMA_API int rdma_create_srq_ex(rdma_cm_id*, ibv_srq_init_attr_ex*) {
  return fail(EOPNOTSUPP);
}
SOFTERDMA_API void rdma_destroy_srq(rdma_cm_id*) {}

SOFTERDMA_API int rdma_init_qp_attr(rdma_cm_id*, ibv_qp_attr* attr, int* mask) {
  ibv_qp_state wish = attr->qp_state;
  *attr = {};
  attr->qp_state = wish;
  *mask = IBV_QP_STATE;
  if (wish == IBV_QPS_INIT) {
    attr->port_num = 1;
    attr->qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
    *mask |= IBV_QP_ACCESS_FLAGS | IBV_QP_PORT | IBV_QP_PKEY_INDEX;
  }
  return 0;
}

SOFTERDMA_API ibv_context** rdma_get_devices(int* count) {
  Process* process = Process::get();
  if (process == nullptr) return nullptr;
  std::lock_guard guard(process->mutex);
  auto** list =
      static_cast<ibv_context**>(std::calloc(process->devices.size() + 1, sizeof(ibv_context*)));
  int found = 0;
  for (auto& device : process->devices) {
    if (device->config.personality == Personality::standard) {
      list[found++] = process->cm->context(*device);
    }
  }
  if (count != nullptr) *count = found;
  if (found > 0) return list;
  std::free(list);
  errno = ENODEV;
  return nullptr;
}

SOFTERDMA_API void rdma_free_devices(ibv_context** list) {
  std::free(list);
}

SOFTERDMA_API int rdma_getaddrinfo(const char* node, const char* service,
                                   const rdma_addrinfo* hints, rdma_addrinfo** out) {
  bool passive = hints != nullptr && (hints->ai_flags & RAI_PASSIVE) != 0;
  addrinfo wish{};
  wish.ai_family = AF_INET;  // the devices have IPv4 addresses
  wish.ai_socktype = SOCK_STREAM;
  wish.ai_flags =
      (passive ? AI_PASSIVE : 0) |
      (hints != nullptr && (hints->ai_flags & RAI_NUMERICHOST) != 0 ? AI_NUMERICHOST : 0);
  *out = nullptr;
  if (node == nullptr && service == nullptr) {
    *out = convert(nullptr, hints, passive);
    return *out != nullptr ? 0 : fail(ENOMEM);
  }
  // libfabric's verbs provider asks for this name, and a container may lack /etc/hosts.
  if (node != nullptr && std::strcmp(node, "localhost") == 0) node = "127.0.0.1";
  addrinfo* list = nullptr;
  if (int rc = getaddrinfo(node, service, &wish, &list); rc != 0) return rc;
  rdma_addrinfo** next = out;
  for (addrinfo* i = list; i != nullptr; i = i->ai_next) {
    *next = convert(i, hints, passive);
    if (*next != nullptr) next = &(*next)->ai_next;
  }
  freeaddrinfo(list);
  return *out != nullptr ? 0 : fail(ENOMEM);
}

SOFTERDMA_API void rdma_freeaddrinfo(rdma_addrinfo* list) {
  while (list != nullptr) {
    rdma_addrinfo* next = list->ai_next;
    std::free(list->ai_src_addr);
    std::free(list->ai_dst_addr);
    std::free(list);
    list = next;
  }
}

SOFTERDMA_API int rdma_create_ep(rdma_cm_id** out, rdma_addrinfo* info, ibv_pd* pd,
                                 ibv_qp_init_attr* init) {
  rdma_cm_id* id = nullptr;
  if (rdma_create_id(nullptr, &id, nullptr, RDMA_PS_TCP) != 0) return -1;
  bool passive = (info->ai_flags & RAI_PASSIVE) != 0;
  int rc = 0;
  if (passive) {
    rc = rdma_bind_addr(id, info->ai_src_addr);
    if (rc == 0 && init != nullptr) {
      CmId::from(id).passive_qp = std::make_unique<ibv_qp_init_attr>(*init);
      CmId::from(id).passive_pd = pd;
    }
  } else {
    rc = rdma_resolve_addr(id, info->ai_src_addr, info->ai_dst_addr, 2000);
    if (rc == 0) rc = rdma_resolve_route(id, 2000);
    if (rc == 0 && init != nullptr) rc = rdma_create_qp(id, pd, init);
  }
  if (rc != 0) {
    int error = errno;
    rdma_destroy_ep(id);
    return fail(error);
  }
  *out = id;
  return 0;
}

SOFTERDMA_API void rdma_destroy_ep(rdma_cm_id* id) {
  if (id->qp != nullptr) rdma_destroy_qp(id);
  rdma_destroy_id(id);
}

SOFTERDMA_API int rdma_get_request(rdma_cm_id* handle, rdma_cm_id** out) {
  CmId& listener = CmId::from(handle);
  if (!listener.synchronous) return fail(EINVAL);
  if (cm_wait(listener, RDMA_CM_EVENT_CONNECT_REQUEST) != 0) return -1;
  rdma_cm_event* event = listener.event;
  rdma_cm_id* id = event->id;
  listener.event = nullptr;
  // The new id must not use the listener's channel. It gets a channel of its own, and keeps the
  // event.
  CmId::from(id).channel = listener.channel;
  if (rdma_migrate_id(id, nullptr) != 0) return -1;
  if (listener.passive_qp != nullptr) {
    ibv_qp_init_attr init = *listener.passive_qp;
    if (rdma_create_qp(id, listener.passive_pd, &init) != 0) return -1;
  }
  id->event = event;
  *out = id;
  return 0;
}
