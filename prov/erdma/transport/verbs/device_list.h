#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "util/socket_address.h"

struct ifaddrs;

namespace erdma::transport::verbs {

inline constexpr uint32_t kErdmaVendor = 0x1ded;  ///< PCI vendor: Alibaba

/// One RDMA device of this host as libibverbs and sysfs describe it; port 1 if it has several.
struct DeviceDescription {
  std::string name;     ///< ibverbs name
  uint32_t vendor = 0;  ///< kErdmaVendor, ...
  uint32_t part = 0;    ///< 0x107f: eRDMA
  std::string firmware;
  std::string driver;  ///< kernel module of its PCI or virtual device; empty = unknown
  std::string netdev;  ///< empty = unknown
  std::string state;   ///< "ACTIVE", "DOWN", ... as ibv_port_state_str names it
  bool active = false;
  bool iwarp = false;
  std::string why_unusable;  ///< not empty: why the device could not be opened or queried
  std::vector<util::SocketAddress> addresses;  ///< IPs of its netdev in this namespace, port 0
  uint32_t mtu = 0;                            ///< bytes; the active MTU
  uint64_t speed = 0;                          ///< bit/s
  std::string node_guid;                       ///< "xxxx:xxxx:xxxx:xxxx"
  // PCI address, if it has one.
  bool pci = false;
  uint16_t pci_domain = 0;
  uint8_t pci_bus = 0, pci_device = 0, pci_function = 0;
};

/// All RDMA devices, sorted by name. Never fails: why_unusable says what could not be read. Empty
/// if neither libibverbs nor the kernel has one.
std::vector<DeviceDescription> list_devices();

/// Adds the devices in this folder of the kernel that libibverbs did not list. They cannot be used,
/// which must not look as if the host had no device.
void add_unlisted(std::vector<DeviceDescription>& listed, const std::string& folder);

/// The interface with this MAC address in the list from getifaddrs(); empty: there is none. A bond,
/// its slaves and VLANs share one address: then the first that has an IP address and is up, or else
/// the first that has one of both.
std::string interface_with_mac(const ifaddrs* list, std::span<const uint8_t, 6> mac);

}  // namespace erdma::transport::verbs
