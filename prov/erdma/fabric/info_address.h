#pragma once

#include <cstdint>
#include <vector>

#include <rdma/fabric.h>

#include "fabric/local_addresses.h"
#include "util/socket_address.h"

namespace erdma::fabric {

struct InfoAddresses {
  util::SocketAddress source;       ///< as requested; unset or a wildcard = any IP of this host
  util::SocketAddress destination;  ///< unset = not requested
  sa_family_t family = AF_UNSPEC;   ///< of both; AF_UNSPEC = the application left it open
};

/// Finds source and destination in the arguments of fi_getinfo(3). Returns 0, -FI_ENODATA after one
/// log line if a name does not resolve, or -FI_EINVAL for FI_SOURCE without node and service.
int resolve_addresses(const char* node, const char* service, uint64_t flags, const fi_info* hints,
                      InfoAddresses& result);

/// The source address of endpoints of a single-host domain: an IP of this host. Unset, after one
/// log line, if the application asked for an IP that is not local.
util::SocketAddress source_on_host(const LocalAddresses& local, const InfoAddresses& asked);
/// The source address of endpoints on a NIC with these IPs. Unset if the NIC lacks the IP that the
/// application asked for.
util::SocketAddress source_on_nic(const std::vector<util::SocketAddress>& addresses,
                                  const InfoAddresses& asked) noexcept;

/// The IP from which the kernel would send to `destination`; unset if there is no route.
util::SocketAddress source_by_route(const util::SocketAddress& destination) noexcept;

}  // namespace erdma::fabric
