#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "protocol/completion.h"
#include "protocol/regions.h"
#include "protocol/request.h"
#include "protocol/wire.h"
#include "util/socket_address.h"

/// RMA and atomic operations, carried by messages: the target's progress executes them, so they
/// work on every path, and memory is touched by its owner or with its owner's knowledge only.
namespace erdma::protocol {

/// Bytes of the operands of one atomic operation.
inline constexpr size_t kMaxAtomicBytes = 4096;

/// Where completions of one-sided operations go, and what peers may access.
struct OneSidedSetup {
  const util::SocketAddress& name;  ///< of the endpoint itself
  Regions& regions;
  CompletionSink& reads;          ///< of our reads and fetching atomics
  CompletionSink& writes;         ///< of our writes and other atomics
  CompletionSink& remote_reads;   ///< of the peers' reads here: counted
  CompletionSink& remote_writes;  ///< of the peers' writes here: counted, reported with CQ data
};

/// The initiator's side of a one-sided Send.
struct OneSided {
  wire::Op op = wire::Op::write;
  uint8_t segment_count = 0;
  bool segments_sent = false;
  wire::Segment segments[transport::kMaxIov];
  size_t received = 0;  ///< bytes of the result

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

  wire::RequestId initiator() const noexcept { return {header.index, header.generation}; }
};

/// A request that could not be executed at once, or whose result has to wait.
struct Service : util::ListHook<Service> {
  Peer* peer = nullptr;
  transport::Link* link = nullptr;  ///< on which it came: exposures are of one link
  Request request;
  RegionUse uses[transport::kMaxIov];
  std::unique_ptr<std::byte[]> result;  ///< to be sent; else bytes are to be moved
  size_t answered = 0;                  ///< bytes of it
};

}  // namespace erdma::protocol
