#include "hmem/cuda.h"

#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <new>
#include <optional>
#include <utility>

#include <rdma/fi_errno.h>

#include "hmem/cuda_ipc.h"
#include "util/log.h"

namespace erdma::hmem {

using namespace cuda_api;

namespace {

/// Asks the kernel, since an access would end the process: it reads a set of signals before it sees
/// that nothing can be done with one in this way. No sandbox refuses this call, which many do with
/// process_vm_readv(2).
bool cpu_reads(const void* pointer) noexcept {
  constexpr int kNoWay = -1;
  constexpr size_t kSetBytes = 8;
  const uintptr_t set = reinterpret_cast<uintptr_t>(pointer) & ~(kSetBytes - 1);  // in one page
  return ::syscall(SYS_rt_sigprocmask, kNoWay, set, nullptr, kSetBytes) < 0 && errno == EINVAL;
}

}  // namespace

Cuda::Cuda(const Functions& functions)
    : x_api(functions),
      x_epoch(util::process_epoch()),
      x_ipc(std::make_unique<CudaIpc>(*this, x_api)) {}

Cuda::~Cuda() = default;

/// The object is never destroyed, because at exit the driver may be unloaded before this library.
Cuda* Cuda::get() noexcept {
  static Cuda* const made = load();
  return made && made->usable() ? made : nullptr;
}

Cuda* Cuda::load() noexcept try {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* why = dlerror();  // NOLINT(concurrency-mt-unsafe): glibc's is per thread
    ERDMA_INFO(CORE, "no CUDA driver: %s\n", why ? why : "libcuda.so.1 can't be opened");
    return nullptr;
  }
  util::register_fork_handler();
  Functions api{};
  if (const char* missing = api.look_up(library)) {
    ERDMA_NOTICE(gpu_refused, CORE,
                 "libcuda.so.1 has no %s: GPU memory can't be used. Update the driver", missing);
    return nullptr;
  }
  int count = 0;
  if (const Result rc = api.cuInit(0)) {
    ERDMA_INFO(CORE, "no GPU to use: cuInit says CUDA error %d\n", rc);
    return nullptr;
  }
  if (api.cuDeviceGetCount(&count) != kSuccess || count == 0) {
    ERDMA_INFO(CORE, "no GPU to use: the CUDA driver knows of none\n");
    return nullptr;
  }
  return new Cuda(api);
} catch (const std::bad_alloc&) {
  return nullptr;
}

// --- what a pointer is --------------------------------------------------------------------------

bool Cuda::is_device(const void* pointer) const noexcept {
  if (!usable()) return false;
  const MemoryKind kind = x_api.kind_of(pointer);
  return kind == MemoryKind::device || (kind == MemoryKind::unknown && !cpu_reads(pointer));
}

/// Asks what allocation() asks.
int Cuda::error_at(const void* pointer) const noexcept {
  unsigned type = 0;
  DevicePointer start = 0;
  unsigned long long id = 0;
  if (!usable()) return kNotInitialized;
  if (x_api.kind_of(pointer) == MemoryKind::host) return 0;
  const DevicePointer at = address_of(pointer);
  Result rc = x_api.cuPointerGetAttribute(&type, kPointerMemoryType, at);
  if (rc == kSuccess) rc = x_api.cuPointerGetAttribute(&start, kPointerRangeStart, at);
  if (rc == kSuccess) rc = x_api.cuPointerGetAttribute(&id, kPointerBufferId, at);
  return rc;
}

bool Cuda::is_managed(const void* pointer) const noexcept {
  unsigned managed = 0;
  return usable() &&
         x_api.cuPointerGetAttribute(&managed, kPointerIsManaged, address_of(pointer)) ==
             kSuccess &&
         managed;
}

bool Cuda::covers(const void* pointer, size_t length) const noexcept {
  for (uintptr_t at = address_of(pointer);;) {
    Allocation found;
    if (!allocation(pointer_to(at), found)) return false;
    const size_t here = found.base + found.size - at;
    if (length <= here) return true;
    if (x_api.facts_of(pointer).context) return false;  // not made by cuMemMap()
    at += here;
    length -= here;
  }
}

