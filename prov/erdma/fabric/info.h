#pragma once

#include <cstdint>

#include <rdma/fabric.h>

namespace erdma::fabric {

/// fi_getinfo(3). One FI_EP_RDM info: of this host alone, as long as there is no NIC transport.
int getinfo(uint32_t version, const char* node, const char* service, uint64_t flags,
            const fi_info* hints, fi_info** info) noexcept;

/// For fi_domain and fi_endpoint: is `info`, which the application may have changed since
/// fi_getinfo (fewer capabilities, other sizes), within what this version can do? 0 or -FI_EINVAL
/// after one log line.
int check_info(uint32_t version, const fi_info& info);

/// Was the provider asked for by name? `filter` is FI_PROVIDER (names separated by commas and
/// semicolons, a leading ^ excludes), `prov_name` that of the hints; either may be null.
bool asked_by_name(const char* filter, const char* prov_name) noexcept;

}  // namespace erdma::fabric
