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
    driver,  ///< memory of cudaMalloc: the bytes are CUDA's own handle, which suffices to open it
    file,    ///< memory of cuMemCreate: the bytes are a FileName; a descriptor is passed separately
  };
  cuda_api::IpcMemHandle bytes;
  uint32_t id;  ///< of the allocation in its process; tells it from a later one with equal bytes
  Kind kind;

  bool same_name(const IpcHandle& other) const noexcept {
    return kind == other.kind && std::memcmp(&bytes, &other.bytes, sizeof(bytes)) == 0;
  }
  /// True if both name the same place: then one allocation was freed before the other was made.
  bool same_place(const IpcHandle& other) const noexcept;
  bool operator==(const IpcHandle& other) const noexcept {
    return id == other.id && same_name(other);
  }
};

/// The first bytes of an IpcHandle of Kind::file; the other bytes are 0. A FileName has a meaning
/// only between two connected peers.
struct FileName {
  uint64_t base;      ///< address in the owner's process
  uint64_t size;      ///< bytes of the mapping, which begins where the physical memory begins
  uint64_t physical;  ///< CUDA's handle of the physical memory in the owner's process
  uint64_t number;    ///< number of the passed descriptor; 0: not passed yet

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

/// The device addresses at which this process has mapped an allocation of another process.
struct IpcMemory {
  uintptr_t base = 0;
  size_t size = 0;
};

/// Device memory of cuMemCreate(), which other processes of the host map through a file descriptor.
/// Thread-safe. Must not be called in a forked child.
class CudaFiles {
 public:
  explicit CudaFiles(const cuda_api::Functions& functions) noexcept : x_api(functions) {}

  /// Makes `handle` name the allocation that contains the pointer. False: the allocation was not
  /// mapped by cuMemMap(), was not created as exportable, or is not a single mapping.
  bool name(const Allocation& memory, const void* pointer, IpcHandle& handle) const noexcept;
  /// True if the handle that name() made still names the memory at the pointer.
  bool still_named(const IpcHandle& handle, const void* pointer) const noexcept;

  /// A new descriptor to pass to another process; empty: the memory is gone, or the driver refuses
  /// (logged once).
  util::Fd export_file(const IpcHandle& handle) noexcept;
  /// Maps the first `size` bytes of memory that another process exported. The caller may close the
  /// descriptor afterwards. `handle` names the mapping in this process, for open() and close(). In
  /// all other respects this is CudaIpc::open().
  util::Result<IpcMemory> import_file(const util::Fd& file, size_t size, const void* near,
                                      IpcHandle& handle) noexcept;
  /// Adds a user to a mapping of import_file(), and gives access to the device of `near`.
  /// -FI_EOPNOTSUPP: `near` is null, and the device that holds the memory has no context by now.
  util::Result<IpcMemory> open(const IpcHandle& handle, const void* near) noexcept;
  void close(const IpcHandle& handle) noexcept;

 private:
  class Held;
  struct Mapped {
    IpcHandle handle;
    IpcMemory memory;
    uint32_t users;
    cuda_api::Device owner;  ///< holds the memory
    uint64_t devices;        ///< a bit for each device that has access
  };

  std::vector<Mapped>::iterator find(const IpcHandle& handle) noexcept;
  int map(const Held& physical, const void* near, Mapped& made) noexcept;
  int give_access(Mapped& file, const void* near) noexcept;
  void unmap(const IpcMemory& memory) noexcept;
  cuda_api::Result admit(Mapped& file, cuda_api::Device device) const noexcept;
  int refuse(const char* call, cuda_api::Result rc) noexcept;

  const cuda_api::Functions& x_api;
  std::mutex x_mutex;  ///< protects the members below; held while the driver maps or unmaps
  std::vector<Mapped> x_mapped;
  uint32_t x_files_opened = 0;
  std::atomic_flag x_export_warned, x_import_warned;
};

}  // namespace erdma::hmem
