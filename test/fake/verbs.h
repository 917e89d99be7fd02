#pragma once

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <list>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <infiniband/verbs.h>

#undef ibv_query_port
#undef ibv_reg_mr

// A NIC within one process, which reports the mistakes that eRDMA punishes. A program gets these
// functions instead of libibverbs if one of its files includes this header. Requests execute when a
// completion queue is polled, unless they are held. The NIC is not thread-safe.
namespace erdma::fake {

struct Nic;

struct Region : ibv_mr {
  int access;
  std::set<uint32_t>
      read_by;  ///< queue pairs whose READs target it; on iWARP their peers know its key
};

struct Cq : ibv_cq {
  std::deque<ibv_wc> ready;
  bool armed = false;
  int vector = 0;  ///< number of its interrupt
};

struct Qp : ibv_qp {
  struct Send {
    ibv_send_wr request;
    ibv_sge piece;
    std::vector<std::byte> inlined;
  };
  struct Receive {
    uint64_t wr_id;
    ibv_sge piece;
  };
  ibv_qp_cap cap{};
  Qp* peer = nullptr;
  bool active = false, heard = false;
  std::deque<Send> sends;        ///< requests not executed yet
  std::deque<Receive> receives;  ///< posted receives
  uint32_t send_places = 0;      ///< places in use; a later signalled completion frees them
  uint32_t unsignalled = 0;
};

struct Channel : ibv_comp_channel {
  std::deque<ibv_cq*> events;
};

/// True while a thread is in the adapter, whose allocations do not count.
inline thread_local unsigned t_in_adapter = 0;
struct InAdapter {
  InAdapter() noexcept { ++t_in_adapter; }
  ~InAdapter() { --t_in_adapter; }
};

/// The only device, with the settings that a test may change.
struct Nic {
  ibv_device device{};
  ibv_context context{};
  ibv_device* list[2] = {&device, nullptr};
  std::list<std::unique_ptr<Region>> regions;
  std::vector<Qp*> qps;
  std::vector<std::string> violations;  ///< violated rules that eRDMA punishes
  uint32_t next_key = 0x100;
  uint32_t next_qp = 1;
  int max_cqe = 1 << 20;
  uint64_t max_mr_size = uint64_t(1) << 36;
  uint32_t max_inline = 96;
  int gid_at = -1;          ///< index of the only GID; -1: there is none
  uint8_t gid_ip[4] = {};   ///< its IPv4 address
  unsigned source_gid = 0;  ///< of the queue pair that joined last
  // Faults that a test may set.
  bool hold = false;        ///< no request executes
  bool flush = true;        ///< requests of a broken queue pair complete with errors
  int post_send_error = 0;  ///< result of the next post, unless 0
  int refuse_sends = 0;     ///< result of every post, unless 0
  int post_recv_error = 0;
  int fail_send = -1;  ///< the n-th request from now completes with fail_status
  ibv_wc_status fail_status = IBV_WC_GENERAL_ERR;
  int refuse_regions = 0;          ///< errno of registrations, or 0
  size_t most_regions = SIZE_MAX;  ///< beyond it, registrations fail with ENOSPC
  int refuse_events = 0;           ///< errno of ibv_get_cq_event(), or 0
  ibv_fork_status fork_status = IBV_FORK_UNNEEDED;
  int refuse_fork_init = 0;               ///< errno of ibv_fork_init(), or 0
  std::set<const Qp*> held;               ///< queue pairs whose requests do not execute
  std::set<const ibv_cq*> broken_queues;  ///< every call for them fails
  std::deque<ibv_async_event> events;     ///< asynchronous ones, not read yet
  unsigned long posts = 0, doorbells = 0, reads = 0, polls = 0;

  Nic() {
    std::strcpy(device.name, "fake0");
    device.node_type = IBV_NODE_RNIC;
    device.transport_type = IBV_TRANSPORT_IWARP;
    context.device = &device;
    context.cmd_fd = context.async_fd = -1;
    context.ops.poll_cq = poll;
    context.ops.req_notify_cq = arm;
    context.ops.post_send = post_send;
    context.ops.post_recv = post_recv;
  }
  static Nic& one() {
    static Nic nic;
    return nic;
  }

