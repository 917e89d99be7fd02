#include "fabric/device.h"

#include <algorithm>
#include <cstdio>

#include <rdma/fabric.h>

namespace erdma::fabric {
namespace {

using transport::verbs::DeviceDescription;
using util::SocketAddress;

constexpr uint32_t kErdmaVendor = 0x1ded;

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

/// Why the device can't be used; empty if it can.
std::string fault_of(const DeviceDescription& device, const std::vector<std::string>& wanted) {
  const bool named = std::ranges::find(wanted, device.name) != wanted.end();
  if (!wanted.empty() && !named) return "FI_ERDMA_DEVICE does not name it";
  if (!named && device.vendor != kErdmaVendor)
    return "vendor " + vendor_of(device) + " is not eRDMA, and FI_ERDMA_DEVICE does not name it";
  if (!device.why_unusable.empty()) return device.why_unusable;
  if (!device.active) return port_of(device);
  if (!preferred_address(device.addresses, AF_UNSPEC).set())
    return (device.netdev.empty() ? "its network device" : device.netdev) +
           " has no IP address in this network namespace";
  return {};
}

}  // namespace

std::vector<DeviceReport> survey_devices(const std::vector<DeviceDescription>& present,
                                         const std::vector<std::string>& wanted) {
  std::vector<DeviceReport> reports;
  for (const DeviceDescription& device : present) {
    std::string fault = fault_of(device, wanted);
    const bool usable = fault.empty();
    reports.push_back({device, usable, std::move(fault)});
  }
  for (const std::string& name : wanted) {
    const auto is_it = [&](const DeviceDescription& device) { return device.name == name; };
    if (name == kShmDevice || std::ranges::any_of(present, is_it)) continue;
    DeviceReport absent;
    absent.device.name = name;
    absent.reason = "this host has no such device";
    reports.push_back(std::move(absent));
  }
  return reports;
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
