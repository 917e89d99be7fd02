// Devices, contexts and their attributes.
#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "softerdma/data_path.h"
#include "softerdma/device.h"
#include "softerdma/process.h"
#include "softerdma/report.h"
#include "softerdma/verbs_create.h"

#undef ibv_query_port

using namespace softerdma;

namespace softerdma {

void Context::raise(const ibv_async_event& event) {
  {
    std::lock_guard guard(events_mutex);
    events.push_back(event);
  }
  eventfd_write(context.async_fd, 1);
}

namespace {

int query_port(ibv_context* context, uint8_t port, ibv_port_attr* attr, size_t size) {
  const Device& device = *Context::from(context).device;
  if (port != 1) return EINVAL;
  bool active = device.active();
  ibv_port_attr a{};
  a.state = active ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  a.max_mtu = IBV_MTU_1024;
  a.active_mtu = IBV_MTU_1024;
  a.gid_tbl_len = device.config.personality == Personality::standard ? 1 : kGids;
  a.port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_DEVICE_MGMT_SUP;
  a.max_msg_sz = static_cast<uint32_t>(device.config.limits.max_msg);
  a.pkey_tbl_len = 1;
  a.active_width = 2;   // 4X
  a.active_speed = 32;  // EDR
  a.phys_state = active ? 5 : 3;
  a.link_layer = IBV_LINK_LAYER_ETHERNET;
  std::memcpy(attr, &a, std::min(size, sizeof a));
  return 0;
}

int query_device(ibv_context* context, ibv_device_attr* attr) {
  const Device& device = *Context::from(context).device;
  const Limits& limits = device.config.limits;
  ibv_device_attr a{};
  std::strcpy(a.fw_ver, "2.0.37");
  ibv_gid_entry entry{};
  query_gid_entry(device, 0, entry);
  uint8_t guid[8] = {static_cast<uint8_t>(device.mac[0] ^ 2),
                     device.mac[1],
                     device.mac[2],
                     0xff,
                     0xfe,
                     device.mac[3],
                     device.mac[4],
                     device.mac[5]};
  std::memcpy(&a.node_guid, guid, sizeof guid);
  a.sys_image_guid = a.node_guid;
  a.max_mr_size = limits.max_mr_size;
  a.page_size_cap = 0x7ffff000;
  a.vendor_id = 0x1ded;
  a.vendor_part_id = 4223;
  a.hw_ver = 0;
  a.max_qp = static_cast<int>(limits.max_qp);
  a.max_qp_wr = static_cast<int>(limits.max_qp_wr);
  a.device_cap_flags = IBV_DEVICE_MEM_MGT_EXTENSIONS;
  a.max_sge = static_cast<int>(std::min(limits.max_send_sge, limits.max_recv_sge));
  a.max_sge_rd = 1;
  a.max_cq = static_cast<int>(2 * limits.max_qp);
  a.max_cqe = static_cast<int>(limits.max_cqe);
  a.max_mr = static_cast<int>(limits.max_mr);
  a.max_pd = 1 << 17;
  a.max_qp_rd_atom = static_cast<int>(limits.max_rd_atom);
  a.max_qp_init_rd_atom = static_cast<int>(limits.max_rd_atom);
  a.max_res_rd_atom =
      static_cast<int>(std::min<uint64_t>(limits.max_qp * limits.max_rd_atom, INT32_MAX));
  a.atomic_cap = limits.atomics != 0 ? IBV_ATOMIC_GLOB : IBV_ATOMIC_NONE;
  a.max_mw = static_cast<int>(limits.max_mr);  // the driver says so; there are none
  a.max_pkeys = 1;
  a.phys_port_cnt = 1;
  *attr = a;
  return 0;
}

int query_device_ex(ibv_context* context, const ibv_query_device_ex_input*,
                    ibv_device_attr_ex* attr, size_t size) {
  if (size < sizeof attr->orig_attr) return EINVAL;
  std::memset(attr, 0, size);
  int rc = query_device(context, &attr->orig_attr);
  if (size >= sizeof *attr) attr->phys_port_cnt_ex = 1;
  return rc;
}

ibv_mw* alloc_mw(ibv_pd*, ibv_mw_type) {
  errno = EOPNOTSUPP;
  return nullptr;
}
int bind_mw(ibv_qp*, ibv_mw*, ibv_mw_bind*) {
  return EOPNOTSUPP;
}
int dealloc_mw(ibv_mw*) {
  return EOPNOTSUPP;
}
int post_srq_recv(ibv_srq*, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  *bad = wr;
  return EOPNOTSUPP;
}

void fill_operations(Context& context) {
  ibv_context_ops& ops = context.context.ops;
  ops._compat_query_port = ::ibv_query_port;
  ops.alloc_mw = alloc_mw;
  ops.bind_mw = bind_mw;
  ops.dealloc_mw = dealloc_mw;
  ops.post_srq_recv = post_srq_recv;
  ops.poll_cq = poll_cq;
  ops.req_notify_cq = req_notify_cq;
  ops.post_send = post_send;
  ops.post_recv = post_recv;
  context.query_port = query_port;
  context.query_device_ex = query_device_ex;
  context.create_qp_ex = create_qp_ex;
  context.sz = sizeof(verbs_context);
}

}  // namespace
}  // namespace softerdma

