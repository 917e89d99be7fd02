#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "fi_erdma/apart.h"
#include "fi_erdma/commands.h"

namespace fi_erdma {

/// The values are the exit status of the program.
enum class Grade : uint8_t { ok, slower, broken };

struct Finding {
  Grade grade;
  std::string group;
  std::string code;  ///< a heading of docs/troubleshooting.md; empty for Grade::ok
  std::string text;
  std::vector<std::string> more;  ///< the remedy, and log lines of the provider
};

/// The findings, in the order of the checks.
class Report {
 public:
  /// Calls `show` with each finding at once, so that it is printed whatever happens later.
  explicit Report(std::function<void(const Finding&)> show) : x_show(std::move(show)) {}
  void begin(std::string group) { x_group = std::move(group); }
  void ok(std::string text) { add(Grade::ok, "", std::move(text), {}); }
  void slower(std::string code, std::string text, std::vector<std::string> more) {
    add(Grade::slower, std::move(code), std::move(text), std::move(more));
  }
  void broken(std::string code, std::string text, std::vector<std::string> more) {
    add(Grade::broken, std::move(code), std::move(text), std::move(more));
  }
  const std::vector<Finding>& findings() const { return x_findings; }
  Grade worst() const;

 private:
  void add(Grade grade, std::string code, std::string text, std::vector<std::string> more) {
    x_findings.push_back({grade, x_group, std::move(code), std::move(text), std::move(more)});
    x_show(x_findings.back());
  }
  const std::function<void(const Finding&)> x_show;
  std::string x_group;
  std::vector<Finding> x_findings;
};

/// What libfabric offers to a program on this host.
struct Offer {
  bool any = false;                  ///< the provider offers at least one domain
  std::vector<std::string> devices;  ///< names of the NICs
};

/// What trials that exchange bytes have in common.
inline constexpr size_t kLongBytes = size_t(1) << 20;  ///< a long message, bytes
inline constexpr int kTrialRounds = 2;                 ///< rounds of each size that are compared
inline constexpr int kTimedRounds = 8;                 ///< timed rounds of long messages

/// Checks libfabric, the provider, and the environment variables.
Offer check_library(Report& report);
/// Exchanges bytes between two endpoints, inside the host and through each NIC. Returns what
/// check_copies() returned; empty: nothing was measured.
std::string check_bytes(Report& report, const Request& request, const Offer& offer);
/// Exchanges bytes between two processes of this host, with CMA and without, and reports a failure.
/// Returns "copied: 3.1 of 5.6 GiB/s for messages ...", the second rate being that with CMA, if it
/// could be measured. Empty if copies fail. `longest_seconds`: of each wait.
std::string check_copies(Report& report, double longest_seconds);
/// Calls fi_getinfo with the hints of the clients in the request, or of all clients.
void check_clients(Report& report, const Request& request);
/// Checks whether the settings of Open MPI permit libfabric.
void check_openmpi(Report& report);
/// Tries whether processes can copy from and to each other's memory, as ranks do. `cost`: what
/// check_copies() returned; empty: nothing was measured.
void check_cma(Report& report, const std::string& cost);
/// Whether a seccomp filter and Yama may refuse system calls: "no seccomp filter is active;
/// ptrace_scope is 1".
std::string sandbox_text();
/// Tries what the kernel permits this process. `cost`: see check_cma().
void check_process(Report& report, const Offer& offer, const std::string& cost);
/// Creates some queue pairs and regions, to see whether the device has any left.
void check_nic_objects(Report& report, const std::string& device);
/// Checks ports and device files, as the kernel shows them.
void check_devices(Report& report, const Request& request, const Offer& offer);
/// The GPUs that CUDA shows; 0 if it does not work.
int count_gpus();
/// Checks CUDA, and exchanges bytes between GPU memory of two processes.
void check_gpu(Report& report, const Offer& offer);
/// Exchanges bytes with another host, on which serve_peer() runs.
void check_peer(Report& report, const pair::Options& options);

/// Serves one check_peer() of another host, and returns afterwards or when no peer connects in
/// time. Returns a pair::Status.
int serve_peer(const pair::Options& options);

/// Reads the documents of `doctor --json` of several hosts from these files, or without any from
/// standard input, and prints their differences. Returns the worst status of all hosts.
int compare_documents(const std::vector<std::string>& files);

/// Whether a list of names, separated by commas, has this one.
bool lists(const std::string& list, const std::string& name);
/// Whether such a list excludes one. A ^ before the list means all names except these. An empty
/// list excludes none.
bool leaves_out(const std::string& list, const std::string& name);
/// Returns `more` and the lines that the provider wrote.
std::vector<std::string> with_said(std::vector<std::string> more, const Outcome& outcome);
/// A variable of the environment; empty if it is not set.
inline std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

/// Whether a variable of the environment is "off".
inline bool is_switched_off(const char* name) {
  return variable(name) == "off";
}

/// The first line of a file; empty if there is none.
std::string first_line(const std::string& path);
/// The inode number of a namespace, with which the kernel names it; 0 if this process may not look.
uint64_t namespace_of(const char* process, const char* kind);
/// Adds the variables that make the provider log everything, including what it refuses.
Variables telling(Variables variables);
/// "erdma_0 (eth1, MTU 1500)", if `place` has an "interface" and its "mtu". `place` may come from
/// another host and hold anything.
std::string place_text(const std::string& device, const Json& place);
/// The measured speed of messages of 1 MiB, and the speed of one memory copy. Begins with a blank.
std::string speed_text(const Outcome& outcome);

}  // namespace fi_erdma
