#pragma once

#include <atomic>

#include "softerdma/data_path.h"
#include "softerdma/objects.h"

/// Faults on demand. README.md describes the language. The data path checks faults_active() first.
namespace softerdma {

extern std::atomic<bool> faults_on;
inline bool faults_active() noexcept {
  return faults_on.load(std::memory_order_relaxed);
}

/// Reads the variable and the file. From then on, poll_fault_file() watches the file.
void load_faults(Process& process);
/// Reads the file again if it changed.
void poll_fault_file(Process& process);
bool fault_file_watched() noexcept;
/// Adds the fault of one line. If the line is invalid, logs a note and returns false.
bool add_fault(Process& process, const char* line);

/// Returns true if a fault hits this work request, and sets `result`. With Outcome::lost, the
/// request is neither retried nor completed.
bool fault_on_work(Process& process, Qp& qp, const Work& work, Executed& result);
bool flush_withheld() noexcept;
/// Returns 0 or the errno of a command of the adapter while its queue is dead.
int fault_on_command(const Device& device, bool makes) noexcept;
/// Returns 0 or the errno with which a registration fails.
int fault_on_registration() noexcept;
enum class ConnectFault : uint8_t { none, refuse, hang };
ConnectFault fault_on_connect(uint16_t port) noexcept;
int poll_with_faults(Process& process, Cq& cq, int most, ibv_wc* wc);
/// Writes the events of completions whose time has come. Returns true while some wait.
bool release_held(Process& process);

}  // namespace softerdma
