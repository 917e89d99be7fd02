#pragma once

#include <cstdint>

#include "protocol/fast_rma.h"
#include "protocol/peers.h"
#include "protocol/receive_queues.h"

namespace erdma::protocol {

/// Operations of one kind that are not over, and the oldest of them.
struct OpenOperations {
  uint64_t count = 0;
  uint64_t id = 0;  ///< other operations of this kind have another one; 0 = there is none, or no id
  uint64_t tag = 0, ignore = 0;
  uint64_t bytes = 0;
};

/// What waits for one peer.
struct PeerWaits {
  explicit PeerWaits(const util::SocketAddress& peer) noexcept : address(peer) {}
  bool any() const noexcept { return sends.count + receives.count + early.count + moving.count; }

  const util::SocketAddress& address;
  transport::LinkReport link;
  OpenOperations sends;         ///< messages and one-sided operations
  const char* sends_for = "";   ///< what the oldest waits for: a word
  OpenOperations receives;      ///< that this peer alone can satisfy
  OpenOperations early;         ///< messages of the peer that no receive matched
  OpenOperations moving;        ///< long messages of the peer that matched
  const char* moving_for = "";  ///< what the oldest waits for: a word
  bool throttled = false;       ///< it keeps no more messages of ours that nothing matched
};

/// Hears, in one row, what an endpoint waits for.
class WaitsSink {
 public:
  virtual void on_peer_waits(const PeerWaits& waits) noexcept = 0;
  /// Last: receives that any peer can satisfy, without buffers for many messages.
  virtual void on_endpoint_waits(const OpenOperations& any_receives) noexcept = 0;

 protected:
  ~WaitsSink() = default;
};

/// Looks at every operation: for those who ask why a process stands still. Out of memory: `waits`
/// hears nothing.
void report_waits(Peers& peers, ReceiveQueues& queues, FastRma& fast_rma,
                  WaitsSink& waits) noexcept;

}  // namespace erdma::protocol
