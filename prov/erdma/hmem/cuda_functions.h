#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "hmem/cuda_api.h"

// The driver functions that are looked up by name, with their parameters. Required functions:
#define ERDMA_CUDA_REQUIRED(F)                                                             \
  F(cuInit, (unsigned flags))                                                              \
  F(cuDeviceGetCount, (int* count))                                                        \
  F(cuPointerGetAttribute, (void* value, int attribute, DevicePointer pointer))            \
  F(cuPointerGetAttributes,                                                                \
    (unsigned count, int* attributes, void** values, DevicePointer pointer))               \
  F(cuMemGetAddressRange_v2, (DevicePointer * base, size_t * size, DevicePointer pointer)) \
  F(cuCtxGetCurrent, (Context * context))                                                  \
  F(cuCtxPushCurrent_v2, (Context context))                                                \
  F(cuCtxPopCurrent_v2, (Context * context))                                               \
  F(cuStreamCreate, (Stream * stream, unsigned flags))                                     \
  F(cuStreamSynchronize, (Stream stream))                                                  \
  F(cuMemcpyAsync, (DevicePointer to, DevicePointer from, size_t length, Stream stream))
// Optional functions: each is null if the driver lacks it. cuMemGetHandleForAddressRange came with
// CUDA 11.7, cuThreadExchangeStreamCaptureMode with 10.1.
#define ERDMA_CUDA_OPTIONAL(F)                                                              \
  F(cuDeviceGetAttribute, (int* value, int attribute, Device device))                       \
  F(cuPointerSetAttribute, (const void* value, int attribute, DevicePointer pointer))       \
  F(cuMemGetHandleForAddressRange,                                                          \
    (void* handle, DevicePointer pointer, size_t size, int type, unsigned long long flags)) \
  F(cuDevicePrimaryCtxRetain, (Context * context, Device device))                           \
  F(cuDevicePrimaryCtxRelease_v2, (Device device))                                          \
  F(cuDevicePrimaryCtxGetState, (Device device, unsigned* flags, int* active))              \
  F(cuMemAlloc_v2, (DevicePointer * pointer, size_t bytes))                                 \
  F(cuMemFree_v2, (DevicePointer pointer))                                                  \
  F(cuThreadExchangeStreamCaptureMode, (int* mode))
// CUDA IPC: if the driver lacks any of these, the first is null.
#define ERDMA_CUDA_IPC(F)                                                                  \
  F(cuIpcGetMemHandle, (IpcMemHandle * handle, DevicePointer pointer))                     \
  F(cuIpcOpenMemHandle_v2, (DevicePointer * pointer, IpcMemHandle handle, unsigned flags)) \
  F(cuIpcCloseMemHandle, (DevicePointer pointer))
// Memory of cuMemCreate() (CUDA 11): if the driver lacks any of these, the first is null.
#define ERDMA_CUDA_FILES(F)                                                              \
  F(cuMemRetainAllocationHandle, (PhysicalMemory * handle, void* address))               \
  F(cuMemRelease, (PhysicalMemory handle))                                               \
  F(cuMemGetAllocationPropertiesFromHandle,                                              \
    (MemAllocationProperties * out, PhysicalMemory handle))                              \
  F(cuMemExportToShareableHandle,                                                        \
    (void* out, PhysicalMemory handle, int type, unsigned long long flags))              \
  F(cuMemImportFromShareableHandle, (PhysicalMemory * out, void* shared, int type))      \
  F(cuMemAddressReserve, (DevicePointer * address, size_t size, size_t alignment,        \
                          DevicePointer wanted, unsigned long long flags))               \
  F(cuMemAddressFree, (DevicePointer address, size_t size))                              \
  F(cuMemMap, (DevicePointer address, size_t size, size_t offset, PhysicalMemory handle, \
               unsigned long long flags))                                                \
  F(cuMemUnmap, (DevicePointer address, size_t size))                                    \
  F(cuMemSetAccess, (DevicePointer address, size_t size, const MemAccess* access, size_t count))

