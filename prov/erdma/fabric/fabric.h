#pragma once

#include <rdma/fabric.h>

#include "fabric/env.h"
#include "fabric/fid_ops.h"
#include "fabric/open_objects.h"

namespace erdma::fabric {

/// The root of an application's objects. Its only state is the number of its children, so calls
/// need no lock. Invariant: the fabric outlives them; fi_close returns -FI_EBUSY while there are
/// any.
class Fabric final : public FidObject<Fabric, fid_fabric>, public OpenObjects<Fabric>::Member {
 public:
  /// fi_fabric(3). libfabric sets api_version after it returns.
  static int open(fi_fabric_attr* attr, fid_fabric** fabric, void* context) noexcept;

  /// Domains, event queues and wait sets.
  Children& children() noexcept { return x_children; }

  /// The settings that the environment has now.
  Settings settings() const { return read_settings(); }

  explicit Fabric(void* context) noexcept;
  int close() noexcept;

 private:
  Children x_children;
};

}  // namespace erdma::fabric
