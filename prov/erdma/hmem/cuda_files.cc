// Device memory of cuMemCreate(), which other processes of the host map by a file descriptor.
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

// NOLINTBEGIN(performance-no-int-to-ptr): CUDA's device pointers are numbers, and so are files
void* pointer_to(uint64_t address) noexcept {
  return reinterpret_cast<void*>(uintptr_t(address));
}
void* as_shared(int fd) noexcept {
  return reinterpret_cast<void*>(uintptr_t(fd));
}
// NOLINTEND(performance-no-int-to-ptr)

constexpr uint64_t bit_of(Device device) noexcept {
  return device >= 0 && device < 64 ? uint64_t(1) << device : 0;
}

}  // namespace

/// A handle of physical memory, released on destruction. After that the memory lives as long as it
/// is mapped.
class Cuda::Held {
 public:
  explicit Held(const Functions& api, PhysicalMemory handle = 0) noexcept
      : x_api(api), x_handle(handle) {}
  /// The physical memory that is mapped at this address, if there is any.
  static Held at(const Functions& api, uint64_t address) noexcept {
    PhysicalMemory handle = 0;
    const Result rc = api.cuMemRetainAllocationHandle(&handle, pointer_to(address));
    return Held(api, rc == kSuccess ? handle : 0);
  }
  Held(Held&& other) noexcept : x_api(other.x_api), x_handle(std::exchange(other.x_handle, 0)) {}
  Held& operator=(Held&&) = delete;
  ~Held() {
    if (x_handle) x_api.cuMemRelease(x_handle);
  }
  PhysicalMemory get() const noexcept { return x_handle; }
  bool properties(MemAllocationProperties& found) const noexcept {
    return x_handle && x_api.cuMemGetAllocationPropertiesFromHandle(&found, x_handle) == kSuccess &&
           found.location.type == kLocationDevice;
  }

 private:
  const Functions& x_api;
  PhysicalMemory x_handle;
};

// --- of this process ----------------------------------------------------------------------------

/// Makes the handle a FileName if the memory was mapped by cuMemMap(), was made to be exported, and
/// is one mapping. CUDA maps physical memory from its start only.
bool Cuda::name_file(Export& memory, const void* pointer) const noexcept {
  if (!x_api->cuMemRetainAllocationHandle) return false;
  const Held held = Held::at(*x_api, reinterpret_cast<uintptr_t>(pointer));
  MemAllocationProperties properties{};
  if (!held.properties(properties) || !(properties.handle_types & kHandlePosixFd)) return false;
  const auto [base, size, id] = memory.memory;
  if (Held::at(*x_api, base).get() != held.get() ||
      Held::at(*x_api, base + size - 1).get() != held.get())
    return false;
  memory.handle.kind = IpcHandle::Kind::file;
  FileName{base, size, held.get(), 0}.put(memory.handle);
  return true;
}

/// The physical memory is compared in addition to the id: the documentation of the id speaks of
/// allocations, not of mappings.
bool Cuda::still_mapped(const Export& memory, const void* pointer) const noexcept {
  if (memory.handle.kind != IpcHandle::Kind::file) return true;
  return Held::at(*x_api, reinterpret_cast<uintptr_t>(pointer)).get() ==
         FileName::of(memory.handle).physical;
}

util::Fd Cuda::export_file(const IpcHandle& handle) noexcept {
  if (!usable() || !x_api->cuMemRetainAllocationHandle) return {};
  const FileName name = FileName::of(handle);
  const Held held = Held::at(*x_api, name.base);
  if (!held.get() || held.get() != name.physical) return {};
  int fd = -1;
  const Result rc = x_api->cuMemExportToShareableHandle(&fd, held.get(), kHandlePosixFd, 0);
  if (rc == kSuccess) return util::Fd(fd);
  if (warn_once(x_export_warned))
    ERDMA_NOTICE(
        gpu_staged, EP_DATA,
        "GPU memory can't be exported to other processes (cuMemExportToShareableHandle: CUDA "
        "error %d), so its messages are copied through host memory. It takes a file "
        "descriptor for a moment (ulimit -n); FI_ERDMA_CUDA_IPC=off does not try\n",
        rc);
  return {};
}

// --- of another process -------------------------------------------------------------------------

