// Executes one work request at both ends of the connection.
#include <cerrno>
#include <cstring>
#include <vector>

#include "softerdma/data_path.h"
#include "softerdma/posted.h"
#include "softerdma/process.h"
#include "softerdma/report.h"
#include "softerdma/verbs_create.h"

namespace softerdma {
namespace {

Executed kill(ibv_wc_status status, Cause cause, bool peer_too) {
  return {Outcome::killed, status, cause, peer_too};
}
constexpr Executed kLost{Outcome::lost, IBV_WC_RETRY_EXC_ERR, Cause::none, false};

/// Tells the owner of the target memory that a peer accesses it (see quiesce()).
class Busy {
 public:
  Busy(QpShared& target, Fabric& fabric) noexcept : x_target(target) {
    x_target.busy.exchange(QpShared::busy_word(fabric.slot(), fabric.generation()));
  }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;
  ~Busy() {
    x_target.region.store(0, std::memory_order_relaxed);
    x_target.busy.store(0, std::memory_order_release);
  }

 private:
  QpShared& x_target;
};

/// The local pieces of a work request, checked against the memory regions of this process.
struct Pieces {
  iovec iov[kMaxSge];
  size_t count = 0;
  const MrEntry* gpu = nullptr;  ///< region of the last piece, if stores to it are posted
};

/// Before the adapter reads from a GPU, its own earlier stores arrive there, unless the region lets
/// reads overtake stores.
void read_gpu(Fabric& fabric, PeerProcess& owner, const MrEntry* mr) {
  if (mr->posted == 0 || (mr->access & IBV_ACCESS_RELAXED_ORDERING) != 0) return;
  if (PostedShared* queue = owner.posted(fabric, mr->adapter()))
    arrive(fabric, owner, *queue, mr->gpu());
}

/// Makes the adapter of `owner` store to its memory.
int store(Fabric& fabric, PeerProcess& owner, const MrEntry* mr, const iovec* iov, size_t count,
          uint64_t address, size_t length) {
  PostedShared* queue = mr->posted != 0 ? owner.posted(fabric, mr->adapter()) : nullptr;
  if (queue == nullptr) return owner.write(iov, count, address, length);
  return post_store(fabric, owner, *queue, mr->gpu(), mr->chance, iov, count, address);
}

/// Stores the result of a READ or an atomic operation.
int take_result(Process& process, const Pieces& pieces, const void* bytes, size_t length) {
  void* to = pieces.iov[0].iov_base;
  if (pieces.gpu == nullptr) return std::memcpy(to, bytes, length), 0;
  const iovec piece{const_cast<void*>(bytes), length};
  return store(process.fabric, *process.self(), pieces.gpu, &piece, 1,
               reinterpret_cast<uint64_t>(to), length);
}

bool local_pieces(Process& process, const Qp& qp, const Work& work, uint32_t access,
                  Pieces& pieces) {
  for (uint8_t i = 0; i < work.sges; ++i) {
    const ibv_sge& sge = work.sge[i];
    if (sge.length == 0) continue;
    void* address = reinterpret_cast<void*>(sge.addr);  // NOLINT(performance-no-int-to-ptr)
    if (!work.inlined) {
      const MrEntry* mr =
          process.self()->find(sge.lkey, sge.addr, sge.length, access, qp.map.as<QpShared>()->pd);
      if (mr == nullptr) return false;
      if (mr->posted != 0) {
        pieces.gpu = mr;
        if (access == 0) read_gpu(process.fabric, *process.self(), mr);
      }
      // NOLINTNEXTLINE(performance-no-int-to-ptr)
      address = reinterpret_cast<void*>(mr->address + (sge.addr - mr->iova));
    }
    pieces.iov[pieces.count++] = {address, sge.length};
  }
  return true;
}

/// Claims a slot of the peer's completion queue for this process. Returns null if it is full.
CqSlot* claim(const RemoteCq& cq, uint64_t& position) {
  CqShared& shared = cq.shared();
  CqSlot* slots = shared.slots();
  for (position = shared.tail.load(std::memory_order_relaxed);;) {
    CqSlot& slot = slots[position & (shared.size - 1)];
    uint64_t seen = slot.state.load(std::memory_order_acquire);
    if (shared.at(seen, position)) {
      if (CqSlot::phase(seen) == CqSlot::free &&
          slot.state.compare_exchange_strong(seen,
                                             shared.word(CqSlot::claimed, cq.owner, position))) {
        shared.tail.store(position + 1, std::memory_order_relaxed);
        return &slot;
      }
      ++position;
    } else if (shared.at(seen, position - shared.size)) {
      return nullptr;
    } else {
      ++position;  // the tail was outdated: this slot is used again already
    }
  }
}

/// Puts the payload where the poll of the completion will find it, or directly into its target.
Executed place(Process& process, Remote& remote, CqSlot& slot, const Pieces& pieces,
               uint32_t length, uint64_t address, const MrEntry* mr, uint64_t small) {
  slot.payload = 0;
  if (length == 0) return {};
  std::byte* to = nullptr;
  if (length <= CqSlot::kInline) {
    slot.payload = static_cast<uint8_t>(length);
    to = slot.data;
  } else if (length <= small) {
    QpShared& target = remote.shared();
    uint64_t begin = remote.ring_tail % kPayloadRingBytes;
    if (begin + length > kPayloadRingBytes) begin = 0;
    uint64_t skipped = begin == 0 ? (0 - remote.ring_tail) % kPayloadRingBytes : 0;
    uint64_t end = remote.ring_tail + skipped + length;
    if (end - remote.ring_head_seen > kPayloadRingBytes) {
      remote.ring_head_seen = target.ring_head.load(std::memory_order_acquire);
    }
    if (end - remote.ring_head_seen <= kPayloadRingBytes) {
      to = target.ring() + begin;
      // The next payload begins on a new cache line.
      remote.ring_tail = (end + 63) & ~uint64_t{63};
      target.ring_tail.store(remote.ring_tail, std::memory_order_relaxed);
      slot.ring_end = remote.ring_tail;
      slot.reserved = static_cast<uint32_t>(begin);
      slot.flags |= CqSlot::in_ring;
    }
  }
  if (to != nullptr) {
    for (size_t i = 0; i < pieces.count; ++i) {
      std::memcpy(to, pieces.iov[i].iov_base, pieces.iov[i].iov_len);
      to += pieces.iov[i].iov_len;
    }
    return {};
  }
  int error = store(process.fabric, *remote.process, mr, pieces.iov, pieces.count, address, length);
  if (error == 0) return {};
  if (error == ESRCH) return kLost;
  return kill(IBV_WC_REM_ACCESS_ERR, Cause::remote_access, true);
}

/// Consumes a receive of the peer, for each form of SEND and for WRITE with immediate data.
Executed deliver(Process& process, Qp& qp, Remote& remote, const Work& work, const Pieces& pieces) {
  QpShared& target = remote.shared();
  RqEntry& receive = target.rq()[remote.rq_head & (target.rq_size - 1)];
  if (receive.sequence.load(std::memory_order_acquire) != remote.rq_head + 1) {
    return kill(IBV_WC_GENERAL_ERR, Cause::no_receive, true);
  }
  bool write = work.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  uint32_t length = write ? 0 : work.length;
  uint64_t address = 0;
  const MrEntry* mr = nullptr;
  if (length > receive.length) return kill(IBV_WC_GENERAL_ERR, Cause::too_long, true);
  if (length > 0) {
    mr = remote.process->find(receive.lkey, receive.address, length, IBV_ACCESS_LOCAL_WRITE,
                              target.pd);
    if (mr == nullptr) return kill(IBV_WC_GENERAL_ERR, Cause::local_access, true);
    address = mr->address + (receive.address - mr->iova);
  }
  uint64_t position = 0;
  CqShared& cq = remote.cq->shared();
  CqSlot* slot = claim(*remote.cq, position);
  if (slot == nullptr) {
    cq.overruns.fetch_add(1);
    violation("completion queue of queue pair %u (size %u) overrun: a completion is lost",
              target.qpn, cq.size);
    target.rq_head.store(++remote.rq_head, std::memory_order_relaxed);
    return {};
  }
  bool imm = write || work.opcode == IBV_WR_SEND_WITH_IMM;
  slot->wr_id = receive.wr_id;
  slot->address = address;
  slot->lkey = receive.lkey;
  slot->qpn = target.qpn;
  slot->length = work.length;
  slot->imm = work.imm;
  slot->opcode = static_cast<uint8_t>(write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV);
  slot->status = IBV_WC_SUCCESS;
  slot->flags =
      static_cast<uint8_t>((imm ? CqSlot::with_imm : 0) | (work.solicited ? CqSlot::solicited : 0));
  Executed result = place(process, remote, *slot, pieces, length, address, mr,
                          qp.device->config.limits.small_send);
  if (result.outcome != Outcome::done) {
    slot->state.store(cq.word(CqSlot::dropped, 0, position), std::memory_order_release);
    return result;
  }
  target.rq_head.store(++remote.rq_head, std::memory_order_relaxed);
  // A store could be passed by the load of `armed`, so this is an exchange.
  slot->state.exchange(cq.word(CqSlot::full, remote.cq->owner, position));
  ring_event(cq, work.solicited, remote.cq->event_fd);
  return result;
}

Executed copy_result(int error, Cause cause) {
  if (error == 0) return {};
  if (error == ESRCH) return kLost;
  return kill(IBV_WC_REM_ACCESS_ERR, cause, true);
}

/// Tells the owner which region this access has found, so that it can withdraw others meanwhile, as
/// with a NIC. For short accesses that is not worth the store to the owner's cache line. A WRITE
/// with immediate data may go on to the region of a receive.
void tell_region(Remote& remote, const Work& work) {
  constexpr uint32_t kLong = 64 << 10;
  if (work.length >= kLong && work.opcode != IBV_WR_RDMA_WRITE_WITH_IMM)
    remote.shared().region.store(work.rkey, std::memory_order_release);
}

Executed write(Process& process, Remote& remote, const Work& work, const Pieces& pieces) {
  if (work.length == 0) return {};
  const MrEntry* mr = remote.process->find(work.rkey, work.remote_address, work.length,
                                           IBV_ACCESS_REMOTE_WRITE, remote.shared().pd);
  if (mr == nullptr) return kill(IBV_WC_REM_ACCESS_ERR, Cause::remote_access, true);
  uint64_t address = mr->address + (work.remote_address - mr->iova);
  tell_region(remote, work);
  return copy_result(
      store(process.fabric, *remote.process, mr, pieces.iov, pieces.count, address, work.length),
      Cause::remote_access);
}

Executed read(Process& process, Remote& remote, const Work& work, const Pieces& pieces) {
  if (work.length == 0) return {};
  const MrEntry* mr = remote.process->find(work.rkey, work.remote_address, work.length,
                                           IBV_ACCESS_REMOTE_READ, remote.shared().pd);
  if (mr == nullptr) return kill(IBV_WC_REM_ACCESS_ERR, Cause::remote_access, true);
  uint64_t address = mr->address + (work.remote_address - mr->iova);
  tell_region(remote, work);
  read_gpu(process.fabric, *remote.process, mr);
  if (pieces.gpu == nullptr)
    return copy_result(remote.process->read(pieces.iov[0].iov_base, address, work.length),
                       Cause::remote_access);
  std::vector<std::byte> bytes(work.length);
  int error = remote.process->read(bytes.data(), address, work.length);
  if (error == 0) error = take_result(process, pieces, bytes.data(), work.length);
  return copy_result(error, Cause::remote_access);
}

Executed atomic(Process& process, Remote& remote, const Work& work, const Pieces& pieces) {
  if (pieces.count != 1 || work.length != 8) {
    return kill(IBV_WC_LOC_QP_OP_ERR, Cause::local_access, false);
  }
  const MrEntry* mr = remote.process->find(work.rkey, work.remote_address, 8,
                                           IBV_ACCESS_REMOTE_ATOMIC, remote.shared().pd);
  if (mr == nullptr || work.remote_address % 8 != 0) {
    return kill(IBV_WC_REM_ACCESS_ERR, Cause::remote_access, true);
  }
  uint64_t address = mr->address + (work.remote_address - mr->iova);
  // The operation is atomic with those of all processes, but not with stores of the target's
  // processor.
  WordLock lock(process.fabric,
                process.fabric.shared().processes[remote.process->slot].atomics_lock);
  read_gpu(process.fabric, *remote.process, mr);
  uint64_t old = 0;
  int error = remote.process->read(&old, address, sizeof old);
  if (error == 0) {
    bool add = work.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    uint64_t next = add ? old + work.compare_add : old == work.compare_add ? work.swap : old;
    iovec piece{&next, sizeof next};
    if (next != old) error = remote.process->write(&piece, 1, address, sizeof next);
  }
  if (error == 0) error = take_result(process, pieces, &old, sizeof old);
  return copy_result(error, Cause::remote_access);
}

bool is_fetching(uint8_t opcode) {
  return opcode == IBV_WR_RDMA_READ || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ||
         opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
}

/// In compat mode, the first packet looks for the peer.
bool find_peer(Process& process, Qp& qp) {
  if (!qp.compat) return false;
  uint32_t slot = qp.dest_qpn >> kQpBits;
  if (slot >= kMaxProcesses) return false;
  uint32_t generation = process.fabric.shared().processes[slot].generation.load();
  if (bind_remote(process, qp, slot, generation, qp.dest_qpn) != 0) return false;
  QpShared& target = qp.remote->shared();
  if (target.device_ip == qp.dest_ip && target.compat != 0) return true;
  qp.remote.reset();
  return false;
}

Executed try_work(Process& process, Qp& qp, const Work& work) {
  if (qp.remote == nullptr && !find_peer(process, qp)) return kLost;
  Remote& remote = *qp.remote;
  QpShared& target = remote.shared();
  if (remote.process->dead.load(std::memory_order_relaxed) || !qp.device->active() ||
      remote.device->up.load(std::memory_order_relaxed) == 0) {
    return kLost;
  }
  // On iWARP, the result of a READ or an atomic operation arrives like a WRITE, and is checked like
  // one.
  uint32_t access = 0;
  if (is_fetching(work.opcode)) {
    access = IBV_ACCESS_LOCAL_WRITE | (qp.compat ? 0u : uint32_t{IBV_ACCESS_REMOTE_WRITE});
  }
  Pieces pieces;
  if (!local_pieces(process, qp, work, access, pieces)) {
    return kill(IBV_WC_LOC_ACCESS_ERR, Cause::local_access, false);
  }
  Busy busy(target, process.fabric);
  uint32_t state = target.state.load(std::memory_order_acquire);
  if ((state != IBV_QPS_RTR && state != IBV_QPS_RTS) ||
      target.peer_qpn.load(std::memory_order_relaxed) != qp.qp_num) {
    return kLost;
  }
  if (!remote.announced) {
    remote.announced = true;
    remote.rq_head = target.rq_head.load();
    remote.ring_tail = target.ring_tail.load();
    remote.ring_head_seen = target.ring_head.load();
    target.heard.store(1, std::memory_order_release);
  }
  switch (work.opcode) {
    case IBV_WR_RDMA_WRITE:
      return write(process, remote, work, pieces);
    case IBV_WR_RDMA_READ:
      return read(process, remote, work, pieces);
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return atomic(process, remote, work, pieces);
    case IBV_WR_RDMA_WRITE_WITH_IMM: {
      Executed result = write(process, remote, work, pieces);
      return result.outcome == Outcome::done ? deliver(process, qp, remote, work, pieces) : result;
    }
    default:
      return deliver(process, qp, remote, work, pieces);
  }
}

}  // namespace

Executed execute(Process& process, Qp& qp, const Work& work) {
  Executed result = try_work(process, qp, work);
  // A dead process cannot have broken a rule: its packets are lost.
  bool rule = result.outcome == Outcome::killed && result.peer_too;
  if (rule && !process.fabric.alive(qp.remote->process->slot)) return kLost;
  return result;
}

}  // namespace softerdma
