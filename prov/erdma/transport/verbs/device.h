#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "transport/verbs/fork_safety.h"
#include "transport/verbs/handles.h"
#include "util/private_fds.h"
#include "util/result.h"
#include "util/socket_address.h"

namespace erdma::transport::verbs {

/// How queue pairs of a device are connected.
enum class TransportType : uint8_t {
  iwarp,  ///< rdma_cm; the active side sends first; a READ sink needs REMOTE_WRITE
  ib,     ///< GIDs and ibv_modify_qp, out of band (eRDMA in compat mode, rxe, InfiniBand proper)
};

/// The minimal rights (IBV_ACCESS_*) of memory by its use. Memory that this side only sends or
/// writes from needs none: registration breaks copy-on-write even so.
constexpr int kSourceRights = 0;
/// For memory that peers access.
constexpr int peer_rights(bool for_reads, bool for_writes) noexcept {
  return (for_reads ? IBV_ACCESS_REMOTE_READ : 0) |
         (for_writes ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE : 0);
}
/// For memory that a READ of this side fills. On iWARP, and only there, the response arrives as a
/// remote WRITE.
constexpr int sink_rights(TransportType transport_type) noexcept {
  return transport_type == TransportType::iwarp ? peer_rights(false, true) : IBV_ACCESS_LOCAL_WRITE;
}

/// What a device can do, with invalid values of libibverbs corrected (no limit is 0).
struct DeviceLimits {
  uint32_t max_qp = 0;
  uint32_t max_qp_wr = 0;
  uint32_t max_send_sge = 0;
  uint32_t max_cqe = 0;
  uint32_t max_inline = 0;          ///< found by creating a queue pair
  uint32_t max_read_in_flight = 0;  ///< READs and atomics outstanding per queue pair
  uint64_t max_message = 0;         ///< bytes of one work request
  uint64_t max_region = 0;          ///< bytes of one memory region
  uint32_t max_regions = 0;         ///< memory regions of all processes of the host
};

/// Holds registrations that nobody uses now.
class RegionEvictor {
 public:
  /// A registration failed with errno `error`. True: a registration ended since.
  virtual bool evict_after(int error) noexcept = 0;

 protected:
  ~RegionEvictor() = default;
};

/// An open device: context and protection domain. There is one per domain, shared by its endpoints,
/// so that a memory region is valid for all of them. It must outlive all transports on it.
/// Thread-safe.
class Device {
 public:
  /// Opens by ibverbs name. `address` (the endpoint's IP) selects the GID of an ib device.
  static util::Result<std::unique_ptr<Device>> open(const std::string& name,
                                                    const util::SocketAddress& address,
                                                    ForkPolicy policy = ForkPolicy::automatic);
  ~Device();

  const std::string& name() const noexcept { return x_name; }
  const util::SocketAddress& address() const noexcept { return x_address; }  ///< port 0
  ibv_context* context() const noexcept { return x_context.get(); }
  ibv_pd* pd() const noexcept { return x_pd.get(); }
  TransportType transport_type() const noexcept { return x_transport_type; }
  const DeviceLimits& limits() const noexcept { return x_limits; }
  /// ib: the GID whose IPv4-mapped (or IPv6) value is address().
  const ibv_gid& gid() const noexcept { return x_gid; }
  /// Its index now, which changes if the interface loses the address and gets it again. -1
  /// (logged): the interface does not have it.
  int gid_index() const noexcept;
  uint8_t port() const noexcept { return 1; }
  /// True if memory of the application may be registered even though the process may fork.
  bool fork_safe() const noexcept { return x_fork_safety != ForkSafety::none; }
  /// True if each region of such memory must first be excluded from children.
  bool keeps_from_children() const noexcept { return x_fork_safety == ForkSafety::apart; }
  /// A command failed with `error`. True: the device is gone, and so are all its connections, whose
  /// owners learn that from AsyncEvents. Logged once.
  bool failed(int error) const noexcept;
  bool gone() const noexcept { return x_gone.load(std::memory_order_relaxed); }
  /// An event told so.
  void is_gone() const noexcept { x_gone.store(true, std::memory_order_relaxed); }
  /// The registration cache of the device names itself, until it is destroyed; then null.
  void set_evictor(RegionEvictor* evictor) const noexcept { x_evictor = evictor; }
  /// The same for GPU memory.
  void set_gpu_evictor(RegionEvictor* evictor) const noexcept { x_gpu_evictor = evictor; }
  /// A registration failed with errno `error`, which this call keeps. True: another attempt may
  /// succeed. The caller holds no lock of the cache.
  bool ask_for_room(int error) const noexcept;
  /// Memory of this GPU was registered by its address, so a module for that is loaded and works.
  /// The number is CUDA's; -1: unknown.
  void pins_gpu(int gpu) const noexcept {
    x_pinned_gpus.fetch_or(gpu_bit(gpu), std::memory_order_relaxed);
  }
  bool has_pinned_gpu(int gpu) const noexcept {
    return (x_pinned_gpus.load(std::memory_order_relaxed) & gpu_bit(gpu)) != 0;
  }
  /// A queue pair is kept until the process ends. So are the objects that it needs, because the
  /// kernel would destroy it together with the context, and wait.
  void leave_open() const noexcept { x_left_open.store(true, std::memory_order_relaxed); }

 private:
  Device() = default;
  static uint64_t gpu_bit(int gpu) noexcept {
    return gpu >= 0 && gpu < 64 ? uint64_t(1) << gpu : 0;
  }

  std::string x_name;
  util::SocketAddress x_address;
  std::string x_host;  ///< the address as text
  Context x_context;
  util::PrivateFd x_commands, x_events;  ///< of the context
  ProtectionDomain x_pd;
  TransportType x_transport_type = TransportType::iwarp;
  DeviceLimits x_limits;
  ibv_gid x_gid{};
  int x_gids = 0;  ///< places in the table
  mutable std::atomic<int> x_gid_index{-1};
  ForkSafety x_fork_safety = ForkSafety::none;
  mutable std::atomic<bool> x_left_open{false};
  mutable std::atomic<bool> x_gone{false};
  mutable std::atomic<uint64_t> x_pinned_gpus{0};  ///< a bit for each
  mutable std::atomic<RegionEvictor*> x_evictor{nullptr}, x_gpu_evictor{nullptr};
};

}  // namespace erdma::transport::verbs
