#pragma once

#include <vector>

#include "util/socket_address.h"

namespace erdma::fabric {

/// The IP addresses of this network namespace at the time of load(). Ports are 0.
class LocalAddresses {
 public:
  static LocalAddresses load();
  LocalAddresses() = default;
  /// `global` addresses can be used by other hosts; the `rest` are loopback and link-local ones.
  LocalAddresses(std::vector<util::SocketAddress> global,
                 const std::vector<util::SocketAddress>& rest);

  /// True if `address` (with any port) is an address of this namespace. Every loopback address is.
  bool contains(const util::SocketAddress& address) const noexcept;
  /// The address of a peer as a NIC with the address `own` reaches it. A link-local address that
  /// another host published has a scope of that host, and gets that of `own`. An address of this
  /// host keeps its scope: it may belong to another NIC, and is reached through shared memory.
  util::SocketAddress reached_from(const util::SocketAddress& own,
                                   const util::SocketAddress& peer) const noexcept;
  /// The host's own IP of a family: the first global address of an interface that is up; loopback
  /// if there is none; unset if the host has no address of the family.
  util::SocketAddress primary(sa_family_t family) const noexcept;

 private:
  std::vector<util::SocketAddress> x_addresses;
  size_t x_globals = 0;  ///< number of global ones, which come first
};

}  // namespace erdma::fabric
