#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
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

  DevicePointer allocate(size_t bytes);
  void free(DevicePointer memory) { must(x_free(memory), "cuMemFree"); }
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

 private:
  void must(Result rc, const char* what) const {
    if (rc == kSuccess) return;
    std::fprintf(stderr, "%s: CUDA error %d\n", what, rc);
    std::exit(1);
  }
  template <typename F>
  void find(F*& function, const char* name) {
    function = reinterpret_cast<F*>(dlsym(x_library, name));
    if (function) return;
    std::fprintf(stderr, "libcuda.so.1 has no %s\n", name);
    std::exit(1);
  }

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

inline DevicePointer Driver::allocate(size_t bytes) {
  DevicePointer made = 0;
  must(x_set(x_context), "cuCtxSetCurrent");
  must(x_alloc(&made, bytes ? bytes : 1), "cuMemAlloc");
  return made;
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
