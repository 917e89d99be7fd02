#pragma once

#include <cstdint>

#include "protocol/fast_rma.h"
#include "protocol/peers.h"
#include "protocol/receive_queues.h"

namespace erdma::protocol {

/// The number of operations of one kind that are not over, and the oldest of them.
struct OpenOperations {
  uint64_t count = 0;
  uint64_t id = 0;  ///< identifies the oldest among its kind; 0: there is none, or it has no id
  uint64_t tag = 0, ignore = 0;
  uint64_t bytes = 0;
};

/// The operations that wait for one peer.
struct PeerWaits {
  explicit PeerWaits(const util::SocketAddress& peer) noexcept : address(peer) {}
  bool any() const noexcept {
    return sends.count + receives.count + unexpected.count + matched.count;
  }

  const util::SocketAddress& address;
  transport::LinkReport link;
  OpenOperations sends;          ///< messages and one-sided operations
  const char* send_kind = "";    ///< of the oldest: message, write, read or atomic
  const char* sends_for = "";    ///< one word: what the oldest send waits for
  OpenOperations receives;       ///< receives that name this peer as their source
  OpenOperations unexpected;     ///< unexpected messages of the peer
  OpenOperations matched;        ///< matched rendezvous messages of the peer
  const char* matched_for = "";  ///< one word: what the oldest of these waits for
  bool throttled = false;        ///< the peer's budget for unexpected messages is used up
};

/// Receives the reports of report_waits(): one call for each peer, then one for the endpoint.
class WaitsSink {
 public:
  virtual void on_peer_waits(const PeerWaits& waits) noexcept = 0;
  /// `any_receives`: receives from any source, without multi-receive buffers. The last call.
  virtual void on_endpoint_waits(const OpenOperations& any_receives) noexcept = 0;

 protected:
  ~WaitsSink() = default;
};

/// Visits every operation, for users who look for the reason why a process hangs. Without memory it
/// makes no call.
void report_waits(Peers& peers, ReceiveQueues& queues, FastRma& fast_rma,
                  WaitsSink& waits) noexcept;

}  // namespace erdma::protocol