  void violation(const char* what) { violations.push_back(what); }
  Region* region(uint32_t key, bool remote, uint64_t address, uint64_t length, int access) {
    for (const auto& mr : regions)
      if ((remote ? mr->rkey : mr->lkey) == key)
        return address >= uint64_t(mr->addr) &&
                       address + length <= uint64_t(mr->addr) + mr->length &&
                       (mr->access & access) == access
                   ? mr.get()
                   : nullptr;
    return nullptr;
  }

  static void push(ibv_cq* queue, const ibv_wc& wc) {
    Cq& cq = *static_cast<Cq*>(queue);
    if (int(cq.ready.size()) >= cq.cqe) return one().violation("completion queue overrun");
    cq.ready.push_back(wc);
    if (!cq.armed) return;
    cq.armed = false;
    static_cast<Channel*>(cq.channel)->events.push_back(&cq);
    eventfd_write(cq.channel->fd, 1);
  }
  static void complete(Qp& qp, uint64_t wr_id, ibv_wc_status status, bool receive, uint32_t bytes) {
    ibv_wc wc{};
    wc.wr_id = wr_id;
    wc.status = status;
    wc.byte_len = bytes;
    wc.qp_num = qp.qp_num;
    push(receive ? qp.recv_cq : qp.send_cq, wc);
  }
  void break_qp(Qp& qp) {
    if (qp.state == IBV_QPS_ERR) return;
    qp.state = IBV_QPS_ERR;
    if (!flush) return;
    for (const Qp::Send& send : qp.sends)
      complete(qp, send.request.wr_id, IBV_WC_WR_FLUSH_ERR, false, 0);
    for (const Qp::Receive& receive : qp.receives)
      complete(qp, receive.wr_id, IBV_WC_WR_FLUSH_ERR, true, 0);
    qp.sends.clear();
    qp.receives.clear();
  }
  void break_both(Qp& qp) {
    Qp* peer = qp.peer;
    break_qp(qp);
    if (peer) break_qp(*peer);
  }

  void execute(Qp& qp);
  ibv_wc_status carry_out(Qp& qp, const Qp::Send& send);
  ibv_wc_status deliver(Qp& qp, const Qp::Send& send);
  /// Executes all posted requests that are not held.
  void run() {
    if (hold) return;
    for (size_t i = 0; i < qps.size(); ++i)
      while (!qps[i]->sends.empty() && !held.count(qps[i]) && qps[i]->state == IBV_QPS_RTS)
        execute(*qps[i]);
  }

  static int poll(ibv_cq* queue, int count, ibv_wc* wc) {
    const InAdapter inside;
    ++one().polls;
    one().run();
    if (one().broken_queues.count(queue)) return -1;
    Cq& cq = *static_cast<Cq*>(queue);
    int found = 0;
    for (; found < count && !cq.ready.empty(); ++found) {
      wc[found] = cq.ready.front();
      cq.ready.pop_front();
      for (Qp* qp : one().qps)
        if (qp->qp_num == wc[found].qp_num) one().free_places(*qp, wc[found].wr_id);
    }
    return found;
  }
  static int arm(ibv_cq* queue, int) {
    if (one().broken_queues.count(queue)) return EIO;
    static_cast<Cq*>(queue)->armed = true;
    return 0;
  }
  std::deque<std::pair<uint32_t, uint64_t>> in_order;  ///< (qp, wr_id) of posted sends
  void free_places(Qp& qp, uint64_t wr_id) {
    const auto signalled = std::find(in_order.begin(), in_order.end(), std::pair(qp.qp_num, wr_id));
    if (signalled == in_order.end()) return;
    for (auto it = in_order.begin();;) {
      if (it->first != qp.qp_num) {
        ++it;
        continue;
      }
      const bool last = it->second == wr_id;
      it = in_order.erase(it);
      --qp.send_places;
      if (last) return;
    }
  }
  static int post_send(ibv_qp* queue_pair, ibv_send_wr* request, ibv_send_wr** bad);
  static int post_recv(ibv_qp* queue_pair, ibv_recv_wr* request, ibv_recv_wr** bad);

