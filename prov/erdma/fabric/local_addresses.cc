#include "fabric/local_addresses.h"

#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "util/error_text.h"
#include "util/log.h"

namespace erdma::fabric {
namespace {

using util::SocketAddress;

SocketAddress address_of(const ifaddrs& interface) noexcept {
  if (!interface.ifa_addr) return {};
  SocketAddress address = SocketAddress::from_sockaddr(
      interface.ifa_addr, SocketAddress::size_of(interface.ifa_addr->sa_family));
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
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    ERDMA_WARN(FABRIC, "cannot list the addresses of this host: %s\n",
               util::ErrorText(errno).c_str());
    return {};
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);

  std::vector<SocketAddress> globals, rest;
  for (const ifaddrs* interface = list; interface; interface = interface->ifa_next) {
    const SocketAddress address = address_of(*interface);
    if (address.set()) (global(*interface, address) ? globals : rest).push_back(address);
  }
  return {std::move(globals), rest};
}

LocalAddresses::LocalAddresses(std::vector<SocketAddress> global,
                               const std::vector<SocketAddress>& rest)
    : x_addresses(std::move(global)), x_globals(x_addresses.size()) {
  x_addresses.insert(x_addresses.end(), rest.begin(), rest.end());
}

bool LocalAddresses::contains(const SocketAddress& address) const noexcept {
  if (address.loopback()) return true;
  return std::ranges::any_of(x_addresses, [&](const SocketAddress& known) {
    return address.set() && known.same_host(address);
  });
}

SocketAddress LocalAddresses::reached_from(const SocketAddress& own,
                                           const SocketAddress& peer) const noexcept {
  return peer.link_local() && !contains(peer) ? peer.with_scope_of(own) : peer;
}

SocketAddress LocalAddresses::primary(sa_family_t family) const noexcept {
  for (size_t i = 0; i < x_addresses.size(); ++i) {
    const SocketAddress& address = x_addresses[i];
    if (address.family() == family && (i < x_globals || address.loopback())) return address;
  }
  return {};
}

}  // namespace erdma::fabric