bool Cuda::orders_nic_writes(const void* pointer) const noexcept {
  int ordering = 0;
  if (!usable() || !x_api.cuDeviceGetAttribute) return false;
  const Device device = x_api.device_of(pointer);
  return device >= 0 &&
         x_api.cuDeviceGetAttribute(&ordering, kDeviceWritesOrdering, device) == kSuccess &&
         ordering >= kOrderedForOwner;
}

int Cuda::gpu_of(const void* pointer) const noexcept {
  return usable() ? x_api.device_of(pointer) : -1;
}

bool Cuda::allocation(const void* pointer, Allocation& found) const noexcept {
  if (!is_device(pointer) || !x_api.range(pointer, found.base, found.size)) return false;
  found.id = x_api.buffer_id(found.base);
  return found.id != 0;
}

/// The driver exports whole host pages only, but an allocation may begin anywhere in a page.
util::Result<util::Fd> Cuda::export_dmabuf(const Allocation& memory,
                                           uint64_t& offset) const noexcept {
  static const uintptr_t mask = uintptr_t(::sysconf(_SC_PAGESIZE)) - 1;
  if (!usable() || !x_api.cuMemGetHandleForAddressRange) return -FI_EOPNOTSUPP;
  const void* const first = pointer_to(memory.base);
  const EnteredContext in(x_api, first);
  if (!in.get()) return -FI_EAGAIN;
  const uintptr_t start = memory.base & ~mask;
  const size_t size = ((memory.base + memory.size + mask) & ~mask) - start;
  int fd = -1;
  const Result rc = x_api.cuMemGetHandleForAddressRange(&fd, start, size, kRangeHandleDmabufFd, 0);
  offset = memory.base - start;
  if (rc != kSuccess) return why_no_dmabuf(rc, first);
  return util::Fd(fd);
}

/// Tells errors that concern all memory, this memory, and this call: the process may lack
/// descriptors, for example.
int Cuda::why_no_dmabuf(Result error, const void* pointer) const noexcept {
  int exists = 1;
  if (error == kOutOfMemory) return -FI_ENOMEM;
  if (error != kNotSupported && error != kInvalidValue) return -FI_EAGAIN;
  if (x_api.cuDeviceGetAttribute &&
      x_api.cuDeviceGetAttribute(&exists, kDeviceDmabuf, x_api.device_of(pointer)) != kSuccess)
    exists = 1;
  return exists ? -FI_EINVAL : -FI_EOPNOTSUPP;
}

// --- operations of the application --------------------------------------------------------------

void Cuda::make_synchronous(const Allocation& memory) noexcept {
  if (!usable() || asked_at(memory.id).load(std::memory_order_relaxed) == memory.id) return;
  const EnteredContext in(x_api, pointer_to(memory.base));
  make_synchronous(memory.id, memory.base);
}

/// Call in the context of the memory, if it has one: CUDA refuses memory that has none.
void Cuda::make_synchronous(uint64_t id, DevicePointer at) noexcept {
  constexpr unsigned kOn = 1;
  std::atomic<uint64_t>& asked = asked_at(id);
  if (!id || asked.load(std::memory_order_relaxed) == id) return;
  if (x_api.cuPointerSetAttribute) (void)x_api.cuPointerSetAttribute(&kOn, kPointerSyncMemops, at);
  asked.store(id, std::memory_order_relaxed);
}

// --- copies -------------------------------------------------------------------------------------

/// Finds or creates the stream of `context`, which is the current one; each context has a stream of
/// the provider. It does not wait for other streams: a kernel of the application may be waiting for
/// the message that is being copied. Returns CUDA's error.
Result Cuda::stream_of(Context context, Stream& stream) noexcept try {
  const std::lock_guard guard(x_mutex);
  for (const StreamOf& known : x_streams)
    if (known.context == context) return stream = known.stream, kSuccess;
  x_streams.reserve(x_streams.size() + 1);
  const Result rc = x_api.cuStreamCreate(&stream, kStreamNonBlocking);
  if (rc == kSuccess) x_streams.push_back({context, stream});
  return rc;
} catch (const std::bad_alloc&) {
  return kOutOfMemory;
}

