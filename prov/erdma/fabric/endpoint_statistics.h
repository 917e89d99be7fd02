#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "fabric/process_page.h"
#include "protocol/waits.h"
#include "util/socket_address.h"

namespace erdma::fabric {

struct EndpointFacts;
struct ShownSetting;

/// What the page of the process shows of one endpoint and of its peers: facts, and the
/// counters of its transports. Without a page nothing is shown, and the counters are here. The
/// domain lock is held, but for the constructor and the destructor.
class EndpointStatistics final : public protocol::WaitsSink, public transport::PeerCounters {
 public:
  /// `wanted`: FI_ERDMA_STAT.
  explicit EndpointStatistics(bool wanted) noexcept;
  EndpointStatistics(const EndpointStatistics&) = delete;
  EndpointStatistics& operator=(const EndpointStatistics&) = delete;
  ~EndpointStatistics();

  /// enabled() has a place to show the endpoint.
  bool shows() const noexcept { return x_block != nullptr; }
  void enabled(const EndpointFacts& facts, const std::vector<ShownSetting>& settings) noexcept;
  /// Which transport ("self", "shm", "nic") leads to a peer from now on.
  void leads(const util::SocketAddress& peer, const char* path) noexcept;

  /// To watch for questions of other processes; -1: there are none.
  int questions() const noexcept { return x_page && x_block ? x_page->questions() : -1; }
  void on_peer_waits(const protocol::PeerWaits& waits) noexcept override;
  void on_endpoint_waits(const protocol::OpenOperations& any_receives) noexcept override;

  // Of links: in the block of the peer, which it gets. Without one, those of the endpoint.
  transport::ShmCounters& shm_counters_of(const util::SocketAddress& peer) noexcept override;
  transport::NicCounters& nic_counters_of(const util::SocketAddress& peer) noexcept override;
  transport::GpuCounters& gpu_counters_of(const util::SocketAddress& peer) noexcept override;
  transport::ShmCounters all_shm_counters() const noexcept override;
  transport::NicCounters all_nic_counters() const noexcept override;
  transport::GpuCounters all_gpu_counters() const noexcept;

  /// Where the transport of shared memory, or that of the NIC, counts, so that readers see it as it
  /// grows: zeroed when this object is made, and valid as long as it lives. The transport must be
  /// gone before. What it counted remains shown as that of closed endpoints.
  transport::ShmCounters& shm_counters() noexcept { return x_block ? x_block->shm : x_own_shm; }
  transport::NicCounters& nic_counters() noexcept { return x_block ? x_block->nic : x_own_nic; }
  transport::GpuCounters& gpu_counters() noexcept { return x_block ? x_block->gpu : x_own_gpu; }

 private:
  using Clock = std::chrono::steady_clock;
  uint64_t copied_for_refusals() const noexcept;
  uint64_t passed_since_answer() const noexcept;
  PeerBlock* peer_block(const util::SocketAddress& peer);
  PeerBlock* counting_block(const util::SocketAddress& peer, const char* path) noexcept;
  void forget(const util::SocketAddress& peer) noexcept;

  std::shared_ptr<ProcessPage> x_page;  ///< null: nothing is shown
  EndpointBlock* x_block = nullptr;
  struct ShownPeer {
    PeerBlock* block = nullptr;
    bool addressed = false;  ///< sent to, and not only waited for
    bool counts = false;     ///< a link counts in the block
  };
  std::unordered_map<util::SocketAddress, ShownPeer, util::SocketAddressHash> x_peers;
  Clock::time_point x_answered{};  ///< of the answer before
  transport::ShmCounters x_own_shm;
  transport::NicCounters x_own_nic;
  transport::GpuCounters x_own_gpu;
};

}  // namespace erdma::fabric
