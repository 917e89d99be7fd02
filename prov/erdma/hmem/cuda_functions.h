#pragma once

#include "hmem/cuda.h"

namespace erdma::hmem {

/// The functions of the driver that are looked up by name. Only the files that implement Cuda
/// include this.
struct Cuda::Functions {
  cuda_api::Result (*cuInit)(unsigned flags);
  cuda_api::Result (*cuDeviceGetCount)(int* count);
  cuda_api::Result (*cuPointerGetAttribute)(void* value, int attribute,
                                            cuda_api::DevicePointer pointer);
  cuda_api::Result (*cuMemGetAddressRange_v2)(cuda_api::DevicePointer* base, size_t* size,
                                              cuda_api::DevicePointer pointer);
  cuda_api::Result (*cuCtxGetCurrent)(cuda_api::Context* context);
  cuda_api::Result (*cuCtxPushCurrent_v2)(cuda_api::Context context);
  cuda_api::Result (*cuCtxPopCurrent_v2)(cuda_api::Context* context);
  cuda_api::Result (*cuStreamCreate)(cuda_api::Stream* stream, unsigned flags);
  cuda_api::Result (*cuStreamSynchronize)(cuda_api::Stream stream);
  cuda_api::Result (*cuMemcpyAsync)(cuda_api::DevicePointer to, cuda_api::DevicePointer from,
                                    size_t length, cuda_api::Stream stream);
  /// Null: the driver lacks it.
  cuda_api::Result (*cuDeviceGetAttribute)(int* value, int attribute, cuda_api::Device device);
  /// From CUDA 11.7 on; null before.
  cuda_api::Result (*cuMemGetHandleForAddressRange)(void* handle, cuda_api::DevicePointer pointer,
                                                    size_t size, int type,
                                                    unsigned long long flags);
  // For memory that the provider allocates.
  cuda_api::Result (*cuDevicePrimaryCtxRetain)(cuda_api::Context* context, cuda_api::Device device);
  cuda_api::Result (*cuDevicePrimaryCtxRelease_v2)(cuda_api::Device device);
  cuda_api::Result (*cuDevicePrimaryCtxGetState)(cuda_api::Device device, unsigned* flags,
                                                 int* active);
  cuda_api::Result (*cuMemAlloc_v2)(cuda_api::DevicePointer* pointer, size_t bytes);
  cuda_api::Result (*cuMemFree_v2)(cuda_api::DevicePointer pointer);
  /// All three are there, or the first is null.
  cuda_api::Result (*cuIpcGetMemHandle)(cuda_api::IpcMemHandle* handle,
                                        cuda_api::DevicePointer pointer);
  cuda_api::Result (*cuIpcOpenMemHandle_v2)(cuda_api::DevicePointer* pointer,
                                            cuda_api::IpcMemHandle handle, unsigned flags);
  cuda_api::Result (*cuIpcCloseMemHandle)(cuda_api::DevicePointer pointer);

  /// All of these are there (CUDA 11), or the first is null.
  cuda_api::Result (*cuMemRetainAllocationHandle)(cuda_api::PhysicalMemory* handle, void* address);
  cuda_api::Result (*cuMemRelease)(cuda_api::PhysicalMemory handle);
  cuda_api::Result (*cuMemGetAllocationPropertiesFromHandle)(cuda_api::MemAllocationProperties* out,
                                                             cuda_api::PhysicalMemory handle);
  cuda_api::Result (*cuMemExportToShareableHandle)(void* out, cuda_api::PhysicalMemory handle,
                                                   int type, unsigned long long flags);
  cuda_api::Result (*cuMemImportFromShareableHandle)(cuda_api::PhysicalMemory* out, void* shared,
                                                     int type);
  cuda_api::Result (*cuMemAddressReserve)(cuda_api::DevicePointer* address, size_t size,
                                          size_t alignment, cuda_api::DevicePointer wanted,
                                          unsigned long long flags);
  cuda_api::Result (*cuMemAddressFree)(cuda_api::DevicePointer address, size_t size);
  cuda_api::Result (*cuMemMap)(cuda_api::DevicePointer address, size_t size, size_t offset,
                               cuda_api::PhysicalMemory handle, unsigned long long flags);
  cuda_api::Result (*cuMemUnmap)(cuda_api::DevicePointer address, size_t size);
  cuda_api::Result (*cuMemSetAccess)(cuda_api::DevicePointer address, size_t size,
                                     const cuda_api::MemAccess* access, size_t count);

  /// The name of the first function that is missing, or null.
  const char* look_up(void* library) noexcept;
};

}  // namespace erdma::hmem
