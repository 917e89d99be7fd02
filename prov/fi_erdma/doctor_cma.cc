#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "fi_erdma/doctor.h"

namespace fi_erdma {
namespace {

/// How the reading process is related to the process that it reads. A stranger has only init as a
/// common ancestor with it, like ranks of two launchers.
enum class Kin { parent, sibling, stranger };

std::string policy() {
  return variable("FI_ERDMA_PTRACER");
}

/// The mode of seccomp as the kernel shows it: "2" if a filter is active, as in most containers.
/// Empty if this kernel shows none.
std::string seccomp_mode() {
  constexpr char kName[] = "Seccomp:\t";
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(kName)) return line.substr(sizeof(kName) - 1);
  return {};
}

/// Empty if this kernel has no Yama.
std::string ptrace_scope() {
  return first_line("/proc/sys/kernel/yama/ptrace_scope");
}

constexpr char kBefore[] = "before", kAfter[] = "after!";

/// Sets PR_SET_PTRACER as the provider does: any process, none, or the nearest common ancestor.
void admit(Kin kin) {
  if (policy() == "any") prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  if (policy() == "any" || policy() == "none" || kin != Kin::sibling) return;
  prctl(PR_SET_PTRACER, getppid(), 0, 0, 0);
}

/// A process whose memory is read until it is killed.
[[noreturn]] void be_seen(Kin kin, int ready) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  admit(kin);
  const char byte = 1;
  if (write(ready, &byte, 1) != 1) _exit(1);
  for (;;) pause();
}

/// Copies and compares in both directions. Returns an empty string, or the call that failed with
/// its error.
std::string move_by_cma(pid_t peer, char* memory) {
  char here[sizeof(kBefore)] = {};
  const iovec local{here, sizeof(here)}, remote{memory, sizeof(here)};
  if (process_vm_readv(peer, &local, 1, &remote, 1, 0) != ssize_t(sizeof(here)))
    return std::string("process_vm_readv: ") + std::strerror(errno);
  if (std::memcmp(here, kBefore, sizeof(here)) != 0) return "process_vm_readv: other bytes came";
  std::memcpy(here, kAfter, sizeof(here));
  if (process_vm_writev(peer, &local, 1, &remote, 1, 0) != ssize_t(sizeof(here)))
    return std::string("process_vm_writev: ") + std::strerror(errno);
  return {};
}

/// Writes whether the copy was tried, and its fault, to `told`. `go` reaches its end when no
/// process waits any more.
[[noreturn]] void look(pid_t peer, char* memory, int go, int told) {
  char byte;
  if (read(go, &byte, 1) != 1) _exit(1);
  const std::string text = "+" + move_by_cma(peer, memory);
  _exit(write(told, text.data(), text.size()) < 0);
}

/// Returns the fault that another process found; that process ends meanwhile.
std::string look_from_another(Kin kin, pid_t peer, char* memory) {
  int go[2], told[2];
  if (pipe2(go, O_CLOEXEC) || pipe2(told, O_CLOEXEC))
    return std::string("pipe: ") + std::strerror(errno);
  const pid_t child = fork();
  if (child < 0) return std::string("fork: ") + std::strerror(errno);
  if (child == 0) {
    close(go[1]);
    // After its parent has ended, no process here is an ancestor of the other.
    if (const pid_t other = kin == Kin::stranger ? fork() : 0) _exit(other < 0);
    look(peer, memory, go[0], told[1]);
  }
  close(told[1]);
  if (kin == Kin::stranger) waitpid(child, nullptr, 0);
  char text[256] = {};
  const bool tried = write(go[1], "", 1) == 1 && read(told[0], text, sizeof(text) - 1) > 0;
  return tried ? text + 1 : "the process that tried it was ended";
}

