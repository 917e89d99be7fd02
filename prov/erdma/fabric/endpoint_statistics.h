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

/// What the page of the process shows of one endpoint and of its peers: facts, and room in which
/// transports count. Without a page nothing is shown, and the room is here. The domain lock is
/// held, but for the constructor and the destructor.
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

  /// Where the transport of shared memory, or that of the NIC, can keep its counters, which readers
  /// then see as they grow: zeroed when this object is made, and valid as long as it lives. The
  /// transport must be gone before.
  CounterRoom& shm_room() noexcept { return x_block ? x_block->shm : x_own[0]; }
  CounterRoom& nic_room() noexcept { return x_block ? x_block->nic : x_own[1]; }

 private:
  PeerBlock* peer_block(const util::SocketAddress& peer);

  std::shared_ptr<ProcessPage> x_page;  ///< null: nothing is shown
  EndpointBlock* x_block = nullptr;
  std::unordered_map<util::SocketAddress, PeerBlock*, util::SocketAddressHash> x_peers;
  CounterRoom x_own[2] = {};
};

}  // namespace erdma::fabric
