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

/// GPU memory that the application has registered, for endpoints that must not call CUDA: they know
/// and reach no other GPU memory. The properties of the memory are queried when it is registered.
/// The NIC reads and writes it in place, and also makes copies where those are needed. Another
/// cache registers host memory. Thread-safe. Invariant: only keep() and the constructor's caller
/// call CUDA.
class KnownMemory final : public RegistrationCache,
                          public DirectSource,
                          public DeviceMemoryKeeper,
                          public hmem::DeviceMemory {
 public:
  /// All arguments must outlive it. `options`: for the copier's connection.
  KnownMemory(Device& device, hmem::Cuda& cuda, RegistrationCache& host, FlushPolicy flush,
              const Options& options) noexcept;
  ~KnownMemory() override;

  /// Tests whether the NIC can register, write and read GPU memory, with bytes that CUDA writes and
  /// checks. 0, or an error that is logged with its cause; only -FI_EOPNOTSUPP is final.
  int probe() noexcept;

  std::unique_ptr<KeptMemory> keep(const iovec& memory, const Dmabuf* file) override;

  int acquire(const void* address, size_t length, int rights,
              Registration& registration) noexcept override;
  void release(const Registration& registration) noexcept override;
  bool should_register(const iovec* memory, size_t count) noexcept override;
  void warn_of_copy() noexcept override { x_host.warn_of_copy(); }
  const char* refuses_always() const noexcept override { return x_host.refuses_always(); }
  const char* registers_each_time() const noexcept override { return x_host.registers_each_time(); }

  bool can_share(const iovec* memory, size_t count, Access access) noexcept override;
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
  // Call with x_mutex held.
  Known* find(const void* address, size_t length) const noexcept;
  /// Returns the memory if nobody uses it any more. The caller deletes it without the lock, because
  /// that takes two firmware commands, and every call for data takes the lock.
  [[nodiscard]] static std::unique_ptr<Known> drop(Known& known) noexcept;
  void forget(Known& known) noexcept;
  const char* try_bytes(void* device) noexcept;
  bool may_pass(const void* probed) noexcept;
  int tell_failure(const char* failed, bool passes) noexcept;

  Device& x_device;
  hmem::Cuda& x_cuda;
  RegistrationCache& x_host;
  const FlushPolicy x_flush;
  LoopCopier x_copier;
  mutable std::mutex x_mutex;                ///< never held while CUDA or the NIC is called
  std::multimap<uintptr_t, Known*> x_known;  ///< by first address
  size_t x_longest = 0;                      ///< bytes of the longest that ever existed
};

}  // namespace erdma::transport::verbs
