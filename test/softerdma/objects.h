#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <infiniband/verbs.h>

#include "softerdma/mapping.h"
#include "softerdma/options.h"
#include "softerdma/peer.h"
#include "softerdma/shared.h"
#include "softerdma/spin_lock.h"

/// The objects behind the handles of libibverbs. Each derives from its handle.
namespace softerdma {

#define SOFTERDMA_API extern "C" __attribute__((visibility("default")))

inline constexpr size_t kMaxSge = 6;
inline constexpr size_t kMaxInline = 1024;
inline constexpr uint32_t kBlockBytes = 32;  ///< unit of send queue space
inline constexpr uint32_t kBlocksPerWr = 4;

struct CmId;
struct Qp;
class Process;

struct Device : ibv_device {
  DeviceConfig config;
  unsigned index = 0;
  DeviceEntry* entry = nullptr;
  uint8_t mac[6] = {};
  std::string pci;
  bool active() const noexcept { return entry->up.load(std::memory_order_relaxed) != 0; }
};

struct Context : verbs_context {
  Process* process = nullptr;
  Device* device = nullptr;
  std::atomic<int> children{0};
  // Async events. The semaphore async_fd counts the entries of `events`.
  std::mutex events_mutex;
  std::deque<ibv_async_event> events;
  std::vector<ibv_qp*> unacknowledged;  ///< the queue pair of each event that was taken
  std::condition_variable acknowledged;

  static Context& from(ibv_context* c) noexcept { return *static_cast<Context*>(verbs_get_ctx(c)); }
  void raise(const ibv_async_event& event);
};

struct Pd : ibv_pd {
  std::atomic<int> children{0};
};

struct Mr : ibv_mr {
  unsigned long pinned = 0;  ///< pin of a simulated GPU's memory, registered by its address
  void* mapped = nullptr;    ///< mapping of a dmabuf
  size_t mapped_length = 0;
};

struct Channel : ibv_comp_channel {
  uint32_t number = 0;
  int write_fd = -1;
  std::atomic<int> cqs{0};
};

/// A completion that this process produced: of a send, or of any flushed request.
struct LocalCqe {
  uint64_t wr_id;
  uint32_t qpn;
  uint32_t length;
  uint32_t sq_ci;  ///< the send queue is free up to here once this is polled
  uint8_t opcode;
  uint8_t status;
  bool receive;
  bool reading;  ///< the request counts as an outstanding READ or atomic
};

/// A completion that a fault holds back until `due_ns`.
struct HeldCqe {
  ibv_wc wc;
  uint64_t due_ns;
};

struct Cq : ibv_cq {
  Mapping map;
  Channel* comp_channel = nullptr;
  uint32_t size = 0;
  std::atomic<int> users{0};
  std::atomic<uint32_t> got_events{0};
  std::atomic<uint32_t> acked_events{0};
  SpinLock lock;  ///< guards all members below
  std::atomic<uint64_t> head{0};
  std::unique_ptr<LocalCqe[]> local;
  std::atomic<uint64_t> local_head{0};
  std::atomic<uint64_t> local_tail{0};
  uint64_t overruns_reported = 0;
  std::deque<HeldCqe> held;

  CqShared& shared() const noexcept { return *map.as<CqShared>(); }
  CqSlot& slot(uint64_t position) const noexcept {
    return map.as<CqShared>()->slots()[position & (size - 1)];
  }
};

/// A work request as the device has fetched it.
struct Work {
  uint64_t wr_id;
  uint64_t remote_address;
  uint64_t compare_add;
  uint64_t swap;
  uint32_t rkey;
  uint32_t imm;
  uint32_t sq_ci;  ///< producer index after this request
  uint32_t length;
  uint8_t opcode;
  uint8_t sges;
  bool signaled;
  bool solicited;
  bool inlined;
  ibv_sge sge[kMaxSge];
};

/// A work request that could not be executed at once; owns its inline data.
struct PendingWork {
  Work work;
  std::vector<std::byte> data;
  uint64_t first_try_ns = 0;
};

/// The peer of a connected queue pair.
struct Remote {
  std::shared_ptr<PeerProcess> process;
  std::shared_ptr<RemoteCq> cq;
  Mapping map;
  DeviceEntry* device = nullptr;
  uint64_t ring_head_seen = 0;
  uint64_t rq_head = 0;
  uint64_t ring_tail = 0;
  bool announced = false;
  QpShared& shared() const noexcept { return *map.as<QpShared>(); }
};

struct Qp : ibv_qp {
  Device* device = nullptr;
  Context* owner = nullptr;
  Mapping map;
  uint32_t index = 0;
  ibv_qp_cap cap{};
  bool signal_all = false;
  bool compat = false;
  uint32_t sq_blocks = 0;
  // Compat mode: the destination that ibv_modify_qp() set.
  uint32_t dest_qpn = 0;
  uint32_t dest_ip = 0;
  ibv_qp_attr attr{};
  // Standard mode: the rdma_cm id, and whether this is the passive side.
  CmId* cm = nullptr;
  bool passive = false;
  std::atomic<bool> failed{false};  ///< set by the data path; the thread ends the connection

  SpinLock sq_lock;  ///< guards the send queue and `remote`
  uint32_t sq_pi = 0;
  std::atomic<uint32_t> sq_ci{0};  ///< set when a completion is polled
  std::atomic<uint32_t> reads{0};
  bool reads_reported = false;
  std::deque<PendingWork> pending;
  std::unique_ptr<Remote> remote;
  uint64_t sent = 0;
  uint64_t drop_after = UINT64_MAX;

  SpinLock rq_lock;  ///< guards the receive queue's tail
  uint64_t rq_tail = 0;
  std::atomic<uint64_t> rq_ci{0};  ///< set when a completion is polled
  std::atomic<bool> kicked{false};

  QpShared& shared() const noexcept { return *map.as<QpShared>(); }
  uint32_t current() const noexcept { return shared().state.load(std::memory_order_acquire); }
  void become(ibv_qp_state next) noexcept {
    shared().state.store(next, std::memory_order_seq_cst);
    ibv_qp::state = next;
  }
  static Qp& from(ibv_qp* qp) noexcept { return *static_cast<Qp*>(qp); }
};

}  // namespace softerdma
