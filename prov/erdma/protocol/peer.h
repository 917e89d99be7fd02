#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "protocol/peer_grants.h"
#include "protocol/request.h"
#include "protocol/rma_request.h"
#include "transport/transport.h"
#include "util/intrusive_list.h"
#include "util/socket_address.h"

namespace erdma::protocol {

struct BacklogTag;
class Receives;
struct Delivery;
struct Access;
struct Service;

/// One remote endpoint as the protocol sees it, whatever moves its bytes. Made on first use, lives
/// as long as the engine. Invariant: `direct` iff a small send may go straight to the link.
class Peer : public util::ListHook<BacklogTag> {
 public:
  explicit Peer(const util::SocketAddress& name) noexcept : address(name) {}

  void update_direct() noexcept {
    direct = link && !throttled && queued.empty() && controls.empty();
  }
  /// Something waits for room on the link.
  bool waiting() noexcept {
    return !queued.empty() || !controls.empty() || !starting.empty() || !services.empty();
  }
  /// Every progress() is to look at it.
  bool backlogged() noexcept { return waiting() || retractable > 0; }

  /// The link took news of the budget for its unexpected messages.
  void budget_sent(bool on) noexcept {
    budget_told = on;
    release_link();
  }
  void release_link() noexcept {
    if (held) std::exchange(held, nullptr)->hold(false);
  }

  /// Its link is down: what it was told, and has granted, is no more.
  void forget_agreements() noexcept {
    grants.reset();
    throttled = holding_back = budget_told = false;
    release_link();  // it can't be told any more; the next message begins anew
  }

  /// Something of ours is on its way: a fence waits.
  bool sending() const noexcept { return !in_flight.empty() || !accesses.empty(); }

  transport::Link* link = nullptr;
  uint64_t fi_addr = UINT64_MAX;  ///< reported as the source of its messages
  bool direct = false;
  bool itself = false;        ///< the endpoint that we belong to; with one-sided operations
  bool throttled = false;     ///< its unexpected-message budget is used up: rts only
  bool holding_back = false;  ///< we told it so
  bool addressed = false;     ///< the application named it; else it only ever sent to us
  bool unreachable_logged = false;
  bool failing = false;             ///< fail_link() is at work: nothing is sent to it
  bool takes_no_controls = false;   ///< its link is failed for that
  bool budget_told = false;         ///< and it can know
  transport::Link* held = nullptr;  ///< on hold until it can
  size_t unexpected_bytes = 0;      ///< memory held here for its unmatched messages
  size_t eager_bytes = 0;           ///< the part of those that came whole
  uint32_t unexpected_rts = 0;      ///< how many did not
  uint32_t injected_lost = 0;       ///< failed, and not in the log yet
  uint32_t controls_kept = 0;       ///< length of `controls`

  PendingList<Send> queued;  ///< in order of posting
  PendingList<Send> in_flight;
  util::IntrusiveList<Access> accesses;
  PendingList<Delivery> starting;  ///< waiting for room on the link
  PendingList<Delivery> active;
  PendingList<Control> controls;              ///< that found no room on the link
  PendingList<Service> services;              ///< waiting for room on the link
  PendingList<Service> served;                ///< get() or put() accepted
  uint32_t unserved = 0;                      ///< how many of both
  size_t result_bytes = 0;                    ///< that they keep copies of
  std::unique_ptr<FurtherSegments> segments;  ///< null until there were some
  uint8_t segment_count = 0;
  std::unique_ptr<PeerGrants> grants;  ///< null until there were some
  uint32_t one_sided_packets = 0;      ///< operations of ours in flight that packets carry
  uint32_t retractable = 0;            ///< of them those with a packet that can be retracted

  Receives* receives = nullptr;  ///< where its messages go
  const Peer* source = this;  ///< what its messages are matched by: with a shared receive context
                              ///< that of the context

  const util::SocketAddress address;
};

/// fi_addr_t → Peer*, in chunks that exist only where something was used.
class PeerTable {
 public:
  Peer* find(uint64_t fi_addr) const noexcept {
    const uint64_t chunk = fi_addr / kChunk;
    if (chunk >= x_chunks.size() || !x_chunks[chunk]) [[unlikely]]
      return nullptr;
    return (*x_chunks[chunk])[fi_addr % kChunk];
  }
  void set(uint64_t fi_addr, Peer* peer) {
    const uint64_t chunk = fi_addr / kChunk;
    if (chunk >= x_chunks.size()) x_chunks.resize(chunk + 1);
    if (!x_chunks[chunk]) x_chunks[chunk] = std::make_unique<Chunk>();
    (*x_chunks[chunk])[fi_addr % kChunk] = peer;
  }
  void erase(uint64_t fi_addr) noexcept {
    if (find(fi_addr)) (*x_chunks[fi_addr / kChunk])[fi_addr % kChunk] = nullptr;
  }

 private:
  static constexpr uint64_t kChunk = 512;
  using Chunk = std::array<Peer*, kChunk>;
  std::vector<std::unique_ptr<Chunk>> x_chunks;
};

}  // namespace erdma::protocol
