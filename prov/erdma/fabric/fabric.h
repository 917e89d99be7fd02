#pragma once

#include <atomic>

#include <rdma/fabric.h>

#include "fabric/env.h"

namespace erdma::fabric {

/// The root of an application's objects. Holds nothing but the count of its children, so calls
/// need no lock. Invariant: outlives them; close is -FI_EBUSY until then.
class Fabric final : public fid_fabric {
 public:
  static Fabric& from(fid_fabric* fabric) noexcept { return static_cast<Fabric&>(*fabric); }
  static Fabric& from(fid_t fid) noexcept { return from(reinterpret_cast<fid_fabric*>(fid)); }

  /// fi_fabric(3). libfabric sets api_version after it returns.
  static int open(fi_fabric_attr* attr, fid_fabric** fabric, void* context) noexcept;

  /// Children (domain, event queue, wait set) count themselves.
  void child_opened() noexcept { x_children.fetch_add(1, std::memory_order_relaxed); }
  void child_closed() noexcept { x_children.fetch_sub(1, std::memory_order_relaxed); }

  /// As the environment has them now.
  Settings settings() const { return read_settings(); }

  explicit Fabric(void* context) noexcept;
  int close() noexcept;

 private:
  std::atomic<int> x_children{0};
};

}  // namespace erdma::fabric
