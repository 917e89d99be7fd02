#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include <rdma/fi_errno.h>

#include "hmem/cuda_files.h"

namespace erdma::hmem {

/// CUDA IPC: processes of a host map device memory of each other. Thread-safe.
class CudaIpc {
 public:
  CudaIpc(Cuda& cuda, const cuda_api::Functions& functions) noexcept
      : x_cuda(cuda), x_api(functions), x_files(functions) {}

  /// Gets a handle of the allocation that contains the pointer, and the pointer's `offset` in bytes
  /// from the start of the allocation. Returns 0 or -FI_EOPNOTSUPP: the allocation cannot be shared
  /// (logged once), or is not device memory.
  int share(const void* pointer, IpcHandle& handle, uint64_t& offset) noexcept;
  /// Opens the allocation of a handle that share() made in another process or in this one. `near`
  /// chooses the device that will access it; if null, the device of the thread's context does. The
  /// caller must call close() once for each successful open(). A mapping ends with the context in
  /// which it was made; then this call makes another one. -FI_EOPNOTSUPP: the driver refuses
  /// (logged once), or an older allocation with the same handle is still open. A handle of
  /// Kind::file adds a user to the mapping of import_file().
  util::Result<IpcMemory> open(const IpcHandle& handle, const void* near) noexcept;
  void close(const IpcHandle& handle) noexcept;

  // See CudaFiles.
  util::Fd export_file(const IpcHandle& handle) noexcept {
    return x_cuda.usable() ? x_files.export_file(handle) : util::Fd();
  }
  util::Result<IpcMemory> import_file(const util::Fd& file, size_t size, const void* near,
                                      IpcHandle& handle) noexcept {
    if (!x_cuda.usable()) return -FI_EOPNOTSUPP;
    return x_files.import_file(file, size, near, handle);
  }

 private:
  struct Export {
    Allocation memory;
    IpcHandle handle;
    bool shared;     ///< false: the driver refused
    uint32_t users;  ///< calls of open() in this process without one of close()
  };
  struct Opened {
    IpcHandle handle;
    IpcMemory memory;
    cuda_api::Context context;  ///< in which the handle was opened
    uint64_t buffer;            ///< CUDA's id of the mapping; 0: unknown
    uint32_t users;             ///< also of mappings of this handle that ended with their context
  };

  bool get_handle(Export& memory) noexcept;
  std::vector<Export>::iterator room_for_export();
  Export* own(const IpcHandle& handle) noexcept;
  bool is_mapped(const Opened& opened) const noexcept;
  int map(Opened& made, const void* near) noexcept;

  Cuda& x_cuda;
  const cuda_api::Functions& x_api;
  CudaFiles x_files;
  std::mutex x_mutex;  ///< protects the members below; held while the driver opens or closes
  std::vector<Export> x_exports;
  size_t x_next_export = 0;
  std::vector<Opened> x_opened;
  std::atomic_flag x_share_warned, x_open_warned;
};

}  // namespace erdma::hmem
