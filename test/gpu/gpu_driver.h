#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "hmem/cuda_api.h"

/// The CUDA driver of the machine, opened at run time as the provider does. Failures end the
/// program with status 77 if there is no GPU, and 1 otherwise.
namespace gpu {

using namespace erdma::hmem::cuda_api;

class Driver {
 public:
  /// Opens the driver in this process, with the primary context of a device.
  explicit Driver(int device);

  /// Chooses how memory is allocated from now on: "plain" (cuMemAlloc), "mapped" (cuMemCreate, can
  /// be exported as a descriptor), "unshared" (cuMemCreate, can't be), "pool" (cuMemAllocAsync) or
  /// "managed" (cuMemAllocManaged). Ends the program with status 77 if the driver lacks it.
  void choose(const std::string& kind);
  DevicePointer allocate(size_t bytes);
  void free(DevicePointer memory);
  void put(DevicePointer to, const std::vector<char>& bytes) {
    must(x_to_device(to, bytes.data(), bytes.size()), "cuMemcpyHtoD");
    must(x_synchronize(), "cuCtxSynchronize");
  }
  std::vector<char> get(DevicePointer from, size_t length) {
    std::vector<char> bytes(length);
    must(x_to_host(bytes.data(), from, length), "cuMemcpyDtoH");
    return bytes;
  }
  /// Copies in a stream and waits for it.
  void copy(DevicePointer to, DevicePointer from, size_t length) {
    must(x_copy(to, from, length, x_stream), "cuMemcpyAsync");
    must(x_wait(x_stream), "cuStreamSynchronize");
  }
  int devices() const { return x_devices; }
  std::string describe();
  /// Makes the context current in the calling thread.
  void enter() const { must(x_set(x_context), "cuCtxSetCurrent"); }
  void must(Result rc, const char* what) const {
    if (rc == kSuccess) return;
    std::fprintf(stderr, "%s: CUDA error %d\n", what, rc);
    std::exit(1);
  }
  /// Looks up a function of the driver; ends the program with `status` if there is none.
  template <typename F>
  void find(F*& function, const char* name, int status = 1) {
    function = reinterpret_cast<F*>(dlsym(x_library, name));
    if (function) return;
    std::fprintf(stderr, "libcuda.so.1 has no %s\n", name);
    std::exit(status);
  }

 private:
  DevicePointer map(size_t bytes);
  void unmap(DevicePointer memory);

  void* x_library;
  int x_devices = 0;
  Device x_device = 0;
  Context x_context = nullptr;
  Stream x_stream = nullptr;
  Result (*x_set)(Context);
  Result (*x_alloc)(DevicePointer*, size_t);
  Result (*x_free)(DevicePointer);
  Result (*x_to_device)(DevicePointer, const void*, size_t);
  Result (*x_to_host)(void*, DevicePointer, size_t);
  Result (*x_copy)(DevicePointer, DevicePointer, size_t, Stream);
  Result (*x_wait)(Stream);
  Result (*x_synchronize)();

