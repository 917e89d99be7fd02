// Creation, states, connections and destruction of queue pairs.
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "softerdma/cm.h"
#include "softerdma/data_path.h"
#include "softerdma/device.h"
#include "softerdma/fault.h"
#include "softerdma/process.h"
#include "softerdma/report.h"
#include "softerdma/verbs_create.h"

using namespace softerdma;

namespace softerdma {
namespace {

int refuse(const ibv_qp_init_attr& init, const Limits& limits) {
  if (init.qp_type != IBV_QPT_RC || init.srq != nullptr) return EOPNOTSUPP;
  const ibv_qp_cap& cap = init.cap;
  if (init.send_cq == nullptr || init.recv_cq == nullptr) return EINVAL;
  if (cap.max_send_wr == 0 || cap.max_recv_wr == 0) return EINVAL;
  if (cap.max_send_wr > limits.max_qp_wr || cap.max_recv_wr > limits.max_qp_wr) return EINVAL;
  if (cap.max_send_sge > std::min<uint64_t>(limits.max_send_sge, kMaxSge)) return EINVAL;
  if (cap.max_recv_sge > limits.max_recv_sge) return EINVAL;
  if (cap.max_inline_data > std::min<uint64_t>(limits.max_inline, kMaxInline)) return EINVAL;
  return 0;
}

/// Returns a free number. A number is used again as late as possible. Caller holds Process::mutex.
uint32_t take_number(Process& process) {
  for (uint32_t i = 0; i < kQpsPerProcess; ++i) {
    uint32_t index = (process.next_qp + i) % kQpsPerProcess;
    if (index < 2 || process.qps[index].load() != nullptr) continue;
    process.next_qp = index + 1;
    process.highest_qp = std::max(process.highest_qp, index + 1);
    return index;
  }
  return 0;
}

void fill_shared(Process& process, Qp& qp, uint32_t rq_size) {
  QpShared& shared = qp.shared();
  shared.qpn = qp.qp_num;
  shared.generation = process.fabric.generation();
  shared.device_ip = qp.device->config.ip;
  shared.pd = qp.pd->handle;
  shared.recv_cq = qp.recv_cq->handle;
  shared.rq_size = rq_size;
  shared.compat = qp.compat ? 1 : 0;
}

ibv_qp* create(ibv_pd* pd, ibv_qp_init_attr& init) {
  Context& context = Context::from(pd->context);
  Process& process = *context.process;
  Device& device = *context.device;
  errno = refuse(init, device.config.limits);
  if (errno == 0) errno = command(device);
  if (errno != 0) return nullptr;
  std::lock_guard guard(process.mutex);
  uint32_t index = 0;
  if (process.of_host(device, &ProcessEntry::OnDevice::qps) < device.config.limits.max_qp)
    index = take_number(process);
  if (index == 0) {
    errno = ENOMEM;
    return nullptr;
  }
  auto qp = std::make_unique<Qp>();
  uint32_t rq_size = std::bit_ceil(init.cap.max_recv_wr);
  std::string path = process.fabric.own_path("q" + std::to_string(index));
  qp->map = Mapping::create(path, QpShared::bytes(rq_size));
  if (!qp->map) return nullptr;
  qp->context = pd->context;
  qp->qp_context = init.qp_context;
  qp->pd = pd;
  qp->send_cq = init.send_cq;
  qp->recv_cq = init.recv_cq;
  qp->handle = index;
  qp->index = index;
  qp->qp_num = process.fabric.slot() << kQpBits | index;
  qp->qp_type = IBV_QPT_RC;
  pthread_mutex_init(&qp->mutex, nullptr);
  pthread_cond_init(&qp->cond, nullptr);
  qp->device = &device;
  qp->owner = &context;
  qp->cap = init.cap;
  qp->signal_all = init.sq_sig_all != 0;
  qp->compat = device.config.personality == Personality::compat;
  qp->sq_blocks = std::bit_ceil(init.cap.max_send_wr) * kBlocksPerWr;
  fill_shared(process, *qp, rq_size);
  init.cap.max_send_wr = std::bit_ceil(init.cap.max_send_wr);
  init.cap.max_recv_wr = rq_size;
  ++static_cast<Pd*>(pd)->children;
  ++static_cast<Cq*>(init.send_cq)->users;
  ++static_cast<Cq*>(init.recv_cq)->users;
  ++process.counts(device).qps;
  process.qps[index].store(qp.get(), std::memory_order_release);
  return qp.release();
}

/// Flushes posted receives, which no packet will fill.
void flush_receives(Qp& qp) {
  std::lock_guard guard(qp.rq_lock);
  QpShared& shared = qp.shared();
  uint64_t head = shared.rq_head.load();
  Flush habit = qp.device->config.flush;
  for (unsigned n = 0; head != qp.rq_tail; ++head, ++n) {
    if (habit == Flush::none || (habit == Flush::half && (n & 1) != 0) || flush_withheld())
      continue;
    RqEntry& entry = shared.rq()[head & (shared.rq_size - 1)];
    push_local(*static_cast<Cq*>(qp.recv_cq),
               {entry.wr_id, qp.qp_num, 0, 0, IBV_WC_RECV, IBV_WC_WR_FLUSH_ERR, true, false});
  }
  shared.rq_head.store(head);
}

void flush_pending(Qp& qp) {
  for (const PendingWork& entry : qp.pending) flush_work(qp, entry.work);
  qp.pending.clear();
}

/// Returns the queue pair to its state after creation. Caller holds Process::mutex.
void reset(Process& process, Qp& qp) {
  qp.become(IBV_QPS_RESET);
  quiesce(process, qp);
  std::scoped_lock guard(qp.sq_lock, qp.rq_lock);
  qp.pending.clear();
  qp.remote.reset();
  qp.sq_ci.store(qp.sq_pi);
  qp.shared().peer_qpn.store(0);
  qp.shared().heard.store(0);
  qp.shared().rq_head.store(qp.rq_tail);
  qp.rq_ci.store(qp.rq_tail);
  qp.reads.store(0);
  qp.failed.store(false);
}

bool allowed(ibv_qp_state from, ibv_qp_state to) {
  switch (to) {
    case IBV_QPS_RESET:
    case IBV_QPS_ERR:
      return true;
    case IBV_QPS_INIT:
      return from == IBV_QPS_RESET || from == IBV_QPS_INIT;
    case IBV_QPS_RTR:
      return from == IBV_QPS_INIT;
    case IBV_QPS_RTS:
      return from == IBV_QPS_RTR || from == IBV_QPS_RTS;
    case IBV_QPS_SQD:
      return from == IBV_QPS_RTS;
    default:
      return false;
  }
}

/// Compat mode uses only the address vector and the queue pair's number, and ignores other
/// attributes.
int set_peer(Qp& qp, const ibv_qp_attr& attr, int mask) {
  if ((mask & IBV_QP_DEST_QPN) != 0) qp.dest_qpn = attr.dest_qp_num;
  if ((mask & IBV_QP_AV) != 0) {
    ibv_gid_entry local{};
    if (!query_gid_entry(*qp.device, attr.ah_attr.grh.sgid_index, local)) return EINVAL;
    qp.dest_ip = gid_address(attr.ah_attr.grh.dgid);
    if (qp.dest_ip == 0 || gid_address(local.gid) == 0) {
      violation("queue pair %u: a GID that is not an IPv4-mapped RoCEv2 one reaches nobody",
                qp.qp_num);
    }
  }
  return 0;
}

/// Returns true if the process that accessed this one's memory has ended. Another process may have
/// its slot by now.
bool is_dead(Process& process, uint64_t busy) {
  auto slot = static_cast<uint32_t>(busy) - 1;
  auto generation = static_cast<uint32_t>(busy >> 32);
  return process.fabric.shared().processes[slot].generation.load() != generation ||
         !process.fabric.alive(slot);
}

/// In compat mode, opens the process on the other side, so that its death is noticed. A slot that
/// it claimed in this process's queue would block all later ones.
void meet_peer(Process& process, const Qp& qp) {
  uint32_t slot = qp.dest_qpn >> kQpBits;
  if (slot >= kMaxProcesses) return;
  process.peer(slot, process.fabric.shared().processes[slot].generation.load());
}

}  // namespace

void quiesce(Process& process, Qp& qp, uint32_t key) {
  QpShared& shared = qp.shared();
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (shared.busy.load() == 0) return;
  uint64_t begin = now_ns();
  while (uint64_t busy = shared.busy.load(std::memory_order_acquire)) {
    const uint32_t region = shared.region.load(std::memory_order_acquire);
    if (key != 0 && region != 0 && region != key) return;
    // A process that dies during an access leaves its word here, and writes no more. The record
    // lock shows its death. The adapter's thread may not notice it, as it may wait for a mutex that
    // the caller holds.
    if (is_dead(process, busy)) {
      shared.region.store(0);
      shared.busy.compare_exchange_strong(busy, 0);
      continue;
    }
    if (uint64_t waited = now_ns() - begin; waited > 2'000'000'000u) {
      note("queue pair %u: the peer stopped in the middle of an access", qp.qp_num);
      break;
    }
    sched_yield();
  }
}

int bind_remote(Process& process, Qp& qp, uint32_t slot, uint32_t generation, uint32_t qpn) {
  std::shared_ptr<PeerProcess> peer = process.peer(slot, generation);
  if (peer == nullptr) return ESRCH;
  auto remote = std::make_unique<Remote>();
  remote->map = Mapping::open(process.fabric.process_folder(slot) + "/q" +
                              std::to_string(qpn & (kQpsPerProcess - 1)));
  if (!remote->map || remote->map.size() < sizeof(QpShared)) return ENOENT;
  QpShared& target = remote->shared();
  if (target.qpn != qpn || target.generation != generation) return ENOENT;
  remote->process = peer;
  remote->cq = peer->cq(process.fabric, target.recv_cq);
  remote->device = process.fabric.device(target.device_ip, false, false);
  if (remote->cq == nullptr || remote->device == nullptr) return ENOENT;
  qp.remote = std::move(remote);
  return 0;
}

void tell_peer(Process& process, Qp& qp, MessageType type, Cause cause, bool by_application) {
  std::lock_guard guard(qp.sq_lock);
  if (qp.remote == nullptr || !qp.device->active()) return;
  Message message{};
  message.type = type;
  message.qpn = qp.remote->shared().qpn;
  message.peer_qpn = qp.qp_num;
  message.status = static_cast<int32_t>(cause);
  message.by_application = by_application ? 1 : 0;
  process.send(qp.remote->process->slot, qp.remote->process->generation, message);
}

void enter_error(Process& process, Qp& qp) {
  qp.become(IBV_QPS_ERR);
  quiesce(process, qp);
  {
    std::lock_guard guard(qp.sq_lock);
    flush_pending(qp);
  }
  flush_receives(qp);
}

int command(const Device& device, bool makes) noexcept {
  if (const int error = fault_on_command(device, makes)) return error;
  const uint64_t microseconds = device.config.limits.command_us;
  if (microseconds == 0) return 0;
  const int slack = prctl(PR_GET_TIMERSLACK);
  prctl(PR_SET_TIMERSLACK, 1);
  timespec left{static_cast<time_t>(microseconds / 1'000'000),
                static_cast<long>(microseconds % 1'000'000 * 1000)};
  while (nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
  prctl(PR_SET_TIMERSLACK, slack);
  return 0;
}

ibv_qp* create_qp_ex(ibv_context*, ibv_qp_init_attr_ex* init) {
  // The ibv_wr_* calls, TSO, RSS and other extensions are not supported.
  if (init->comp_mask != IBV_QP_INIT_ATTR_PD) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  return create(init->pd, *reinterpret_cast<ibv_qp_init_attr*>(init));
}

}  // namespace softerdma

SOFTERDMA_API ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* init) {
  return create(pd, *init);
}