  /// Connects two queue pairs, as a connector does.
  static void join(ibv_qp* active, ibv_qp* passive) {
    Qp& a = *static_cast<Qp*>(active);
    Qp& b = *static_cast<Qp*>(passive);
    a.peer = &b;
    b.peer = &a;
    a.active = true;
    a.state = b.state = IBV_QPS_RTS;
  }
};

inline ibv_wc_status Nic::deliver(Qp& qp, const Qp::Send& send) {
  Qp& peer = *qp.peer;
  if (!qp.active && !qp.heard) violation("the passive side sent first");
  if (peer.receives.empty()) return violation("no receive posted"), IBV_WC_RETRY_EXC_ERR;
  const Qp::Receive receive = peer.receives.front();
  if (send.piece.length > receive.piece.length)
    return violation("the receive is too small"), IBV_WC_REM_INV_REQ_ERR;
  peer.receives.pop_front();
  peer.heard = true;
  const void* from =
      send.inlined.empty() ? reinterpret_cast<const void*>(send.piece.addr) : send.inlined.data();
  if (send.piece.length)
    std::memcpy(reinterpret_cast<void*>(receive.piece.addr), from, send.piece.length);
  complete(peer, receive.wr_id, IBV_WC_SUCCESS, true, send.piece.length);
  return IBV_WC_SUCCESS;
}

inline ibv_wc_status Nic::carry_out(Qp& qp, const Qp::Send& send) {
  if (!qp.peer || qp.peer->state != IBV_QPS_RTS) return IBV_WC_RETRY_EXC_ERR;
  const ibv_send_wr& request = send.request;
  if (request.opcode == IBV_WR_SEND) return deliver(qp, send);
  const bool read = request.opcode == IBV_WR_RDMA_READ;
  const int sink = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  const bool inlined = !send.inlined.empty();
  if (!inlined &&
      !region(send.piece.lkey, false, send.piece.addr, send.piece.length, read ? sink : 0))
    return violation("local memory is not registered for this"), IBV_WC_LOC_PROT_ERR;
  if (!region(request.wr.rdma.rkey, true, request.wr.rdma.remote_addr, send.piece.length,
              read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE))
    return IBV_WC_REM_ACCESS_ERR;
  void* local = reinterpret_cast<void*>(send.piece.addr);
  const void* from = inlined ? send.inlined.data() : local;
  void* remote = reinterpret_cast<void*>(request.wr.rdma.remote_addr);
  std::memcpy(read ? local : remote, read ? remote : from, send.piece.length);
  reads += read;
  return IBV_WC_SUCCESS;
}

inline void Nic::execute(Qp& qp) {
  const Qp::Send send = std::move(qp.sends.front());
  qp.sends.pop_front();
  ibv_wc_status status = fail_send >= 0 && fail_send-- == 0 ? fail_status : IBV_WC_SUCCESS;
  if (!status) status = carry_out(qp, send);
  if (status || send.request.send_flags & IBV_SEND_SIGNALED)
    complete(qp, send.request.wr_id, status, false, 0);
  if (status) break_both(qp);
}

inline int Nic::post_send(ibv_qp* queue_pair, ibv_send_wr* request, ibv_send_wr** bad) {
  const InAdapter inside;
  Nic& nic = one();
  Qp& qp = *static_cast<Qp*>(queue_pair);
  ++nic.doorbells;
  for (*bad = request; request; *bad = request = request->next) {
    ++nic.posts;
    if (nic.post_send_error) return std::exchange(nic.post_send_error, 0);
    if (nic.refuse_sends) return nic.refuse_sends;
    if (qp.send_places >= qp.cap.max_send_wr) {
      nic.violation("send queue overrun");
      return -ENOMEM;
    }
    if (request->opcode == IBV_WR_RDMA_READ && request->num_sge != 1)
      nic.violation("READ with more than one element");
    Qp::Send send{*request, request->num_sge ? request->sg_list[0] : ibv_sge{}, {}};
    if (request->send_flags & IBV_SEND_INLINE) {
      if (send.piece.length > qp.cap.max_inline_data) return -EINVAL;
      const auto* from = reinterpret_cast<const std::byte*>(send.piece.addr);
      send.inlined.assign(from, from + send.piece.length);
    } else if (Region* from =
                   nic.region(send.piece.lkey, false, send.piece.addr, send.piece.length, 0)) {
      if (request->opcode == IBV_WR_RDMA_READ) from->read_by.insert(qp.qp_num);
    } else {
      nic.violation("memory that is not registered");
    }
    ++qp.send_places;
    nic.in_order.emplace_back(qp.qp_num, request->wr_id);
    if (qp.state == IBV_QPS_ERR) {
      if (nic.flush) complete(qp, request->wr_id, IBV_WC_WR_FLUSH_ERR, false, 0);
      continue;
    }
    qp.sends.push_back(std::move(send));
  }
  return 0;
}

inline int Nic::post_recv(ibv_qp* queue_pair, ibv_recv_wr* request, ibv_recv_wr** bad) {
  const InAdapter inside;
  Nic& nic = one();
  Qp& qp = *static_cast<Qp*>(queue_pair);
  for (*bad = request; request; *bad = request = request->next) {
    if (nic.post_recv_error) return std::exchange(nic.post_recv_error, 0);
    if (qp.receives.size() >= qp.cap.max_recv_wr) {
      nic.violation("receive queue overrun");
      return -ENOMEM;
    }
    const ibv_sge piece = request->sg_list[0];
    if (!nic.region(piece.lkey, false, piece.addr, piece.length, IBV_ACCESS_LOCAL_WRITE))
      nic.violation("a receive into memory that is not registered");
    qp.receives.push_back({request->wr_id, piece});
  }
  return 0;
}

}  // namespace erdma::fake