  std::string x_kind = "plain";
  std::map<DevicePointer, size_t> x_mapped;  ///< sizes
  Result (*x_create)(PhysicalMemory*, size_t, const MemAllocationProperties*, unsigned long long);
  Result (*x_release)(PhysicalMemory);
  Result (*x_reserve)(DevicePointer*, size_t, size_t, DevicePointer, unsigned long long);
  Result (*x_unreserve)(DevicePointer, size_t);
  Result (*x_map)(DevicePointer, size_t, size_t, PhysicalMemory, unsigned long long);
  Result (*x_unmap)(DevicePointer, size_t);
  Result (*x_admit)(DevicePointer, size_t, const MemAccess*, size_t);
  Result (*x_alloc_async)(DevicePointer*, size_t, Stream);
  Result (*x_free_async)(DevicePointer, Stream);
  Result (*x_alloc_managed)(DevicePointer*, size_t, unsigned);
};

inline Driver::Driver(int device) : x_library(dlopen("libcuda.so.1", RTLD_NOW)) {
  if (!x_library) {
    std::fprintf(stderr, "no GPU: libcuda.so.1 can't be opened\n");
    std::exit(77);
  }
  Result (*init)(unsigned);
  Result (*count)(int*);
  Result (*retain)(Context*, Device);
  Result (*stream)(Stream*, unsigned);
  find(init, "cuInit");
  find(count, "cuDeviceGetCount");
  find(retain, "cuDevicePrimaryCtxRetain");
  find(x_set, "cuCtxSetCurrent");
  find(stream, "cuStreamCreate");
  find(x_alloc, "cuMemAlloc_v2");
  find(x_free, "cuMemFree_v2");
  find(x_to_device, "cuMemcpyHtoD_v2");
  find(x_to_host, "cuMemcpyDtoH_v2");
  find(x_copy, "cuMemcpyAsync");
  find(x_wait, "cuStreamSynchronize");
  find(x_synchronize, "cuCtxSynchronize");
  if (const Result rc = init(0)) {
    std::fprintf(stderr, "no GPU: cuInit says CUDA error %d\n", rc);
    std::exit(77);
  }
  must(count(&x_devices), "cuDeviceGetCount");
  if (x_devices == 0) std::exit(77);
  x_device = device % x_devices;
  must(retain(&x_context, x_device), "cuDevicePrimaryCtxRetain");
  must(x_set(x_context), "cuCtxSetCurrent");
  must(stream(&x_stream, kStreamNonBlocking), "cuStreamCreate");
}

inline void Driver::choose(const std::string& kind) {
  x_kind = kind;
  if (kind == "mapped" || kind == "unshared") {
    find(x_create, "cuMemCreate", 77);
    find(x_release, "cuMemRelease", 77);
    find(x_reserve, "cuMemAddressReserve", 77);
    find(x_unreserve, "cuMemAddressFree", 77);
    find(x_map, "cuMemMap", 77);
    find(x_unmap, "cuMemUnmap", 77);
    find(x_admit, "cuMemSetAccess", 77);
  } else if (kind == "pool") {
    find(x_alloc_async, "cuMemAllocAsync", 77);
    find(x_free_async, "cuMemFreeAsync", 77);
  } else if (kind == "managed") {
    find(x_alloc_managed, "cuMemAllocManaged", 77);
  } else if (kind != "plain") {
    std::exit(64);
  }
}

inline DevicePointer Driver::map(size_t bytes) {
  constexpr size_t kGranularity = size_t(2) << 20;
  const size_t size = (bytes + kGranularity - 1) / kGranularity * kGranularity;
  const int handles = x_kind == "mapped" ? kHandlePosixFd : 0;
  const MemAllocationProperties wanted{
      kMemoryPinned, handles, {kLocationDevice, x_device}, nullptr, {}};
  const MemAccess access{{kLocationDevice, x_device}, kAccessReadWrite};
  PhysicalMemory physical = 0;
  DevicePointer made = 0;
  must(x_create(&physical, size, &wanted, 0), "cuMemCreate");
  must(x_reserve(&made, size, 0, 0, 0), "cuMemAddressReserve");
  must(x_map(made, size, 0, physical, 0), "cuMemMap");
  must(x_admit(made, size, &access, 1), "cuMemSetAccess");
  must(x_release(physical), "cuMemRelease");  // the mapping keeps the memory
  x_mapped[made] = size;
  return made;
}

inline void Driver::unmap(DevicePointer memory) {
  const size_t size = x_mapped.at(memory);
  x_mapped.erase(memory);
  must(x_unmap(memory, size), "cuMemUnmap");
  must(x_unreserve(memory, size), "cuMemAddressFree");
}

inline DevicePointer Driver::allocate(size_t bytes) {
  constexpr unsigned kAttachGlobal = 1;  // CU_MEM_ATTACH_GLOBAL
  DevicePointer made = 0;
  if (!bytes) bytes = 1;
  must(x_set(x_context), "cuCtxSetCurrent");
  if (x_kind == "mapped" || x_kind == "unshared") return map(bytes);
  if (x_kind == "pool") {
    must(x_alloc_async(&made, bytes, x_stream), "cuMemAllocAsync");
    must(x_wait(x_stream), "cuStreamSynchronize");
  } else if (x_kind == "managed") {
    must(x_alloc_managed(&made, bytes, kAttachGlobal), "cuMemAllocManaged");
  } else {
    must(x_alloc(&made, bytes), "cuMemAlloc");
  }
  return made;
}

inline void Driver::free(DevicePointer memory) {
  if (x_kind == "mapped" || x_kind == "unshared") return unmap(memory);
  if (x_kind == "pool") {
    must(x_free_async(memory, x_stream), "cuMemFreeAsync");
    must(x_wait(x_stream), "cuStreamSynchronize");
  } else {
    must(x_free(memory), "cuMemFree");
  }
}

inline std::string Driver::describe() {
  Result (*name)(char*, int, Device);
  Result (*attribute)(int*, int, Device);
  Result (*version)(int*);
  find(name, "cuDeviceGetName");
  find(attribute, "cuDeviceGetAttribute");
  find(version, "cuDriverGetVersion");
  char text[100] = "";
  int driver = 0, flush = -1, ordering = -1, dmabuf = -1;
  must(name(text, sizeof(text), x_device), "cuDeviceGetName");
  must(version(&driver), "cuDriverGetVersion");
  attribute(&flush, kDeviceFlushOptions, x_device);
  attribute(&ordering, kDeviceWritesOrdering, x_device);
  attribute(&dmabuf, kDeviceDmabuf, x_device);
  char line[300];
  std::snprintf(line, sizeof(line),
                "%d of: %s; CUDA %d.%d; flush options %d, write ordering %d, dmabuf %d", x_devices,
                text, driver / 1000, driver % 1000 / 10, flush, ordering, dmabuf);
  return line;
}

}  // namespace gpu
