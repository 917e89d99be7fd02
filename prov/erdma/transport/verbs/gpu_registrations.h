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

/// An allocation of a GPU that is registered. Its buffer id tells it from a later one at the same
/// address.
struct GpuRegion : util::ListHook<GpuRegion> {
  uintptr_t base = 0;
  size_t size = 0;
  uint64_t id = 0;
  unsigned users = 0;
  bool stale = false;
  MemoryRegion region;
};

/// Registrations of GPU memory, to be read by the NIC and by peers; those of host memory are
/// another cache's. Whole allocations, as a dmabuf where driver and NIC can, else by their address,
/// which needs nvidia-peermem. Thread-safe.
class GpuRegistrations final : public RegistrationCache, public DirectSource {
 public:
  GpuRegistrations(const Device& device, hmem::Cuda& cuda, std::unique_ptr<RegistrationCache> host,
                   size_t max_idle = 256) noexcept;
  ~GpuRegistrations() override;

  int acquire(const void* address, size_t length, Registration& registration) noexcept override;
  void release(const Registration& registration) noexcept override;

  bool can_expose(const iovec* memory, size_t count) noexcept override;
  bool can_write(const iovec* memory, size_t count, const Exposure& remote) noexcept override;

 private:
  // Under x_mutex.
  GpuRegion* find(const hmem::Allocation& allocation) noexcept;
  GpuRegion* make(const hmem::Allocation& allocation);
  void refuse(const GpuRefusal& why) noexcept;
  void trim() noexcept;

  const Device& x_device;
  hmem::Cuda& x_cuda;
  const std::unique_ptr<RegistrationCache> x_host;
  const size_t x_max_idle;
  std::mutex x_mutex;
  util::IntrusiveList<GpuRegion> x_idle;  ///< least recently used first
  util::IntrusiveList<GpuRegion> x_held;  ///< with users
  size_t x_idle_count = 0;
  bool x_refused = false;  ///< neither way exists
};

}  // namespace erdma::transport::verbs