SOFTERDMA_API int ibv_modify_qp(ibv_qp* handle, ibv_qp_attr* attr, int mask) {
  Qp& qp = Qp::from(handle);
  Process& process = *qp.owner->process;
  if (const int error = command(*qp.device, false)) return error;
  std::lock_guard guard(process.mutex);
  if (qp.compat) {
    if (int error = set_peer(qp, *attr, mask); error != 0) return error;
  }
  if ((mask & IBV_QP_STATE) == 0) return 0;
  auto from = static_cast<ibv_qp_state>(qp.current());
  ibv_qp_state to = attr->qp_state;
  // In standard mode, only the connection manager makes connections. The driver ignores RTR, and
  // has no connection for RTS.
  if (!qp.compat && from != IBV_QPS_ERR && from != to) {
    if (to == IBV_QPS_RTR) return 0;
    if (to == IBV_QPS_RTS) return EINVAL;
  }
  if (!allowed(from, to)) return EINVAL;
  qp.attr = *attr;
  switch (to) {
    case IBV_QPS_RESET:
      reset(process, qp);
      break;
    case IBV_QPS_ERR:
      enter_error(process, qp);
      if (!qp.compat) cm_connection_ended(process, qp, true);
      break;
    case IBV_QPS_RTR:
      qp.shared().peer_qpn.store(qp.dest_qpn);
      if (qp.compat) meet_peer(process, qp);
      [[fallthrough]];
    default:
      qp.become(to);
  }
  return 0;
}

