#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "softerdma/fabric.h"
#include "softerdma/objects.h"

namespace softerdma {

class CmState;

/// The simulation's part of this process: its membership, devices and tables of objects, and the
/// thread that acts as the adapter. It is made on first use. A forked child makes one of its own.
///
/// `mutex` guards everything that is not on the data path. Order of locks: mutex, sq_lock, rq_lock,
/// Cq::lock; peers_mutex may be taken within any of them.
class Process {
 public:
  /// Returns the process's object, or null (errno has the reason). Makes it on first use.
  static Process* get();
  /// Returns the process's object, or null if there is none yet.
  static Process* existing() noexcept;

  ~Process();

  Fabric fabric;
  std::mutex mutex;
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<Context*> contexts;
  std::unique_ptr<CmState> cm;

  // Tables.
  std::atomic<Qp*> qps[kQpsPerProcess] = {};
  uint32_t next_qp = 2;     ///< first index to try as a free number
  uint32_t highest_qp = 0;  ///< qps[] is empty from here on
  Mapping mrs;
  std::deque<uint32_t> free_mrs;  ///< used again as late as possible
  uint32_t used_mrs = 0;
  /// The adapter's own pages of each entry that a fork took its memory from, by index.
  std::map<uint32_t, std::pair<void*, size_t>> diverted;
  uint64_t registered_bytes = 0;
  std::vector<uint8_t> mr_generation;
  uint32_t next_number = 1;  ///< next number of a PD, CQ or channel
  std::atomic<uint32_t> pds{0}, channels{0};
  std::unordered_map<uint32_t, Cq*> cqs;
  std::mutex cqs_mutex;  ///< guards cqs; taken before Cq::lock

  MrEntry* mr(uint32_t key) noexcept {
    size_t index = key >> 8;
    return (index + 1) * sizeof(MrEntry) <= mrs.size() ? mrs.as<MrEntry>() + index : nullptr;
  }
  Qp* qp(uint32_t qpn) noexcept {
    if (qpn >> kQpBits != fabric.slot()) return nullptr;
    return qps[qpn & (kQpsPerProcess - 1)].load(std::memory_order_acquire);
  }
  ProcessEntry::OnDevice& counts(const Device& device) noexcept {
    return fabric.self().devices[device.index];
  }
  /// Counts the objects of all living processes on the device of this host.
  uint64_t of_host(const Device& device,
                   std::atomic<uint32_t> ProcessEntry::OnDevice::*count) noexcept;

  std::shared_ptr<PeerProcess> peer(uint32_t slot, uint32_t generation);
  std::shared_ptr<PeerProcess> self() { return x_self; }
  void send(uint32_t slot, uint32_t generation, Message message);
  /// Lists the objects that the application holds. An empty string means none.
  std::string held();
  /// Sends a message to this process's own thread.
  void tell(MessageType type, uint32_t qpn = 0, int32_t status = 0);

  // thread.cc
  void start_thread();
  void stop_thread();

 private:
  Process() = default;
  static void part_before_fork();
  static void abandon_in_child();
  bool set_up();

  // thread.cc
  void run();
  void handle(const Message& message);
  void drain_messages();
  void watch_peers();
  void peer_died(const std::shared_ptr<PeerProcess>& peer);
  void run_pending();
  int timeout();

  std::thread x_thread;
  int x_wake = -1;
  int x_epoll = -1;
  std::shared_ptr<PeerProcess> x_self;
  std::mutex x_peers_mutex;
  std::map<std::pair<uint32_t, uint32_t>, std::shared_ptr<PeerProcess>> x_peers;
  std::atomic<bool> x_queued_messages{false};
  std::vector<uint32_t> x_waiting;  ///< queue pairs with waiting work requests
  bool x_pending_work = false;
  bool x_stop = false;
};

uint64_t now_ns() noexcept;

}  // namespace softerdma
