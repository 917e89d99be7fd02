#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "fabric/process_page.h"
#include "protocol/waits.h"
#include "util/socket_address.h"

namespace erdma::fabric {

struct EndpointFacts;
struct ShownSetting;

/// The part of the process's page of statistics that belongs to one endpoint and its peers: facts,
/// and the counters of its transports. If there is no page, the counters are members of this
/// object. The caller holds the domain lock, except for the constructor and the destructor.
class EndpointStatistics final : public protocol::WaitsSink, public transport::PeerCounters {
 public:
  /// `wanted`: FI_ERDMA_STAT.
  explicit EndpointStatistics(bool wanted) noexcept;
  EndpointStatistics(const EndpointStatistics&) = delete;
  EndpointStatistics& operator=(const EndpointStatistics&) = delete;
  ~EndpointStatistics();

  /// True if the page has a block for the endpoint.
  bool shows() const noexcept { return x_block != nullptr; }
  void enabled(const EndpointFacts& facts, const std::vector<ShownSetting>& settings) noexcept;
  /// Shows the transport ("self", "shm", "nic") that leads to a peer from now on.
  void leads(const util::SocketAddress& peer, const char* path) noexcept;

  /// The descriptor that becomes readable when another process asks what waits; -1: there is none.
  int questions() const noexcept { return x_page && x_block ? x_page->questions() : -1; }
  void on_peer_waits(const protocol::PeerWaits& waits) noexcept override;
  void on_endpoint_waits(const protocol::OpenOperations& any_receives) noexcept override;

  // Counters of the links to a peer, in the block of the peer, which is made if necessary. If that
  // fails, the counters of the endpoint.
  transport::ShmCounters& shm_counters_of(const util::SocketAddress& peer) noexcept override;
  transport::NicCounters& nic_counters_of(const util::SocketAddress& peer) noexcept override;
  transport::GpuCounters& gpu_counters_of(const util::SocketAddress& peer) noexcept override;
  transport::ShmCounters all_shm_counters() const noexcept override;
  transport::NicCounters all_nic_counters() const noexcept override;
  transport::GpuCounters all_gpu_counters() const noexcept;

  /// Counters that belong to no single peer. Transports increment them in place, so that readers
  /// see each change. They start at 0 and are valid while this object lives, which outlives the
  /// transports. At its end they are added to those of closed endpoints.
  transport::ShmCounters& shm_counters() noexcept { return x_block ? x_block->shm : x_own_shm; }
  transport::NicCounters& nic_counters() noexcept { return x_block ? x_block->nic : x_own_nic; }
  transport::GpuCounters& gpu_counters() noexcept { return x_block ? x_block->gpu : x_own_gpu; }

 private:
  using Clock = std::chrono::steady_clock;
  uint64_t copied_for_refusals() const noexcept;
  uint64_t passed_since_answer() const noexcept;
  PeerBlock* peer_block(const util::SocketAddress& peer);
  PeerBlock* counting_block(const util::SocketAddress& peer, const char* path) noexcept;
  PeerNicBlock* nic_part(const PeerBlock* block) noexcept;
  void forget(const util::SocketAddress& peer) noexcept;

  std::shared_ptr<ProcessPage> x_page;  ///< null: nothing is shown
  EndpointBlock* x_block = nullptr;
  /// In four bytes, because a job has many peers.
  struct ShownPeer {
    static constexpr uint32_t kNone = (uint32_t(1) << 30) - 1;
    uint32_t block : 30 = kNone;  ///< index
    bool addressed : 1 = false;   ///< something was sent to the peer
    bool counts : 1 = false;      ///< a link uses counters in the block
  };
  static_assert(sizeof(ShownPeer) == 4);
  PeerBlock& block_of(const ShownPeer& peer) const noexcept {
    return x_page->block_at<PeerBlock>(kPeerKind, peer.block);
  }
  std::unordered_map<util::SocketAddress, ShownPeer, util::SocketAddressHash> x_peers;
  std::unordered_set<util::SocketAddress, util::SocketAddressHash> x_left_out;  ///< without a block
  Clock::time_point x_answered{};  ///< time of the last answer
  transport::ShmCounters x_own_shm;
  transport::NicCounters x_own_nic;
  transport::GpuCounters x_own_gpu;
};

}  // namespace erdma::fabric
