#pragma once

#include <rdma/fabric.h>

#include "fabric/env.h"
#include "fabric/fid_ops.h"

namespace erdma::fabric {

/// The root of an application's objects. Holds nothing but the count of its children, so calls
/// need no lock. Invariant: outlives them; close is -FI_EBUSY until then.
class Fabric final : public FidObject<Fabric, fid_fabric> {
 public:
  /// fi_fabric(3). libfabric sets api_version after it returns.
  static int open(fi_fabric_attr* attr, fid_fabric** fabric, void* context) noexcept;

  /// Domains, event queues and wait sets.
  Children& children() noexcept { return x_children; }

  /// As the environment has them now.
  Settings settings() const { return read_settings(); }

  explicit Fabric(void* context) noexcept;
  int close() noexcept;

 private:
  Children x_children;
};

}  // namespace erdma::fabric