SOFTERDMA_API int ibv_query_qp(ibv_qp* handle, ibv_qp_attr* attr, int, ibv_qp_init_attr* init) {
  Qp& qp = Qp::from(handle);
  *attr = qp.attr;
  attr->qp_state = attr->cur_qp_state = static_cast<ibv_qp_state>(qp.current());
  attr->cap = qp.cap;
  attr->cap.max_send_wr = qp.sq_blocks;  // in building blocks, as in the driver
  attr->dest_qp_num = qp.compat ? qp.dest_qpn : 0;
  attr->path_mtu = IBV_MTU_1024;
  attr->port_num = 1;
  attr->max_rd_atomic = attr->max_dest_rd_atomic =
      static_cast<uint8_t>(qp.device->config.limits.max_rd_atom);
  handle->state = attr->qp_state;
  if (init == nullptr) return 0;
  *init = {};
  init->qp_context = qp.qp_context;
  init->send_cq = qp.send_cq;
  init->recv_cq = qp.recv_cq;
  init->cap = attr->cap;
  init->qp_type = IBV_QPT_RC;
  init->sq_sig_all = qp.signal_all ? 1 : 0;
  return 0;
}

SOFTERDMA_API int ibv_destroy_qp(ibv_qp* handle) {
  Qp* qp = &Qp::from(handle);
  Process& process = *qp->owner->process;
  auto* send_cq = static_cast<Cq*>(qp->send_cq);
  auto* recv_cq = static_cast<Cq*>(qp->recv_cq);
  if (&process == Process::existing()) {
    cm_wait_for_outcome(process, *qp);
    if (const int error = command(*qp->device, false)) return error;
    std::lock_guard guard(process.mutex);
    if (!qp->compat) cm_connection_ended(process, *qp, false);
    reset(process, *qp);
    for (Cq* cq : {send_cq, recv_cq}) {
      if (cq->lock.try_lock()) {
        cq->lock.unlock();
      } else {
        violation("queue pair %u is destroyed while another thread polls its completion queue",
                  qp->qp_num);
      }
    }
    // Threads that poll look the queue pair up under these locks.
    send_cq->lock.lock();
    if (recv_cq != send_cq) recv_cq->lock.lock();
    process.qps[qp->index].store(nullptr);
    if (recv_cq != send_cq) recv_cq->lock.unlock();
    send_cq->lock.unlock();
    unlink(process.fabric.own_path("q" + std::to_string(qp->index)).c_str());
    --process.counts(*qp->device).qps;
    std::lock_guard events(qp->owner->events_mutex);
    std::erase_if(qp->owner->events, [qp](const ibv_async_event& event) {
      return event.event_type == IBV_EVENT_QP_FATAL && event.element.qp == qp;
    });
  }
  if (&process == Process::existing()) {
    // As ibv_get_async_event(3) says, the call waits until every event about the queue pair is
    // acknowledged.
    std::unique_lock events(qp->owner->events_mutex);
    qp->owner->acknowledged.wait(events, [qp] {
      const auto& taken = qp->owner->unacknowledged;
      return std::find(taken.begin(), taken.end(), qp) == taken.end();
    });
  }
  --send_cq->users;
  --recv_cq->users;
  --static_cast<Pd*>(qp->pd)->children;
  delete qp;
  return 0;
}
