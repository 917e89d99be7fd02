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