SOFTERDMA_API ibv_device** ibv_get_device_list(int* count) {
  Process* process = Process::get();
  size_t found = process == nullptr ? 0 : process->devices.size();
  auto** list = static_cast<ibv_device**>(std::calloc(found + 1, sizeof(ibv_device*)));
  if (list == nullptr) return nullptr;
  for (size_t i = 0; i < found; ++i) list[i] = process->devices[i].get();
  if (count != nullptr) *count = static_cast<int>(found);
  return list;
}

SOFTERDMA_API void ibv_free_device_list(ibv_device** list) {
  std::free(list);
}
SOFTERDMA_API const char* ibv_get_device_name(ibv_device* device) {
  return device->name;
}
SOFTERDMA_API int ibv_get_device_index(ibv_device* device) {
  return static_cast<int>(static_cast<Device*>(device)->index);
}

SOFTERDMA_API __be64 ibv_get_device_guid(ibv_device* handle) {
  const uint8_t* m = static_cast<Device*>(handle)->mac;
  uint8_t guid[8] = {static_cast<uint8_t>(m[0] ^ 2), m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]};
  __be64 value = 0;
  std::memcpy(&value, guid, sizeof guid);
  return value;
}

namespace softerdma {

ibv_context* open_context(Process& process, Device& device) {
  auto* context = new Context;
  context->process = &process;
  context->device = &device;
  ibv_context& c = context->context;
  c.device = &device;
  c.cmd_fd = -1;
  c.async_fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
  c.num_comp_vectors = static_cast<int>(device.config.limits.comp_vectors);
  pthread_mutex_init(&c.mutex, nullptr);
  c.abi_compat = __VERBS_ABI_IS_EXTENDED;
  fill_operations(*context);
  process.contexts.push_back(context);
  return &c;
}

}  // namespace softerdma

SOFTERDMA_API ibv_context* ibv_open_device(ibv_device* device) {
  Process* process = Process::get();
  if (process == nullptr) return nullptr;
  std::lock_guard guard(process->mutex);
  return open_context(*process, *static_cast<Device*>(device));
}

SOFTERDMA_API int ibv_close_device(ibv_context* handle) {
  Context& context = Context::from(handle);
  Process* process = Process::existing();
  if (process == context.process) {
    std::lock_guard guard(process->mutex);
    std::erase(process->contexts, &context);
  }
  close(handle->async_fd);
  // An application that did not destroy its objects may still use them.
  if (context.children.load() == 0) delete &context;
  return 0;
}

