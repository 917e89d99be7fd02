#include "fabric/local_addresses.h"

#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "util/error_text.h"
#include "util/log.h"

namespace erdma::fabric {
namespace {

using util::SocketAddress;

SocketAddress address_of(const ifaddrs& interface) noexcept {
  if (!interface.ifa_addr) return {};
  const size_t length =
      interface.ifa_addr->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  SocketAddress address = SocketAddress::from_sockaddr(interface.ifa_addr, length);
  if (address.set()) address.set_port(0);
  return address;
}

/// True if other hosts can use the address. A link-local one does not count: its scope id is valid
/// on this host only.
bool global(const ifaddrs& interface, const SocketAddress& address) noexcept {
  return (interface.ifa_flags & IFF_UP) && !(interface.ifa_flags & IFF_LOOPBACK) &&
         !address.loopback() && !address.link_local();
}

}  // namespace

LocalAddresses LocalAddresses::load() {
  LocalAddresses result;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    ERDMA_WARN(FABRIC, "cannot list the addresses of this host: %s\n",
               util::ErrorText(errno).c_str());
    return result;
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);

  std::vector<SocketAddress> loopback, others;
  for (const ifaddrs* interface = list; interface; interface = interface->ifa_next) {
    const SocketAddress address = address_of(*interface);
    if (!address.set()) continue;
    if (global(*interface, address)) {
      result.x_addresses.push_back(address);
    } else {
      (address.loopback() ? loopback : others).push_back(address);
    }
  }
  result.x_first_loopback = result.x_addresses.size();
  result.x_addresses.insert(result.x_addresses.end(), loopback.begin(), loopback.end());
  result.x_addresses.insert(result.x_addresses.end(), others.begin(), others.end());
  return result;
}

bool LocalAddresses::contains(const SocketAddress& address) const noexcept {
  if (address.loopback()) return true;
  return std::ranges::any_of(x_addresses, [&](const SocketAddress& known) {
    return address.set() && known.same_host(address);
  });
}

SocketAddress LocalAddresses::primary(sa_family_t family) const noexcept {
  for (size_t i = 0; i < x_addresses.size(); ++i) {
    const SocketAddress& address = x_addresses[i];
    if (address.family() == family && (i < x_first_loopback || address.loopback())) return address;
  }
  return {};
}

}  // namespace erdma::fabric
