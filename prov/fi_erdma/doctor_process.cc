#include <fcntl.h>
#include <fmt/core.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "fi_erdma/devices.h"
#include "fi_erdma/doctor.h"

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

namespace fi_erdma {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// Namespaces that are not those of the host, which have numbers of their own.
std::string namespaces_text() {
  constexpr std::pair<const char*, uint64_t> kOfHost[] = {
      {"user", 0xEFFFFFFD}, {"pid", 0xEFFFFFFC}, {"ipc", 0xEFFFFFFF}};
  std::string own;
  for (const auto& [name, number] : kOfHost) {
    struct stat status {};
    const std::string path = std::string("/proc/self/ns/") + name;
    if (!stat(path.c_str(), &status) && status.st_ino != number)
      own += (own.empty() ? "" : ", ") + std::string(name);
  }
  return own.empty() ? "the namespaces are those of the host (user, pid, ipc)"
                     : "namespaces of its own, as containers have: " + own;
}

/// "filter" if system calls are filtered, as in most containers.
bool has_seccomp_filter() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("Seccomp:")) return line.find('2') != line.npos;
  return false;
}

// --- CMA
// -------------------------------------------------------------------------------------------

constexpr char kBefore[] = "before", kAfter[] = "after!";

/// A process that lets any other one look at it, as the provider's ranks do, until it is killed.
[[noreturn]] void be_seen(int ready) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  const char byte = 1;
  if (write(ready, &byte, 1) != 1) _exit(1);
  for (;;) pause();
}

/// Empty, or which call fails and how. Both directions, each compared.
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

/// In a process of its own, whose fault comes through the pipe.
std::string look_from_sibling(pid_t peer, char* memory, const int (&ends)[2]) {
  const pid_t looker = fork();
  if (looker < 0) return std::string("fork: ") + std::strerror(errno);
  if (looker == 0) {
    const std::string fault = move_by_cma(peer, memory);
    (void)!write(ends[1], fault.data(), fault.size());
    _exit(fault.empty() ? 0 : 1);
  }
  int status = 0;
  if (waitpid(looker, &status, 0) != looker) return std::string("waitpid: ") + std::strerror(errno);
  if (!status) return {};
  char text[256] = {};
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  const bool told = read(ends[0], text, sizeof(text) - 1) > 0;
  return told ? text : "the process that tried it was ended";
}

/// A process looks at its sibling: what ranks are to each other.
Json try_cma() {
  char memory[sizeof(kBefore)];
  std::memcpy(memory, kBefore, sizeof(memory));
  int ends[2], byte = 0;
  if (pipe2(ends, O_CLOEXEC)) return {{"error", std::strerror(errno)}};
  const pid_t peer = fork();
  if (peer == 0) be_seen(ends[1]);
  const std::string fault = peer < 0 || read(ends[0], &byte, 1) != 1
                                ? "no other process"
                                : look_from_sibling(peer, memory, ends);
  if (peer > 0) kill(peer, SIGKILL), waitpid(peer, nullptr, 0);
  return fault.empty() ? Json::object() : Json{{"error", fault}};
}

std::string cause_of_refusal() {
  const std::string scope = first_line("/proc/sys/kernel/yama/ptrace_scope");
  if (has_seccomp_filter())
    return "a seccomp filter may refuse it (docker: --security-opt seccomp=..., or a newer docker)";
  if (scope == "2" || scope == "3")
    return "kernel.yama.ptrace_scope is " + scope +
           ": sysctl kernel.yama.ptrace_scope=1 permits it";
  return "the kernel, a security module or a user namespace refuses it";
}

void check_cma(Report& report) {
  const std::string trouble = trouble_of(try_apart({}, try_cma));
  if (!trouble.empty())
    report.slower("W401",
                  "CMA between processes is refused, so long messages are copied twice: " + trouble,
                  {cause_of_refusal()});
  else
    report.ok("CMA both ways between processes");
}

// --- limits
// ----------------------------------------------------------------------------------------

constexpr size_t kLockedBytes = size_t(64) << 20;
constexpr int kDescriptors = 512;  ///< the usual soft limit is 1024, and some are open

Json try_locked_memory() {
  void* const memory =
      mmap(nullptr, kLockedBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED || mlock(memory, kLockedBytes)) return {{"error", std::strerror(errno)}};
  return Json::object();
}

Json try_descriptors() {
  for (int i = 0; i < kDescriptors; ++i)
    if (dup(STDERR_FILENO) < 0) return {{"error", std::strerror(errno)}, {"opened", i}};
  return Json::object();
}

/// In the ways that the provider knows.
Json try_userfaultfd() {
  const auto made = [](int flags) { return syscall(SYS_userfaultfd, O_CLOEXEC | flags) >= 0; };
  if (made(UFFD_USER_MODE_ONLY) || (errno == EINVAL && made(0))) return Json::object();
  if (open("/dev/userfaultfd", O_RDWR | O_CLOEXEC) >= 0) return Json::object();
  return {{"error", std::strerror(errno)}};
}

