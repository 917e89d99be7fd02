#include "fi_erdma/pair/cuda.h"

#include <dlfcn.h>

#include <cstdint>

#include "fi_erdma/pair/options.h"

namespace fi_erdma::pair::cuda {
namespace {

using Device = int;
using Context = void*;
using Pointer = unsigned long long;

/// The functions of the CUDA driver that are used here, under the names that cuda.h gives them.
struct Driver {
  int (*init)(unsigned) = nullptr;
  int (*device_get)(Device*, int) = nullptr;
  int (*retain)(Context*, Device) = nullptr;
  int (*set_current)(Context) = nullptr;
  int (*allocate)(Pointer*, size_t) = nullptr;
  int (*free)(Pointer) = nullptr;
  int (*copy_in)(Pointer, const void*, size_t) = nullptr;
  int (*copy_out)(void*, Pointer, size_t) = nullptr;
  int (*synchronize)() = nullptr;
};

template <class F>
void look_up(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(::dlsym(library, name));
  if (!function) not_supported("libcuda.so.1 has no %s", name);
}

void check(int result, const char* what) {
  if (result != 0) fail("%s: CUDA error %d", what, result);
}

Driver open() {
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) not_supported("%s", ::dlerror());
  Driver driver;
  look_up(library, "cuInit", driver.init);
  look_up(library, "cuDeviceGet", driver.device_get);
  look_up(library, "cuDevicePrimaryCtxRetain", driver.retain);
  look_up(library, "cuCtxSetCurrent", driver.set_current);
  look_up(library, "cuMemAlloc_v2", driver.allocate);
  look_up(library, "cuMemFree_v2", driver.free);
  look_up(library, "cuMemcpyHtoD_v2", driver.copy_in);
  look_up(library, "cuMemcpyDtoH_v2", driver.copy_out);
  look_up(library, "cuCtxSynchronize", driver.synchronize);
  Device device = 0;
  Context context = nullptr;
  if (int rc = driver.init(0)) not_supported("cuInit: CUDA error %d", rc);
  if (int rc = driver.device_get(&device, 0)) not_supported("no GPU: CUDA error %d", rc);
  check(driver.retain(&context, device), "cuDevicePrimaryCtxRetain");
  check(driver.set_current(context), "cuCtxSetCurrent");
  return driver;
}

const Driver& driver() {
  static const Driver opened = open();
  return opened;
}

Pointer pointer(const void* memory) {
  return Pointer(reinterpret_cast<uintptr_t>(memory));
}

}  // namespace

void* allocate(size_t size) {
  Pointer memory = 0;
  check(driver().allocate(&memory, size), "cuMemAlloc");
  return reinterpret_cast<void*>(uintptr_t(memory));
}

void free(void* memory) {
  (void)driver().free(pointer(memory));
}

void copy_in(void* device, const void* host, size_t size) {
  if (size == 0) return;
  check(driver().copy_in(pointer(device), host, size), "cuMemcpyHtoD");
  check(driver().synchronize(), "cuCtxSynchronize");  // the NIC or another process may read it next
}

void copy_out(void* host, const void* device, size_t size) {
  if (size == 0) return;
  check(driver().copy_out(host, pointer(device), size), "cuMemcpyDtoH");
}

}  // namespace fi_erdma::pair::cuda
