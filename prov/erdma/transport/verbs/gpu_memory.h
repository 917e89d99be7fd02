#pragma once

#include "transport/direct_source.h"
#include "transport/verbs/device.h"
#include "transport/verbs/handles.h"

namespace erdma::hmem {
class Cuda;
}

namespace erdma::transport::verbs {

/// FI_ERDMA_HMEM_RECV_FLUSH: NIC writes to a GPU are flushed where the GPU's attributes require it,
/// always, or never.
enum class FlushPolicy : uint8_t { automatic, always, never };

/// True if NIC writes to this memory of a GPU must be flushed.
bool needs_flush(FlushPolicy policy, const hmem::Cuda& cuda, const void* memory) noexcept;

/// What a user can do where a NIC has no way to a GPU's memory.
inline constexpr char kNoWayRemedy[] =
    "Load nvidia-peermem, with a driver of the NIC that was built for it, or use a driver that has "
    "dmabuf";

/// Why GPU memory could not be registered: an errno for each way that was tried. `as_dmabuf` = 0:
/// registration as a dmabuf succeeded.
struct GpuRefusal {
  int as_dmabuf = 0;
  int by_address = 0;
  bool pins_others = false;  ///< other memory of this GPU was registered by its address

  /// True if this memory can never be registered, rather than not this time.
  bool final() const noexcept;
  /// True if that holds for all memory of this GPU, because neither way exists for it.
  bool for_all() const noexcept;
  /// The error of a way that lacked room for the region; 0: neither did.
  int want_of_room() const noexcept;
  /// A sentence for the user.
  const char* remedy() const noexcept;
};

/// Registers GPU memory that lies within one allocation, under its own addresses: as a dmabuf
/// (`file`, or exported here) where driver and NIC can do that, or else by address, which needs
/// nvidia-peermem. Never with relaxed ordering, because a flush by reading relies on the order.
/// Null: `why` tells the reason.
MemoryRegion register_gpu_memory(const Device& device, hmem::Cuda& cuda, const iovec& memory,
                                 const Dmabuf* file, int access, GpuRefusal& why) noexcept;

/// The same for memory that the application registers, for which registrations that nobody uses
/// make room. The caller holds no lock of a cache.
MemoryRegion register_gpu_region(const Device& device, hmem::Cuda& cuda, const iovec& memory,
                                 const Dmabuf* file, int access, GpuRefusal& why) noexcept;

/// Regions of the application in GPU memory, for RMA.
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
