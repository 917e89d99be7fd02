#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "fabric/process_page.h"
#include "util/socket_address.h"

namespace erdma::fabric {

struct EndpointFacts;
struct ShownSetting;

/// What the page of the process shows of one endpoint and of its peers: facts, and the
/// counters of its transports. Without a page nothing is shown, and the counters are here. The
/// domain lock is held, but for the constructor and the destructor.
class EndpointStatistics {
 public:
  /// `wanted`: FI_ERDMA_STAT.
  explicit EndpointStatistics(bool wanted) noexcept;
  EndpointStatistics(const EndpointStatistics&) = delete;
  EndpointStatistics& operator=(const EndpointStatistics&) = delete;
  ~EndpointStatistics();

  void enabled(const EndpointFacts& facts, const std::vector<ShownSetting>& settings) noexcept;
  /// Which transport ("self", "shm", "nic") leads to a peer from now on.
  void leads(const util::SocketAddress& peer, const char* path) noexcept;

  /// Where the transport of shared memory, or that of the NIC, counts, so that readers see it as it
  /// grows: zeroed when this object is made, and valid as long as it lives. The transport must be
  /// gone before. What it counted remains shown as that of closed endpoints.
  transport::ShmCounters& shm_counters() noexcept { return x_block ? x_block->shm : x_own_shm; }
  transport::NicCounters& nic_counters() noexcept { return x_block ? x_block->nic : x_own_nic; }

 private:
  PeerBlock* peer_block(const util::SocketAddress& peer);

  std::shared_ptr<ProcessPage> x_page;  ///< null: nothing is shown
  EndpointBlock* x_block = nullptr;
  std::unordered_map<util::SocketAddress, PeerBlock*, util::SocketAddressHash> x_peers;
  transport::ShmCounters x_own_shm;
  transport::NicCounters x_own_nic;
};

}  // namespace erdma::fabric
