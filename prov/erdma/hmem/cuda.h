#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "hmem/cuda_api.h"
#include "hmem/device_memory.h"
#include "util/fd.h"
#include "util/process_epoch.h"
#include "util/result.h"

namespace erdma::hmem {

/// Memory of a device as it was allocated.
struct Allocation {
  uintptr_t base = 0;
  size_t size = 0;
  uint64_t id = 0;  ///< unique in the process: another allocation at this address has another
};

/// Names an allocation to other processes of the host.
struct IpcHandle {
  enum class Kind : uint8_t {
    driver,  ///< of cudaMalloc: the bytes are CUDA's own handle, and enough to open it
    file,    ///< of cuMemCreate: the bytes are a FileName, and its descriptor has to come with it
  };
  cuda_api::IpcMemHandle bytes;
  uint32_t id;  ///< of the allocation, in its process: one made later may have the same bytes
  Kind kind;

  bool same_name(const IpcHandle& other) const noexcept {
    return kind == other.kind && std::memcmp(&bytes, &other.bytes, sizeof(bytes)) == 0;
  }
  /// Where one is, the other can't be: one of them is gone.
  bool same_place(const IpcHandle& other) const noexcept;
  bool operator==(const IpcHandle& other) const noexcept {
    return id == other.id && same_name(other);
  }
};

/// What an IpcHandle of Kind::file holds, the rest is 0. Means something to its peer only, and only
/// as long as they are connected.
struct FileName {
  uint64_t base;      ///< in the process of its owner
  uint64_t size;      ///< bytes of the mapping, which is the start of what the file names
  uint64_t physical;  ///< CUDA's handle in that process
  uint64_t number;    ///< by which the descriptor was passed; 0: not yet

  static FileName of(const IpcHandle& handle) noexcept {
    FileName name;
    std::memcpy(&name, &handle.bytes, sizeof(name));
    return name;
  }
  void put(IpcHandle& handle) const noexcept { std::memcpy(&handle.bytes, this, sizeof(*this)); }
};
inline bool IpcHandle::same_place(const IpcHandle& other) const noexcept {
  if (kind != Kind::file) return same_name(other);
  return other.kind == Kind::file && FileName::of(*this).base == FileName::of(other).base;
}
static_assert(sizeof(FileName) <= sizeof(cuda_api::IpcMemHandle));

/// Where an allocation of another process is in this one's device addresses.
struct IpcMemory {
  uintptr_t base = 0;
  size_t size = 0;
};

/// The CUDA driver of this process: libcuda.so.1, opened at run time, never linked. Thread-safe.
/// Makes no context of its own: device memory comes with that of whoever allocated it. Methods are
/// spread over cuda.cc, cuda_ipc.cc and cuda_files.cc.
/// Invariant: a forked child, in which CUDA can't be used, makes no call.
class Cuda final : public DeviceMemory {
 public:
  /// Null: no driver, no device, or one of a driver that is too old. Asked for once per process,
  /// and only when an application wants FI_HMEM.
  static Cuda* get() noexcept;

  Cuda(const Cuda&) = delete;
  Cuda& operator=(const Cuda&) = delete;

  /// Does it point to memory of a device? Managed memory counts: who touches it with the processor
  /// would move it. Asks the driver, which knows at any time.
  bool is_device(const void* pointer) const noexcept override;
  /// Is [pointer, +length) inside one allocation of a device?
  bool covers(const void* pointer, size_t length) const noexcept;

  /// What a NIC writes there is visible to kernels that begin after its completion: nobody has to
  /// flush. As the device's attributes say; false where they can't be had.
  bool orders_nic_writes(const void* pointer) const noexcept;

  /// The allocation that holds it; false: of no device.
  bool allocation(const void* pointer, Allocation& found) const noexcept;
  /// A new descriptor of a dmabuf in which the allocation begins at `offset`; -1: can't be had.
  int export_dmabuf(const Allocation& memory, uint64_t& offset) const noexcept;

  /// Names the allocation that holds the pointer, which lies `offset` bytes into it. 0, or
  /// -FI_EOPNOTSUPP: it can't be shared (logged once), or is of no device.
  int share(const void* pointer, IpcHandle& handle, uint64_t& offset) noexcept;
  /// Opens what share() named in another process, or in this one, for the device that `near`
  /// belongs to, else that of the thread's context. To be closed as often as opened.
  /// -FI_EOPNOTSUPP: can't be had (logged once), or another allocation of that name is open. Of
  /// Kind::file: what import_file() made, again, and for another device.
  util::Result<IpcMemory> open(const IpcHandle& handle, const void* near) noexcept;

