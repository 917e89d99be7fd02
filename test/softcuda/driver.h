#pragma once

#include <cstddef>

#include "hmem/cuda_api.h"

/// Functions of the CUDA driver API in the simulated libcuda.so.1.
#pragma GCC visibility push(default)
extern "C" {

using erdma::hmem::cuda_api::Context;
using erdma::hmem::cuda_api::Device;
using erdma::hmem::cuda_api::DevicePointer;
using erdma::hmem::cuda_api::Event;
using Graph = void*;      ///< CUgraph
using GraphExec = void*;  ///< CUgraphExec
using erdma::hmem::cuda_api::IpcMemHandle;
using erdma::hmem::cuda_api::MemAccess;
using erdma::hmem::cuda_api::MemAllocationProperties;
using erdma::hmem::cuda_api::PhysicalMemory;
using erdma::hmem::cuda_api::Result;
using erdma::hmem::cuda_api::Stream;

Result cuInit(unsigned flags);
Result cuDriverGetVersion(int* version);
Result cuGetErrorString(Result error, const char** text);
Result cuGetErrorName(Result error, const char** text);
Result cuDeviceGetCount(int* count);
Result cuDeviceGet(Device* device, int ordinal);
Result cuDeviceGetName(char* name, int length, Device device);
Result cuDeviceGetPCIBusId(char* name, int length, Device device);
Result cuDeviceGetAttribute(int* value, int attribute, Device device);
Result cuDevicePrimaryCtxRetain(Context* context, Device device);
Result cuDevicePrimaryCtxGetState(Device device, unsigned* flags, int* active);
Result cuDevicePrimaryCtxRelease_v2(Device device);
Result cuCtxGetCurrent(Context* context);
Result cuCtxSetCurrent(Context context);
Result cuCtxPushCurrent_v2(Context context);
Result cuCtxPopCurrent_v2(Context* context);
Result cuCtxGetDevice(Device* device);
Result cuCtxSynchronize();

Result cuMemAlloc_v2(DevicePointer* pointer, size_t bytes);
Result cuMemAllocManaged(DevicePointer* pointer, size_t bytes, unsigned flags);
Result cuMemFree_v2(DevicePointer pointer);
Result cuMemGetAddressRange_v2(DevicePointer* base, size_t* size, DevicePointer pointer);
Result cuPointerGetAttribute(void* out, int attribute, DevicePointer pointer);
Result cuPointerGetAttributes(unsigned count, int* attributes, void** out, DevicePointer pointer);
Result cuPointerSetAttribute(const void* value, int attribute, DevicePointer pointer);
Result cuIpcGetMemHandle(IpcMemHandle* out, DevicePointer pointer);
Result cuIpcOpenMemHandle_v2(DevicePointer* pointer, IpcMemHandle from, unsigned flags);
Result cuIpcCloseMemHandle(DevicePointer pointer);
Result cuMemGetHandleForAddressRange(void* out, DevicePointer pointer, size_t size, int type,
                                     unsigned long long flags);
Result cuFlushGPUDirectRDMAWrites(int target, int scope);

Result cuMemCreate(PhysicalMemory* made, size_t size, const MemAllocationProperties* wanted,
                   unsigned long long flags);
Result cuMemRelease(PhysicalMemory handle);
Result cuMemRetainAllocationHandle(PhysicalMemory* handle, void* address);
Result cuMemGetAllocationPropertiesFromHandle(MemAllocationProperties* out, PhysicalMemory handle);
Result cuMemGetAllocationGranularity(size_t* out, const MemAllocationProperties* of, int option);
Result cuMemAddressReserve(DevicePointer* address, size_t size, size_t alignment,
                           DevicePointer wanted, unsigned long long flags);
Result cuMemAddressFree(DevicePointer address, size_t size);
Result cuMemMap(DevicePointer address, size_t size, size_t offset, PhysicalMemory handle,
                unsigned long long flags);
Result cuMemUnmap(DevicePointer address, size_t size);
Result cuMemSetAccess(DevicePointer address, size_t size, const MemAccess* access, size_t count);
Result cuMemExportToShareableHandle(void* out, PhysicalMemory handle, int type,
                                    unsigned long long flags);
Result cuMemImportFromShareableHandle(PhysicalMemory* out, void* shared, int type);

Result cuMemcpy(DevicePointer to, DevicePointer from, size_t length);
Result cuMemcpyDtoH_v2(void* to, DevicePointer from, size_t length);
Result cuMemcpyHtoD_v2(DevicePointer to, const void* from, size_t length);
Result cuMemcpyDtoD_v2(DevicePointer to, DevicePointer from, size_t length);
Result cuMemcpyAsync(DevicePointer to, DevicePointer from, size_t length, Stream stream);
Result cuMemcpyDtoHAsync_v2(void* to, DevicePointer from, size_t length, Stream stream);
Result cuMemcpyHtoDAsync_v2(DevicePointer to, const void* from, size_t length, Stream stream);
Result cuMemcpyDtoDAsync_v2(DevicePointer to, DevicePointer from, size_t length, Stream stream);
Result cuMemsetD8_v2(DevicePointer to, unsigned char value, size_t length);
Result cuStreamCreate(Stream* stream, unsigned flags);
Result cuStreamDestroy_v2(Stream stream);
Result cuStreamSynchronize(Stream stream);
Result cuStreamQuery(Stream stream);
Result cuEventCreate(Event* event, unsigned flags);
Result cuEventDestroy_v2(Event event);
Result cuEventRecord(Event event, Stream stream);
Result cuEventQuery(Event event);
Result cuEventSynchronize(Event event);

Result cuThreadExchangeStreamCaptureMode(int* mode);
Result cuStreamBeginCapture_v2(Stream stream, int mode);
Result cuStreamEndCapture(Stream stream, Graph* graph);
Result cuGraphInstantiateWithFlags(GraphExec* made, Graph graph, unsigned long long flags);
Result cuGraphLaunch(GraphExec graph, Stream stream);
Result cuGraphDestroy(Graph graph);
Result cuGraphExecDestroy(GraphExec graph);

// Additional functions for tests. README.md describes the control language.

/// Executes a line: `fail FUNCTION error=N [n=1] [times=1]`, `clear`, `dmabuf on|off`, `ipc
/// on|off`, `ordering N`, `free waits|locks|goes`. Returns 0, or -1 if the line is invalid.
int softcuda_control(const char* line);
/// Returns the number of calls of a function in this process (null: of all). Names have no version.
unsigned long softcuda_calls(const char* function);
/// Returns the address of device memory for the simulated device, or null if [pointer, +length) is
/// not inside one allocation.
void* softcuda_alias(const void* pointer, size_t length);
/// Returns the device of the memory, or -1 if it is no device memory.
int softcuda_device(const void* pointer);
int softcuda_device_of_dmabuf(int fd);
/// An adapter calls these when it registers and deregisters memory by its address. Freeing the
/// allocation may wait for unpin. pin returns a number for unpin, or 0 if there is no such memory.
unsigned long softcuda_pin(const void* pointer);
void softcuda_unpin(unsigned long pinned);
}
#pragma GCC visibility pop
