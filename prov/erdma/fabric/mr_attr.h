#pragma once

#include <cstddef>
#include <cstdint>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>

#include "protocol/regions.h"
#include "transport/direct_source.h"

namespace erdma::hmem {
class Cuda;
}

namespace erdma::fabric {

/// The memory that an fi_mr_attr names: an iovec or a dmabuf.
struct NamedMemory {
  iovec iov[transport::kMaxIov];
  size_t count = 0;
  bool device = false;
  bool in_file = false;
  transport::Dmabuf file{};

  const transport::Dmabuf* dmabuf() const noexcept { return in_file ? &file : nullptr; }
};

/// Checks an fi_mr_attr. It reads only members that exist in the application's API version.
class RegionAttributes {
 public:
  /// `cuda` is null if all regions are host memory.
  RegionAttributes(uint32_t api_version, hmem::Cuda* cuda) noexcept;

  bool permit_device_memory() const noexcept { return x_cuda != nullptr; }
  int take(const fi_mr_attr& attr, uint64_t flags, NamedMemory& memory) const noexcept;
  /// hmem::Cuda::make_synchronous() for device memory.
  void make_synchronous(const NamedMemory& memory) const noexcept;

 private:
  int check(const fi_mr_attr& attr, uint64_t flags) const noexcept;
  int take_dmabuf(const fi_mr_attr& attr, NamedMemory& memory) const noexcept;
  int check_memory(const fi_mr_attr& attr, NamedMemory& memory) const noexcept;

  const bool x_has_auth_key;
  const bool x_has_interface;
  const bool x_has_dmabuf;
  hmem::Cuda* const x_cuda;
};

}  // namespace erdma::fabric
