#pragma once

#include <arpa/inet.h>

#include <string>

#include "transport/verbs/device_list.h"

namespace erdma::test {

inline util::SocketAddress host_address(const char* text) {
  sockaddr_in in{};
  in.sin_family = AF_INET;
  if (inet_pton(AF_INET, text, &in.sin_addr) == 1)
    return util::SocketAddress::from_sockaddr(&in, sizeof(in));
  sockaddr_in6 in6{};
  in6.sin6_family = AF_INET6;
  inet_pton(AF_INET6, text, &in6.sin6_addr);
  return util::SocketAddress::from_sockaddr(&in6, sizeof(in6));
}

/// Describes an eRDMA NIC as a host would.
inline transport::verbs::DeviceDescription make_nic(const std::string& name, const char* address,
                                                    bool active = true) {
  transport::verbs::DeviceDescription nic;
  nic.name = name;
  nic.vendor = 0x1ded;
  nic.part = 0x107f;
  nic.firmware = "0.2.0";
  nic.driver = "erdma";
  nic.netdev = "eth1";
  nic.state = active ? "ACTIVE" : "DOWN";
  nic.active = active;
  nic.iwarp = true;
  if (address) nic.addresses.push_back(host_address(address));
  nic.mtu = 1024;
  nic.speed = 100'000'000'000;
  nic.pci = true;
  nic.pci_bus = 0x1f;
  nic.pci_device = 3;
  return nic;
}

}  // namespace erdma::test
