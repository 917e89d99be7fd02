#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "transport/direct_source.h"
#include "transport/verbs/gpu_memory.h"
#include "transport/verbs/gpu_refusals.h"
#include "transport/verbs/handles.h"
#include "transport/verbs/registration.h"
#include "util/event_fd.h"
#include "util/intrusive_list.h"
#include "util/result.h"
#include "util/thread.h"

namespace erdma::hmem {
class Cuda;
struct Allocation;
}  // namespace erdma::hmem

namespace erdma::transport::verbs {

/// A registered allocation of a GPU, or a part of one, with one set of rights. Its buffer id
/// distinguishes it from a later allocation at the same address.
struct GpuRegion : util::ListHook<GpuRegion> {
  uintptr_t base = 0;
  size_t size = 0;
  uint64_t id = 0;
  unsigned users = 0;
  bool stale = false;
  bool by_address = false;    ///< not as a dmabuf
  uint64_t unused_since = 0;  ///< time since which it has no users
  int rights = 0;             ///< IBV_ACCESS_*
  MemoryRegion region;
  MemoryRegion flush;  ///< read by the NIC itself, where its writes must be flushed
};

/// Registrations of GPU memory, for the NIC and for peers. Host memory is registered by another
/// cache. Whole allocations are registered, or parts of those that are longer than the NIC's
/// longest region: as a dmabuf where driver and NIC can do that, or else by address, which needs
/// nvidia-peermem. With some drivers, freeing memory that is registered by
/// address waits until the registration ends. So a separate thread ends it soon after its last use,
/// because the application may not call the provider again before it frees the memory. Thread-safe.
class GpuRegistrations final : public RegistrationCache,
                               public DirectSource,
                               private RegionEvictor {
 public:
  struct Config {
    FlushPolicy flush = FlushPolicy::automatic;
    size_t max_idle = 256;  ///< registrations without users
    /// FI_ERDMA_HMEM_MR_CACHE=on: registrations by address are kept as well
    bool keeps_all = false;
    /// How long those by address are kept after their last use; 0 = not at all.
    uint64_t linger_ns = 10'000'000;
  };
  GpuRegistrations(const Device& device, hmem::Cuda& cuda, std::unique_ptr<RegistrationCache> host,
                   const Config& config) noexcept;
  ~GpuRegistrations() override;

  int acquire(const void* address, size_t length, int rights,
              Registration& registration) noexcept override;
  void release(const Registration& registration) noexcept override;
  bool should_register(const iovec* memory, size_t count) noexcept override;
  bool copies(const iovec* memory, size_t count) noexcept override;
  void warn_of_copy() noexcept override { x_host->warn_of_copy(); }
  const char* refuses_always() const noexcept override { return x_host->refuses_always(); }
  const char* registers_each_time() const noexcept override {
    return x_host->registers_each_time();
  }

  bool can_share(const iovec* memory, size_t count, Access access) noexcept override;
  bool can_move(const iovec* memory, size_t count, const RemoteKey& remote,
                bool inbound) noexcept override;
  bool may_be_written(const iovec* memory, size_t count) noexcept override;
  FlushTarget acquire_flush(const iovec& memory) noexcept override;
  void release_flush(const FlushTarget& target) noexcept override;

 private:
  /// What the NIC could write to under a registration that has ended.
  struct Written {
    uintptr_t base;
    size_t size;
    uint64_t id;
    int rights;
    bool flush;  ///< its writes need a flush
  };
  bool can_acquire(const iovec* memory, size_t count, int rights) noexcept;
  hmem::Allocation part_of(const hmem::Allocation& whole, const iovec& memory) const noexcept;
  uint64_t name(const iovec& memory) noexcept;
  util::Result<GpuRegion*> hold(const hmem::Allocation& part, int rights);
  util::Result<GpuRegion*> hold_written(const iovec& memory, uint64_t id);
  std::unique_ptr<GpuRegion> make(const hmem::Allocation& part, int rights, GpuRefusal& why) const;
  std::unique_ptr<GpuRegion> make_with_room(const hmem::Allocation& part, int rights,
                                            GpuRefusal& why);
  bool evict_after(int error) noexcept override;
  // Call with x_mutex held.
  GpuRegion* find(const hmem::Allocation& part, int rights,
                  util::IntrusiveList<GpuRegion>& stale) noexcept;
  GpuRegion* writable(const iovec& memory, uint64_t id) noexcept;
  GpuRegion* add_user(GpuRegion& region) noexcept;
  void refuse(const hmem::Allocation& allocation, int gpu, const GpuRefusal& why) noexcept;
  void retire(GpuRegion& region, util::IntrusiveList<GpuRegion>& retired) noexcept;
  bool lingers() noexcept;
  void drop_unused(uint64_t now, util::IntrusiveList<GpuRegion>& retired) noexcept;
  const Written* written_before(const iovec& memory, uint64_t id) const noexcept;
  uint64_t known_at(const iovec& memory) noexcept;
  // On the thread.
  void end_unused() noexcept;

  const Device& x_device;
  hmem::Cuda& x_cuda;
  const std::unique_ptr<RegistrationCache> x_host;
  const Config x_config;
  std::mutex x_mutex;                     ///< never held while CUDA or the NIC is called
  util::IntrusiveList<GpuRegion> x_idle;  ///< least recently used first
  util::IntrusiveList<GpuRegion> x_held;  ///< with users
  size_t x_idle_count = 0;
  GpuRefusals x_refusals;
  std::array<Written, 256> x_written{};  ///< the latest; id 0: unused
  size_t x_written_count = 0;
  /// The latest allocation for which even all unused registrations made no room, and when.
  std::atomic<uint64_t> x_roomless_id = 0, x_roomless_since = 0;
  util::EventFd x_wake;     ///< for the thread
  bool x_watching = false;  ///< the thread looks again by itself
  bool x_stop = false;
  util::Thread x_thread;  ///< starts with the first registration by address
};

}  // namespace erdma::transport::verbs
