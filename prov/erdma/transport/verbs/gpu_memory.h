#pragma once

#include "transport/direct_source.h"
#include "transport/verbs/device.h"
#include "transport/verbs/handles.h"

namespace erdma::hmem {
class Cuda;
}

namespace erdma::transport::verbs {

/// Why memory of a GPU could not be registered: an errno for each way that was tried. 0: as a
/// dmabuf it could.
struct GpuRefusal {
  int as_dmabuf = 0;
  int by_address = 0;

  /// There is no way at all, rather than none this time.
  bool final() const noexcept;
};

/// Registers memory of a GPU that lies within one allocation, under its own addresses: as a dmabuf
/// (`file`, else exported here) where driver and NIC can, else by its address, which needs
/// nvidia-peermem. Never with relaxed ordering: whoever flushes by reading counts on the order.
/// Null: `why` says so.
MemoryRegion register_gpu_memory(const Device& device, hmem::Cuda& cuda, const iovec& memory,
                                 const Dmabuf* file, int access, GpuRefusal& why) noexcept;

/// Regions of the application's in memory of a GPU, for RMA.
class GpuMemoryRegistrar final : public RegionRegistrar {
 public:
  GpuMemoryRegistrar(const Device& device, hmem::Cuda& cuda) noexcept
      : x_device(device), x_cuda(cuda) {}
  util::Result<std::unique_ptr<RegisteredRegion>> open(const iovec& memory, const Dmabuf* file,
                                                       bool for_reads, bool for_writes) override;

 private:
  const Device& x_device;
  hmem::Cuda& x_cuda;
};

}  // namespace erdma::transport::verbs
