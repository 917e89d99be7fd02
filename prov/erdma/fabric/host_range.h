#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "util/result.h"
#include "util/socket_address.h"

namespace erdma::fabric {

/// The addresses that fi_av_insertsym(3) names: a number of consecutive hosts, each with a number
/// of consecutive ports. All ports of a host come before the next host.
class HostRange {
 public:
  /// Resolves names, so it may block: call it without a lock. `node` and `service` are the first of
  /// `nodes` hosts and `services` ports. -FI_EINVAL: a count is 0, their product exceeds INT_MAX,
  /// or a name or port is malformed or out of range.
  static util::Result<HostRange> resolve(sa_family_t family, const char* node, size_t nodes,
                                         const char* service, size_t services);
  /// The single address of a URI in the format of to_uri(), whose host may also be a name.
  static util::Result<HostRange> resolve_uri(sa_family_t family, const char* uri);

  size_t size() const noexcept { return x_nodes * x_services; }
  /// The address number i; unset if its host could not be resolved.
  util::SocketAddress at(size_t i) const noexcept;

 private:
  HostRange(size_t nodes, size_t services) noexcept : x_nodes(nodes), x_services(services) {}

  size_t x_nodes;
  size_t x_services;
  uint16_t x_first_port = 0;
  bool x_numeric = false;                    ///< `node` was an IP address
  std::vector<util::SocketAddress> x_hosts;  ///< the first one if numeric, else one per host name
};

/// An address as libfabric prints it: "fi_sockaddr_in://10.0.0.1:5000",
/// "fi_sockaddr_in6://[::1]:5000". Empty if the address is unset.
std::string to_uri(const util::SocketAddress& address);

}  // namespace erdma::fabric
