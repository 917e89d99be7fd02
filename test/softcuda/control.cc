// Counts of calls, faults, and the settings in variables.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

#include "softcuda/driver.h"
#include "softcuda/state.h"

namespace softcuda {
namespace {

/// Executes one line. Caller holds the mutex, or is the constructor.
bool obey(State& state, const std::string& line) {
  std::istringstream words(line);
  std::string command, word;
  if (!(words >> command)) return true;
  if (command == "clear") {
    state.faults.clear();
    return true;
  }
  if (command == "dmabuf" || command == "ipc") {
    if (!(words >> word) || (word != "on" && word != "off")) return false;
    (command == "ipc" ? state.ipc : state.dmabuf) = word == "on";
    return true;
  }
  if (command == "free") {
    if (!(words >> word) || (word != "waits" && word != "goes" && word != "locks")) return false;
    state.free_waits = word != "goes";
    state.free_locks = word == "locks";
    return true;
  }
  if (command == "release") return bool(words >> state.released_in);
  if (command == "ordering") return bool(words >> state.ordering);
  Fault fault;
  if (command != "fail" || !(words >> fault.function)) return false;
  while (words >> word) {
    const size_t equals = word.find('=');
    if (equals == word.npos) return false;
    const unsigned long value = std::strtoul(word.c_str() + equals + 1, nullptr, 10);
    const std::string name = word.substr(0, equals);
    if (name == "error")
      fault.error = Result(value);
    else if (name == "n")
      fault.n = value;
    else if (name == "times")
      fault.times = value;
    else
      return false;
  }
  if (fault.error == kSuccess || fault.n == 0) return false;
  state.faults.push_back(fault);
  return true;
}

}  // namespace

State::State() {
  if (const char* text = std::getenv("SOFTCUDA_DEVICES")) {
    devices = std::atoi(text);
    if (devices < 0 || devices > kMaxDevices) devices = 1;
  }
  for (int i = 0; i < kMaxDevices; ++i) primary[i].device = i;
  for (const char* variable : {"SOFTCUDA_CONTROL"}) {
    const char* text = std::getenv(variable);
    std::istringstream lines(text ? text : "");
    for (std::string line; std::getline(lines, line, ';');) obey(*this, line);
  }
}

State& state() {
  static State* const made = new State;  // outlives every thread and destructor
  return *made;
}

Allocation* State::find(uintptr_t pointer, size_t length) {
  auto after = allocations.upper_bound(pointer);
  if (after == allocations.begin()) return nullptr;
  Allocation& found = std::prev(after)->second;
  const uintptr_t offset = pointer - found.base;
  return offset < found.size && length <= found.size - offset ? &found : nullptr;
}

std::byte* State::bytes(uintptr_t pointer, size_t length, Device reader) {
  const Allocation* const first = find(pointer, 1);
  for (uintptr_t at = pointer; first;) {
    const Allocation* const one = find(at, 1);
    if (!one || (reader >= 0 && !(one->readers >> reader & 1))) return nullptr;
    if (length <= one->base + one->size - pointer) return first->alias + (pointer - first->base);
    at = one->base + one->size;
    if (!one->physical) return nullptr;
  }
  return nullptr;
}

Result enter(const char* function, Needs needs) {
  State& s = state();
  std::lock_guard guard(s.mutex);
  ++s.calls[function];
  if (s.initialized && s.initialized_in != getpid()) return kNotInitialized;
  if (s.released_in == function) {
    s.released_in.clear();
    if (s.primary[0].retained > 0) s.release(s.primary[0]);
  }
  for (auto fault = s.faults.begin(); fault != s.faults.end(); ++fault) {
    if (fault->function != function || --fault->n > 0) continue;
    const Result error = fault->error;
    fault->n = 1;
    if (--fault->times == 0) s.faults.erase(fault);
    return error;
  }
  if (needs != Needs::nothing && !s.initialized) return kNotInitialized;
  if (needs == Needs::context) {
    const ContextState* const context = current_context();
    if (!context) return kInvalidContext;
    for (const ContextState& primary : s.primary)
      if (context == &primary && primary.retained == 0) return kContextDestroyed;
  }
  return refuse_beside_captures(s, function);
}

}  // namespace softcuda

using namespace softcuda;

extern "C" {

int softcuda_control(const char* line) {
  std::lock_guard guard(state().mutex);
  return obey(state(), line) ? 0 : -1;
}

unsigned long softcuda_calls(const char* function) {
  State& s = state();
  std::lock_guard guard(s.mutex);
  if (function) return s.calls[function];
  unsigned long all = 0;
  for (const auto& [name, calls] : s.calls) all += calls;
  return all;
}

void* softcuda_alias(const void* pointer, size_t length) {
  State& s = state();
  std::lock_guard guard(s.mutex);
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  return s.bytes(address, length);
}

int softcuda_device(const void* pointer) {
  State& s = state();
  std::lock_guard guard(s.mutex);
  const Allocation* found = s.find(reinterpret_cast<uintptr_t>(pointer), 1);
  return found ? found->device : -1;
}

unsigned long softcuda_pin(const void* pointer) {
  State& s = state();
  std::lock_guard guard(s.mutex);
  Allocation* const found = s.find(reinterpret_cast<uintptr_t>(pointer), 1);
  if (!found) return 0;
  ++found->pins;
  return found->buffer_id;
}

void softcuda_unpin(unsigned long pinned) {
  State& s = state();
  std::lock_guard guard(s.mutex);
  for (auto& [base, one] : s.allocations)
    if (one.buffer_id == pinned && one.pins > 0) --one.pins;
  s.unpinned.notify_all();
}

int softcuda_device_of_dmabuf(int fd) {
  struct stat asked {
  }, known{};
  if (fstat(fd, &asked)) return -1;
  State& s = state();
  std::lock_guard guard(s.mutex);
  for (const auto& [base, one] : s.allocations)
    if (fstat(one.fd, &known) == 0 && known.st_ino == asked.st_ino && known.st_dev == asked.st_dev)
      return one.device;
  return -1;
}
}
