#pragma once

#include <atomic>

#include "softerdma/data_path.h"
#include "softerdma/objects.h"

/// Faults on demand: README.md has the language. The data path asks faults_active() first.
namespace softerdma {

extern std::atomic<bool> faults_on;
inline bool faults_active() noexcept {
  return faults_on.load(std::memory_order_relaxed);
}

/// From the variable and the file; also watches the file from then on (poll_fault_file).
void load_faults(Process& process);
/// Reads the file again if it changed.
void poll_fault_file(Process& process);
bool fault_file_watched() noexcept;
/// Adds what one line says. False, with a note, if it says nothing.
bool add_fault(Process& process, const char* line);

/// True if the n-th work request is this one; `result` is what becomes of it. Outcome::lost: it is
/// neither tried again nor ever completed.
bool fault_on_work(Process& process, Qp& qp, const Work& work, Executed& result);
bool flush_withheld() noexcept;
/// 0 or the errno of each command of the adapter, whose queue is dead.
int fault_on_command(const Device& device, bool makes) noexcept;
/// 0 or the errno with which a registration fails.
int fault_on_registration() noexcept;
enum class ConnectFault : uint8_t { none, refuse, hang };
ConnectFault fault_on_connect(uint16_t port) noexcept;
int poll_with_faults(Process& process, Cq& cq, int most, ibv_wc* wc);
/// Writes the events of completions whose time has come. True while some wait.
bool release_held(Process& process);

}  // namespace softerdma
