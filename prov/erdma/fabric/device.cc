#include "fabric/device.h"

#include <algorithm>
#include <cstdio>

#include <rdma/fabric.h>

namespace erdma::fabric {
namespace {

using transport::verbs::DeviceDescription;
using transport::verbs::kErdmaVendor;
using util::SocketAddress;

std::string vendor_of(const DeviceDescription& device) {
  if (!device.vendor) return "unknown";
  char text[16];
  std::snprintf(text, sizeof(text), "0x%04x", device.vendor);
  return text;
}

/// "port 1 (eth1) is DOWN".
std::string port_of(const DeviceDescription& device) {
  return "port 1 " + (device.netdev.empty() ? "" : "(" + device.netdev + ") ") + "is " +
         (device.state.empty() ? "in an unknown state" : device.state);
}

/// Why the device does not work, whether FI_ERDMA_DEVICE names it or not; empty: it works.
std::string trouble_of(const DeviceDescription& device) {
  if (!device.why_unusable.empty()) return device.why_unusable;
  if (!device.active) return port_of(device);
  if (!preferred_address(device.addresses, AF_UNSPEC).set())
    return (device.netdev.empty() ? "its network device" : device.netdev) +
           " has no IP address in this network namespace";
  return {};
}

/// Why the provider does not use the device; empty if it does.
std::string fault_of(const DeviceDescription& device, bool named, bool others_named) {
  if (!named && others_named) return "FI_ERDMA_DEVICE does not name it";
  if (!named && device.vendor != kErdmaVendor)
    return "vendor " + vendor_of(device) + " is not eRDMA, and FI_ERDMA_DEVICE does not name it";
  return trouble_of(device);
}

void append(std::string& list, const char* separator, const std::string& item) {
  list += (list.empty() ? "" : separator) + item;
}

/// "siw0 (ACTIVE), mlx5_0 (port 1 (eth1) is DOWN)".
std::string present_devices(const std::vector<DeviceReport>& reports) {
  std::string text;
  for (const DeviceReport& report : reports)
    if (!report.state.empty()) append(text, ", ", report.device.name + " (" + report.state + ")");
  return text;
}

}  // namespace

std::vector<DeviceReport> survey_devices(const std::vector<DeviceDescription>& present,
                                         const std::vector<std::string>& wanted) {
  std::vector<DeviceReport> reports;
  for (const DeviceDescription& device : present) {
    const bool named = std::ranges::find(wanted, device.name) != wanted.end();
    std::string fault = fault_of(device, named, !wanted.empty());
    const bool usable = fault.empty();
    const std::string trouble = trouble_of(device);
    reports.push_back(
        {device, usable, named, std::move(fault), trouble.empty() ? "ACTIVE" : trouble});
  }
  for (const std::string& name : wanted) {
    const auto is_it = [&](const DeviceDescription& device) { return device.name == name; };
    if (name == kShmDevice || std::ranges::any_of(present, is_it)) continue;
    DeviceReport absent;
    absent.device.name = name;
    absent.named = true;
    absent.reason = "this host has no such device";
    reports.push_back(std::move(absent));
  }
  return reports;
}

std::string faults_of_named(const std::vector<DeviceReport>& reports) {
  std::string faults, remedy;
  for (const DeviceReport& report : reports) {
    if (!report.named || report.usable) continue;
    append(faults, "; ", report.device.name + ": " + report.reason);
    const transport::verbs::DeviceDescription& device = report.device;
    if (device.why_unusable.empty() && !device.active && !device.netdev.empty())
      remedy = ". Try: ip link set " + device.netdev + " up";
  }
  if (faults.empty()) return {};
  const std::string present = present_devices(reports);
  return "FI_ERDMA_DEVICE names what can't be used: " + faults + ". " +
         (present.empty() ? "It has no RDMA device at all (ibv_devices)"
                          : "RDMA devices of this host: " + present) +
         remedy;
}

SocketAddress preferred_address(const std::vector<SocketAddress>& addresses,
                                sa_family_t family) noexcept {
  const auto rank = [&](const SocketAddress& address) {
    if (!address.set() || (family != AF_UNSPEC && address.family() != family)) return 0;
    const int reach = address.loopback() ? 1 : address.link_local() ? 3 : 5;
    return reach + (address.family() == AF_INET ? 1 : 0);
  };
  SocketAddress best;
  int best_rank = 0;
  for (const SocketAddress& address : addresses) {
    if (rank(address) <= best_rank) continue;
    best = address;
    best_rank = rank(address);
  }
  best.set_port(0);
  return best;
}

SocketAddress address_of_device(const std::string& name, uint32_t addr_format) {
  const sa_family_t family = addr_format == FI_SOCKADDR_IN    ? AF_INET
                             : addr_format == FI_SOCKADDR_IN6 ? AF_INET6
                                                              : AF_UNSPEC;
  for (const DeviceDescription& device : transport::verbs::list_devices())
    if (device.name == name) return preferred_address(device.addresses, family);
  return {};
}

}  // namespace erdma::fabric
