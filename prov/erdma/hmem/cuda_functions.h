#pragma once

#include "hmem/cuda.h"

namespace erdma::hmem {

/// What is looked up, by these names. For the files that implement Cuda.
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
  /// Null: of a driver that lacks it.
  cuda_api::Result (*cuDeviceGetAttribute)(int* value, int attribute, cuda_api::Device device);
  /// Of CUDA 11.7; null before.
  cuda_api::Result (*cuMemGetHandleForAddressRange)(void* handle, cuda_api::DevicePointer pointer,
                                                    size_t size, int type,
                                                    unsigned long long flags);
  // For memory of our own.
  cuda_api::Result (*cuDevicePrimaryCtxRetain)(cuda_api::Context* context, cuda_api::Device device);
  cuda_api::Result (*cuDevicePrimaryCtxRelease_v2)(cuda_api::Device device);
  cuda_api::Result (*cuMemAlloc_v2)(cuda_api::DevicePointer* pointer, size_t bytes);
  cuda_api::Result (*cuMemFree_v2)(cuda_api::DevicePointer pointer);
  /// All three, or the first is null.
  cuda_api::Result (*cuIpcGetMemHandle)(cuda_api::IpcMemHandle* handle,
                                        cuda_api::DevicePointer pointer);
  cuda_api::Result (*cuIpcOpenMemHandle_v2)(cuda_api::DevicePointer* pointer,
                                            cuda_api::IpcMemHandle handle, unsigned flags);
  cuda_api::Result (*cuIpcCloseMemHandle)(cuda_api::DevicePointer pointer);

  /// The name of the first function that is missing, or null.
  const char* look_up(void* library) noexcept;
};

}  // namespace erdma::hmem
