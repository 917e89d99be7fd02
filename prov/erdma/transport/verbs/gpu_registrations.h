#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "transport/direct_source.h"
#include "transport/verbs/handles.h"
#include "transport/verbs/registration.h"
#include "util/intrusive_list.h"

namespace erdma::hmem {
class Cuda;
struct Allocation;
}  // namespace erdma::hmem

namespace erdma::transport::verbs {

struct GpuRefusal;

/// FI_ERDMA_HMEM_RECV_FLUSH: what the NIC wrote to a GPU is flushed where the GPU's attributes say
/// that it must be, always, or never.
enum class FlushPolicy : uint8_t { automatic, always, never };

/// An allocation of a GPU that is registered, with one set of rights. Its buffer id tells it from a
/// later one at the same address.
struct GpuRegion : util::ListHook<GpuRegion> {
  uintptr_t base = 0;
  size_t size = 0;
  uint64_t id = 0;
  unsigned users = 0;
  bool stale = false;
  int rights = 0;  ///< IBV_ACCESS_*
  MemoryRegion region;
  MemoryRegion flush;  ///< to be read by the NIC itself, where what it writes is to be flushed
};

/// Registrations of GPU memory, for the NIC and for peers; those of host memory are
/// another cache's. Whole allocations, as a dmabuf where driver and NIC can, else by their address,
/// which needs nvidia-peermem. Thread-safe.
class GpuRegistrations final : public RegistrationCache, public DirectSource {
 public:
  GpuRegistrations(const Device& device, hmem::Cuda& cuda, std::unique_ptr<RegistrationCache> host,
                   FlushPolicy flush = FlushPolicy::automatic, size_t max_idle = 256) noexcept;
  ~GpuRegistrations() override;

  int acquire(const void* address, size_t length, int rights,
              Registration& registration) noexcept override;
  void release(const Registration& registration) noexcept override;
  bool worth(const iovec* memory, size_t count) noexcept override;
  void warn_of_copy() noexcept override { x_host->warn_of_copy(); }
  const char* registers_each_time() const noexcept override {
    return x_host->registers_each_time();
  }

  bool can_expose(const iovec* memory, size_t count, Access access) noexcept override;
  bool can_move(const iovec* memory, size_t count, const RemoteKey& remote,
                bool inbound) noexcept override;
  bool may_be_written(const iovec* memory, size_t count) noexcept override;
  FlushTarget acquire_flush(const iovec& memory) noexcept override;
  void release_flush(const FlushTarget& target) noexcept override;

 private:
  bool can_acquire(const iovec* memory, size_t count, int rights) noexcept;
  // Under x_mutex.
  GpuRegion* find(const hmem::Allocation& allocation, int rights) noexcept;
  GpuRegion* writable(const hmem::Allocation& allocation) noexcept;
  GpuRegion* make(const hmem::Allocation& allocation, int rights);
  MemoryRegion enroll(const iovec& memory, int rights);
  void add_user(GpuRegion& region) noexcept;
  void refuse(const GpuRefusal& why) noexcept;
  void trim() noexcept;

  const Device& x_device;
  hmem::Cuda& x_cuda;
  const std::unique_ptr<RegistrationCache> x_host;
  const FlushPolicy x_flush;
  const size_t x_max_idle;
  std::mutex x_mutex;
  util::IntrusiveList<GpuRegion> x_idle;  ///< least recently used first
  util::IntrusiveList<GpuRegion> x_held;  ///< with users
  size_t x_idle_count = 0;
  bool x_refused = false;  ///< neither way exists
};

}  // namespace erdma::transport::verbs
