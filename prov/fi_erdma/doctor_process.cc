#include <fcntl.h>
#include <fmt/core.h>
#include <linux/userfaultfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fi_erdma/devices.h"
#include "fi_erdma/doctor.h"

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

namespace fi_erdma {
namespace {

/// Whether the number of the host's network namespace is fixed, too. Linux has fixed it since the
/// version that also gives handles of namespaces, and a kernel can be asked for a handle.
bool has_fixed_network() {
  alignas(file_handle) char space[sizeof(file_handle) + MAX_HANDLE_SZ] = {};
  auto* const handle = reinterpret_cast<file_handle*>(space);
  handle->handle_bytes = MAX_HANDLE_SZ;
  int mount = 0;
  return !name_to_handle_at(AT_FDCWD, "/proc/self/ns/net", handle, &mount, AT_SYMLINK_FOLLOW);
}

/// Whether the network namespace is that of the host; empty if that is not known. `host_pids`: pid
/// 1 is that of the host.
std::optional<bool> has_network_of_host(bool host_pids) {
  constexpr uint64_t kOfHost = 0xEFFFFFF9;  ///< less than any number that the kernel gives later
  const uint64_t own = namespace_of("self", "net"), first = namespace_of("1", "net");
  if (own == kOfHost) return true;
  if (own && first && host_pids) return own == first;
  return own && has_fixed_network() ? std::optional(false) : std::nullopt;
}

/// The namespaces of this process that are not those of the host. Those of the host have fixed
/// inode numbers. A peer is local if it has an IP address of this network namespace, and listens on
/// a socket whose name is valid in one network namespace.
std::string namespaces_text() {
  constexpr std::pair<const char*, uint64_t> kOfHost[] = {
      {"user", 0xEFFFFFFD}, {"pid", 0xEFFFFFFC}, {"ipc", 0xEFFFFFFF}};
  std::string own, of_host;
  const auto add = [](std::string& list, const char* kind) {
    list += (list.empty() ? "" : ", ") + std::string(kind);
  };
  bool host_pids = false;
  for (const auto& [kind, number] : kOfHost) {
    const uint64_t seen = namespace_of("self", kind);
    if (seen) add(seen == number ? of_host : own, kind);
    if (kind == std::string_view("pid")) host_pids = seen == number;
  }
  const std::optional<bool> network = has_network_of_host(host_pids);
  if (network) add(*network ? of_host : own, "net");
  const std::string text = own.empty() ? "the namespaces are those of the host (" + of_host + ")"
                                       : "namespaces of its own, as containers have: " + own;
  if (network.value_or(false)) return text;
  return text + fmt::format("; ranks share memory inside one network namespace only, here net:[{}]",
                            namespace_of("self", "net"));
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

/// Tries the ways to open a userfaultfd that the provider uses.
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

/// The file through which programs open a device; empty if it has none.
std::string uverbs_of(const std::string& folder) {
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(folder + "/device/infiniband_verbs", error))
    return "/dev/infiniband/" + entry.path().filename().string();
  return {};
}

/// Why trouble with this device does not matter; empty if it does.
std::string why_not_meant(const std::string& folder, const std::string& device,
                          const Offer& offer) {
  if (std::ranges::find(offer.devices, device) != offer.devices.end()) return {};
  if (const std::string named = variable("FI_ERDMA_DEVICE"); !named.empty())
    return lists(named, device) ? "" : "not one that FI_ERDMA_DEVICE names";
  std::error_code error;
  const auto driver = std::filesystem::read_symlink(folder + "/device/driver", error).filename();
  const bool of_erdma = driver == "erdma" || (driver.empty() && device.starts_with("erdma"));
  return of_erdma ? "" : "no device of erdma's";
}

/// The network interface of the device with its MTU, the largest packet. Empty if unknown.
std::string interface_text(const std::string& folder) {
  const std::string name = first_line(folder + "/ports/1/gid_attrs/ndevs/0");
  // Not by "..": the folder of a device is a symbolic link.
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

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

uint64_t namespace_of(const char* process, const char* kind) {
  struct stat status {};
  const std::string path = std::string("/proc/") + process + "/ns/" + kind;
  return stat(path.c_str(), &status) ? 0 : status.st_ino;
}

void check_process(Report& report, const Offer& offer, const std::string& cost) {
  report.begin("this process");
  report.ok(namespaces_text());
  report.ok(sandbox_text());
  check_cma(report, cost);
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
  for (const std::string& name : names) {
    const std::string folder = request.sysfs + "/" + name;
    if (const std::string why = why_not_meant(folder, name, offer); why.empty())
      check_device(report, folder, name);
    else
      report.ok(name + ": " + why);
  }
  for (const std::string& name : offer.devices)
    if (std::ranges::find(names, name) == names.end()) report.ok(name + ": used by erdma");
  if (offer.devices.empty() && variable("FI_ERDMA_DEVICE") != "shm")
    report.slower("W503", "erdma uses no NIC: only processes of this host can be reached",
                  {"FI_ERDMA_DEVICE=shm says that this is meant"});
  else if (offer.devices.empty())
    report.ok("none is wanted: FI_ERDMA_DEVICE=shm");
}

}  // namespace fi_erdma
