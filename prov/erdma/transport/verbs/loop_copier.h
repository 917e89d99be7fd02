#pragma once

#include <memory>
#include <mutex>

#include "transport/verbs/verbs_transport.h"

namespace erdma::transport::verbs {

/// Copies between host memory and memory that a NIC can reach, by RDMA READ and WRITE of the NIC
/// from and to itself, and waits for the result. For copies that neither the processor nor CUDA can
/// or may make. It has a connection of its own, and takes none of anybody else. Thread-safe.
class LoopCopier {
 public:
  /// `device` and `cache`, which registers host memory, must outlive it. Connects when first used.
  LoopCopier(const Options& options, Device& device, RegistrationCache& cache) noexcept
      : x_options(options), x_device(device), x_cache(cache) {}

  /// 0: all bytes are moved, and written bytes are placed. -FI_EIO (logged): they are not, and no
  /// transfer is in progress any more.
  int read(void* to, const RemoteRange& from) noexcept;
  int write(const RemoteRange& to, const void* from) noexcept;

 private:
  class Waiter;
  int move(const RemoteRange& remote, void* local, bool reads) noexcept;
  int try_once(const RemoteRange& remote, const iovec& local, bool reads,
               uint64_t deadline) noexcept;
  int begin(Waiter& waiter, const RemoteRange& remote, const iovec& local, bool reads) noexcept;
  int open() noexcept;

  const Options x_options;
  Device& x_device;
  RegistrationCache& x_cache;
  std::mutex x_mutex;
  std::unique_ptr<VerbsTransport> x_loop;  ///< null: not open yet, or given up
};

}  // namespace erdma::transport::verbs
