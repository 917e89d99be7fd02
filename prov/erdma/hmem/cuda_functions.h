#pragma once

#include <optional>

#include "hmem/cuda_api.h"

// Each function of the driver that is looked up by name, with its parameters.
#define ERDMA_CUDA_REQUIRED(F)                                                             \
  F(cuInit, (unsigned flags))                                                              \
  F(cuDeviceGetCount, (int* count))                                                        \
  F(cuPointerGetAttribute, (void* value, int attribute, DevicePointer pointer))            \
  F(cuMemGetAddressRange_v2, (DevicePointer * base, size_t * size, DevicePointer pointer)) \
  F(cuCtxGetCurrent, (Context * context))                                                  \
  F(cuCtxPushCurrent_v2, (Context context))                                                \
  F(cuCtxPopCurrent_v2, (Context * context))                                               \
  F(cuStreamCreate, (Stream * stream, unsigned flags))                                     \
  F(cuStreamSynchronize, (Stream stream))                                                  \
  F(cuMemcpyAsync, (DevicePointer to, DevicePointer from, size_t length, Stream stream))
// Each is null if the driver lacks it. cuMemGetHandleForAddressRange came with CUDA 11.7.
#define ERDMA_CUDA_OPTIONAL(F)                                                              \
  F(cuDeviceGetAttribute, (int* value, int attribute, Device device))                       \
  F(cuMemGetHandleForAddressRange,                                                          \
    (void* handle, DevicePointer pointer, size_t size, int type, unsigned long long flags)) \
  F(cuDevicePrimaryCtxRetain, (Context * context, Device device))                           \
  F(cuDevicePrimaryCtxRelease_v2, (Device device))                                          \
  F(cuDevicePrimaryCtxGetState, (Device device, unsigned* flags, int* active))              \
  F(cuMemAlloc_v2, (DevicePointer * pointer, size_t bytes))                                 \
  F(cuMemFree_v2, (DevicePointer pointer))
// All of them are there, or the first is null.
#define ERDMA_CUDA_IPC(F)                                                                  \
  F(cuIpcGetMemHandle, (IpcMemHandle * handle, DevicePointer pointer))                     \
  F(cuIpcOpenMemHandle_v2, (DevicePointer * pointer, IpcMemHandle handle, unsigned flags)) \
  F(cuIpcCloseMemHandle, (DevicePointer pointer))
// All of them are there (CUDA 11), or the first is null.
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

/// The functions of the driver, and what every user of them asks.
struct Functions {
#define ERDMA_CUDA_MEMBER(name, parameters) Result(*name) parameters;
  ERDMA_CUDA_REQUIRED(ERDMA_CUDA_MEMBER)
  ERDMA_CUDA_OPTIONAL(ERDMA_CUDA_MEMBER)
  ERDMA_CUDA_IPC(ERDMA_CUDA_MEMBER)
  ERDMA_CUDA_FILES(ERDMA_CUDA_MEMBER)
#undef ERDMA_CUDA_MEMBER

  /// The name of the first function that is required and missing, or null.
  const char* look_up(void* library) noexcept;
  bool is_device(const void* pointer) const noexcept;
  /// The device that holds the memory; -1: none.
  Device device_of(const void* pointer) const noexcept;
};

inline DevicePointer address_of(const void* pointer) noexcept {
  return reinterpret_cast<uintptr_t>(pointer);
}
inline void* pointer_to(DevicePointer address) noexcept {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr): CUDA's are numbers
}

/// The primary context of a device, if the application uses it; it lives as long as that use. No
/// context is made. It is retained as long as this object lives, as another thread of the
/// application may release it.
class PrimaryContext {
 public:
  PrimaryContext(const Functions& api, Device device) noexcept;
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;
  ~PrimaryContext();
  /// Null: there is none.
  Context get() const noexcept { return x_context; }

 private:
  const Functions& x_api;
  const Device x_device;
  Context x_context = nullptr;
};

/// The thread is in the context of one of the pointers as long as this object lives. The first
/// pointer that CUDA knows decides. Memory of cuMemCreate() and of pools has no context: for that
/// it is the primary context of its device, or otherwise the current one of the thread.
class EnteredContext {
 public:
  EnteredContext(const Functions& api, const void* one, const void* other = nullptr) noexcept;
  EnteredContext(const EnteredContext&) = delete;
  EnteredContext& operator=(const EnteredContext&) = delete;
  ~EnteredContext();
  /// Null: none was entered.
  Context get() const noexcept { return x_context; }

 private:
  Context find(const void* one, const void* other) noexcept;

  const Functions& x_api;
  std::optional<PrimaryContext> x_primary;
  Context x_context = nullptr;
};

}  // namespace erdma::hmem::cuda_api
