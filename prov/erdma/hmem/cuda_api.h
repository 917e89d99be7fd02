#pragma once

#include <cstdint>

/// The part of the CUDA driver API that the provider uses: types and numbers of the ABI, as
/// NVIDIA's documentation of the driver API describes them, so that CUDA's headers are not needed
/// to build. Functions are looked up by name at run time (cuda_functions.cc). Names with a version
/// suffix in libcuda.so.1 have it here too.
namespace erdma::hmem::cuda_api {

using Result = int;              ///< CUresult
using DevicePointer = uint64_t;  ///< CUdeviceptr
using Device = int;              ///< CUdevice, an ordinal
using Context = void*;           ///< CUcontext
using Stream = void*;            ///< CUstream
using Event = void*;             ///< CUevent

using PhysicalMemory = uint64_t;  ///< CUmemGenericAllocationHandle

struct IpcMemHandle {  ///< CUipcMemHandle: passed by value
  char reserved[64];
};

struct MemLocation {  ///< CUmemLocation
  int type;
  int id;
};
struct MemAllocationProperties {  ///< CUmemAllocationProp
  int type;
  int handle_types;  ///< bits: kinds of handles that the memory may be exported as
  MemLocation location;
  void* win32_metadata;
  unsigned char flags[8];
};
struct MemAccess {  ///< CUmemAccessDesc
  MemLocation location;
  int flags;
};
static_assert(sizeof(MemAllocationProperties) == 32 && sizeof(MemAccess) == 12);

enum : Result {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kInvalidHandle = 400,
  kNotReady = 600,
  kIllegalAddress = 700,
  kContextDestroyed = 709,
  kNotSupported = 801,
  kStreamCaptureUnsupported = 900,
  kStreamCaptureInvalidated = 901,
  kStreamCaptureWrongThread = 908,
  kUnknown = 999,
};

enum PointerAttribute : int {
  kPointerContext = 1,
  kPointerMemoryType = 2,
  kPointerDevicePointer = 3,
  kPointerSyncMemops = 6,
  kPointerBufferId = 7,
  kPointerIsManaged = 8,
  kPointerDeviceOrdinal = 9,
  kPointerIpcCapable = 10,
  kPointerRangeStart = 11,
  kPointerRangeSize = 12,
};

enum CaptureMode : int {  ///< CUstreamCaptureMode
  kCaptureGlobal = 0,
  kCaptureThreadLocal = 1,
  kCaptureRelaxed = 2,
};

enum MemoryType : unsigned { kMemoryHost = 1, kMemoryDevice = 2, kMemoryUnified = 4 };

enum DeviceAttribute : int {
  kDeviceUnifiedAddressing = 41,
  kDeviceComputeMajor = 75,
  kDeviceComputeMinor = 76,
  kDeviceGpuDirectRdma = 116,
  kDeviceFlushOptions = 117,
  kDeviceWritesOrdering = 118,
  kDeviceDmabuf = 124,
};

inline constexpr int kOrderedForOwner = 100;        ///< CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER
inline constexpr int kRangeHandleDmabufFd = 1;      ///< CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
inline constexpr unsigned kStreamNonBlocking = 1;   ///< CU_STREAM_NON_BLOCKING
inline constexpr unsigned kIpcLazyPeerAccess = 1;   ///< CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
inline constexpr int kMemoryPinned = 1;             ///< CU_MEM_ALLOCATION_TYPE_PINNED
inline constexpr int kHandlePosixFd = 1;            ///< CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
inline constexpr int kLocationDevice = 1;           ///< CU_MEM_LOCATION_TYPE_DEVICE
inline constexpr int kAccessReadWrite = 3;          ///< CU_MEM_ACCESS_FLAGS_PROT_READWRITE
inline constexpr unsigned kEventDisableTiming = 2;  ///< CU_EVENT_DISABLE_TIMING

}  // namespace erdma::hmem::cuda_api
