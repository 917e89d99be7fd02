#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "protocol/completion.h"
#include "protocol/regions.h"
#include "protocol/request.h"
#include "protocol/wire.h"
#include "util/socket_address.h"

/// RMA and atomic operations. Carried by messages, the target's progress executes them, so they
/// work on every path; what a target has granted is accessed directly where the link can.
namespace erdma::protocol {

/// Bytes of the operands of one atomic operation.
inline constexpr size_t kMaxAtomicBytes = 4096;

/// Results that one peer may leave untaken, where they are copies: atomics, and what is in order.
inline constexpr size_t kMostResultBytes = size_t(64) << 20;

/// Where completions of one-sided operations go, and what peers may access.
struct OneSidedSetup {
  const util::SocketAddress& name;  ///< of the endpoint itself
  Regions& regions;
  CompletionSink& reads;          ///< of our reads and fetching atomics
  CompletionSink& writes;         ///< of our writes and other atomics
  CompletionSink& remote_reads;   ///< of the peers' reads here: counted
  CompletionSink& remote_writes;  ///< of the peers' writes here: counted, reported with CQ data
};

/// A peer's region that we may access directly: what was checked here is checked by nobody else
/// before the device.
struct Grant {
  uint64_t address = 0;  ///< virtual, in the peer's process
  uint64_t length = 0;   ///< bytes
  bool reads = false, writes = false;
  bool fresh = true;     ///< nothing was accessed yet
  bool flushes = false;  ///< device memory of our own: reads of it take the NIC's way, or fail
  bool revoked = false;  ///< stays until nobody uses it
  uint32_t users = 0;    ///< operations under way
  const transport::Link* link = nullptr;  ///< that has resolved it; null: the long way
  uint64_t key = 0;                       ///< of those
  transport::DeviceAddress first;         ///< of those: `address`
  transport::Exposure memory;
};

/// A peer's direct access to a region of ours.
struct Granted {
  RegionUse use;
  transport::Link* lender = nullptr;  ///< lent over it, not opened
  transport::Exposure lent;
  bool revoked = false;  ///< the peer was told
  bool busy = false;     ///< revoked, but something of the peer's is under way
};

/// Direct access between us and one peer, both ways.
struct Grants {
  /// More than one peer's grants are worth; what comes above is accessed by packets.
  static constexpr size_t kMost = 65536;
  std::unordered_map<uint64_t, Grant> ours;      ///< by the peer's key
  std::unordered_map<uint64_t, Granted> theirs;  ///< our regions, by key
  Grant* recent = nullptr;                       ///< of ours, the last that the short way took
  bool long_way = false;                         ///< the link has no short one
  uint32_t reads = 0;  ///< small ones of ours under way: what must not overtake them waits
  // Small operations that a packet carries, as long as the peer looks at it soon.
  uint32_t polls = 0;       ///< since the last answer
  uint32_t pause = 0;       ///< operations that are to go without
  uint32_t next_pause = 0;  ///< half of what the next retraction brings
  bool tardy = false;       ///< let a revocation wait for too long: the next is not waited for

  void erase(std::unordered_map<uint64_t, Grant>::iterator grant) noexcept {
    if (recent == &grant->second) recent = nullptr;
    ours.erase(grant);
  }
};

/// A small write or read that is with the device already: all that is left is its end. One cache
/// line, with what its pool keeps.
struct Access : util::ListHook<Access> {
  Peer* peer;
  Grant* grant;
  void* context;
  bool reads;
  bool report;  ///< write a CQ entry
  bool injected;
};

/// The initiator's side of a one-sided Send.
struct OneSided {
  wire::Op op = wire::Op::write;
  uint8_t segment_count = 0;
  bool segments_sent = false;
  wire::Segment segments[transport::kMaxIov];
  size_t received = 0;        ///< bytes of the result
  bool until_placed = false;  ///< FI_DELIVERY_COMPLETE
  bool device = false;        ///< some of the memory here is not the host's
  enum class Way : uint8_t { none, packets, direct } way = Way::none;  ///< once it is under way
  uint64_t packet = 0;  ///< that can be retracted; 0 = there is none

  // Atomics. Operands, then what to compare with, lie in the Send's copy or in `small`.
  uint8_t flags = 0;  ///< wire::kFetch, wire::kCompare
  bool with_operands = false;
  wire::AtomicWord word{};
  size_t element = 0;  ///< bytes
  size_t count = 0;    ///< elements
  size_t sent = 0;     ///< elements
  std::byte small[64];
};

/// Of a write or read that is to follow.
using FurtherSegments = std::array<wire::Segment, transport::kMaxIov - 1>;

/// A peer's operation as it arrived, and the memory here that it names.
struct Request {
  wire::OneSidedHeader header{};
  const std::byte* payload =
      nullptr;        ///< what follows data and exposure; until on_packet() returns
  size_t length = 0;  ///< of the payload, or of a result
  uint64_t data = 0;
  transport::Exposure exposure;  ///< of the initiator's memory; size 0 = none
  wire::Segment segments[transport::kMaxIov]{};
  size_t segment_count = 1;
  size_t total = 0;                       ///< bytes of all segments
  Buffers memory;                         ///< ours
  Region* regions[transport::kMaxIov]{};  ///< of each piece of it

  /// Some of the memory here is not the host's.
  bool device() const noexcept {
    for (size_t i = 0; i < memory.count; ++i)
      if (regions[i]->device) return true;
    return false;
  }
  wire::RequestId initiator() const noexcept { return {header.index, header.generation}; }
};

/// A request that could not be executed at once, or whose result has to wait.
struct Service : util::ListHook<Service> {
  Peer* peer = nullptr;
  transport::Link* link = nullptr;  ///< on which it came: exposures are of one link
  Request request;
  RegionUse uses[transport::kMaxIov];
  bool answers = false;                 ///< a result is to be sent; else bytes are to be moved
  std::unique_ptr<std::byte[]> result;  ///< a copy of it; null: it is sent from the memory itself
  size_t answered = 0;                  ///< bytes of it
  bool settling = false;                ///< all is moved, the link makes it visible
};

}  // namespace erdma::protocol