Json try_cma(Kin kin) {
  char memory[sizeof(kBefore)];
  std::memcpy(memory, kBefore, sizeof(memory));
  int ends[2], byte = 0;
  if (pipe2(ends, O_CLOEXEC)) return {{"error", std::strerror(errno)}};
  const pid_t peer = fork();
  if (peer == 0) be_seen(kin, ends[1]);
  const std::string fault = peer < 0 || read(ends[0], &byte, 1) != 1 ? "no other process"
                            : kin == Kin::parent                     ? move_by_cma(peer, memory)
                                                 : look_from_another(kin, peer, memory);
  if (peer > 0) kill(peer, SIGKILL), waitpid(peer, nullptr, 0);
  return fault.empty() ? Json::object() : Json{{"error", fault}};
}

std::string trouble_between(Kin kin) {
  return trouble_of(try_apart({}, [&] { return try_cma(kin); }));
}

std::string cause_of_refusal() {
  const std::string scope = ptrace_scope();
  if (seccomp_mode() == "2")
    return "a seccomp filter may refuse it (docker: --security-opt seccomp=..., or a newer docker)";
  if (scope == "2" || scope == "3")
    return "kernel.yama.ptrace_scope is " + scope +
           ": sysctl kernel.yama.ptrace_scope=1 permits it";
  return "the kernel, a security module or a user namespace refuses it";
}

void report_refusal(Report& report, const std::string& trouble, const std::string& cost) {
  const auto with_cost = [&](std::string remedy) {
    std::vector<std::string> more = {std::move(remedy)};
    if (!cost.empty()) more.push_back(cost);
    return more;
  };
  if (!trouble_between(Kin::parent).empty())
    return report.slower(
        "W401", "CMA between processes is refused, so long messages are copied twice: " + trouble,
        with_cost(cause_of_refusal()));
  report.slower(
      "W401",
      "CMA works from a parent to its child alone, not between ranks, so long messages "
      "are copied twice: " +
          trouble,
      with_cost(policy() == "none" ? "FI_ERDMA_PTRACER=none admits no other process: unset it"
                                   : "sysctl kernel.yama.ptrace_scope=0 permits it"));
}

/// Where CMA works between two children of one process.
void report_permission(Report& report) {
  const std::string other = trouble_between(Kin::stranger);
  if (other.empty())
    report.ok("CMA both ways between processes, also without a common launcher");
  else
    report.ok(
        fmt::format("CMA both ways between processes of one launcher; those of others copy: {} "
                    "(FI_ERDMA_PTRACER=any admits them)",
                    other));
}

void report_cost(Report& report, const std::string& cost) {
  if (is_switched_off("FI_ERDMA_CMA"))
    report.slower("W405",
                  "FI_ERDMA_CMA=off: long messages inside this host are copied twice" +
                      (cost.empty() ? "" : "; " + cost),
                  {"unset FI_ERDMA_CMA"});
  else if (!cost.empty())
    report.ok(cost);
}

}  // namespace

std::string sandbox_text() {
  const std::string mode = seccomp_mode(), scope = ptrace_scope();
  return (mode == "2" ? "a seccomp filter is active"
                      : "no seccomp filter is " + std::string(mode.empty() ? "shown" : "active")) +
         (scope.empty() ? "; there is no ptrace_scope (Yama)" : "; ptrace_scope is " + scope);
}

void check_cma(Report& report, const std::string& cost) {
  const std::string trouble = trouble_between(Kin::sibling);
  const bool shm_is_off = is_switched_off("FI_ERDMA_SHM");
  const bool wanted = !shm_is_off && !is_switched_off("FI_ERDMA_CMA");
  if (!trouble.empty() && wanted) return report_refusal(report, trouble, cost);
  if (trouble.empty())
    report_permission(report);
  else
    report.ok(fmt::format("CMA between processes is refused, and not wanted ({}=off): {}",
                          shm_is_off ? "FI_ERDMA_SHM" : "FI_ERDMA_CMA", trouble));
  if (!shm_is_off) report_cost(report, cost);
}

}  // namespace fi_erdma
