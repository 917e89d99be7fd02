#pragma once

#include <string>

#include <rdma/fabric.h>

namespace erdma::fabric {

/// What fi_info::nic tells of a device. Applications read device, bus and link attributes
/// unchecked, so each is always there.
struct NicDescription {
  std::string name;
  std::string device_id;
  std::string device_version;
  std::string vendor_id;
  std::string driver;
  std::string firmware;
  std::string address;
  std::string network_type;
  fi_bus_attr bus{};
  size_t mtu = 0;
  size_t speed = 0;  ///< bit/s
  bool up = true;
};

/// Freed by fi_close, which fi_freeinfo calls; fi_dupinfo duplicates it by FI_DUP.
fid_nic* make_nic(NicDescription description);

}  // namespace erdma::fabric