SOFTERDMA_API int ibv_get_async_event(ibv_context* handle, ibv_async_event* event) {
  Context& context = Context::from(handle);
  eventfd_t count = 0;
  for (;;) {
    if (eventfd_read(handle->async_fd, &count) != 0) return -1;
    std::lock_guard guard(context.events_mutex);
    if (context.events.empty()) continue;  // the object of this event was destroyed
    *event = context.events.front();
    context.events.pop_front();
    if (event->event_type == IBV_EVENT_QP_FATAL)
      context.unacknowledged.push_back(event->element.qp);
    return 0;
  }
}

SOFTERDMA_API void ibv_ack_async_event(ibv_async_event* event) {
  if (event->event_type != IBV_EVENT_QP_FATAL) return;
  Context& context = Context::from(event->element.qp->context);
  std::lock_guard guard(context.events_mutex);
  auto taken =
      std::find(context.unacknowledged.begin(), context.unacknowledged.end(), event->element.qp);
  if (taken == context.unacknowledged.end()) {
    violation("an asynchronous event is acknowledged that was not taken");
    return;
  }
  context.unacknowledged.erase(taken);
  context.acknowledged.notify_all();
}

SOFTERDMA_API int ibv_query_device(ibv_context* context, ibv_device_attr* attr) {
  return query_device(context, attr);
}

/// The older version of the call, for ibv_port_attr with fewer members.
SOFTERDMA_API int ibv_query_port(ibv_context* context, uint8_t port, _compat_ibv_port_attr* attr) {
  return query_port(context, port, reinterpret_cast<ibv_port_attr*>(attr),
                    offsetof(ibv_port_attr, port_cap_flags2));
}

SOFTERDMA_API int _ibv_query_gid_ex(ibv_context* handle, uint32_t port, uint32_t index,
                                    ibv_gid_entry* entry, uint32_t flags, size_t size) {
  const Device& device = *Context::from(handle).device;
  if (port != 1 || flags != 0 || index >= kGids) return EINVAL;
  ibv_gid_entry found{};
  if (!query_gid_entry(device, static_cast<int>(index), found)) return ENODATA;
  std::memcpy(entry, &found, std::min(size, sizeof found));
  return 0;
}

SOFTERDMA_API ssize_t _ibv_query_gid_table(ibv_context* handle, ibv_gid_entry* entries, size_t most,
                                           uint32_t flags, size_t size) {
  const Device& device = *Context::from(handle).device;
  if (flags != 0 || size != sizeof *entries) return -EINVAL;
  size_t found = 0;
  for (int i = 0; i < kGids && found < most; ++i) {
    if (query_gid_entry(device, i, entries[found])) ++found;
  }
  return static_cast<ssize_t>(found);
}

SOFTERDMA_API int ibv_query_gid(ibv_context* handle, uint8_t port, int index, ibv_gid* gid) {
  const Device& device = *Context::from(handle).device;
  bool standard = device.config.personality == Personality::standard;
  if (port != 1 || index < 0 || index >= (standard ? 1 : kGids)) {
    errno = EINVAL;
    return -1;
  }
  ibv_gid_entry entry{};
  query_gid_entry(device, index, entry);
  *gid = entry.gid;
  return 0;
}

/// This function is private to rdma-core, but ibv_devinfo calls it. 0 means IB or RoCE v1, 1 means
/// RoCE v2.
SOFTERDMA_API int ibv_query_gid_type(ibv_context* handle, uint8_t port, unsigned index,
                                     unsigned* type) {
  ibv_gid_entry entry{};
  if (port != 1 ||
      !query_gid_entry(*Context::from(handle).device, static_cast<int>(index), entry)) {
    errno = EINVAL;
    return -1;
  }
  *type = entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? 1 : 0;
  return 0;
}

SOFTERDMA_API int ibv_query_pkey(ibv_context*, uint8_t port, int index, __be16* pkey) {
  if (port != 1 || index != 0) {
    errno = EINVAL;
    return -1;
  }
  *pkey = 0xffff;
  return 0;
}

SOFTERDMA_API int ibv_get_pkey_index(ibv_context*, uint8_t, __be16 pkey) {
  return pkey == 0xffff ? 0 : -1;
}
