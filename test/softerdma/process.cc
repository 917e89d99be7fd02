#include "softerdma/process.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "softerdma/cm.h"
#include "softerdma/device.h"
#include "softerdma/fault.h"
#include "softerdma/fork.h"
#include "softerdma/report.h"

namespace softerdma {
namespace {

std::atomic<Process*> the_process{nullptr};
std::atomic<bool> exiting{false};
std::mutex make_mutex;  // usable during exit, as it is trivially destructible

/// Removes the files of a process that exits. After any other end, its successor removes them.
__attribute__((destructor)) void at_exit() {
  exiting.store(true);
  delete the_process.exchange(nullptr);
}

}  // namespace

uint64_t now_ns() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

Process* Process::existing() noexcept {
  return the_process.load(std::memory_order_acquire);
}

void Process::part_before_fork() {
  if (Process* process = existing()) part_from_children(*process);
}

/// The child keeps the parent's objects untouched: their threads do not exist here, and their files
/// belong to the parent.
void Process::abandon_in_child() {
  the_process.store(nullptr);
  new (&make_mutex) std::mutex;
}

Process* Process::get() {
  if (Process* process = existing()) return process;
  if (exiting.load()) {
    errno = ENODEV;
    return nullptr;
  }
  std::lock_guard guard(make_mutex);
  if (Process* process = existing()) return process;
  static bool registered = pthread_atfork(part_before_fork, nullptr, abandon_in_child) == 0;
  static_cast<void>(registered);
  // Other processes move data into and out of this one, as an adapter does.
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  std::unique_ptr<Process> process(new Process);
  if (!process->set_up()) {
    errno = ENODEV;
    return nullptr;
  }
  Process* made = process.release();
  the_process.store(made, std::memory_order_release);
  made->start_thread();
  return made;
}

bool Process::set_up() {
  if (fabric.join() != 0) return false;
  std::string wake = fabric.own_path("wake");
  if (mkfifo(wake.c_str(), 0600) != 0) return false;
  x_wake = open(wake.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  fcntl(x_wake, F_SETPIPE_SZ, 256 * 1024);
  devices = make_devices(fabric);
  uint64_t most = 1024;
  for (const auto& device : devices) most = std::max(most, device->config.limits.max_mr);
  mrs = Mapping::create(fabric.own_path("mr"), (most + 1) * sizeof(MrEntry));
  if (!mrs) return false;
  mr_generation.assign(most + 1, static_cast<uint8_t>(fabric.slot() * 37 + 1));
  cm = std::make_unique<CmState>(*this);
  x_self = peer(fabric.slot(), fabric.generation());
  load_faults(*this);
  return x_self != nullptr;
}

uint64_t Process::of_host(const Device& device,
                          std::atomic<uint32_t> ProcessEntry::OnDevice::*count) noexcept {
  uint64_t sum = 0;
  for (const ProcessEntry& entry : fabric.shared().processes) {
    if (entry.pid.load() == 0) continue;
    for (const auto& one : entry.devices)
      if (one.ip.load() == device.config.ip) sum += (one.*count).load();
  }
  return sum;
}

Process::~Process() {
  stop_thread();
  cm.reset();
  x_self.reset();
  x_peers.clear();
  if (x_wake >= 0) close(x_wake);
  fabric.leave();
}

std::shared_ptr<PeerProcess> Process::peer(uint32_t slot, uint32_t generation) {
  if (slot >= kMaxProcesses) return nullptr;
  std::lock_guard guard(x_peers_mutex);
  auto key = std::pair(slot, generation);
  auto known = x_peers.find(key);
  if (known != x_peers.end()) return known->second->dead.load() ? nullptr : known->second;
  auto made = std::make_shared<PeerProcess>(slot, generation);
  if (!made->attach(fabric)) return nullptr;
  x_peers.emplace(key, made);
  // The thread watches the peer from its next round on.
  if (x_self != nullptr) tell(MessageType::kick);
  return made;
}

void Process::send(uint32_t slot, uint32_t generation, Message message) {
  std::shared_ptr<PeerProcess> target = peer(slot, generation);
  if (target == nullptr) return;
  message.from_slot = fabric.slot();
  message.from_generation = fabric.generation();
  target->send(message);
  if (!target->flush()) x_queued_messages.store(true);
}

void Process::tell(MessageType type, uint32_t qpn, int32_t status) {
  Message message{};
  message.type = type;
  message.qpn = qpn;
  message.status = status;
  message.from_slot = fabric.slot();
  message.from_generation = fabric.generation();
  if (x_self != nullptr) x_self->send(message);
}

std::string Process::held() {
  std::lock_guard guard(mutex);
  std::lock_guard cqs_guard(cqs_mutex);
  size_t made_qps = 0;
  for (uint32_t i = 0; i < highest_qp; ++i) made_qps += qps[i].load() != nullptr;
  const std::pair<const char*, size_t> counts[] = {
      {"contexts", contexts.size() - cm->own_contexts()},
      {"protection domains", pds.load()},
      {"memory regions", used_mrs - free_mrs.size()},
      {"completion channels", channels.load()},
      {"completion queues", cqs.size()},
      {"queue pairs", made_qps},
      {"rdma_cm ids", cm->ids.size()}};
  std::string text;
  for (const auto& [what, count] : counts) {
    if (count == 0) continue;
    text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + what;
  }
  return text;
}

}  // namespace softerdma

/// A function for tests: leaves the network, as at the end of the process, unless the application
/// holds objects. Returns their names, valid until the next call, or null if there are none.
SOFTERDMA_API const char* softerdma_leave() {
  using softerdma::Process;
  static std::string text;
  Process* process = Process::existing();
  if (process == nullptr) return nullptr;
  text = process->held();
  if (!text.empty()) return text.c_str();
  delete softerdma::the_process.exchange(nullptr);
  return nullptr;
}
