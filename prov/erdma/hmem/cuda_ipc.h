#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include <rdma/fi_errno.h>

#include "hmem/cuda_files.h"

namespace erdma::hmem {

/// CUDA IPC: device memory that other processes of the host map. Thread-safe.
class CudaIpc {
 public:
  CudaIpc(Cuda& cuda, const cuda_api::Functions& functions) noexcept
      : x_cuda(cuda), x_api(functions), x_files(functions) {}

  /// Names the allocation that holds the pointer, which is `offset` bytes from its start. Returns
  /// 0, or -FI_EOPNOTSUPP: the allocation cannot be shared (logged once), or is not memory of a
  /// device.
  int share(const void* pointer, IpcHandle& handle, uint64_t& offset) noexcept;
  /// Opens the allocation that share() named, in another process or in this one, for the device of
  /// `near`, or otherwise for that of the thread's context. The caller closes it as often as it
  /// opened it. -FI_EOPNOTSUPP: the driver refuses (logged once), or another allocation of that
  /// name is open. For Kind::file: opens a mapping of import_file() once more.
  util::Result<IpcMemory> open(const IpcHandle& handle, const void* near) noexcept;
  void close(const IpcHandle& handle) noexcept;

  // As of CudaFiles.
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
    bool shared;  ///< false: the driver refused
  };
  struct Opened {
    IpcHandle handle;
    IpcMemory memory;
    cuda_api::Context context;  ///< of the opening
    uint32_t users;
  };

  bool get_handle(Export& memory) noexcept;
  const Export* own(const IpcHandle& handle) const noexcept;
  int open_new(Opened& made, const void* near) noexcept;

  Cuda& x_cuda;
  const cuda_api::Functions& x_api;
  CudaFiles x_files;
  std::mutex x_mutex;  ///< of the members below; held while the driver opens or closes
  std::vector<Export> x_exports;
  size_t x_next_export = 0;
  std::vector<Opened> x_opened;
  std::atomic_flag x_share_warned, x_open_warned;
};

}  // namespace erdma::hmem
