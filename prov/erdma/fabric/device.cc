#include "fabric/device.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

namespace erdma::fabric {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kErdmaVendor = "0x1ded";

/// First line of a sysfs attribute; empty if it cannot be read (as for ndevs of an unset GID).
std::string attribute(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  while (!line.empty() && line.back() <= ' ') line.pop_back();
  return line;
}

std::vector<std::string> entries(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    names.push_back(it->path().filename().string());
  std::ranges::sort(names);
  return names;
}

/// "4: ACTIVE" -> "ACTIVE".
std::string state_name(const std::string& state) {
  const size_t colon = state.find(": ");
  return colon == std::string::npos ? state : state.substr(colon + 2);
}

/// "port 1 (eth1) is DOWN" for the first port, or for an ACTIVE one if there is any.
std::string describe_port(const fs::path& device, bool& active) {
  std::string text = "it has no port";
  active = false;
  for (const std::string& port : entries(device / "ports")) {
    const fs::path folder = device / "ports" / port;
    const std::string state = state_name(attribute(folder / "state"));
    const std::string netdev = attribute(folder / "gid_attrs" / "ndevs" / "0");
    active = state == "ACTIVE";
    if (active || text == "it has no port")
      text = "port " + port + (netdev.empty() ? "" : " (" + netdev + ")") + " is " +
             (state.empty() ? "in an unknown state" : state);
    if (active) break;
  }
  return text;
}

DeviceReport judge(const fs::path& root, const std::string& name,
                   const std::vector<std::string>& wanted) {
  const bool named = std::ranges::find(wanted, name) != wanted.end();
  if (!wanted.empty() && !named) return {name, false, "FI_ERDMA_DEVICE does not name it"};
  const std::string vendor = attribute(root / name / "device" / "vendor");
  if (!named && vendor != kErdmaVendor)
    return {name, false,
            "vendor " + (vendor.empty() ? "unknown" : vendor) +
                " is not eRDMA, and FI_ERDMA_DEVICE does not name it"};
  bool active = false;
  const std::string port = describe_port(root / name, active);
  if (!active) return {name, false, port};
  return {name, false, port + ", but the NIC transport is not part of this version"};
}

}  // namespace

std::vector<DeviceReport> survey_devices(const std::string& root,
                                         const std::vector<std::string>& wanted) {
  std::vector<DeviceReport> reports;
  const std::vector<std::string> present = entries(root);
  for (const std::string& name : present) reports.push_back(judge(root, name, wanted));
  for (const std::string& name : wanted)
    if (name != kShmDevice && !std::ranges::binary_search(present, name))
      reports.push_back({name, false, "this host has no such device"});
  return reports;
}

}  // namespace erdma::fabric
