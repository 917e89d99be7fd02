#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "protocol/atomic_ops.h"
#include "protocol/regions.h"
#include "protocol/request.h"
#include "protocol/wire.h"

namespace erdma::protocol {

/// Of a write or read that is to follow.
using FurtherSegments = std::array<wire::Segment, transport::kMaxIov - 1>;

/// A peer's operation as it arrived, and the memory here that it names.
struct Request {
  wire::OneSidedHeader header{};
  const std::byte* payload =
      nullptr;        ///< what follows data and remote key; until on_packet() returns
  size_t length = 0;  ///< of the payload, or of a result
  uint64_t data = 0;
  transport::RemoteKey remote_key;  ///< of the initiator's memory; size 0 = none
  wire::Segment segments[transport::kMaxIov]{};
  size_t segment_count = 1;
  size_t total = 0;                       ///< bytes of all segments
  Buffers memory;                         ///< ours
  Region* regions[transport::kMaxIov]{};  ///< of each piece of it

  /// What the payload of a write or read begins with, and its segments: `more` went ahead. False:
  /// no peer that keeps the rules sends this.
  bool parse(const wire::Segment* more, size_t more_count) noexcept;
  /// Finds all memory that the request names. -FI_EACCES unless every byte of it is in a region
  /// that is open and permits this.
  int locate(Regions* known, uint64_t access) noexcept;

  /// Some of the memory here is not the host's.
  bool device() const noexcept {
    for (size_t i = 0; i < memory.count; ++i)
      if (regions[i]->device) return true;
    return false;
  }
  wire::RequestId initiator() const noexcept { return {header.index, header.generation}; }

 private:
  int add_range(Regions* known, const wire::Segment& segment, uint64_t access) noexcept;
};

/// What an atomic packet says, once it is known to make sense.
struct AtomicRequest {
  AtomicFunction function = nullptr;
  size_t element = 0;
  size_t count = 0;  ///< elements in this packet
  bool fetches = false;
  const std::byte* operands = nullptr;
  const std::byte* compares = nullptr;

  /// False: no peer that keeps the rules sends this.
  bool parse(const Request& request, wire::AtomicWord word) noexcept;
  /// FI_REMOTE_READ, FI_REMOTE_WRITE, or both.
  uint64_t access() const noexcept;
};

}  // namespace erdma::protocol
