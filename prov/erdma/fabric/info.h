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

/// What the answer depends on.
struct Host {
  Settings settings;
  LocalAddresses local;
  std::function<std::vector<transport::verbs::DeviceDescription>()> devices;
};

/// One FI_EP_RDM info per NIC; without any that can be used, one of this host alone for those who
/// ask for that.
int find_infos(const InfoQuery& query, const Host& host, fi_info** info);

/// fi_getinfo(3), on the host as it is.
int getinfo(uint32_t version, const char* node, const char* service, uint64_t flags,
            const fi_info* hints, fi_info** info) noexcept;

/// For fi_domain and fi_endpoint: is `info`, which the application may have changed since
/// fi_getinfo (fewer capabilities, other sizes), within what this version can do? 0 or -FI_EINVAL
/// after one log line.
int check_info(uint32_t version, const fi_info& info);

}  // namespace erdma::fabric