  /// Memory of Kind::file: a new descriptor for another process; none: can't be had (logged once).
  util::Fd export_file(const IpcHandle& handle) noexcept;
  /// Maps what another process exported, `size` bytes from its start; the descriptor is not needed
  /// any more. `handle`: names it here, for open() and close(). As open() else.
  util::Result<IpcMemory> import_file(const util::Fd& file, size_t size, const void* near,
                                      IpcHandle& handle) noexcept;
  void close(const IpcHandle& handle) noexcept;

  /// Copies between device and host memory, or within either; done when it returns. 0 or -FI_EIO.
  /// Waits for its own copy only, not for what the application has in its streams.
  int copy(void* to, const void* from, size_t length) noexcept;

  /// Memory of the calling thread's device, or of the first one, for as long as this lives; null:
  /// can't be had. Makes a context if there is none.
  class Scratch;
  std::unique_ptr<Scratch> allocate(size_t length) noexcept;

 private:
  struct Functions;
  struct StreamOf {
    cuda_api::Context context;
    cuda_api::Stream stream;
  };

  struct Export {
    Allocation memory;
    IpcHandle handle;
    bool shared;  ///< else the driver has refused
  };
  struct Opened {
    IpcHandle handle;
    IpcMemory memory;
    cuda_api::Context context;  ///< in which it was opened; of Kind::file: null
    uint32_t users;
    uint64_t devices;  ///< of Kind::file: bit per device that may read it
  };

  Cuda(std::unique_ptr<Functions> functions) noexcept;
  ~Cuda();
  static Cuda* load() noexcept;
  bool usable() const noexcept { return x_epoch == util::process_epoch(); }
  /// A context that the thread entered. A primary one is retained until leave(), as another thread
  /// of the application may release it.
  struct Entered {
    cuda_api::Context context = nullptr;
    cuda_api::Device retained = -1;
  };
  bool enter(const void* one, const void* other, Entered& in) const noexcept;
  bool push(Entered& in) const noexcept;
  void leave(const Entered& in) const noexcept;
  void release(const Entered& in) const noexcept;
  Entered context_for(const void* pointer) const noexcept;
  Entered retain_primary(cuda_api::Device device) const noexcept;
  int device_of(const void* pointer) const noexcept;
  cuda_api::Stream stream_of(cuda_api::Context context) noexcept;
  void forget(cuda_api::Context context) noexcept;
  int from_device(void* to, const void* from, size_t length) noexcept override {
    return copy(to, from, length);
  }
  int to_device(void* to, const void* from, size_t length) noexcept override {
    return copy(to, from, length);
  }
  static bool warn_once(std::atomic_flag& said) noexcept;
  bool get_handle(Export& memory) noexcept;
  const Export* own(const IpcHandle& handle) const noexcept;
  int open_new(Opened& made, const void* near) noexcept;
  // cuda_files.cc
  class Held;
  bool name_file(Export& memory, const void* pointer) const noexcept;
  bool still_mapped(const Export& memory, const void* pointer) const noexcept;
  util::Result<IpcMemory> open_again(const IpcHandle& handle, const void* near) noexcept;
  int map_file(const Held& physical, const void* near, Opened& made) noexcept;
  int let_read(const Held& physical, const void* near, Opened& made) noexcept;
  void unmap_file(const IpcMemory& memory) noexcept;
  cuda_api::Result admit(Opened& file, cuda_api::Device device) const noexcept;
  int refuse_file(const char* call, cuda_api::Result rc) noexcept;
  int copy_in(cuda_api::Context context, void* to, const void* from, size_t length) noexcept;

  const std::unique_ptr<Functions> x_api;
  const uint32_t x_epoch;
  std::mutex x_mutex;  ///< of x_streams
  std::vector<StreamOf> x_streams;

  std::mutex x_ipc_mutex;  ///< of what follows; held while the driver opens or closes
  std::vector<Export> x_exports;
  size_t x_next_export = 0;
  std::vector<Opened> x_opened;
  uint32_t x_files_opened = 0;
  std::atomic_flag x_share_warned, x_open_warned, x_export_warned, x_import_warned;
};

class Cuda::Scratch {
 public:
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch();
  void* pointer() const noexcept;

 private:
  friend class Cuda;
  explicit Scratch(Cuda& cuda) noexcept : x_cuda(cuda) {}

  Cuda& x_cuda;
  cuda_api::DevicePointer x_pointer = 0;
  cuda_api::Context x_context = nullptr;  ///< in which it was allocated
  bool x_retained = false;                ///< the primary context of device 0, by us
};

}  // namespace erdma::hmem
