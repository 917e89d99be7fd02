#include "softerdma/fault.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "softerdma/device.h"
#include "softerdma/options.h"
#include "softerdma/process.h"
#include "softerdma/report.h"

namespace softerdma {

std::atomic<bool> faults_on{false};

namespace {

/// A line of the fault language: words and name=value pairs.
struct Fault {
  std::string kind;
  std::string action;
  std::map<std::string, std::string> values;
  uint64_t seen = 0;

  uint64_t number(const char* name, uint64_t fallback) const {
    auto found = values.find(name);
    return found == values.end() ? fallback : parse_number(found->second, fallback);
  }
  bool matches(const char* name, const std::string& actual) const {
    auto found = values.find(name);
    return found == values.end() || found->second == actual;
  }
  /// Counts an event. Returns true for `times` events, beginning with the n-th.
  bool strikes() {
    uint64_t n = number("n", 1);
    ++seen;
    return seen >= n && seen - n < number("times", 1);
  }
};

// Never destroyed: the adapter's thread outlives static objects.
std::mutex& faults_mutex = *new std::mutex;  // guards faults; taken after any lock of a queue
std::vector<Fault>& faults = *new std::vector<Fault>;
std::string& file_path = *new std::string;
timespec file_time{};

struct StatusName {
  const char* name;
  ibv_wc_status status;
};
constexpr StatusName kStatuses[] = {
    {"general", IBV_WC_GENERAL_ERR},     {"rem_access", IBV_WC_REM_ACCESS_ERR},
    {"loc_qp_op", IBV_WC_LOC_QP_OP_ERR}, {"loc_access", IBV_WC_LOC_ACCESS_ERR},
    {"flush", IBV_WC_WR_FLUSH_ERR},      {"retry_exc", IBV_WC_RETRY_EXC_ERR},
};

const char* opcode_name(uint8_t opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return "write";
    case IBV_WR_RDMA_READ:
      return "read";
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return "atomic";
    default:
      return "send";
  }
}

bool exists(const char* kind, const char* action) {
  std::lock_guard guard(faults_mutex);
  return std::any_of(faults.begin(), faults.end(),
                     [&](const Fault& f) { return f.kind == kind && f.action == action; });
}

/// Sets the port's state in the fabric, unless only its address moves, and tells all processes that
/// have the device.
void set_port(Process& process, const Fault& fault) {
  bool up = fault.action == "up", moved = fault.action == "moved";
  for (const auto& device : process.devices) {
    if (!fault.matches("dev", device->name) || (!moved && device->active() == up)) continue;
    if (!moved) {
      device->entry->up.store(up ? 1 : 0);
      write_port_state(*device);
    }
    Message message{};
    message.type = moved ? MessageType::moved : MessageType::port_event;
    message.source_ip = device->config.ip;
    message.status = up ? 1 : 0;
    for (uint32_t slot = 0; slot < kMaxProcesses; ++slot) {
      ProcessEntry& entry = process.fabric.shared().processes[slot];
      bool has = std::any_of(std::begin(entry.devices), std::end(entry.devices),
                             [&](auto& d) { return d.ip.load() == device->config.ip; });
      if (has) process.send(slot, entry.generation.load(), message);
    }
  }
}

bool parse(const std::string& line, Fault& fault) {
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    if (word[0] == '#') break;
    size_t equals = word.find('=');
    if (equals != std::string::npos) {
      fault.values[word.substr(0, equals)] = word.substr(equals + 1);
    } else if (fault.kind.empty()) {
      fault.kind = word;
    } else {
      fault.action = word;
    }
  }
  static const char* const known[] = {"wr",   "drop", "connect",  "completions", "flush",
                                      "port", "reg",  "commands", "clear"};
  return fault.kind.empty() || std::any_of(std::begin(known), std::end(known),
                                           [&](const char* k) { return fault.kind == k; });
}

bool take_into(Process& process, Cq& cq) {
  ibv_wc wc{};
  bool any = false;
  uint64_t delay = 0;
  {
    std::lock_guard guard(faults_mutex);
    for (const Fault& fault : faults) {
      if (fault.kind == "completions" && fault.action == "delay") {
        delay = fault.number("us", 1000) * 1000;
      }
    }
  }
  while (take(process, cq, wc)) {
    cq.held.push_back({wc, now_ns() + delay});
    any = true;
  }
  return any;
}

}  // namespace

bool add_fault(Process& process, const char* line) {
  Fault fault;
  if (!parse(line, fault)) {
    note("fault not understood: %s", line);
    return false;
  }
  if (fault.kind.empty()) return true;
  if (fault.kind == "port") {
    set_port(process, fault);
    return true;
  }
  std::lock_guard guard(faults_mutex);
  if (fault.kind == "clear") {
    faults.clear();
  } else {
    faults.push_back(fault);
  }
  // The flag stays set, as completions may be held.
  if (!faults.empty()) faults_on.store(true);
  return true;
}

static void add_lines(Process& process, std::istream& lines) {
  for (std::string line; std::getline(lines, line);) {
    std::istringstream parts(line);
    for (std::string part; std::getline(parts, part, ';');) add_fault(process, part.c_str());
  }
}

