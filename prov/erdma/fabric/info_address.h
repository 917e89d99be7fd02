#pragma once

#include <cstdint>
#include <vector>

#include <rdma/fabric.h>

#include "fabric/local_addresses.h"
#include "util/socket_address.h"

namespace erdma::fabric {

struct InfoAddresses {
  util::SocketAddress source;       ///< as asked: unset or a wildcard = any IP of this host
  util::SocketAddress destination;  ///< unset = none was asked for
  sa_family_t family = AF_UNSPEC;   ///< of both, if either or a format was asked for
};

/// Source and destination of the arguments of fi_getinfo(3). -FI_ENODATA after one log line if a
/// name does not resolve; -FI_EINVAL for FI_SOURCE of nothing.
int resolve_addresses(const char* node, const char* service, uint64_t flags, const fi_info* hints,
                      InfoAddresses& result);

/// The source that an endpoint of a single-host domain gets: an IP of this host. Unset, after one
/// log line, if another was asked for.
util::SocketAddress source_on_host(const LocalAddresses& local, const InfoAddresses& asked);
/// The same on a NIC with these IPs. Unset if it has none such.
util::SocketAddress source_on_nic(const std::vector<util::SocketAddress>& addresses,
                                  const InfoAddresses& asked) noexcept;

/// The IP from which the kernel would send to `destination`; unset where it can't tell.
util::SocketAddress source_by_route(const util::SocketAddress& destination) noexcept;

}  // namespace erdma::fabric
