#include "hmem/cuda_files.h"

#include <algorithm>
#include <new>
#include <utility>

#include <rdma/fi_errno.h>

#include "util/log.h"

namespace erdma::hmem {

using namespace cuda_api;

namespace {

constexpr uint64_t bit_of(Device device) noexcept {
  return device >= 0 && device < 64 ? uint64_t(1) << device : 0;
}

}  // namespace

/// Owns a handle of physical memory and releases it on destruction. The memory itself lives until
/// all handles are released and all mappings are gone.
class CudaFiles::Held {
 public:
  explicit Held(const Functions& api, PhysicalMemory handle = 0) noexcept
      : x_api(api), x_handle(handle) {}
  /// The handle of the physical memory that is mapped at this address; 0: there is none.
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

// --- memory of this process ---------------------------------------------------------------------

/// The peer maps the physical memory from its start, so the allocation must be one mapping of it:
/// CUDA has no mappings with an offset.
bool CudaFiles::name(const Allocation& memory, const void* pointer,
                     IpcHandle& handle) const noexcept {
  if (!x_api.cuMemRetainAllocationHandle) return false;
  const BesideCaptures beside(x_api);
  const Held held = Held::at(x_api, address_of(pointer));
  MemAllocationProperties properties{};
  if (!held.properties(properties) || !(properties.handle_types & kHandlePosixFd)) return false;
  const auto [base, size, id] = memory;
  if (Held::at(x_api, base).get() != held.get() ||
      Held::at(x_api, base + size - 1).get() != held.get())
    return false;
  handle.kind = IpcHandle::Kind::file;
  FileName{base, size, held.get(), 0}.put(handle);
  return true;
}

/// CUDA documents the buffer id as unique for allocations, not for mappings. So this function
/// compares the physical memory as well.
bool CudaFiles::still_named(const IpcHandle& handle, const void* pointer) const noexcept {
  const BesideCaptures beside(x_api);
  return Held::at(x_api, address_of(pointer)).get() == FileName::of(handle).physical;
}

util::Fd CudaFiles::export_file(const IpcHandle& handle) noexcept {
  if (!x_api.cuMemRetainAllocationHandle) return {};
  const BesideCaptures beside(x_api);
  const FileName name = FileName::of(handle);
  const Held held = Held::at(x_api, name.base);
  if (!held.get() || held.get() != name.physical) return {};
  int fd = -1;
  const Result rc = x_api.cuMemExportToShareableHandle(&fd, held.get(), kHandlePosixFd, 0);
  if (rc == kSuccess) return util::Fd(fd);
  if (!x_export_warned.test_and_set())
    ERDMA_NOTICE(
        gpu_staged, EP_DATA,
        "GPU memory can't be exported to other processes (cuMemExportToShareableHandle: CUDA "
        "error %d), so its messages are copied through host memory. It takes a file "
        "descriptor for a moment (ulimit -n); FI_ERDMA_CUDA_IPC=off does not try",
        rc);
  return {};
}

// --- memory of other processes ------------------------------------------------------------------

int CudaFiles::refuse(const char* call, Result rc) noexcept {
  if (!x_import_warned.test_and_set())
    ERDMA_NOTICE(
        gpu_staged, EP_DATA,
        "GPU memory of another process can't be mapped (%s: CUDA error %d), so its messages "
        "are copied through host memory. Both processes need to see both GPUs (docker run "
        "--gpus all; CUDA_VISIBLE_DEVICES), and the GPUs to reach each other (nvidia-smi "
        "topo -p2p r); FI_ERDMA_CUDA_IPC=off does not try",
        call, rc);
  return -FI_EOPNOTSUPP;
}

util::Result<IpcMemory> CudaFiles::import_file(const util::Fd& file, size_t size, const void* near,
                                               IpcHandle& handle) noexcept try {
  if (!x_api.cuMemRetainAllocationHandle || !file) return -FI_EOPNOTSUPP;
  const BesideCaptures beside(x_api);
  PhysicalMemory imported = 0;
  const Result rc = x_api.cuMemImportFromShareableHandle(
      &imported, pointer_to(DevicePointer(file.get())), kHandlePosixFd);
  if (rc != kSuccess) return refuse("cuMemImportFromShareableHandle", rc);
  const Held physical(x_api, imported);
  const std::lock_guard guard(x_mutex);
  x_mapped.reserve(x_mapped.size() + 1);
  Mapped made{{{}, ++x_files_opened, IpcHandle::Kind::file}, {0, size}, 1, -1, 0};
  if (const int refused = map(physical, near, made)) return refused;
  FileName{made.memory.base, size, 0, 0}.put(made.handle);
  x_mapped.push_back(made);
  handle = made.handle;
  return made.memory;
} catch (const std::bad_alloc&) {
  return -FI_EOPNOTSUPP;
}

int CudaFiles::map(const Held& physical, const void* near, Mapped& made) noexcept {
  DevicePointer base = 0;
  MemAllocationProperties properties{};
  if (!physical.properties(properties)) return -FI_EOPNOTSUPP;
  made.owner = properties.location.id;
  Result rc = x_api.cuMemAddressReserve(&base, made.memory.size, 0, 0, 0);
  if (rc != kSuccess) return refuse("cuMemAddressReserve", rc);
  made.memory.base = base;
  rc = x_api.cuMemMap(base, made.memory.size, 0, physical.get(), 0);
  if (rc == kSuccess) {
    const int refused = give_access(made, near);
    if (refused) unmap(made.memory);
    return refused;
  }
  x_api.cuMemAddressFree(base, made.memory.size);
  return refuse("cuMemMap", rc);
}

/// Gives read and write access to the device that holds the memory, which executes copies to host
/// memory, and to the device of `near`. Without `near` the owning device must have an active
/// primary context. The calling thread's own context is not enough, though a copy would try it: it
/// may be a primary context that was released, and a thread without one may continue the copy.
int CudaFiles::give_access(Mapped& file, const void* near) noexcept {
  if (!near && !PrimaryContext::is_active(x_api, file.owner)) return -FI_EOPNOTSUPP;
  Result rc = admit(file, file.owner);
  if (rc == kSuccess && near) rc = admit(file, x_api.device_of(near));
  return rc == kSuccess ? 0 : refuse("cuMemSetAccess", rc);
}

Result CudaFiles::admit(Mapped& file, Device device) const noexcept {
  const uint64_t bit = bit_of(device);
  if (!bit) return kInvalidDevice;
  if (file.devices & bit) return kSuccess;
  const MemAccess access{{kLocationDevice, device}, kAccessReadWrite};
  const Result rc = x_api.cuMemSetAccess(file.memory.base, file.memory.size, &access, 1);
  if (rc == kSuccess) file.devices |= bit;
  return rc;
}

std::vector<CudaFiles::Mapped>::iterator CudaFiles::find(const IpcHandle& handle) noexcept {
  return std::find_if(x_mapped.begin(), x_mapped.end(),
                      [&](const Mapped& one) { return one.handle == handle; });
}

util::Result<IpcMemory> CudaFiles::open(const IpcHandle& handle, const void* near) noexcept {
  const BesideCaptures beside(x_api);
  const std::lock_guard guard(x_mutex);
  const auto known = find(handle);
  if (known == x_mapped.end()) return -FI_EOPNOTSUPP;
  if (const int refused = give_access(*known, near)) return refused;
  ++known->users;
  return known->memory;
}

void CudaFiles::close(const IpcHandle& handle) noexcept {
  const std::lock_guard guard(x_mutex);
  const auto at = find(handle);
  if (at == x_mapped.end() || --at->users > 0) return;
  unmap(at->memory);
  x_mapped.erase(at);
}

void CudaFiles::unmap(const IpcMemory& memory) noexcept {
  const BesideCaptures beside(x_api);
  Result rc = x_api.cuMemUnmap(memory.base, memory.size);
  if (rc == kSuccess) rc = x_api.cuMemAddressFree(memory.base, memory.size);
  if (rc != kSuccess)
    ERDMA_INFO(EP_DATA, "GPU memory of another process could not be unmapped: CUDA error %d\n", rc);
}

}  // namespace erdma::hmem
