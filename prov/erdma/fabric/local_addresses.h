#pragma once

#include <vector>

#include "util/socket_address.h"

namespace erdma::fabric {

/// The IP addresses of this network namespace, as of load(). Ports are 0.
class LocalAddresses {
 public:
  static LocalAddresses load();

  /// Is `address` (any port) an address of this namespace, loopback included?
  bool contains(const util::SocketAddress& address) const noexcept;
  /// The host's own IP of that family by which others would know it: the first global address of
  /// an interface that is up; loopback if there is none; unset if the family is absent.
  util::SocketAddress primary(sa_family_t family) const noexcept;

 private:
  std::vector<util::SocketAddress> x_addresses;
  size_t x_first_loopback = 0;
};

}  // namespace erdma::fabric
