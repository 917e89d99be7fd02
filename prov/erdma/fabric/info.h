#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <rdma/fabric.h>

#include "fabric/env.h"
#include "fabric/local_addresses.h"
#include "transport/verbs/device_list.h"

namespace erdma::fabric {

/// The arguments of fi_getinfo(3).
struct InfoQuery {
  uint32_t version;
  const char* node;
  const char* service;
  uint64_t flags;
  const fi_info* hints;
};

/// The state of the host that the answer depends on.
struct Host {
  Settings settings;
  LocalAddresses local;
  std::function<std::vector<transport::verbs::DeviceDescription>()> devices;
};

/// Makes one FI_EP_RDM info per NIC. If no NIC can be used, it makes one for single-host operation,
/// provided that the application or the user asks for it. Returns 0 or a negative fi_errno.
int find_infos(const InfoQuery& query, const Host& host, fi_info** info);

/// fi_getinfo(3) with the present state of the host.
int getinfo(uint32_t version, const char* node, const char* service, uint64_t flags,
            const fi_info* hints, fi_info** info) noexcept;

/// For fi_domain and fi_endpoint: checks that the provider can do what `info` asks, which the
/// application may have changed since fi_getinfo (fewer capabilities, other sizes). Returns 0, or
/// -FI_EINVAL after one log line.
int check_info(uint32_t version, const fi_info& info);

}  // namespace erdma::fabric
