#pragma once

#include <cstdint>

#include <rdma/fabric.h>

#include "fabric/local_addresses.h"
#include "util/socket_address.h"

namespace erdma::fabric {

struct InfoAddresses {
  util::SocketAddress source;       ///< always set; an IP of this host
  util::SocketAddress destination;  ///< unset = none was asked for; else of the same family
};

/// Source and destination of the arguments of fi_getinfo(3). -FI_ENODATA after one log line if a
/// name does not resolve or an address is of no use here; -FI_EINVAL for FI_SOURCE of nothing.
int resolve_addresses(const LocalAddresses& local, const char* node, const char* service,
                      uint64_t flags, const fi_info* hints, InfoAddresses& result);

}  // namespace erdma::fabric