void load_faults(Process& process) {
  if (const char* text = std::getenv("SOFTERDMA_FAULT"); text != nullptr) {
    std::istringstream lines(text);
    add_lines(process, lines);
  }
  const char* path = std::getenv("SOFTERDMA_FAULTS");
  file_path = path == nullptr ? "" : path;
  file_time = {};
  poll_fault_file(process);
}

bool fault_file_watched() noexcept {
  return !file_path.empty();
}

void poll_fault_file(Process& process) {
  struct stat status {};
  if (file_path.empty() || stat(file_path.c_str(), &status) != 0) return;
  if (status.st_mtim.tv_sec == file_time.tv_sec && status.st_mtim.tv_nsec == file_time.tv_nsec) {
    return;
  }
  file_time = status.st_mtim;
  add_fault(process, "clear");
  std::ifstream lines(file_path);
  add_lines(process, lines);
}

bool fault_on_work(Process&, Qp& qp, const Work& work, Executed& result) {
  std::lock_guard guard(faults_mutex);
  for (Fault& fault : faults) {
    bool drop = fault.kind == "drop";
    if (!drop && fault.kind != "wr") continue;
    if (!fault.matches("qp", std::to_string(qp.qp_num)) || !fault.matches("dev", qp.device->name) ||
        !fault.matches("op", opcode_name(work.opcode)) || !fault.strikes()) {
      continue;
    }
    result = {Outcome::killed, IBV_WC_GENERAL_ERR, Cause::fault, false};
    for (const StatusName& known : kStatuses) {
      if (auto status = fault.values.find("status");
          status != fault.values.end() && status->second == known.name) {
        result.status = known.status;
      }
    }
    if (!drop && fault.values["status"] == "none") result.outcome = Outcome::lost;
    result.peer_too = !drop && result.status == IBV_WC_REM_ACCESS_ERR;
    return true;
  }
  return false;
}

bool flush_withheld() noexcept {
  return faults_active() && exists("flush", "withhold");
}

int fault_on_command(const Device& device, bool makes) noexcept {
  if (!faults_active()) return 0;
  std::lock_guard guard(faults_mutex);
  for (const Fault& fault : faults)
    if (fault.kind == "commands" && fault.matches("dev", device.config.name) &&
        (makes || fault.action != "make"))
      return fault.matches("errno", "ETIME") ? ETIME : ENODEV;
  return 0;
}

int fault_on_registration() noexcept {
  if (!faults_active()) return 0;
  std::lock_guard guard(faults_mutex);
  for (Fault& fault : faults) {
    if (fault.kind != "reg" || !fault.strikes()) continue;
    return fault.matches("errno", "ENOMEM")   ? ENOMEM
           : fault.matches("errno", "EFAULT") ? EFAULT
                                              : EIO;
  }
  return 0;
}

ConnectFault fault_on_connect(uint16_t port) noexcept {
  if (!faults_active()) return ConnectFault::none;
  std::lock_guard guard(faults_mutex);
  for (Fault& fault : faults) {
    if (fault.kind != "connect" || !fault.matches("port", std::to_string(port))) continue;
    if (!fault.strikes()) continue;
    return fault.action == "hang" ? ConnectFault::hang : ConnectFault::refuse;
  }
  return ConnectFault::none;
}

int poll_with_faults(Process& process, Cq& cq, int most, ibv_wc* wc) {
  std::lock_guard guard(cq.lock);
  take_into(process, cq);
  if (exists("completions", "withhold")) return 0;
  bool reorder = exists("completions", "reorder");
  int got = 0;
  uint64_t now = now_ns();
  while (got < most && !cq.held.empty()) {
    auto next = cq.held.begin();
    // Takes the first completion of the queue pair that completed last, so each queue pair keeps
    // its order.
    if (reorder) {
      uint32_t last = cq.held.back().wc.qp_num;
      next = std::find_if(cq.held.begin(), cq.held.end(),
                          [last](const HeldCqe& held) { return held.wc.qp_num == last; });
    }
    if (next->due_ns > now) break;
    wc[got++] = next->wc;
    cq.held.erase(next);
  }
  return got;
}

bool release_held(Process& process) {
  if (!faults_active()) return false;
  bool delayed = exists("completions", "delay");
  if (exists("completions", "withhold")) return false;
  std::lock_guard guard(process.cqs_mutex);
  bool waiting = delayed;
  for (auto& [number, cq] : process.cqs) {
    std::lock_guard cq_guard(cq->lock);
    if (cq->held.empty() || cq->held.front().due_ns > now_ns()) continue;
    if (cq->comp_channel != nullptr) ring_event(cq->shared(), true, cq->comp_channel->write_fd);
    waiting = true;
  }
  return waiting;
}

}  // namespace softerdma

/// A function for tests: executes one line of the fault language for the calling process. Returns 0
/// or EINVAL.
SOFTERDMA_API int softerdma_control(const char* line) {
  softerdma::Process* process = softerdma::Process::get();
  if (process == nullptr) return ENODEV;
  int rc = softerdma::add_fault(*process, line) ? 0 : EINVAL;
  process->tell(softerdma::MessageType::kick);
  return rc;
}

/// A function for tests: returns the number of violations that this process has reported.
SOFTERDMA_API uint64_t softerdma_violations() {
  return softerdma::violations();
}
