#pragma once

#include <string>
#include <vector>

#include "transport/verbs/device_list.h"
#include "util/socket_address.h"

namespace erdma::fabric {

/// The name in FI_ERDMA_DEVICE that means single-host operation, without a NIC.
inline constexpr char kShmDevice[] = "shm";

/// One RDMA device of this host, or one that FI_ERDMA_DEVICE names and that is absent.
struct DeviceReport {
  transport::verbs::DeviceDescription device;
  bool usable = false;
  bool named = false;  ///< by FI_ERDMA_DEVICE
  std::string reason;  ///< why it is not usable
  std::string state;   ///< "ACTIVE", or why the device does not work; empty: absent
};

/// Reports which of the `present` devices (sorted by name) the provider uses. `wanted`: the names
/// in FI_ERDMA_DEVICE; empty = every ACTIVE eRDMA port.
std::vector<DeviceReport> survey_devices(
    const std::vector<transport::verbs::DeviceDescription>& present,
    const std::vector<std::string>& wanted);

/// A text for the user: which devices that FI_ERDMA_DEVICE names can't be used and why, and which
/// devices exist. Empty: all can be used.
std::string faults_of_named(const std::vector<DeviceReport>& reports);

/// The address of a device that its endpoints use as their name. Only addresses of `family` count
/// (AF_UNSPEC: both, IPv4 first). Order of preference: global, link-local, loopback (siw and rxe on
/// lo). Unset if there is none.
util::SocketAddress preferred_address(const std::vector<util::SocketAddress>& addresses,
                                      sa_family_t family) noexcept;
/// The same for a device of this host, by its name. `addr_format` as in fi_info.
util::SocketAddress address_of_device(const std::string& name, uint32_t addr_format);

}  // namespace erdma::fabric
