#pragma once

#include <string>

#include <rdma/fabric.h>

namespace erdma::fabric {

/// The contents of fi_info::nic. Applications dereference its device, bus and link attributes
/// without a check, so none of them is ever null.
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

/// The caller owns the result: fi_close destroys it, which fi_freeinfo calls. fi_dupinfo copies it
/// by FI_DUP. Throws std::bad_alloc.
fid_nic* make_nic(NicDescription description);

}  // namespace erdma::fabric
