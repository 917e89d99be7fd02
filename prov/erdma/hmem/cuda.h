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
  uint64_t id = 0;  ///< unique in the process: a later allocation at this address has another id
};

/// Names an allocation to other processes of the host.
struct IpcHandle {
  enum class Kind : uint8_t {
    driver,  ///< of cudaMalloc: the bytes are CUDA's own handle, which suffices to open it
    file,    ///< of cuMemCreate: the bytes are a FileName; the descriptor travels separately
  };
  cuda_api::IpcMemHandle bytes;
  uint32_t id;  ///< of the allocation, in its process: a later allocation may have the same bytes
  Kind kind;

  bool same_name(const IpcHandle& other) const noexcept {
    return kind == other.kind && std::memcmp(&bytes, &other.bytes, sizeof(bytes)) == 0;
  }
  /// Both name the same place, so one of the allocations was freed before the other was made.
  bool same_place(const IpcHandle& other) const noexcept;
  bool operator==(const IpcHandle& other) const noexcept {
    return id == other.id && same_name(other);
  }
};

/// The first bytes of an IpcHandle of Kind::file; the rest is 0. Only the peer understands it, as
/// long as the two are connected.
struct FileName {
  uint64_t base;      ///< in the process of its owner
  uint64_t size;      ///< bytes of the mapping, which is the start of the memory of the file
  uint64_t physical;  ///< CUDA's handle in that process
  uint64_t number;    ///< of the descriptor when it was passed; 0: not passed yet

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

/// Where an allocation of another process is mapped among the device addresses of this one.
struct IpcMemory {
  uintptr_t base = 0;
  size_t size = 0;
};

/// The CUDA driver of this process: libcuda.so.1, opened at run time, never linked. Thread-safe. It
/// makes no context of its own: device memory has the context of its allocation. Its methods are in
/// cuda.cc, cuda_ipc.cc and cuda_files.cc. Invariant: a forked child, in which CUDA cannot be used,
/// makes no call.
class Cuda final : public DeviceMemory {
 public:
  /// Null: there is no driver or no device, or the driver is too old. The driver is asked once per
  /// process, and only if an application wants FI_HMEM.
  static Cuda* get() noexcept;

  Cuda(const Cuda&) = delete;
  Cuda& operator=(const Cuda&) = delete;

  /// Does the pointer lead to memory of a device? Managed memory counts: an access by the processor
  /// would move it. The driver is asked each time, since allocations come and go.
  bool is_device(const void* pointer) const noexcept override;
  /// Is [pointer, +length) inside one allocation of a device?
  bool covers(const void* pointer, size_t length) const noexcept;

  /// Are a NIC's writes to this memory visible to kernels that begin after their completion, so
  /// that no flush is needed? Answered by the device's attributes; false if these cannot be read.
  bool orders_nic_writes(const void* pointer) const noexcept;

  /// The allocation that holds the pointer; false: it is not memory of a device.
  bool allocation(const void* pointer, Allocation& found) const noexcept;
  /// A new descriptor of a dmabuf in which the allocation begins at `offset`; -1: the driver makes
  /// none.
  int export_dmabuf(const Allocation& memory, uint64_t& offset) const noexcept;

  /// Names the allocation that holds the pointer, which is `offset` bytes from its start. Returns
  /// 0, or -FI_EOPNOTSUPP: the allocation cannot be shared (logged once), or is not memory of a
  /// device.
  int share(const void* pointer, IpcHandle& handle, uint64_t& offset) noexcept;
  /// Opens the allocation that share() named, in another process or in this one, for the device of
  /// `near`, or otherwise for that of the thread's context. The caller closes it as often as it
  /// opened it. -FI_EOPNOTSUPP: the driver refuses (logged once), or another allocation of that
  /// name is open. For Kind::file: opens a mapping of import_file() once more, also for another
  /// device.
  util::Result<IpcMemory> open(const IpcHandle& handle, const void* near) noexcept;

  /// Memory of Kind::file: a new descriptor for another process; none: the driver refuses (logged
  /// once).
  util::Fd export_file(const IpcHandle& handle) noexcept;
  /// Maps memory that another process exported, `size` bytes from its start. Afterwards the
  /// descriptor is not needed. `handle` names the mapping in this process, for open() and close().
  /// In all other respects as open().
  util::Result<IpcMemory> import_file(const util::Fd& file, size_t size, const void* near,
                                      IpcHandle& handle) noexcept;
  void close(const IpcHandle& handle) noexcept;

  /// Copies between device and host memory, or within either. The copy is done when the call
  /// returns 0 or -FI_EIO. The call waits for its own copy only, not for streams of the
  /// application.
  int copy(void* to, const void* from, size_t length) noexcept;

  /// Memory of the calling thread's device, or of the first device, as long as this object lives.
  /// Null: CUDA has none. Makes a context if there is none.
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
    bool shared;  ///< false: the driver refused
  };
  struct Opened {
    IpcHandle handle;
    IpcMemory memory;
    cuda_api::Context context;  ///< of the opening; Kind::file: null
    uint32_t users;
    uint64_t devices;  ///< Kind::file: a bit for each device that may read it
  };

  Cuda(std::unique_ptr<Functions> functions) noexcept;
  ~Cuda();
  static Cuda* load() noexcept;
  bool usable() const noexcept { return x_epoch == util::process_epoch(); }
  /// A context that the thread entered. A primary context is retained until leave(), as another
  /// thread of the application may release it.
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

  std::mutex x_ipc_mutex;  ///< of the members below; held while the driver opens or closes
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
  cuda_api::Context x_context = nullptr;  ///< of the allocation
  bool x_retained = false;                ///< this object retains the primary context of device 0
};

}  // namespace erdma::hmem
