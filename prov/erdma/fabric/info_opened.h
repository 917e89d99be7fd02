#pragma once

#include <rdma/fabric.h>

#include "fabric/info_address.h"

namespace erdma::fabric {

class Domain;

/// The open objects to which hints restrict the answer of fi_getinfo(3): fi_fabric_attr::fabric and
/// fi_domain_attr::domain. The answer names these or, where the hints name none, others that fit.
struct Opened {
  fid_fabric* fabric = nullptr;  ///< null: any
  Domain* domain = nullptr;      ///< null: any

  /// The source of endpoints of the open domain is its address, unless the application asks for
  /// another one.
  void choose_source(InfoAddresses& asked) const noexcept;
  /// Removes the infos that the open domain does not fit, and makes the others name the objects.
  /// Returns 0, or -FI_ENODATA after one log line if none is left.
  int restrict(fi_info*& list) const;

 private:
  void name_objects(fi_info& info) const noexcept;
};

/// Finds the open objects that `hints` name; `hints` may be null. Returns 0, or -FI_ENODATA after
/// one log line if one of them is no open object of this provider.
int find_opened(const fi_info* hints, Opened& opened);

}  // namespace erdma::fabric
