#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "protocol/atomic_ops.h"
#include "protocol/regions.h"
#include "protocol/request.h"
#include "protocol/wire.h"

namespace erdma::protocol {

/// All segments but the first of a write or read whose packet follows.
struct FurtherSegments {
  const transport::Link* link = nullptr;  ///< the link on which they came
  size_t count = 0;                       ///< 0: no packet with segments came before
  std::array<wire::Segment, transport::kMaxIov - 1> all;
};

/// A one-sided operation of a peer, and the memory here that it names.
struct Request {
  wire::OneSidedHeader header{};
  /// The payload after the CQ data. Valid until on_packet() returns.
  const std::byte* payload = nullptr;
  size_t length = 0;  ///< bytes of `payload`
  uint64_t data = 0;
  transport::RemoteKey remote_key;  ///< of the initiator's memory; size 0: none
  wire::Segment segments[transport::kMaxIov]{};
  size_t segment_count = 1;
  size_t total = 0;                       ///< bytes of all segments
  Buffers memory;                         ///< the memory here
  Region* regions[transport::kMaxIov]{};  ///< the region of each piece of `memory`

  /// Reads CQ data, remote key and segments of a write or read. `more`: the segments that came in
  /// the packet before. False: no peer that keeps the rules sends this.
  bool parse(const wire::Segment* more, size_t more_count) noexcept;
  /// Finds all memory that the request names. -FI_EACCES unless every byte is in an open region
  /// that permits `access`.
  int locate(Regions* known, uint64_t access) noexcept;

  /// Returns whether part of `memory` is device memory.
  bool device() const noexcept {
    for (size_t i = 0; i < memory.count; ++i)
      if (regions[i]->device) return true;
    return false;
  }
  wire::RequestId initiator() const noexcept { return {header.index, header.generation}; }

 private:
  int add_range(Regions* known, const wire::Segment& segment, uint64_t access) noexcept;
};

/// The regions that the packets so far of an atomic operation have accessed. A peer sends one such
/// operation at a time. The last packet reports all of them, so that each region counts an
/// operation once, when it is over. This class keeps keys, because a region may close before.
class AtomicParts {
 public:
  /// A packet was executed. If it is the last one of its operation, adds the regions of the earlier
  /// ones to `request`, each with no bytes.
  void on_executed(const transport::Link& link, Request& request, Regions& known) noexcept;
  void drop(const transport::Link* link) noexcept {
    if (x_link == link) x_link = nullptr;
  }

 private:
  void keep(uint64_t key) noexcept;
  void add_to(Request& request, Regions& known) noexcept;

  const transport::Link* x_link = nullptr;  ///< null: there is no such operation
  wire::RequestId x_operation{};
  size_t x_count = 0;
  std::array<uint64_t, transport::kMaxIov - 1> x_keys{};
};

/// The contents of an atomic packet, after their check.
struct AtomicRequest {
  AtomicFunction function = nullptr;
  size_t element = 0;
  size_t count = 0;  ///< elements in this packet
  bool fetches = false;
  const std::byte* operands = nullptr;
  const std::byte* compares = nullptr;

  /// False: no peer that keeps the rules sends this.
  bool parse(const Request& request, wire::AtomicWord word) noexcept;
  /// The access rights that the operation needs: FI_REMOTE_READ, FI_REMOTE_WRITE, or both.
  uint64_t access() const noexcept;
};

}  // namespace erdma::protocol
