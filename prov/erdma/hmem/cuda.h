#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "hmem/cuda_functions.h"
#include "hmem/device_memory.h"
#include "util/process_epoch.h"

namespace erdma::hmem {

class CudaIpc;

/// Memory of a device as it was allocated.
struct Allocation {
  uintptr_t base = 0;
  size_t size = 0;
  uint64_t id = 0;  ///< unique in the process: a later allocation at this address has another id
};

/// The CUDA driver of this process: libcuda.so.1, opened at run time, never linked. Thread-safe. It
/// makes no context of its own: device memory has the context of its allocation. Invariant: a
/// forked child, in which CUDA cannot be used, makes no call.
class Cuda final : public DeviceMemory {
 public:
  /// Null: there is no driver or no device, or the driver is too old. The driver is asked once per
  /// process, and only if an application wants FI_HMEM.
  static Cuda* get() noexcept;

  Cuda(const Cuda&) = delete;
  Cuda& operator=(const Cuda&) = delete;

  /// Does the pointer lead to memory of a device? Managed memory counts: an access by the processor
  /// would move it. The driver is asked each time, since allocations come and go.
  bool is_device(const void* pointer) const noexcept override;
  /// Is [pointer, +length) inside one allocation of a device?
  bool covers(const void* pointer, size_t length) const noexcept;

  /// Are a NIC's writes to this memory visible to kernels that begin after their completion, so
  /// that no flush is needed? Answered by the device's attributes; false if these cannot be read.
  bool orders_nic_writes(const void* pointer) const noexcept;

  /// The allocation that holds the pointer; false: it is not memory of a device.
  bool allocation(const void* pointer, Allocation& found) const noexcept;
  /// A new descriptor of a dmabuf in which the allocation begins at `offset`; -1: the driver makes
  /// none.
  int export_dmabuf(const Allocation& memory, uint64_t& offset) const noexcept;

  /// False in a forked child.
  bool usable() const noexcept { return x_epoch == util::process_epoch(); }
  /// Memory that is shared with other processes of the host.
  CudaIpc& ipc() noexcept { return *x_ipc; }

  /// Copies between device and host memory, or within either. The copy is done when the call
  /// returns 0 or -FI_EIO. The call waits for its own copy only, not for streams of the
  /// application.
  int copy(void* to, const void* from, size_t length) noexcept;

  /// Memory of the calling thread's device, or of the first device, as long as this object lives.
  /// Null: CUDA has none. Makes a context if there is none.
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
  cuda_api::Stream stream_of(cuda_api::Context context) noexcept;
  void forget(cuda_api::Context context) noexcept;
  int from_device(void* to, const void* from, size_t length) noexcept override {
    return copy(to, from, length);
  }
  int to_device(void* to, const void* from, size_t length) noexcept override {
    return copy(to, from, length);
  }
  int copy_in(cuda_api::Context context, void* to, const void* from, size_t length) noexcept;

  const cuda_api::Functions x_api;
  const uint32_t x_epoch;
  std::mutex x_mutex;  ///< of x_streams
  std::vector<StreamOf> x_streams;
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
  cuda_api::Context x_context = nullptr;  ///< of the allocation
  bool x_retained = false;                ///< this object retains the primary context of device 0
};

}  // namespace erdma::hmem
