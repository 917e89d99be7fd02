#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "hmem/device_memory.h"
#include "transport/direct_source.h"
#include "transport/verbs/gpu_registrations.h"
#include "transport/verbs/loop_copier.h"
#include "transport/verbs/registration.h"

namespace erdma::transport::verbs {

/// GPU memory that the application has registered: for endpoints that may not call CUDA, which
/// know and reach no other. What it is was asked when it was registered; the NIC reads and writes
/// it where it lies, and copies it where it must be copied. Registrations of host memory are
/// another cache's. Thread-safe. Invariant: only keep() and the constructor's caller call CUDA.
class KnownMemory final : public RegistrationCache,
                          public DirectSource,
                          public DeviceMemoryKeeper,
                          public hmem::DeviceMemory {
 public:
  /// All of these outlive it. `options`: of the copier's connection.
  KnownMemory(Device& device, hmem::Cuda& cuda, RegistrationCache& host, FlushPolicy flush,
              const Options& options) noexcept;
  ~KnownMemory() override;

  /// Whether the GPU's memory can be registered, written and read by the NIC: tried with bytes that
  /// CUDA wrote and looks for. 0, or -FI_EOPNOTSUPP, logged with the cause.
  int probe() noexcept;

  std::unique_ptr<KeptMemory> keep(const iovec& memory, const Dmabuf* file) override;

  int acquire(const void* address, size_t length, int rights,
              Registration& registration) noexcept override;
  void release(const Registration& registration) noexcept override;
  bool worth(const iovec* memory, size_t count) noexcept override;
  void warn_of_copy() noexcept override { x_host.warn_of_copy(); }
  const char* registers_each_time() const noexcept override { return x_host.registers_each_time(); }

  bool can_expose(const iovec* memory, size_t count, Access access) noexcept override;
  bool can_move(const iovec* memory, size_t count, const RemoteKey& remote,
                bool inbound) noexcept override;
  bool may_be_written(const iovec* memory, size_t count) noexcept override;
  FlushTarget acquire_flush(const iovec& memory) noexcept override;
  void release_flush(const FlushTarget& target) noexcept override;

  bool is_device(const void* pointer) const noexcept override;

 private:
  bool reaches(const iovec* memory, size_t count) noexcept;
  struct Known;
  class Kept;

  int from_device(void* to, const void* from, size_t length) noexcept override;
  int to_device(void* to, const void* from, size_t length) noexcept override;
  // Under x_mutex.
  Known* find(const void* address, size_t length) const noexcept;
  void drop(Known& known) noexcept;
  void forget(Known& known) noexcept;
  const char* try_bytes(void* device) noexcept;

  Device& x_device;
  hmem::Cuda& x_cuda;
  RegistrationCache& x_host;
  const FlushPolicy x_flush;
  LoopCopier x_copier;
  mutable std::mutex x_mutex;                ///< uncontended, but where threads share a domain
  std::multimap<uintptr_t, Known*> x_known;  ///< by their beginning
  size_t x_longest = 0;                      ///< bytes, of all that there were
};

}  // namespace erdma::transport::verbs
