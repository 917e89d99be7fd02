#pragma once

#include <string>
#include <vector>

#include "transport/verbs/device_list.h"
#include "util/socket_address.h"

namespace erdma::fabric {

/// In FI_ERDMA_DEVICE: single-host operation, no NIC.
inline constexpr char kShmDevice[] = "shm";

/// One RDMA device of this host, or one that was asked for and is absent.
struct DeviceReport {
  transport::verbs::DeviceDescription device;
  bool usable = false;
  bool named = false;  ///< by FI_ERDMA_DEVICE
  std::string reason;  ///< why it is not usable
  std::string state;   ///< "ACTIVE", or what is wrong with it, named or not; empty: absent
};

/// Judges each of `present` (in order of name) by FI_ERDMA_DEVICE (`wanted`; empty = every ACTIVE
/// eRDMA port).
std::vector<DeviceReport> survey_devices(
    const std::vector<transport::verbs::DeviceDescription>& present,
    const std::vector<std::string>& wanted);

/// Which devices that FI_ERDMA_DEVICE names can't be used, why, and which there are; empty: all
/// can.
std::string faults_of_named(const std::vector<DeviceReport>& reports);

/// The one among the addresses of a device by which an endpoint on it is known: of `family`
/// (AF_UNSPEC: IPv4 if there is any), link-local ones after others, then
/// those of the loopback (siw and rxe on lo). Unset if there is none.
util::SocketAddress preferred_address(const std::vector<util::SocketAddress>& addresses,
                                      sa_family_t family) noexcept;
/// The same of a device of this host; `addr_format` as in fi_info.
util::SocketAddress address_of_device(const std::string& name, uint32_t addr_format);

}  // namespace erdma::fabric
