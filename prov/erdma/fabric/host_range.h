#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "util/result.h"
#include "util/socket_address.h"

namespace erdma::fabric {

/// The addresses that fi_av_insertsym(3) names: `nodes` hosts from a first one on, each with
/// `services` ports from a first one on; all ports of a host come before the next host.
class HostRange {
 public:
  /// Resolves names, so it may block: call it without a lock. Counts are in 1..INT_MAX together.
  static util::Result<HostRange> resolve(sa_family_t family, const char* node, size_t nodes,
                                         const char* service, size_t services);
  /// The one address that to_uri() would print so; its host may be a name.
  static util::Result<HostRange> resolve_uri(sa_family_t family, const char* uri);

  size_t size() const noexcept { return x_nodes * x_services; }
  /// Unset if its host could not be resolved.
  util::SocketAddress at(size_t i) const noexcept;

 private:
  HostRange(size_t nodes, size_t services) noexcept : x_nodes(nodes), x_services(services) {}

  size_t x_nodes;
  size_t x_services;
  uint16_t x_first_port = 0;
  /// One numeric address to count up from, or else one address per host name.
  bool x_numeric = false;
  std::vector<util::SocketAddress> x_hosts;
};

/// As libfabric prints addresses: "fi_sockaddr_in://10.0.0.1:5000", "fi_sockaddr_in6://[::1]:5000".
/// Empty if the address is unset.
std::string to_uri(const util::SocketAddress& address);

}  // namespace erdma::fabric