std::string limit_text(int resource, uint64_t unit) {
  rlimit limit{};
  getrlimit(__rlimit_resource_t(resource), &limit);
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur / unit);
}

bool refused(const Outcome& outcome) {
  return !trouble_of(outcome).empty();
}

void check_nic_limits(Report& report) {
  if (refused(try_apart({}, try_locked_memory)))
    report.slower(
        "W402",
        "64 MiB can't be locked: the limit of locked memory is " +
            limit_text(RLIMIT_MEMLOCK, 1024) + " KiB",
        {"ulimit -l unlimited, or LimitMEMLOCK=infinity of the service that starts jobs"});
  else
    report.ok("64 MiB can be locked");
  const Outcome faults = try_apart({}, try_userfaultfd);
  if (refused(faults))
    report.slower("W404", "userfaultfd is refused, so no memory stays registered with a NIC",
                  {"permit it in the sandbox (seccomp), or sysctl vm.unprivileged_userfaultfd=1"});
  else
    report.ok("userfaultfd is permitted");
}

// --- devices
// ---------------------------------------------------------------------------------------

/// The file by which programs reach a device; empty if it has none.
std::string uverbs_of(const std::string& folder) {
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(folder + "/device/infiniband_verbs", error))
    return "/dev/infiniband/" + entry.path().filename().string();
  return {};
}

/// Other devices may be down and nobody minds.
bool is_meant(const std::string& folder, const std::string& device, const Offer& offer) {
  std::error_code error;
  const auto driver = std::filesystem::read_symlink(folder + "/device/driver", error).filename();
  if (driver == "erdma" || (driver.empty() && device.starts_with("erdma"))) return true;
  const char* const wanted = getenv("FI_ERDMA_DEVICE");
  return (wanted &&
          ("," + std::string(wanted) + ",").find("," + device + ",") != std::string::npos) ||
         std::ranges::find(offer.devices, device) != offer.devices.end();
}

/// The network interface of the device, with its MTU: packets are no longer. Empty if unknown.
std::string interface_text(const std::string& folder) {
  const std::string name = first_line(folder + "/ports/1/gid_attrs/ndevs/0");
  // By name: the folder of a device is a link to elsewhere.
  const auto classes = std::filesystem::path(folder).parent_path().parent_path();
  const std::string mtu = first_line(classes / "net" / name / "mtu");
  return name.empty() || mtu.empty() ? std::string() : fmt::format(", {} has MTU {}", name, mtu);
}

void check_device(Report& report, const std::string& folder, const std::string& device) {
  const std::string state = first_line(folder + "/ports/1/state");
  if (state.find("ACTIVE") == state.npos)
    return report.broken("E501", device + ": port 1 is not active: " + state,
                         {"ip link shows the interface of the device: ip link set NAME up"});
  const std::string file = uverbs_of(folder);
  const std::string trouble = trouble_of(try_apart({}, [&]() -> Json {
    if (file.empty() || open(file.c_str(), O_RDWR | O_CLOEXEC) >= 0) return Json::object();
    return {{"error", std::strerror(errno)}};
  }));
  if (!trouble.empty())
    return report.broken("E502", device + ": " + file + ": " + trouble,
                         {"containers need the files of /dev/infiniband (docker --device)"});
  report.ok(device + ": port 1 is active" + interface_text(folder));
}

}  // namespace

void check_process(Report& report, const Offer& offer) {
  report.begin("this process");
  report.ok(namespaces_text());
  check_cma(report);
  const Outcome descriptors = try_apart({}, try_descriptors);
  if (refused(descriptors))
    report.slower("W403",
                  "512 descriptors can't be opened: the limit is " + limit_text(RLIMIT_NOFILE, 1),
                  {"ulimit -n 65536: each peer inside the host needs some"});
  else
    report.ok("512 descriptors can be opened");
  if (!offer.devices.empty()) check_nic_limits(report);
  for (const std::string& device : offer.devices) check_nic_objects(report, device);
}

void check_devices(Report& report, const Request& request, const Offer& offer) {
  report.begin("devices");
  const auto names = Devices(request.sysfs).names();
  for (const std::string& name : names)
    if (const std::string folder = request.sysfs + "/" + name; is_meant(folder, name, offer))
      check_device(report, folder, name);
    else
      report.ok(name + ": no device of erdma's");
  for (const std::string& name : offer.devices)
    if (std::ranges::find(names, name) == names.end()) report.ok(name + ": used by erdma");
  const char* const wanted = getenv("FI_ERDMA_DEVICE");
  if (offer.devices.empty() && !(wanted && !strcmp(wanted, "shm")))
    report.slower("W503", "erdma uses no NIC: only processes of this host can be reached",
                  {"FI_ERDMA_DEVICE=shm says that this is meant"});
  else if (offer.devices.empty())
    report.ok("none is wanted: FI_ERDMA_DEVICE=shm");
}

}  // namespace fi_erdma
