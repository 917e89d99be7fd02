#pragma once

#include <cstddef>
#include <cstdint>

#include "protocol/arguments.h"
#include "protocol/request.h"
#include "protocol/wire.h"

namespace erdma::protocol {

class Peer;
struct Grant;

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
  bool by_packets = false;    ///< it is under way, packets carry it
  bool interrupted = false;   ///< it was under way directly, and is not to be again
  Grant* grant = nullptr;     ///< under way directly, which uses this
  uint64_t packet = 0;        ///< that can be retracted; 0 = there is none

  // Atomics. Operands, then what to compare with, lie in the Send's copy or in `small`.
  uint8_t flags = 0;  ///< wire::kFetch, wire::kCompare
  bool with_operands = false;
  wire::AtomicWord word{};
  size_t element = 0;  ///< bytes
  size_t count = 0;    ///< elements
  size_t sent = 0;     ///< elements
  std::byte small[64];
};

}  // namespace erdma::protocol
