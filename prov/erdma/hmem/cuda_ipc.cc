#include "hmem/cuda_ipc.h"

#include <algorithm>
#include <new>

#include "util/log.h"

namespace erdma::hmem {

using namespace cuda_api;

namespace {

/// The number of handles that are cached; more only if all are in use. Getting one from the driver
/// takes longer than everything else in this file.
constexpr size_t kExports = 64;

}  // namespace

int CudaIpc::share(const void* pointer, IpcHandle& handle, uint64_t& offset) noexcept try {
  Allocation memory;
  if (!x_cuda.allocation(pointer, memory)) return -FI_EOPNOTSUPP;
  offset = address_of(pointer) - memory.base;
  x_cuda.make_synchronous(memory);
  const std::lock_guard guard(x_mutex);
  auto at = std::find_if(x_exports.begin(), x_exports.end(),
                         [&](const Export& one) { return one.memory.base == memory.base; });
  const bool known = at != x_exports.end() && at->memory.id == memory.id;
  if (!known ||
      (at->handle.kind == IpcHandle::Kind::file && !x_files.still_named(at->handle, pointer))) {
    // If an older allocation had this address, it was freed, and its handle is invalid.
    if (at == x_exports.end()) at = room_for_export();
    *at = {memory, {{}, uint32_t(memory.id), IpcHandle::Kind::driver}, false, 0};
    at->shared = x_files.name(memory, pointer, at->handle) || get_handle(*at);
  }
  handle = at->handle;
  return at->shared ? 0 : -FI_EOPNOTSUPP;
} catch (const std::bad_alloc&) {
  return -FI_EOPNOTSUPP;
}

/// A new place, or that of an export that nobody in this process uses.
std::vector<CudaIpc::Export>::iterator CudaIpc::room_for_export() {
  for (size_t tried = 0; x_exports.size() >= kExports && tried < x_exports.size(); ++tried) {
    const auto at = x_exports.begin() + ptrdiff_t(x_next_export++ % x_exports.size());
    if (at->users == 0) return at;
  }
  return x_exports.insert(x_exports.end(), Export{});
}

bool CudaIpc::get_handle(Export& memory) noexcept {
  if (!x_api.cuIpcGetMemHandle) return false;
  const EnteredContext in(x_api, pointer_to(memory.memory.base));
  if (!in.get()) return false;
  const Result rc = x_api.cuIpcGetMemHandle(&memory.handle.bytes, memory.memory.base);
  if (rc != kSuccess && !x_share_warned.test_and_set())
    ERDMA_NOTICE(gpu_staged, EP_DATA,
                 "GPU memory can't be shared with other processes (cuIpcGetMemHandle: CUDA error "
                 "%d), so its messages are copied through host memory. Memory of cudaMalloc can be "
                 "shared, and memory of cuMemCreate that was made to be exported as a POSIX file "
                 "descriptor, but no memory of a pool or of another process "
                 "(PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False for PyTorch)",
                 rc);
  return rc == kSuccess;
}

/// The export of this process that the handle names, or null. Such memory is used at its own
/// address: the driver cannot open a handle in the process that created it.
CudaIpc::Export* CudaIpc::own(const IpcHandle& handle) noexcept {
  for (Export& one : x_exports)
    if (one.shared && one.handle == handle) return &one;
  return nullptr;
}

util::Result<IpcMemory> CudaIpc::open(const IpcHandle& handle, const void* near) noexcept try {
  if (!x_cuda.usable()) return -FI_EOPNOTSUPP;
  if (handle.kind == IpcHandle::Kind::file) return x_files.open(handle, near);
  const std::lock_guard guard(x_mutex);
  if (!x_api.cuIpcGetMemHandle) return -FI_EOPNOTSUPP;
  if (Export* const mine = own(handle)) {
    ++mine->users;
    return IpcMemory{mine->memory.base, mine->memory.size};
  }
  for (Opened& known : x_opened) {
    if (!known.handle.same_name(handle)) continue;
    const bool mapped = is_mapped(known), same = known.handle.id == handle.id;
    // The open mapping is of memory that its owner has freed, and still has users. The driver would
    // return this mapping again.
    if (mapped && !same) return -FI_EOPNOTSUPP;
    if (!same) continue;
    if (const int rc = mapped ? 0 : map(known, near)) return rc;
    ++known.users;
    return known.memory;
  }
  x_opened.reserve(x_opened.size() + 1);
  Opened made{handle, {}, nullptr, 0, 1};
  if (const int rc = map(made, near)) return rc;
  x_opened.push_back(made);
  return made.memory;
} catch (const std::bad_alloc&) {
  return -FI_EOPNOTSUPP;
}

/// False: the context of the mapping has ended, and the mapping with it. Other memory may have its
/// address.
bool CudaIpc::is_mapped(const Opened& opened) const noexcept {
  const uint64_t now = x_api.buffer_id(opened.memory.base);
  return !opened.buffer || now == opened.buffer;
}

int CudaIpc::map(Opened& made, const void* near) noexcept {
  const EnteredContext in(x_api, near);
  Context context = in.get();
  if (!context && (x_api.cuCtxGetCurrent(&context) != kSuccess || !context)) return -FI_EOPNOTSUPP;
  DevicePointer base = 0;
  const Result rc = x_api.cuIpcOpenMemHandle_v2(&base, made.handle.bytes, kIpcLazyPeerAccess);
  if (rc == kSuccess) {
    DevicePointer start = base;
    made.memory.base = base;
    if (x_api.cuMemGetAddressRange_v2(&start, &made.memory.size, base) != kSuccess)
      made.memory.size = 0;
    made.context = context;
    made.buffer = x_api.buffer_id(base);
  }
  if (rc == kSuccess) return 0;
  if (!x_open_warned.test_and_set())
    ERDMA_NOTICE(
        gpu_staged, EP_DATA,
        "GPU memory of another process can't be opened (cuIpcOpenMemHandle: CUDA error %d), "
        "so its messages are copied through host memory. Both processes need the same IPC "
        "namespace and see both GPUs (docker run --ipc=host --gpus all; CUDA_VISIBLE_DEVICES)"
        "; FI_ERDMA_CUDA_IPC=off does not try",
        rc);
  return -FI_EOPNOTSUPP;
}

void CudaIpc::close(const IpcHandle& handle) noexcept {
  if (!x_cuda.usable()) return;
  if (handle.kind == IpcHandle::Kind::file) return x_files.close(handle);
  const std::lock_guard guard(x_mutex);
  if (Export* const mine = own(handle)) {
    if (mine->users > 0) --mine->users;
    return;
  }
  const auto at = std::find_if(x_opened.begin(), x_opened.end(),
                               [&](const Opened& one) { return one.handle == handle; });
  if (at == x_opened.end() || --at->users > 0) return;
  const Opened gone = *at;
  x_opened.erase(at);
  if (!is_mapped(gone)) return;
  const BesideCaptures beside(x_api);
  if (x_api.cuCtxPushCurrent_v2(gone.context) != kSuccess) return;
  if (const Result rc = x_api.cuIpcCloseMemHandle(gone.memory.base))
    ERDMA_INFO(EP_DATA, "GPU memory of another process could not be closed: CUDA error %d\n", rc);
  x_api.cuCtxPopCurrent_v2(nullptr);
}

}  // namespace erdma::hmem