int Cuda::refuse_file(const char* call, Result rc) noexcept {
  if (warn_once(x_import_warned))
    ERDMA_NOTICE(
        gpu_staged, EP_DATA,
        "GPU memory of another process can't be mapped (%s: CUDA error %d), so its messages "
        "are copied through host memory. Both processes need to see both GPUs (docker run "
        "--gpus all; CUDA_VISIBLE_DEVICES), and the GPUs to reach each other (nvidia-smi "
        "topo -p2p r); FI_ERDMA_CUDA_IPC=off does not try\n",
        call, rc);
  return -FI_EOPNOTSUPP;
}

util::Result<IpcMemory> Cuda::import_file(const util::Fd& file, size_t size, const void* near,
                                          IpcHandle& handle) noexcept try {
  if (!usable() || !x_api->cuMemRetainAllocationHandle || !file) return -FI_EOPNOTSUPP;
  PhysicalMemory imported = 0;
  const Result rc =
      x_api->cuMemImportFromShareableHandle(&imported, as_shared(file.get()), kHandlePosixFd);
  if (rc != kSuccess) return refuse_file("cuMemImportFromShareableHandle", rc);
  const Held physical(*x_api, imported);
  const std::lock_guard guard(x_ipc_mutex);
  x_opened.reserve(x_opened.size() + 1);
  Opened made{{{}, ++x_files_opened, IpcHandle::Kind::file}, {0, size}, nullptr, 1, 0};
  if (const int refused = map_file(physical, near, made)) return refused;
  FileName{made.memory.base, size, 0, 0}.put(made.handle);
  x_opened.push_back(made);
  handle = made.handle;
  return made.memory;
} catch (const std::bad_alloc&) {
  return -FI_EOPNOTSUPP;
}

int Cuda::map_file(const Held& physical, const void* near, Opened& made) noexcept {
  DevicePointer base = 0;
  Result rc = x_api->cuMemAddressReserve(&base, made.memory.size, 0, 0, 0);
  if (rc != kSuccess) return refuse_file("cuMemAddressReserve", rc);
  made.memory.base = base;
  rc = x_api->cuMemMap(base, made.memory.size, 0, physical.get(), 0);
  if (rc == kSuccess) {
    const int refused = let_read(physical, near, made);
    if (refused) unmap_file(made.memory);
    return refused;
  }
  x_api->cuMemAddressFree(base, made.memory.size);
  return refuse_file("cuMemMap", rc);
}

/// Gives access to the device that holds the memory, which executes copies to host memory, and to
/// the device of `near`. Both need a context that exists in whatever thread makes progress.
int Cuda::let_read(const Held& physical, const void* near, Opened& made) noexcept {
  MemAllocationProperties properties{};
  if (!physical.properties(properties)) return -FI_EOPNOTSUPP;
  const Device owner = properties.location.id;
  if (!near) {
    const Entered primary = retain_primary(owner);
    if (!primary.context) return -FI_EOPNOTSUPP;
    release(primary);
  }
  Result rc = admit(made, owner);
  if (rc == kSuccess && near) rc = admit(made, device_of(near));
  return rc == kSuccess ? 0 : refuse_file("cuMemSetAccess", rc);
}

Result Cuda::admit(Opened& file, Device device) const noexcept {
  const uint64_t bit = bit_of(device);
  if (!bit) return kInvalidDevice;
  if (file.devices & bit) return kSuccess;
  const MemAccess access{{kLocationDevice, device}, kAccessReadWrite};
  const Result rc = x_api->cuMemSetAccess(file.memory.base, file.memory.size, &access, 1);
  if (rc == kSuccess) file.devices |= bit;
  return rc;
}

util::Result<IpcMemory> Cuda::open_again(const IpcHandle& handle, const void* near) noexcept {
  const auto known = std::find_if(x_opened.begin(), x_opened.end(),
                                  [&](const Opened& one) { return one.handle == handle; });
  if (known == x_opened.end()) return -FI_EOPNOTSUPP;
  if (near)
    if (const Result rc = admit(*known, device_of(near))) return refuse_file("cuMemSetAccess", rc);
  ++known->users;
  return known->memory;
}

void Cuda::unmap_file(const IpcMemory& memory) noexcept {
  Result rc = x_api->cuMemUnmap(memory.base, memory.size);
  if (rc == kSuccess) rc = x_api->cuMemAddressFree(memory.base, memory.size);
  if (rc != kSuccess)
    ERDMA_INFO(EP_DATA, "GPU memory of another process could not be unmapped: CUDA error %d\n", rc);
}

}  // namespace erdma::hmem
