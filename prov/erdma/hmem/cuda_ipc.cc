// CUDA IPC: device memory that other processes of the host map.
#include <algorithm>
#include <cstring>
#include <new>

#include <rdma/fi_errno.h>

#include "hmem/cuda_functions.h"
#include "util/log.h"

namespace erdma::hmem {

using namespace cuda_api;

namespace {

/// The number of handles that are kept: asking the driver for one takes longer than everything else
/// in this file.
constexpr size_t kExports = 64;

}  // namespace

bool Cuda::warn_once(std::atomic_flag& said) noexcept {
  return !said.test_and_set(std::memory_order_relaxed);
}

int Cuda::share(const void* pointer, IpcHandle& handle, uint64_t& offset) noexcept try {
  Allocation memory;
  if (!usable() || !allocation(pointer, memory)) return -FI_EOPNOTSUPP;
  offset = reinterpret_cast<uintptr_t>(pointer) - memory.base;
  const std::lock_guard guard(x_ipc_mutex);
  auto at = std::find_if(x_exports.begin(), x_exports.end(),
                         [&](const Export& one) { return one.memory.base == memory.base; });
  if (at == x_exports.end() || at->memory.id != memory.id || !still_mapped(*at, pointer)) {
    // The former allocation at this address was freed, so its handle names nothing.
    if (at == x_exports.end() && x_exports.size() >= kExports)
      at = x_exports.begin() + ptrdiff_t(x_next_export++ % kExports);
    if (at == x_exports.end()) at = x_exports.insert(at, Export{});
    *at = {memory, {{}, uint32_t(memory.id), IpcHandle::Kind::driver}, false};
    at->shared = name_file(*at, pointer) || get_handle(*at);
  }
  handle = at->handle;
  return at->shared ? 0 : -FI_EOPNOTSUPP;
} catch (const std::bad_alloc&) {
  return -FI_EOPNOTSUPP;
}

bool Cuda::get_handle(Export& memory) noexcept {
  Entered in;
  if (!x_api->cuIpcGetMemHandle) return false;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): CUDA's device pointers are numbers
  if (!enter(reinterpret_cast<const void*>(memory.memory.base), nullptr, in)) return false;
  const Result rc = x_api->cuIpcGetMemHandle(&memory.handle.bytes, memory.memory.base);
  leave(in);
  if (rc != kSuccess && warn_once(x_share_warned))
    ERDMA_NOTICE(
        gpu_staged, EP_DATA,
        "GPU memory can't be shared with other processes (cuIpcGetMemHandle: CUDA error "
        "%d), so its messages are copied through host memory. Only memory of cudaMalloc can "
        "be, and of cuMemCreate if it was made to be exported as a POSIX file descriptor: "
        "none of a pool or of another process "
        "(PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False for PyTorch)\n",
        rc);
  return rc == kSuccess;
}

/// Memory of the same process is used at its own address: the driver opens no handle of its own
/// process.
const Cuda::Export* Cuda::own(const IpcHandle& handle) const noexcept {
  for (const Export& one : x_exports)
    if (one.shared && one.handle == handle) return &one;
  return nullptr;
}

util::Result<IpcMemory> Cuda::open(const IpcHandle& handle, const void* near) noexcept try {
  if (!usable()) return -FI_EOPNOTSUPP;
  const std::lock_guard guard(x_ipc_mutex);
  if (handle.kind == IpcHandle::Kind::file) return open_again(handle, near);
  if (!x_api->cuIpcGetMemHandle) return -FI_EOPNOTSUPP;
  if (const Export* mine = own(handle)) return IpcMemory{mine->memory.base, mine->memory.size};
  for (Opened& known : x_opened) {
    if (!known.handle.same_name(handle)) continue;
    // The open mapping is of memory that was freed, and still has users: the driver would return it
    // again.
    if (known.handle.id != handle.id) return -FI_EOPNOTSUPP;
    ++known.users;
    return known.memory;
  }
  x_opened.reserve(x_opened.size() + 1);
  Opened made{handle, {}, nullptr, 1, 0};
  if (const int rc = open_new(made, near)) return rc;
  x_opened.push_back(made);
  return made.memory;
} catch (const std::bad_alloc&) {
  return -FI_EOPNOTSUPP;
}

int Cuda::open_new(Opened& made, const void* near) noexcept {
  Entered in;
  const bool entered = enter(near, nullptr, in);
  Context context = in.context;
  if (!entered && (x_api->cuCtxGetCurrent(&context) != kSuccess || !context)) return -FI_EOPNOTSUPP;
  DevicePointer base = 0;
  const Result rc = x_api->cuIpcOpenMemHandle_v2(&base, made.handle.bytes, kIpcLazyPeerAccess);
  if (rc == kSuccess) {
    DevicePointer start = base;
    made.memory.base = base;
    if (x_api->cuMemGetAddressRange_v2(&start, &made.memory.size, base) != kSuccess)
      made.memory.size = 0;
    made.context = context;
  }
  if (entered) leave(in);
  if (rc == kSuccess) return 0;
  if (warn_once(x_open_warned))
    ERDMA_NOTICE(
        gpu_staged, EP_DATA,
        "GPU memory of another process can't be opened (cuIpcOpenMemHandle: CUDA error %d), "
        "so its messages are copied through host memory. Both processes need the same IPC "
        "namespace and see both GPUs (docker run --ipc=host --gpus all; CUDA_VISIBLE_DEVICES)"
        "; FI_ERDMA_CUDA_IPC=off does not try\n",
        rc);
  return -FI_EOPNOTSUPP;
}

void Cuda::close(const IpcHandle& handle) noexcept {
  if (!usable()) return;
  const std::lock_guard guard(x_ipc_mutex);
  const auto at = std::find_if(x_opened.begin(), x_opened.end(),
                               [&](const Opened& one) { return one.handle == handle; });
  if (at == x_opened.end() || --at->users > 0) return;  // memory of this process, or still in use
  const Opened gone = *at;
  x_opened.erase(at);
  if (gone.handle.kind == IpcHandle::Kind::file) return unmap_file(gone.memory);
  // Mappings end with their context.
  if (x_api->cuCtxPushCurrent_v2(gone.context) != kSuccess) return;
  if (const Result rc = x_api->cuIpcCloseMemHandle(gone.memory.base))
    ERDMA_INFO(EP_DATA, "GPU memory of another process could not be closed: CUDA error %d\n", rc);
  x_api->cuCtxPopCurrent_v2(nullptr);
}

}  // namespace erdma::hmem