/// Called when the stream belonged to a context that was destroyed; a new context may have the same
/// handle.
void Cuda::forget(Context context) noexcept {
  const std::lock_guard guard(x_mutex);
  std::erase_if(x_streams, [&](const StreamOf& known) { return known.context == context; });
}

int Cuda::copy(void* to, const void* from, size_t length) noexcept {
  if (length == 0) return 0;
  std::optional<EnteredContext> in;
  if (usable()) in.emplace(x_api, to, from);
  if (in && in->get()) {
    make_synchronous(in->id(), address_of(in->memory()));
    return copy_in(in->get(), to, from, length);
  }
  const char* why = "the CUDA driver does not know it, it may have been freed";
  if (!in)
    why = "CUDA can't be used in a forked process";
  else if (x_api.kind_of(to) == MemoryKind::unknown || x_api.kind_of(from) == MemoryKind::unknown)
    why = "CUDA can't tell what it is";
  else if (x_api.is_device(to) || x_api.is_device(from))
    why = "the thread has no CUDA context, and the GPU has no active primary context";
  ERDMA_NOTICE(gpu_refused, EP_DATA, "GPU memory could not be copied: %s", why);
  return -FI_EIO;
}

int Cuda::copy_in(Context context, void* to, const void* from, size_t length) noexcept {
  Result rc = kSuccess;
  for (int attempt = 0; attempt < 2; ++attempt) {
    Stream stream = nullptr;
    if ((rc = stream_of(context, stream)) != kSuccess) break;
    rc = x_api.cuMemcpyAsync(address_of(to), address_of(from), length, stream);
    if (rc == kSuccess) rc = x_api.cuStreamSynchronize(stream);
    if (rc == kSuccess) return 0;
    if (rc != kInvalidHandle && rc != kInvalidContext && rc != kContextDestroyed) break;
    forget(context);
  }
  ERDMA_NOTICE(gpu_refused, EP_DATA, "%zu bytes of GPU memory could not be copied: CUDA error %d",
               length, rc);
  return -FI_EIO;
}

// --- scratch memory -----------------------------------------------------------------------------

/// Allocates in the context of the calling thread, if it has one, since that is on the device that
/// the application uses.
std::unique_ptr<Cuda::Scratch> Cuda::allocate(size_t length) noexcept {
  std::unique_ptr<Scratch> made(usable() ? new (std::nothrow) Scratch(*this) : nullptr);
  if (!made || !x_api.cuMemAlloc_v2 || !x_api.cuMemFree_v2) return nullptr;
  const BesideCaptures beside(x_api);
  Context& context = made->x_context;
  if (x_api.cuCtxGetCurrent(&context) != kSuccess) context = nullptr;
  if (!context && x_api.cuDevicePrimaryCtxRetain && x_api.cuDevicePrimaryCtxRelease_v2)
    made->x_retained = x_api.cuDevicePrimaryCtxRetain(&context, 0) == kSuccess;
  if (!context || x_api.cuCtxPushCurrent_v2(context) != kSuccess) return nullptr;
  const Result rc = x_api.cuMemAlloc_v2(&made->x_pointer, length);
  x_api.cuCtxPopCurrent_v2(nullptr);
  if (rc != kSuccess) made->x_pointer = 0;
  return made->x_pointer ? std::move(made) : nullptr;
}

Cuda::Scratch::~Scratch() {
  const Functions& api = x_cuda.x_api;
  const BesideCaptures beside(api);
  if (x_pointer && api.cuCtxPushCurrent_v2(x_context) == kSuccess) {
    api.cuMemFree_v2(x_pointer);
    api.cuCtxPopCurrent_v2(nullptr);
  }
  if (!x_retained) return;
  x_cuda.forget(x_context);  // the stream may be destroyed with the context by this release
  api.cuDevicePrimaryCtxRelease_v2(0);
}

void* Cuda::Scratch::pointer() const noexcept {
  return pointer_to(x_pointer);
}

}  // namespace erdma::hmem
