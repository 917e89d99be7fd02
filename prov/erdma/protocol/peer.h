#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "protocol/long_messages.h"
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
struct Arrival;
struct Service;

/// Answers to the peer's one-sided operations that wait for room on the link: fins in
/// Peer::controls, results in Incoming::services. Each list is in order, so numbers tell which of
/// the answers have left. Not counted are fins with which this side reports something itself.
class UnsentAnswers {
 public:
  /// The numbers of the last answers at some time.
  struct Mark {
    uint32_t fins = 0, results = 0;
    /// Of two marks of a peer, neither number of the later one is less.
    bool is_after(const Mark& other) const noexcept {
      return int32_t(fins - other.fins) > 0 || int32_t(results - other.results) > 0;
    }
  };

  bool none() const noexcept { return x_count == 0; }
  Mark latest() const noexcept { return x_kept; }
  /// Returns whether the answers up to `mark` have left.
  bool gone(const Mark& mark) const noexcept {
    return int32_t(x_left.fins - mark.fins) >= 0 && int32_t(x_left.results - mark.results) >= 0;
  }

  void keep_fin() noexcept { ++x_kept.fins, ++x_count; }
  void drop_fin() noexcept { ++x_left.fins, --x_count; }
  void keep_result() noexcept { ++x_kept.results, ++x_count; }
  void drop_result() noexcept { ++x_left.results, --x_count; }

 private:
  uint32_t x_count = 0;  ///< answers that wait
  Mark x_kept, x_left;
};

/// What a peer causes here beyond messages of one packet: longer messages from it, and its
/// one-sided operations.
struct Incoming {
  PendingList<Delivery> starting;  ///< wait for room on the link
  PendingList<Delivery> active;
  PendingList<Delivery> unreported;  ///< over; reported once earlier answers to the peer have left
  util::IntrusiveList<Arrival> arrivals;      ///< messages of which fragments are to come
  PendingList<Service> services;              ///< wait for room on the link
  PendingList<Service> served;                ///< the link has accepted get() or put()
  uint32_t unserved = 0;                      ///< length of `services` and `served`
  size_t result_bytes = 0;                    ///< bytes of results that these keep copies of
  std::unique_ptr<FurtherSegments> segments;  ///< null until the first packet with segments
  AtomicParts atomic_parts;
};

/// One remote endpoint as the protocol sees it, over any transport. Made on first use; lives as
/// long as the engine. Invariant: `direct` is true iff a small send may go straight to the link.
class Peer : public util::ListHook<BacklogTag> {
 public:
  explicit Peer(const util::SocketAddress& name) noexcept : address(name) {}

  void update_direct() noexcept {
    direct = link && !throttled_by && queued.empty() && controls.empty();
  }
  /// True if an operation or packet waits for room on the link.
  bool waiting() noexcept {
    return !queued.empty() || !controls.empty() ||
           (incoming && (!incoming->starting.empty() || !incoming->services.empty()));
  }
  /// True if results or transfers for the peer's operations wait for room on the link.
  bool has_services() noexcept { return incoming && !incoming->services.empty(); }
  /// Null: out of memory.
  Incoming* make_incoming() noexcept {
    if (!incoming) incoming.reset(new (std::nothrow) Incoming);
    return incoming.get();
  }
  /// True if every progress() must look at this peer.
  bool backlogged() noexcept { return waiting() || retractable > 0; }

  /// The link has taken a budget packet: `on` if the peer is to send headers only.
  void budget_sent(bool on) noexcept {
    budget_told = on;
    release_link();
  }
  void release_link() noexcept {
    if (held) std::exchange(held, nullptr)->hold(false);
  }

  /// The link is down: grants end with it, and so does the budget that the peer was told over it.
  void forget_agreements() noexcept {
    grants.reset();
    holding_back = budget_told = told_unexpected = false;
    long_messages = {};
    release_link();  // no budget packet can reach the peer; the next message starts over
  }

  /// True if operations to the peer are in flight: a fence waits for them.
  bool sending() const noexcept {
    return !in_flight.empty() || (grants && !grants->accesses.empty());
  }

  transport::Link* link = nullptr;
  uint64_t fi_addr = UINT64_MAX;  ///< reported as the source of the peer's messages
  UnsentAnswers unsent;
  bool direct = false;
  bool itself = false;        ///< the peer is this endpoint; known with one-sided operations only
  bool holding_back = false;  ///< the budget here is used up: the peer is to send rts only
  bool addressed = false;     ///< the application has named the peer as a destination
  bool unreachable_logged = false;
  bool failing = false;             ///< Engine::lose() is running: nothing is sent to the peer
  bool takes_no_controls = false;   ///< the link was failed, since it took no control packets
  bool budget_told = false;         ///< the link took the budget packet of `holding_back`
  LongMessages long_messages;       ///< to the peer
  transport::Link* held = nullptr;  ///< link on hold until the link takes that packet
  /// Not null: the peer said over this link that its budget for messages from here is used up, so
  /// it gets rts only. The peer forgets that when this link ends.
  const transport::Link* throttled_by = nullptr;
  size_t unexpected_bytes = 0;   ///< memory here for the peer's unexpected messages
  size_t eager_bytes = 0;        ///< the part of it for eager messages
  uint32_t unexpected_rts = 0;   ///< number of unexpected messages that are not eager
  uint32_t injected_lost = 0;    ///< failed injected operations that are not logged yet
  uint32_t controls_kept = 0;    ///< length of `controls`
  bool told_unexpected = false;  ///< see UnexpectedMessages::tell()

  PendingList<Send> queued;  ///< in order of posting
  PendingList<Send> in_flight;
  PendingList<Control> controls;       ///< wait for room on the link
  std::unique_ptr<Incoming> incoming;  ///< null until it is needed: most peers are silent
  std::unique_ptr<PeerGrants> grants;  ///< null until the first grant
  uint32_t one_sided_packets = 0;      ///< own RMA operations in flight that packets carry
  uint32_t retractable = 0;            ///< the part of them that can be retracted

  Receives* receives = nullptr;  ///< receives the peer's messages
  const Peer* source = this;     ///< compared in matching: the peer, or its counterpart in a shared
                                 ///< receive context

  const util::SocketAddress address;
};

/// fi_addr_t → Peer*. A chunk of the table exists once one of its addresses was used.
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
