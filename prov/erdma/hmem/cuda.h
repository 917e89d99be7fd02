#pragma once

#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "hmem/cuda_functions.h"
#include "hmem/device_memory.h"
#include "util/fd.h"
#include "util/process_epoch.h"
#include "util/result.h"

namespace erdma::hmem {

class CudaIpc;

/// One allocation of device memory.
struct Allocation {
  uintptr_t base = 0;
  size_t size = 0;
  uint64_t id = 0;  ///< CUDA's buffer id: unique in the process, also if the address is reused
};

/// The CUDA driver of this process: libcuda.so.1, opened at run time and not linked. Thread-safe.
/// Apart from allocate(), this class creates no context: it enters the context of the allocation
/// that it works on. Invariant: a forked child, where CUDA cannot be used, calls no CUDA function.
class Cuda final : public DeviceMemory {
 public:
  /// Null: there is no driver or no device, or the driver is too old. The first call loads the
  /// driver; it happens only if an application asks for FI_HMEM.
  static Cuda* get() noexcept;

  Cuda(const Cuda&) = delete;
  Cuda& operator=(const Cuda&) = delete;

  /// True if the pointer is into device memory. Managed memory counts as device memory, because an
  /// access by the CPU would migrate it. Each call asks the driver, since the application allocates
  /// and frees memory at any time. If the driver fails, memory that the CPU can't read counts as
  /// device memory.
  bool is_device(const void* pointer) const noexcept override;
  /// CUDA's error if it can't tell what this memory is; 0: it can.
  int error_at(const void* pointer) const noexcept;
  /// True for managed memory, whose pages move between the GPU and the host: a registration would
  /// keep pages that the memory has left.
  bool is_managed(const void* pointer) const noexcept;
  /// True if [pointer, +length) lies inside one allocation of device memory, or inside adjacent
  /// mappings of cuMemMap().
  bool covers(const void* pointer, size_t length) const noexcept;

  /// True if a NIC's writes to this memory are visible to kernels that start after the writes
  /// complete, so that no flush is needed. The answer is an attribute of the device
  /// (CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING); false if it cannot be read.
  bool orders_nic_writes(const void* pointer) const noexcept;

  /// CUDA's number of the GPU that holds the memory; -1: it can't be told.
  int gpu_of(const void* pointer) const noexcept;
  /// Finds the allocation that contains the pointer. False: the pointer is not into device memory.
  bool allocation(const void* pointer, Allocation& found) const noexcept;
  /// Returns a new dmabuf descriptor; the allocation begins at byte `offset` of the dmabuf.
  /// -FI_EOPNOTSUPP: driver or device have no dmabuf. -FI_EINVAL: CUDA does not export this
  /// allocation. Other errors may not recur.
  util::Result<util::Fd> export_dmabuf(const Allocation& memory, uint64_t& offset) const noexcept;

  /// Makes CUDA finish what it calls synchronous operations on the allocation (cudaMemset(), and
  /// cudaMemcpy() within devices or from pageable host memory) before the call that began them
  /// returns; otherwise they may end later, and transfers do not wait for them. Waits for those
  /// that are under way. CUDA is asked once for each allocation, and later calls only look that up.
  /// It refuses memory of cuMemCreate() and of pools. copy() does the same for the first pointer
  /// that is device memory.
  void make_synchronous(const Allocation& memory) noexcept;

  /// False in a forked child.
  bool usable() const noexcept { return x_epoch == util::process_epoch(); }
  /// CUDA IPC: memory that is shared with other processes of the host.
  CudaIpc& ipc() noexcept { return *x_ipc; }

  /// Copies `length` bytes between device and host memory, or within either. Returns 0 when the
  /// copy is complete, or -FI_EIO if it failed (logged). The call waits for its own copy only, not
  /// for streams of the application.
  int copy(void* to, const void* from, size_t length) noexcept;

  /// `length` bytes of device memory that live as long as the returned object: on the device of the
  /// calling thread's context or, if it has none, on device 0, whose primary context is then
  /// retained. Null: CUDA cannot allocate the memory.
  class Scratch;
  std::unique_ptr<Scratch> allocate(size_t length) noexcept;

 private:
  struct StreamOf {
    cuda_api::Context context;
    cuda_api::Stream stream;
  };

  explicit Cuda(const cuda_api::Functions& functions);
  ~Cuda();
  static Cuda* load() noexcept;
  int why_no_dmabuf(cuda_api::Result error, const void* pointer) const noexcept;
  cuda_api::Result stream_of(cuda_api::Context context, cuda_api::Stream& stream) noexcept;
  void forget(cuda_api::Context context) noexcept;
  int from_device(void* to, const void* from, size_t length) noexcept override {
    return copy(to, from, length);
  }
  int to_device(void* to, const void* from, size_t length) noexcept override {
    return copy(to, from, length);
  }
  int copy_in(cuda_api::Context context, void* to, const void* from, size_t length) noexcept;
  void make_synchronous(uint64_t id, cuda_api::DevicePointer at) noexcept;
  std::atomic<uint64_t>& asked_at(uint64_t id) noexcept { return x_asked[id % x_asked.size()]; }

  const cuda_api::Functions x_api;
  const uint32_t x_epoch;
  std::mutex x_mutex;  ///< protects x_streams
  std::vector<StreamOf> x_streams;
  /// Buffer ids of the allocations for which make_synchronous() asked CUDA, each at its remainder.
  /// CUDA numbers allocations in turn. If two have the same place, CUDA is asked again.
  std::array<std::atomic<uint64_t>, 1024> x_asked{};
  const std::unique_ptr<CudaIpc> x_ipc;
};

class Cuda::Scratch {
 public:
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch();
  void* pointer() const noexcept;

 private:
  friend class Cuda;
  explicit Scratch(Cuda& cuda) noexcept : x_cuda(cuda) {}

  Cuda& x_cuda;
  cuda_api::DevicePointer x_pointer = 0;
  cuda_api::Context x_context = nullptr;  ///< the context of the allocation
  bool x_retained = false;                ///< this object retains the primary context of device 0
};

}  // namespace erdma::hmem
