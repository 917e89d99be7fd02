#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <vector>

#include "hmem/cuda.h"
#include "util/fd.h"
#include "util/result.h"

namespace erdma::hmem {

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

/// Device memory of cuMemCreate(), which other processes of the host map by a file descriptor.
/// Thread-safe. The callers see to it that the process is not a forked child.
class CudaFiles {
 public:
  explicit CudaFiles(const cuda_api::Functions& functions) noexcept : x_api(functions) {}

  /// Makes `handle` name the allocation that holds the pointer. False: it was not mapped by
  /// cuMemMap(), was not made to be exported, or is not one mapping.
  bool name(const Allocation& memory, const void* pointer, IpcHandle& handle) const noexcept;
  /// Does the handle that name() made still name the memory at the pointer?
  bool still_named(const IpcHandle& handle, const void* pointer) const noexcept;

  /// A new descriptor for another process; none: the driver refuses (logged once).
  util::Fd export_file(const IpcHandle& handle) noexcept;
  /// Maps memory that another process exported, `size` bytes from its start. Afterwards the
  /// descriptor is not needed. `handle` names the mapping in this process, for open() and close().
  /// In all other respects as CudaIpc::open().
  util::Result<IpcMemory> import_file(const util::Fd& file, size_t size, const void* near,
                                      IpcHandle& handle) noexcept;
  /// Opens a mapping of import_file() once more, also for another device.
  util::Result<IpcMemory> open(const IpcHandle& handle, const void* near) noexcept;
  void close(const IpcHandle& handle) noexcept;

 private:
  class Held;
  struct Mapped {
    IpcHandle handle;
    IpcMemory memory;
    uint32_t users;
    uint64_t devices;  ///< a bit for each device that may read it
  };

  std::vector<Mapped>::iterator find(const IpcHandle& handle) noexcept;
  int map(const Held& physical, const void* near, Mapped& made) noexcept;
  int let_read(const Held& physical, const void* near, Mapped& made) noexcept;
  void unmap(const IpcMemory& memory) noexcept;
  cuda_api::Result admit(Mapped& file, cuda_api::Device device) const noexcept;
  int refuse(const char* call, cuda_api::Result rc) noexcept;

  const cuda_api::Functions& x_api;
  std::mutex x_mutex;  ///< of the members below; held while the driver maps or unmaps
  std::vector<Mapped> x_mapped;
  uint32_t x_files_opened = 0;
  std::atomic_flag x_export_warned, x_import_warned;
};

}  // namespace erdma::hmem
