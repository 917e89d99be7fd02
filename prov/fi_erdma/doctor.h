#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "fi_erdma/apart.h"
#include "fi_erdma/commands.h"

namespace fi_erdma {

/// In the order of the status of the program: 0, 1, 2.
enum class Grade : uint8_t { ok, slower, broken };

struct Finding {
  Grade grade;
  std::string group;
  std::string code;  ///< a heading of docs/troubleshooting.md; empty if all is well
  std::string text;
  std::vector<std::string> more;  ///< what to do, and what the provider said
};

/// What the checks found, in their order.
class Report {
 public:
  /// Calls `show` with each finding at once: whatever happens later, it was told.
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

/// What a program gets here.
struct Offer {
  bool any = false;                  ///< there is something to try
  std::vector<std::string> devices;  ///< of NICs
};

/// libfabric, the provider, and the variables of the environment.
Offer check_library(Report& report);
/// Bytes between two endpoints, inside the host and through each NIC.
void check_bytes(Report& report, const Offer& offer);
/// What clients ask of fi_getinfo: those of the request, or all.
void check_clients(Report& report, const Request& request);
/// Whether processes can copy from and to each other's memory, as ranks do, by trying it.
void check_cma(Report& report);
/// What the kernel permits this process, by trying it.
void check_process(Report& report, const Offer& offer);
/// Whether the device has queue pairs and regions left, by making some.
void check_nic_objects(Report& report, const std::string& device);
/// Ports and files of devices, as the kernel shows them.
void check_devices(Report& report, const Request& request, const Offer& offer);
/// CUDA, and bytes between GPU memory of two processes.
void check_gpu(Report& report, const Offer& offer);
/// Bytes between this host and another one, on which serve_peer() runs.
void check_peer(Report& report, const pair::Options& options);

/// Answers one check_peer() of another host and ends, or ends because nobody comes. Returns a
/// pair::Status.
int serve_peer(const pair::Options& options);

/// What differs between the documents of `doctor --json`, one behind the other on standard input.
/// The status is that of the worst host.
int compare_documents();

/// `more` with the lines that the provider wrote.
std::vector<std::string> with_said(std::vector<std::string> more, const Outcome& outcome);
/// Variables under which the provider says what it has to say, also what it refuses.
Variables telling(Variables variables);
/// "erdma_0 (eth1, MTU 1500)", if `place` has an "interface" and its "mtu"; it may be anyone's.
std::string place_text(const std::string& device, const Json& place);
/// Measured, of messages of 1 MiB, and beside it what one copy of memory reaches; begins with a
/// blank.
std::string speed_text(const Outcome& outcome);

}  // namespace fi_erdma
