// Posting and polling.
#include "softerdma/data_path.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "softerdma/fault.h"
#include "softerdma/posted.h"
#include "softerdma/process.h"
#include "softerdma/report.h"
#include "softerdma/verbs_create.h"

namespace softerdma {
namespace {

constexpr uint32_t kSendHeader = 16;
constexpr uint32_t kOneSidedHeader = 32;

bool is_send(unsigned opcode) {
  return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_SEND_WITH_INV;
}
bool is_atomic(unsigned opcode) {
  return opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
}

uint8_t completion_opcode(uint8_t opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ:
      return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return IBV_WC_FETCH_ADD;
    default:
      return IBV_WC_SEND;
  }
}

/// Returns the errno with which the driver refuses the request.
int check(const Qp& qp, const ibv_send_wr& wr, uint32_t& length) {
  auto opcode = static_cast<unsigned>(wr.opcode);
  bool atomic = is_atomic(opcode);
  bool known = is_send(opcode) || opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_READ ||
               opcode == IBV_WR_RDMA_WRITE_WITH_IMM ||
               (atomic && qp.device->config.limits.atomics != 0);
  if (!known) return EOPNOTSUPP;
  if (wr.num_sge < 0 || static_cast<uint32_t>(wr.num_sge) > qp.cap.max_send_sge) return EINVAL;
  length = 0;
  uint64_t total = 0;
  for (int i = 0; i < wr.num_sge; ++i) total += wr.sg_list[i].length;
  if (opcode == IBV_WR_RDMA_READ || atomic) {
    if (wr.num_sge != 1) {
      violation(
          "queue pair %u: a READ or atomic with %d SGEs: the device looks at the first only%s",
          qp.qp_num, wr.num_sge, wr.num_sge == 0 ? ", and reads beyond the list" : "");
      if (wr.num_sge == 0) return EINVAL;
    }
    if ((wr.send_flags & IBV_SEND_INLINE) != 0) {
      violation("queue pair %u: a READ or atomic with IBV_SEND_INLINE", qp.qp_num);
      return EINVAL;
    }
    total = wr.sg_list[0].length;
  }
  if ((wr.send_flags & IBV_SEND_INLINE) != 0 && total > qp.cap.max_inline_data) return EINVAL;
  if (total > qp.device->config.limits.max_msg) return EINVAL;
  length = static_cast<uint32_t>(total);
  return 0;
}

uint32_t blocks_of(const ibv_send_wr& wr, uint32_t length) {
  uint32_t bytes = is_send(wr.opcode) ? kSendHeader : kOneSidedHeader;
  bool inlined = (wr.send_flags & IBV_SEND_INLINE) != 0;
  bytes += inlined ? length : static_cast<uint32_t>(wr.num_sge) * 16;
  return (bytes + kBlockBytes - 1) / kBlockBytes;
}

void fetch(const Qp& qp, const ibv_send_wr& wr, uint32_t length, Work& work) {
  work.wr_id = wr.wr_id;
  work.opcode = static_cast<uint8_t>(wr.opcode);
  work.imm = wr.imm_data;
  work.length = length;
  work.signaled = qp.signal_all || (wr.send_flags & IBV_SEND_SIGNALED) != 0;
  work.solicited = (wr.send_flags & IBV_SEND_SOLICITED) != 0;
  work.inlined = (wr.send_flags & IBV_SEND_INLINE) != 0;
  bool atomic = is_atomic(wr.opcode);
  if (atomic) {
    work.remote_address = wr.wr.atomic.remote_addr;
    work.rkey = wr.wr.atomic.rkey;
    work.compare_add = wr.wr.atomic.compare_add;
    work.swap = wr.wr.atomic.swap;
  } else {
    work.remote_address = wr.wr.rdma.remote_addr;
    work.rkey = wr.wr.rdma.rkey;
  }
  bool first_only = atomic || wr.opcode == IBV_WR_RDMA_READ;
  work.sges = static_cast<uint8_t>(first_only ? 1 : wr.num_sge);
  std::memcpy(work.sge, wr.sg_list, work.sges * sizeof(ibv_sge));
}

/// Queues a request that cannot be executed now, for the adapter's thread. Inline data is copied,
/// as the application may reuse its buffer.
void queue(Process& process, Qp& qp, const Work& work) {
  PendingWork& entry = qp.pending.emplace_back();
  entry.work = work;
  if (work.inlined && work.length > 0) {
    entry.data.resize(work.length);
    std::byte* to = entry.data.data();
    for (uint8_t i = 0; i < work.sges; ++i) {
      // NOLINTNEXTLINE(performance-no-int-to-ptr)
      std::memcpy(to, reinterpret_cast<void*>(work.sge[i].addr), work.sge[i].length);
      to += work.sge[i].length;
    }
    entry.work.sges = 1;
    entry.work.sge[0] = {reinterpret_cast<uint64_t>(entry.data.data()), work.length, 0};
  }
  if (!qp.kicked.exchange(true)) process.tell(MessageType::kick, qp.qp_num);
}

bool counts_as_read(const Work& work) {
  return work.opcode == IBV_WR_RDMA_READ || is_atomic(work.opcode);
}

/// In standard mode, the passive side may not send before it has heard the active side.
bool speaks_too_early(Qp& qp) {
  return qp.passive && qp.device->config.limits.passive_first == 0 &&
         qp.shared().heard.load(std::memory_order_acquire) == 0;
}

void submit(Process& process, Qp& qp, const Work& work) {
  if (counts_as_read(work) && qp.reads.fetch_add(1) >= qp.device->config.limits.max_rd_atom &&
      !qp.reads_reported) {
    qp.reads_reported = true;
    violation("queue pair %u: more than %llu READs and atomics outstanding", qp.qp_num,
              static_cast<unsigned long long>(qp.device->config.limits.max_rd_atom));
  }
  uint32_t state = qp.current();
  if (state != IBV_QPS_RTS) return flush_work(qp, work);
  Executed result;
  if (faults_active() && fault_on_work(process, qp, work, result)) {
    if (result.outcome != Outcome::lost) conclude(process, qp, work, result);
    return;
  }
  if (speaks_too_early(qp)) {
    violation("queue pair %u: the passive side sends before it has heard the active side",
              qp.qp_num);
    result = {Outcome::killed, IBV_WC_GENERAL_ERR, Cause::passive_first, true};
    return conclude(process, qp, work, result);
  }
  if (!qp.pending.empty() || qp.device->config.limits.late != 0) return queue(process, qp, work);
  result = execute(process, qp, work);
  if (result.outcome == Outcome::lost) return queue(process, qp, work);
  conclude(process, qp, work, result);
}

int post_one(Process& process, Qp& qp, const ibv_send_wr& wr) {
  uint32_t length = 0;
  if (int error = check(qp, wr, length); error != 0) return error;
  uint32_t state = qp.current();
  if (state == IBV_QPS_RESET || state == IBV_QPS_INIT || state == IBV_QPS_RTR) return EINVAL;
  uint32_t blocks = blocks_of(wr, length);
  if (qp.sq_pi - qp.sq_ci.load(std::memory_order_acquire) + blocks > qp.sq_blocks) return ENOMEM;
  qp.sq_pi += blocks;
  Work work;  // fetch() sets the used members
  fetch(qp, wr, length, work);
  work.sq_ci = qp.sq_pi;
  submit(process, qp, work);
  return 0;
}

/// Converts a completion that a peer delivered. Returns false if the application must not see it.
bool unpack(Process& process, CqSlot& slot, ibv_wc& wc) {
  Qp* qp = process.qp(slot.qpn);
  if (qp == nullptr || qp->qp_num != slot.qpn) return false;
  if (slot.payload != 0 || (slot.flags & CqSlot::in_ring) != 0) {
    const MrEntry* mr = process.mr(slot.lkey);
    bool mapped = mr != nullptr && mr->key.load(std::memory_order_relaxed) == slot.lkey;
    const std::byte* from = slot.payload != 0 ? slot.data : qp->shared().ring() + slot.reserved;
    PostedShared* queue =
        mapped && mr->posted != 0 ? process.self()->posted(process.fabric, mr->adapter()) : nullptr;
    if (queue != nullptr) {
      const iovec piece{const_cast<std::byte*>(from), slot.length};
      (void)post_store(process.fabric, *process.self(), *queue, mr->gpu(), mr->chance, &piece, 1,
                       slot.address);
    } else if (mapped) {
      // NOLINTNEXTLINE(performance-no-int-to-ptr)
      std::memcpy(reinterpret_cast<void*>(slot.address), from, slot.length);
    }
    if (slot.payload == 0) {
      qp->shared().ring_head.store(slot.ring_end, std::memory_order_release);
    }
  }
  wc.wr_id = slot.wr_id;
  wc.status = static_cast<ibv_wc_status>(slot.status);
  wc.opcode = static_cast<ibv_wc_opcode>(slot.opcode);
  wc.vendor_err = 0;
  wc.byte_len = slot.length;
  wc.imm_data = slot.imm;
  wc.qp_num = slot.qpn;
  wc.src_qp = 0;
  wc.wc_flags = (slot.flags & CqSlot::with_imm) != 0 ? IBV_WC_WITH_IMM : 0;
  qp->rq_ci.store(qp->rq_ci.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  return true;
}

bool unpack(Process& process, const LocalCqe& cqe, ibv_wc& wc) {
  Qp* qp = process.qp(cqe.qpn);
  if (qp == nullptr || qp->qp_num != cqe.qpn) return false;
  std::memset(&wc, 0, sizeof wc);
  wc.wr_id = cqe.wr_id;
  wc.status = static_cast<ibv_wc_status>(cqe.status);
  // The real device leaves no usable opcode in a completion with an error.
  if (wc.status == IBV_WC_SUCCESS) wc.opcode = static_cast<ibv_wc_opcode>(cqe.opcode);
  wc.vendor_err = wc.status == IBV_WC_SUCCESS ? 0 : 0x80 + cqe.status;
  wc.byte_len = cqe.length;
  wc.qp_num = cqe.qpn;
  if (cqe.receive) {
    qp->rq_ci.store(qp->rq_ci.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  } else {
    qp->sq_ci.store(cqe.sq_ci, std::memory_order_release);
    if (cqe.reading) qp->reads.store(0);
  }
  return true;
}

/// Drops completions beyond the size of the queue, which both queues share.
void drop_overrun(Cq& cq) {
  for (;;) {
    uint64_t waiting = cq.local_tail.load(std::memory_order_relaxed) -
                       cq.local_head.load(std::memory_order_relaxed);
    uint64_t beyond = cq.head.load(std::memory_order_relaxed) + cq.size - waiting;
    CqSlot& slot = cq.slot(beyond);
    uint64_t seen = slot.state.load(std::memory_order_acquire);
    if (waiting == 0 || CqSlot::phase(seen) != CqSlot::full || !cq.shared().at(seen, beyond))
      return;
    slot.state.store(cq.shared().word(CqSlot::dropped, 0, beyond), std::memory_order_release);
    violation("completion queue of %u entries overrun: a completion is lost", cq.size);
  }
}

}  // namespace

void ring_event(CqShared& shared, bool solicited, int fd) noexcept {
  uint32_t armed = shared.armed.load(std::memory_order_seq_cst);
  if (armed == CqShared::disarmed || (armed == CqShared::solicited_only && !solicited)) return;
  if (!shared.armed.compare_exchange_strong(armed, CqShared::disarmed) || fd < 0) return;
  uint64_t number = shared.number;
  if (write(fd, &number, sizeof number) < 0) return;  // a full pipe is readable anyway
}

void push_local(Cq& cq, const LocalCqe& cqe) {
  {
    std::lock_guard guard(cq.lock);
    uint64_t tail = cq.local_tail.load(std::memory_order_relaxed);
    uint64_t waiting = tail - cq.local_head.load(std::memory_order_relaxed);
    uint64_t beyond = cq.head.load(std::memory_order_relaxed) + cq.size - waiting;
    uint64_t seen = cq.slot(beyond).state.load(std::memory_order_acquire);
    if (waiting == cq.size ||
        (CqSlot::phase(seen) == CqSlot::full && cq.shared().at(seen, beyond) && waiting > 0)) {
      violation("completion queue of %u entries overrun: a completion is lost", cq.size);
      return;
    }
    cq.local[tail & (cq.size - 1)] = cqe;
    cq.local_tail.store(tail + 1, std::memory_order_release);
  }
  if (cq.comp_channel != nullptr) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    ring_event(cq.shared(), cqe.status != IBV_WC_SUCCESS, cq.comp_channel->write_fd);
  }
}

bool idle(const Cq& cq) noexcept {
  if (cq.local_tail.load(std::memory_order_acquire) !=
      cq.local_head.load(std::memory_order_relaxed)) {
    return false;
  }
  uint64_t head = cq.head.load(std::memory_order_relaxed);
  uint64_t seen = cq.slot(head).state.load(std::memory_order_acquire);
  return CqSlot::phase(seen) < CqSlot::full || !cq.shared().at(seen, head);
}

bool take(Process& process, Cq& cq, ibv_wc& wc) {
  for (;;) {
    uint64_t head = cq.head.load(std::memory_order_relaxed);
    CqSlot& slot = cq.slot(head);
    uint64_t seen = slot.state.load(std::memory_order_acquire);
    if (CqSlot::phase(seen) >= CqSlot::full && cq.shared().at(seen, head)) {
      bool good = CqSlot::phase(seen) == CqSlot::full && unpack(process, slot, wc);
      slot.state.store(cq.shared().word(CqSlot::free, 0, head + cq.size),
                       std::memory_order_release);
      cq.head.store(head + 1, std::memory_order_relaxed);
      if (good) return true;
      continue;
    }
    uint64_t local = cq.local_head.load(std::memory_order_relaxed);
    if (local == cq.local_tail.load(std::memory_order_acquire)) return false;
    bool good = unpack(process, cq.local[local & (cq.size - 1)], wc);
    cq.local_head.store(local + 1, std::memory_order_relaxed);
    if (good) return true;
  }
}

int poll_cq(ibv_cq* handle, int most, ibv_wc* wc) {
  Cq& cq = *static_cast<Cq*>(handle);
  Process& process = *Context::from(handle->context).process;
  if (faults_active()) return poll_with_faults(process, cq, most, wc);
  if (idle(cq)) return 0;
  std::lock_guard guard(cq.lock);
  drop_overrun(cq);
  int got = 0;
  while (got < most && take(process, cq, wc[got])) ++got;
  return got;
}

int req_notify_cq(ibv_cq* handle, int solicited_only) {
  CqShared& shared = static_cast<Cq*>(handle)->shared();
  uint32_t wish = solicited_only != 0 ? CqShared::solicited_only : CqShared::any;
  if (shared.armed.load() != CqShared::any) shared.armed.store(wish, std::memory_order_seq_cst);
  return 0;
}

void flush_work(Qp& qp, const Work& work) {
  Flush habit = qp.device->config.flush;
  bool withheld =
      habit == Flush::none || (habit == Flush::half && (qp.sent++ & 1) != 0) || flush_withheld();
  if (withheld) return;
  push_local(*static_cast<Cq*>(qp.send_cq),
             {work.wr_id, qp.qp_num, 0, work.sq_ci, completion_opcode(work.opcode),
              IBV_WC_WR_FLUSH_ERR, false, counts_as_read(work)});
}

void conclude(Process& process, Qp& qp, const Work& work, const Executed& result) {
  Cq& cq = *static_cast<Cq*>(qp.send_cq);
  if (work.signaled || result.outcome != Outcome::done) {
    push_local(cq, {work.wr_id, qp.qp_num, work.length, work.sq_ci, completion_opcode(work.opcode),
                    static_cast<uint8_t>(result.status), false, counts_as_read(work)});
  }
  if (result.outcome == Outcome::done) return;
  if (result.cause == Cause::no_receive || result.cause == Cause::too_long) {
    violation("queue pair %u: a SEND of %u bytes finds %s at queue pair %u", qp.qp_num, work.length,
              result.cause == Cause::no_receive ? "no receive posted" : "a shorter one",
              qp.remote->shared().qpn);
  }
  qp.failed.store(true);
  qp.become(IBV_QPS_ERR);
  process.tell(MessageType::killed, qp.qp_num, static_cast<int32_t>(result.cause));
  if (qp.remote == nullptr || result.status == IBV_WC_RETRY_EXC_ERR) return;
  Message message{};
  message.type = result.peer_too ? MessageType::killed : MessageType::closed;
  message.qpn = qp.remote->shared().qpn;
  message.peer_qpn = qp.qp_num;
  message.status = static_cast<int32_t>(result.cause);
  process.send(qp.remote->process->slot, qp.remote->process->generation, message);
}

int post_send(ibv_qp* handle, ibv_send_wr* wr, ibv_send_wr** bad) {
  Qp& qp = Qp::from(handle);
  Process& process = *qp.owner->process;
  if (bad == nullptr) {
    violation("queue pair %u: ibv_post_send without bad_wr: the driver writes to it", qp.qp_num);
  }
  std::lock_guard guard(qp.sq_lock);
  for (; wr != nullptr; wr = wr->next) {
    if (int error = post_one(process, qp, *wr); error != 0) {
      if (bad != nullptr) *bad = wr;
      return -error;
    }
  }
  return 0;
}

int post_recv(ibv_qp* handle, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  Qp& qp = Qp::from(handle);
  QpShared& shared = qp.shared();
  std::lock_guard guard(qp.rq_lock);
  for (; wr != nullptr; wr = wr->next) {
    int error = 0;
    uint32_t state = qp.current();
    if (wr->num_sge < 0 || static_cast<uint32_t>(wr->num_sge) > qp.cap.max_recv_sge ||
        state == IBV_QPS_RESET) {
      error = EINVAL;
    } else if (qp.rq_tail - qp.rq_ci.load(std::memory_order_acquire) >= shared.rq_size) {
      error = ENOMEM;
    }
    if (error != 0) {
      *bad = wr;
      return -error;
    }
    RqEntry& entry = shared.rq()[qp.rq_tail & (shared.rq_size - 1)];
    entry.wr_id = wr->wr_id;
    entry.address = wr->num_sge > 0 ? wr->sg_list[0].addr : 0;
    entry.length = wr->num_sge > 0 ? wr->sg_list[0].length : 0;
    entry.lkey = wr->num_sge > 0 ? wr->sg_list[0].lkey : 0;
    if (state == IBV_QPS_ERR) {
      // No packet will consume this receive. It is flushed here, as enter_error() has run already.
      if (qp.device->config.flush != Flush::none && !flush_withheld()) {
        ++qp.rq_tail;
        push_local(*static_cast<Cq*>(qp.recv_cq),
                   {wr->wr_id, qp.qp_num, 0, 0, IBV_WC_RECV, IBV_WC_WR_FLUSH_ERR, true, false});
      }
      continue;
    }
    entry.sequence.store(++qp.rq_tail, std::memory_order_release);
  }
  return 0;
}

}  // namespace softerdma
