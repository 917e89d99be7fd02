#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "transport/transport.h"

/// Every header on the wire, host byte order (x86-64 and little-endian AArch64 only; the handshake
/// of each transport refuses a peer of another order). docs/wire-protocol.md has the diagrams.
namespace erdma::protocol::wire {

inline constexpr uint8_t kVersion = 1;

enum class Op : uint8_t {
  eager = 1,   ///< a whole message; payload = its bytes
  rts = 2,     ///< ready to send; payload = Exposure of the sender's memory (read) or none (write)
  cts = 3,     ///< receiver of an rts without exposure: payload = Exposure to write() to
  fin = 4,     ///< to the sender: the message with this id is placed, or failed
  done = 5,    ///< to the receiver: the write() into its exposure is over
  budget = 6,  ///< to the sender: unexpected-message memory is used up (on) or free again (off)
};

enum Flags : uint8_t {
  kTagged = 1,
  kHasData = 2,  ///< `data` holds remote CQ data
  kWantFin = 4,  ///< eager: the sender waits for a fin (FI_DELIVERY_COMPLETE)
  kFailed = 8,   ///< done: the sender could not write()
};

/// Refers to a request of the process that made it; stale ids are ignored there.
struct RequestId {
  uint32_t index;
  uint16_t generation;
};

/// eager and rts: a message begins.
struct MessageHeader {
  Op op;
  uint8_t flags;
  uint16_t generation;  ///< of the sender's request (rts, or eager with kWantFin)
  uint32_t index;
  uint64_t tag;
  uint64_t data;
  uint64_t length;  ///< bytes of the message; eager: equals the payload's
};

/// cts, fin, done, budget.
struct ControlHeader {
  Op op;
  uint8_t flags;
  uint16_t generation;  ///< of the request at the destination of this packet
  uint32_t index;
  uint16_t reply_generation;  ///< cts: the receiver's own request, to be named in done
  uint16_t reserved;
  uint32_t reply_index;
  int32_t status;  ///< fin, done: 0 or negative fi_errno; budget: 1 = on, 0 = off
  uint32_t reserved2;
  uint64_t length;  ///< cts: bytes that the receiver has room for
};

/// As it travels. Built of whole words: a header stored piece by piece and then copied by wide
/// loads waits until every piece has left the store buffer.
inline transport::Header encode(const MessageHeader& header) noexcept {
  const uint64_t words[] = {uint64_t(header.op) | uint64_t(header.flags) << 8 |
                                uint64_t(header.generation) << 16 | uint64_t(header.index) << 32,
                            header.tag, header.data, header.length};
  transport::Header encoded;
  static_assert(sizeof(words) == sizeof(encoded));
  std::memcpy(&encoded, words, sizeof(words));
  return encoded;
}

static_assert(sizeof(MessageHeader) == transport::kHeaderBytes);
static_assert(sizeof(ControlHeader) == transport::kHeaderBytes);
static_assert(std::is_trivially_copyable_v<MessageHeader> &&
              std::is_trivially_copyable_v<ControlHeader>);

}  // namespace erdma::protocol::wire
