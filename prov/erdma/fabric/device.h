#pragma once

#include <string>
#include <vector>

namespace erdma::fabric {

inline constexpr char kInfinibandClass[] = "/sys/class/infiniband";
/// In FI_ERDMA_DEVICE: single-host operation, no NIC.
inline constexpr char kShmDevice[] = "shm";

/// One RDMA device of this host, or one that was asked for and is absent.
struct DeviceReport {
  std::string name;  ///< as ibverbs names it
  bool usable = false;
  std::string reason;  ///< why it is not usable
};

/// Looks at the devices under `root` (kInfinibandClass, or a copy of such a tree) and judges each
/// by FI_ERDMA_DEVICE (`wanted`; empty = every ACTIVE eRDMA port). In order of name.
std::vector<DeviceReport> survey_devices(const std::string& root,
                                         const std::vector<std::string>& wanted);

}  // namespace erdma::fabric