extern "C" {
using erdma::fake::Nic;
[[gnu::weak]] ibv_device** ibv_get_device_list(int* count) {
  *count = 1;
  return Nic::one().list;
}
[[gnu::weak]] void ibv_free_device_list(ibv_device**) {}
[[gnu::weak]] const char* ibv_get_device_name(ibv_device* device) {
  return device->name;
}
[[gnu::weak]] ibv_context* ibv_open_device(ibv_device*) {
  return &Nic::one().context;
}
[[gnu::weak]] int ibv_close_device(ibv_context*) {
  return 0;
}
[[gnu::weak]] int ibv_query_device(ibv_context*, ibv_device_attr* attr) {
  *attr = {};
  attr->max_qp = 4096;
  attr->max_qp_wr = 8192;
  attr->max_sge = 6;
  attr->max_cqe = Nic::one().max_cqe;
  attr->max_qp_rd_atom = attr->max_qp_init_rd_atom = 4;
  attr->max_mr_size = Nic::one().max_mr_size;
  attr->vendor_id = 0x1ded;
  return 0;
}
[[gnu::weak]] int ibv_query_port(ibv_context*, uint8_t, _compat_ibv_port_attr* compat) {
  auto* attr = reinterpret_cast<ibv_port_attr*>(compat);
  attr->state = IBV_PORT_ACTIVE;
  attr->max_msg_sz = 1u << 30;
  attr->gid_tbl_len = Nic::one().gid_at < 0 ? 0 : 16;
  return 0;
}
[[gnu::weak]] int ibv_query_gid(ibv_context*, uint8_t, int index, ibv_gid* gid) {
  if (index != Nic::one().gid_at) return -1;
  *gid = {};
  gid->raw[10] = gid->raw[11] = 0xff;
  std::memcpy(gid->raw + 12, Nic::one().gid_ip, 4);
  return 0;
}
[[gnu::weak]] int _ibv_query_gid_ex(ibv_context*, uint32_t port, uint32_t index,
                                    ibv_gid_entry* entry, uint32_t, size_t) {
  entry->gid_type = IBV_GID_TYPE_ROCE_V2;
  return ibv_query_gid(nullptr, uint8_t(port), int(index), &entry->gid);
}
[[gnu::weak]] ibv_pd* ibv_alloc_pd(ibv_context* context) {
  return new ibv_pd{context, 1};
}
[[gnu::weak]] int ibv_dealloc_pd(ibv_pd* pd) {
  return delete pd, 0;
}
[[gnu::weak]] ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, size_t length, int access) {
  const erdma::fake::InAdapter inside;
  Nic& nic = Nic::one();
  if (nic.refuse_regions) return errno = nic.refuse_regions, nullptr;
  if (nic.regions.size() >= nic.most_regions) return errno = ENOSPC, nullptr;
  if (length > nic.max_mr_size) return errno = EINVAL, nullptr;
  auto region = std::make_unique<erdma::fake::Region>();
  *static_cast<ibv_mr*>(region.get()) = {
      &nic.context, pd, address, length, 1, nic.next_key, nic.next_key ^ 0x5000'0000u};
  nic.next_key += 0x100;
  region->access = access;
  nic.regions.push_back(std::move(region));
  return nic.regions.back().get();
}
[[gnu::weak]] ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, size_t length, uint64_t,
                                       unsigned access) {
  return ibv_reg_mr(pd, address, length, int(access));
}
[[gnu::weak]] int ibv_dereg_mr(ibv_mr* mr) {
  Nic::one().regions.remove_if([&](auto& region) { return region.get() == mr; });
  return 0;
}
[[gnu::weak]] ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  auto* channel = new erdma::fake::Channel;
  channel->context = context;
  channel->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  return channel;
}
[[gnu::weak]] int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  ::close(channel->fd);
  delete static_cast<erdma::fake::Channel*>(channel);
  return 0;
}
[[gnu::weak]] ibv_cq* ibv_create_cq(ibv_context* context, int entries, void*,
                                    ibv_comp_channel* channel, int vector) {
  const erdma::fake::InAdapter inside;
  if (entries > Nic::one().max_cqe) return errno = EIO, nullptr;
  auto* cq = new erdma::fake::Cq;
  cq->context = context;
  cq->channel = channel;
  cq->cqe = entries;
  cq->vector = vector;
  return cq;
}
[[gnu::weak]] int ibv_destroy_cq(ibv_cq* cq) {
  return delete static_cast<erdma::fake::Cq*>(cq), 0;
}
[[gnu::weak]] int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** context) {
  auto& events = static_cast<erdma::fake::Channel*>(channel)->events;
  if (Nic::one().refuse_events) return errno = Nic::one().refuse_events, -1;
  if (events.empty()) return errno = EAGAIN, -1;
  *cq = events.front();
  *context = nullptr;
  events.pop_front();
  eventfd_t value;
  if (events.empty()) eventfd_read(channel->fd, &value);
  return 0;
}
[[gnu::weak]] void ibv_ack_cq_events(ibv_cq*, unsigned) {}
[[gnu::weak]] int ibv_get_async_event(ibv_context*, ibv_async_event* event) {
  auto& events = Nic::one().events;
  if (events.empty()) return errno = EAGAIN, -1;
  *event = events.front();
  events.pop_front();
  return 0;
}
[[gnu::weak]] void ibv_ack_async_event(ibv_async_event*) {}
[[gnu::weak]] ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* attr) {
  const erdma::fake::InAdapter inside;
  Nic& nic = Nic::one();
  if (attr->cap.max_inline_data > nic.max_inline) return errno = EINVAL, nullptr;
  auto* qp = new erdma::fake::Qp;
  qp->context = &nic.context;
  qp->pd = pd;
  qp->send_cq = attr->send_cq;
  qp->recv_cq = attr->recv_cq;
  qp->qp_num = nic.next_qp++;
  qp->state = IBV_QPS_INIT;
  qp->cap = attr->cap;
  nic.qps.push_back(qp);
  return qp;
}
[[gnu::weak]] int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int) {
  const erdma::fake::InAdapter inside;
  if (attr->qp_state == IBV_QPS_RTR) Nic::one().source_gid = attr->ah_attr.grh.sgid_index;
  if (attr->qp_state == IBV_QPS_ERR) Nic::one().break_qp(*static_cast<erdma::fake::Qp*>(qp));
  return 0;
}
// As with eRDMA, completions in a queue stay there.
[[gnu::weak]] int ibv_destroy_qp(ibv_qp* queue_pair) {
  auto* qp = static_cast<erdma::fake::Qp*>(queue_pair);
  Nic& nic = Nic::one();
  std::erase(nic.qps, qp);
  std::erase_if(nic.in_order, [&](const auto& sent) { return sent.first == qp->qp_num; });
  if (qp->peer) qp->peer->peer = nullptr;
  delete qp;
  return 0;
}
[[gnu::weak]] ibv_fork_status ibv_is_fork_initialized() {
  return Nic::one().fork_status;
}
[[gnu::weak]] int ibv_dontfork_range(void* address, size_t length) {
  return madvise(address, length, MADV_DONTFORK) ? errno : 0;
}
[[gnu::weak]] int ibv_dofork_range(void* address, size_t length) {
  return madvise(address, length, MADV_DOFORK) ? errno : 0;
}
[[gnu::weak]] int ibv_fork_init() {
  Nic& nic = Nic::one();
  if (nic.fork_status != IBV_FORK_DISABLED) return 0;
  if (nic.refuse_fork_init) return nic.refuse_fork_init;
  nic.fork_status = IBV_FORK_ENABLED;
  return 0;
}
[[gnu::weak]] const char* ibv_wc_status_str(ibv_wc_status) {
  return "a status";
}
}
