#include "hmem/cuda.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include <rdma/fi_errno.h>

#include "hmem/cuda_functions.h"
#include "util/log.h"

namespace erdma::hmem {

using namespace cuda_api;

namespace {

template <typename F>
bool find(void* library, const char* name, F*& function) noexcept {
  function = reinterpret_cast<F*>(dlsym(library, name));
  return function != nullptr;
}

DevicePointer address_of(const void* pointer) noexcept {
  return reinterpret_cast<uintptr_t>(pointer);
}

}  // namespace

const char* Cuda::Functions::look_up(void* library) noexcept {
#define ERDMA_FIND(name) \
  if (!find(library, #name, name)) return #name
  ERDMA_FIND(cuInit);
  ERDMA_FIND(cuDeviceGetCount);
  ERDMA_FIND(cuPointerGetAttribute);
  ERDMA_FIND(cuMemGetAddressRange_v2);
  ERDMA_FIND(cuCtxGetCurrent);
  ERDMA_FIND(cuCtxPushCurrent_v2);
  ERDMA_FIND(cuCtxPopCurrent_v2);
  ERDMA_FIND(cuStreamCreate);
  ERDMA_FIND(cuStreamSynchronize);
  ERDMA_FIND(cuMemcpyAsync);
#undef ERDMA_FIND
  find(library, "cuDeviceGetAttribute", cuDeviceGetAttribute);
  find(library, "cuMemGetHandleForAddressRange", cuMemGetHandleForAddressRange);
  find(library, "cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain);
  find(library, "cuDevicePrimaryCtxRelease_v2", cuDevicePrimaryCtxRelease_v2);
  find(library, "cuDevicePrimaryCtxGetState", cuDevicePrimaryCtxGetState);
  find(library, "cuMemAlloc_v2", cuMemAlloc_v2);
  find(library, "cuMemFree_v2", cuMemFree_v2);
  if (!find(library, "cuIpcOpenMemHandle_v2", cuIpcOpenMemHandle_v2) ||
      !find(library, "cuIpcCloseMemHandle", cuIpcCloseMemHandle) ||
      !find(library, "cuIpcGetMemHandle", cuIpcGetMemHandle))
    cuIpcGetMemHandle = nullptr;
  if (!find(library, "cuMemRelease", cuMemRelease) ||
      !find(library, "cuMemGetAllocationPropertiesFromHandle",
            cuMemGetAllocationPropertiesFromHandle) ||
      !find(library, "cuMemExportToShareableHandle", cuMemExportToShareableHandle) ||
      !find(library, "cuMemImportFromShareableHandle", cuMemImportFromShareableHandle) ||
      !find(library, "cuMemAddressReserve", cuMemAddressReserve) ||
      !find(library, "cuMemAddressFree", cuMemAddressFree) ||
      !find(library, "cuMemMap", cuMemMap) || !find(library, "cuMemUnmap", cuMemUnmap) ||
      !find(library, "cuMemSetAccess", cuMemSetAccess) ||
      !find(library, "cuMemRetainAllocationHandle", cuMemRetainAllocationHandle))
    cuMemRetainAllocationHandle = nullptr;
  return nullptr;
}

Cuda::Cuda(std::unique_ptr<Functions> functions) noexcept
    : x_api(std::move(functions)), x_epoch(util::process_epoch()) {}

Cuda::~Cuda() = default;

/// Lives as long as the process, since at exit the driver may be unloaded before this library.
Cuda* Cuda::get() noexcept {
  static Cuda* const made = load();
  return made && made->usable() ? made : nullptr;
}

Cuda* Cuda::load() noexcept {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* why = dlerror();  // NOLINT(concurrency-mt-unsafe): glibc's is per thread
    ERDMA_INFO(CORE, "no CUDA driver: %s\n", why ? why : "libcuda.so.1 can't be opened");
    return nullptr;
  }
  util::register_fork_handler();
  std::unique_ptr<Functions> api(new (std::nothrow) Functions{});
  if (!api) return nullptr;
  if (const char* missing = api->look_up(library)) {
    ERDMA_NOTICE(gpu_refused, CORE,
                 "libcuda.so.1 has no %s: GPU memory can't be used. Update the driver\n", missing);
    return nullptr;
  }
  int count = 0;
  if (const Result rc = api->cuInit(0)) {
    ERDMA_INFO(CORE, "no GPU to use: cuInit says CUDA error %d\n", rc);
    return nullptr;
  }
  if (api->cuDeviceGetCount(&count) != kSuccess || count == 0) {
    ERDMA_INFO(CORE, "no GPU to use: the CUDA driver knows of none\n");
    return nullptr;
  }
  return new (std::nothrow) Cuda(std::move(api));
}

// --- what a pointer is --------------------------------------------------------------------------

bool Cuda::is_device(const void* pointer) const noexcept {
  unsigned type = 0;
  if (!pointer || !usable()) return false;
  const Result rc = x_api->cuPointerGetAttribute(&type, kPointerMemoryType, address_of(pointer));
  return rc == kSuccess && type == kMemoryDevice;
}

bool Cuda::covers(const void* pointer, size_t length) const noexcept {
  Allocation found;
  if (!allocation(pointer, found)) return false;
  const uintptr_t offset = address_of(pointer) - found.base;
  return offset <= found.size && length <= found.size - offset;
}

bool Cuda::orders_nic_writes(const void* pointer) const noexcept {
  Device device = 0;
  int ordering = 0;
  return usable() && x_api->cuDeviceGetAttribute &&
         x_api->cuPointerGetAttribute(&device, kPointerDeviceOrdinal, address_of(pointer)) ==
             kSuccess &&
         x_api->cuDeviceGetAttribute(&ordering, kDeviceWritesOrdering, device) == kSuccess &&
         ordering >= kOrderedForOwner;
}

bool Cuda::allocation(const void* pointer, Allocation& found) const noexcept {
  Entered in;
  if (!is_device(pointer) || !enter(pointer, nullptr, in)) return false;
  DevicePointer base = 0;
  unsigned long long id = 0;
  Result rc = x_api->cuMemGetAddressRange_v2(&base, &found.size, address_of(pointer));
  if (rc == kSuccess) rc = x_api->cuPointerGetAttribute(&id, kPointerBufferId, base);
  leave(in);
  found.base = base;
  found.id = id;
  return rc == kSuccess;
}

/// The driver takes whole pages of the host, but an allocation may begin anywhere in a page.
int Cuda::export_dmabuf(const Allocation& memory, uint64_t& offset) const noexcept {
  static const uintptr_t mask = uintptr_t(::sysconf(_SC_PAGESIZE)) - 1;
  Entered in;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): CUDA's device pointers are numbers
  const auto* pointer = reinterpret_cast<const void*>(memory.base);
  if (!usable() || !x_api->cuMemGetHandleForAddressRange || !enter(pointer, nullptr, in)) return -1;
  const uintptr_t start = memory.base & ~mask;
  const size_t size = ((memory.base + memory.size + mask) & ~mask) - start;
  int fd = -1;
  const Result rc = x_api->cuMemGetHandleForAddressRange(&fd, start, size, kRangeHandleDmabufFd, 0);
  leave(in);
  offset = memory.base - start;
  return rc == kSuccess ? fd : -1;
}

// --- copies -------------------------------------------------------------------------------------

/// Pushes the context of one of the pointers as the current context of the thread; the caller pops
/// it. The first pointer that CUDA knows decides. Memory of cuMemCreate() and of pools has no
/// context.
bool Cuda::enter(const void* one, const void* other, Entered& in) const noexcept {
  for (const void* pointer : {one, other}) {
    in = {};
    if (!pointer) continue;
    const Result rc =
        x_api->cuPointerGetAttribute(&in.context, kPointerContext, address_of(pointer));
    if (rc == kSuccess && in.context) return push(in);
  }
  for (const void* pointer : {one, other})
    if (pointer && is_device(pointer) && (in = context_for(pointer)).context) return push(in);
  return false;
}

bool Cuda::push(Entered& in) const noexcept {
  if (x_api->cuCtxPushCurrent_v2(in.context) == kSuccess) return true;
  release(in);
  return false;
}

void Cuda::leave(const Entered& in) const noexcept {
  x_api->cuCtxPopCurrent_v2(nullptr);
  release(in);
}

void Cuda::release(const Entered& in) const noexcept {
  if (in.retained >= 0) x_api->cuDevicePrimaryCtxRelease_v2(in.retained);
}

int Cuda::device_of(const void* pointer) const noexcept {
  Device device = -1;
  const Result rc =
      x_api->cuPointerGetAttribute(&device, kPointerDeviceOrdinal, address_of(pointer));
  return rc == kSuccess ? device : -1;
}

/// The primary context of the device, if the application uses it; it lives as long as that use.
/// Otherwise the current context of the thread. Null: there is none.
Cuda::Entered Cuda::context_for(const void* pointer) const noexcept {
  Entered found = retain_primary(device_of(pointer));
  if (!found.context && x_api->cuCtxGetCurrent(&found.context) != kSuccess) found.context = nullptr;
  return found;
}

/// The caller releases it. Without a context: the application does not use the device, and no
/// context is made.
Cuda::Entered Cuda::retain_primary(Device device) const noexcept {
  Entered found;
  unsigned flags = 0;
  int active = 0;
  if (device < 0 || !x_api->cuDevicePrimaryCtxGetState || !x_api->cuDevicePrimaryCtxRetain ||
      !x_api->cuDevicePrimaryCtxRelease_v2 ||
      x_api->cuDevicePrimaryCtxGetState(device, &flags, &active) != kSuccess || !active ||
      x_api->cuDevicePrimaryCtxRetain(&found.context, device) != kSuccess)
    return {};
  found.retained = device;
  return found;
}

/// The stream of the current context; each context has one. It waits for no other stream: a kernel
/// of the application may be waiting for the message that is being copied. Null: CUDA cannot make
/// one.
Stream Cuda::stream_of(Context context) noexcept try {
  const std::lock_guard guard(x_mutex);
  for (const StreamOf& known : x_streams)
    if (known.context == context) return known.stream;
  x_streams.reserve(x_streams.size() + 1);
  Stream made = nullptr;
  if (x_api->cuStreamCreate(&made, kStreamNonBlocking) != kSuccess) return nullptr;
  x_streams.push_back({context, made});
  return made;
} catch (const std::bad_alloc&) {
  return nullptr;
}

/// The stream belonged to a context that the application destroyed; a new context has the same
/// name.
void Cuda::forget(Context context) noexcept {
  const std::lock_guard guard(x_mutex);
  std::erase_if(x_streams, [&](const StreamOf& known) { return known.context == context; });
}

int Cuda::copy(void* to, const void* from, size_t length) noexcept {
  if (length == 0) return 0;
  Entered in;
  if (!usable() || !enter(to, from, in)) {
    ERDMA_NOTICE(gpu_refused, EP_DATA, "GPU memory could not be copied: %s\n",
                 usable() ? "the CUDA driver does not know it, it may have been freed"
                          : "CUDA can't be used in a forked process");
    return -FI_EIO;
  }
  const int rc = copy_in(in.context, to, from, length);
  leave(in);
  return rc;
}

int Cuda::copy_in(Context context, void* to, const void* from, size_t length) noexcept {
  Result rc = kOutOfMemory;
  for (int attempt = 0; attempt < 2; ++attempt) {
    Stream const stream = stream_of(context);  // NOLINT(misc-misplaced-const): what is meant
    if (!stream) break;
    rc = x_api->cuMemcpyAsync(address_of(to), address_of(from), length, stream);
    if (rc == kSuccess) rc = x_api->cuStreamSynchronize(stream);
    if (rc == kSuccess) return 0;
    if (rc != kInvalidHandle && rc != kInvalidContext && rc != kContextDestroyed) break;
    forget(context);
  }
  ERDMA_NOTICE(gpu_refused, EP_DATA, "%zu bytes of GPU memory could not be copied: CUDA error %d\n",
               length, rc);
  return -FI_EIO;
}

// --- memory of our own --------------------------------------------------------------------------

/// In the context of the thread, if it has one: that is the device which the application uses.
std::unique_ptr<Cuda::Scratch> Cuda::allocate(size_t length) noexcept {
  std::unique_ptr<Scratch> made(usable() ? new (std::nothrow) Scratch(*this) : nullptr);
  if (!made || !x_api->cuMemAlloc_v2 || !x_api->cuMemFree_v2) return nullptr;
  Context& context = made->x_context;
  if (x_api->cuCtxGetCurrent(&context) != kSuccess) context = nullptr;
  if (!context && x_api->cuDevicePrimaryCtxRetain && x_api->cuDevicePrimaryCtxRelease_v2)
    made->x_retained = x_api->cuDevicePrimaryCtxRetain(&context, 0) == kSuccess;
  if (!context || x_api->cuCtxPushCurrent_v2(context) != kSuccess) return nullptr;
  const Result rc = x_api->cuMemAlloc_v2(&made->x_pointer, length);
  x_api->cuCtxPopCurrent_v2(nullptr);
  if (rc != kSuccess) made->x_pointer = 0;
  return made->x_pointer ? std::move(made) : nullptr;
}

Cuda::Scratch::~Scratch() {
  const Functions& api = *x_cuda.x_api;
  if (x_pointer && api.cuCtxPushCurrent_v2(x_context) == kSuccess) {
    api.cuMemFree_v2(x_pointer);
    api.cuCtxPopCurrent_v2(nullptr);
  }
  if (!x_retained) return;
  x_cuda.forget(x_context);  // the stream ends with the last retain of its context
  api.cuDevicePrimaryCtxRelease_v2(0);
}

void* Cuda::Scratch::pointer() const noexcept {
  return reinterpret_cast<void*>(x_pointer);  // NOLINT(performance-no-int-to-ptr): CUDA's
}

}  // namespace erdma::hmem
