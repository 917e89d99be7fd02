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

/// Least rights (IBV_ACCESS_*) of memory by its use. What this side only sends or writes from needs
/// none: registering it breaks copy-on-write all the same.
constexpr int kSourceRights = 0;
/// Of memory that peers access.
constexpr int peer_rights(bool for_reads, bool for_writes) noexcept {
  return (for_reads ? IBV_ACCESS_REMOTE_READ : 0) |
         (for_writes ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE : 0);
}
/// Of memory that a READ of this side fills. Only iWARP lets the answer in as a remote WRITE.
constexpr int sink_rights(TransportType personality) noexcept {
  return personality == TransportType::iwarp ? peer_rights(false, true) : IBV_ACCESS_LOCAL_WRITE;
}

/// What a device can do, with the traps of libibverbs' numbers mended (a limit is never 0).
struct DeviceLimits {
  uint32_t max_qp = 0;
  uint32_t max_qp_wr = 0;
  uint32_t max_send_sge = 0;
  uint32_t max_cqe = 0;
  uint32_t max_inline = 0;          ///< probed by creating a queue pair
  uint32_t max_read_in_flight = 0;  ///< READs and atomics outstanding per queue pair
  uint64_t max_message = 0;         ///< bytes of one work request
  uint64_t max_region = 0;          ///< bytes of one memory region
};

/// An open device: context and protection domain. One per domain, shared by its endpoints, so that
/// a memory region is valid for all of them. Outlives all transports on it. Thread-safe: immutable
/// once open.
class Device {
 public:
  /// By ibverbs name. `address` (the endpoint's IP) chooses the GID of an ib device.
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
  /// ib: the GID whose IPv4-mapped (or IPv6) value is address(), and its index.
  const ibv_gid& gid() const noexcept { return x_gid; }
  uint8_t gid_index() const noexcept { return x_gid_index; }
  uint8_t port() const noexcept { return 1; }
  /// Whether memory of the application may be registered although it may fork.
  bool fork_safe() const noexcept { return x_fork_safety != ForkSafety::none; }
  /// Each region of such memory is to be kept from children first.
  bool keeps_from_children() const noexcept { return x_fork_safety == ForkSafety::apart; }
  /// Every command failed with `error`. True: the device is gone, as are all connections of it,
  /// whose owners hear of that by AsyncEvents. Said once.
  bool failed(int error) const noexcept;
  bool gone() const noexcept { return x_gone.load(std::memory_order_relaxed); }
  /// A queue pair is left to the end of the process: so is what it needs, as the kernel would
  /// destroy it along with the context, and wait.
  void strand() const noexcept { x_stranded.store(true, std::memory_order_relaxed); }

 private:
  Device() = default;
  std::string x_name;
  util::SocketAddress x_address;
  Context x_context;
  util::PrivateFd x_commands, x_events;  ///< of the context
  ProtectionDomain x_pd;
  TransportType x_transport_type = TransportType::iwarp;
  DeviceLimits x_limits;
  ibv_gid x_gid{};
  uint8_t x_gid_index = 0;
  ForkSafety x_fork_safety = ForkSafety::none;
  mutable std::atomic<bool> x_stranded{false};
  mutable std::atomic<bool> x_gone{false};
};

}  // namespace erdma::transport::verbs