namespace erdma::hmem::cuda_api {

/// What the driver says of memory; unknown: it fails.
enum class MemoryKind : uint8_t { host, device, unknown };

/// What one call of the driver says of memory.
struct MemoryFacts {
  Context context = nullptr;  ///< the context that the memory belongs to; null: there is none
  uint64_t id = 0;            ///< the buffer id of device memory; 0: it is host memory
};

/// The functions of the driver, and queries that all their users need.
struct Functions {
#define ERDMA_CUDA_MEMBER(name, parameters) Result(*name) parameters;
  ERDMA_CUDA_REQUIRED(ERDMA_CUDA_MEMBER)
  ERDMA_CUDA_OPTIONAL(ERDMA_CUDA_MEMBER)
  ERDMA_CUDA_IPC(ERDMA_CUDA_MEMBER)
  ERDMA_CUDA_FILES(ERDMA_CUDA_MEMBER)
#undef ERDMA_CUDA_MEMBER

  /// Looks up all functions in `library`, a handle of dlopen(3). Returns null, or the name of the
  /// first required function that is missing.
  const char* look_up(void* library) noexcept;
  MemoryKind kind_of(const void* pointer) const noexcept;
  bool is_device(const void* pointer) const noexcept {
    return kind_of(pointer) == MemoryKind::device;
  }
  /// The device that holds the memory; -1: it is not device memory.
  Device device_of(const void* pointer) const noexcept;
  MemoryFacts facts_of(const void* pointer) const noexcept;
  /// Finds the allocation that contains the pointer. Drivers before CUDA 10.2 need a context, of
  /// the memory or of the thread, for that. False: it is not found.
  bool range(const void* pointer, uintptr_t& base, size_t& size) const noexcept;
  /// CUDA's id of the memory that is at the address now, unique in the process; 0: there is none.
  uint64_t buffer_id(DevicePointer address) const noexcept;
};

inline DevicePointer address_of(const void* pointer) noexcept {
  return reinterpret_cast<uintptr_t>(pointer);
}
inline void* pointer_to(DevicePointer address) noexcept {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr): CUDA's are numbers
}

/// While this object lives, this thread may make any call although an application captures a stream
/// into a CUDA graph. Without it, calls that CUDA does not record (synchronization and allocation;
/// CUDA may add others) fail and end the capture, in any thread of the process: CUDA can't know
/// that the graph does not depend on them. It costs 30 ns (H100).
class BesideCaptures {
 public:
  explicit BesideCaptures(const Functions& api) noexcept;
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;
  ~BesideCaptures();

 private:
  const Functions& x_api;
  int x_mode = kCaptureRelaxed;  ///< the thread's mode before, if x_changed
  const bool x_changed;
};

/// The primary context of a device, if the application has made it active; this class never
/// activates one. The context is retained while this object lives, since another thread of the
/// application may release it meanwhile.
class PrimaryContext {
 public:
  /// Whether an object made now would have a context.
  static bool is_active(const Functions& api, Device device) noexcept;
  PrimaryContext(const Functions& api, Device device) noexcept;
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;
  ~PrimaryContext();
  /// Null: the primary context is not active.
  Context get() const noexcept { return x_context; }

 private:
  const Functions& x_api;
  const Device x_device;
  Context x_context = nullptr;
};

/// While this object lives, the thread's current context is that of one of the pointers: of the
/// first one that has a context. Memory of cuMemCreate() and of memory pools has no context; for it
/// the context is the primary one of its device or, if that is not active, the thread's current
/// one. Calls are permitted beside captures.
class EnteredContext {
 public:
  EnteredContext(const Functions& api, const void* one, const void* other = nullptr) noexcept;
  EnteredContext(const EnteredContext&) = delete;
  EnteredContext& operator=(const EnteredContext&) = delete;
  ~EnteredContext();
  /// The context that was entered; null: there is none.
  Context get() const noexcept { return x_context; }
  /// The first of the pointers that is device memory, and the buffer id of that memory; null and 0:
  /// there is none before the pointer that has the context.
  const void* memory() const noexcept { return x_memory; }
  uint64_t id() const noexcept { return x_id; }

 private:
  Context find(const void* one, const void* other) noexcept;

  const Functions& x_api;
  const BesideCaptures x_beside;
  std::optional<PrimaryContext> x_primary;
  Context x_context = nullptr;
  const void* x_memory = nullptr;
  uint64_t x_id = 0;
};

}  // namespace erdma::hmem::cuda_api
