#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "transport/transport.h"

/// Every header on the wire, host byte order (x86-64 and little-endian AArch64 only; the handshake
/// of each transport refuses a peer of another order). docs/wire-protocol.md has the diagrams.
namespace erdma::protocol::wire {

/// Both handshakes compare it (transport/version.h). Count it up with each change of a header, of
/// an Op, a flag, a RemoteKey, or of what they mean (test/protocol/wire_test.cc has their bytes).
inline constexpr uint8_t kVersion = 4;

/// The same bytes as another type: std::bit_cast(), which libstdc++ 10 does not have.
template <typename To, typename From>
To reread(const From& from) noexcept {
  static_assert(sizeof(To) == sizeof(From) && std::is_trivially_copyable_v<To> &&
                std::is_trivially_copyable_v<From>);
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

enum class Op : uint8_t {
  eager = 1,   ///< a whole message; payload = its bytes
  rts = 2,     ///< ready to send; payload = RemoteKey of the sender's memory (read) or none (write)
  cts = 3,     ///< receiver of an rts without remote key: payload = RemoteKey to put() to
  fin = 4,     ///< to the sender: the message with this id is placed, or failed
  done = 5,    ///< to the receiver: the put() into its remote key is over
  budget = 6,  ///< to the sender: unexpected-message memory is used up (on) or free again (off)
  // One-sided; the initiator hears of it by fin, or by all bytes of the result.
  segments = 7,  ///< further segments of the write or read that follows; payload = Segment[]
  write = 8,     ///< payload = the bytes, or RemoteKey of the initiator's memory to get() from
  read = 9,      ///< payload = none, or RemoteKey of the initiator's memory to put() to
  atomic = 10,   ///< payload = operands, then what to compare with
  result = 11,   ///< to the initiator: a part of what was read or fetched, in order
  grant = 12,    ///< to the initiator: the segment may be accessed directly; payload = RemoteKey
  revoke = 13,   ///< to the initiator: no longer, and say when what is under way is over
  revoked = 14,  ///< to the target: it is
};

enum Flags : uint8_t {
  kTagged = 1,
  kHasData = 2,  ///< `data` holds remote CQ data
  kWantFin = 4,  ///< eager: the sender waits for a fin (FI_DELIVERY_COMPLETE)
  kFailed = 8,   ///< done: the sender could not put()
  // One-sided. kHasData: the payload begins with eight bytes of remote CQ data.
  kLast = 4,       ///< atomic: the operation's last packet
  kKeyed = 16,     ///< the payload is a RemoteKey
  kSegments = 32,  ///< the last `segments` packet belongs to it
  kFetch = 64,     ///< atomic: what was there comes back as result
  kCompare = 128,  ///< atomic: with operands to compare
  // grant.
  kGrantReads = 1,
  kGrantWrites = 2,
  kBusy = 1,  ///< revoked: not yet, something is under way
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

/// A range of the target's memory.
struct Segment {
  uint64_t address;  ///< virtual, in the target's process
  uint64_t key;
  uint64_t length;  ///< bytes
};
static_assert(sizeof(Segment) == 24 && std::is_trivially_copyable_v<Segment>);

/// segments, write, read, atomic, result; grant, revoke and revoked, of which the last two use the
/// segment's key only. Of several segments the first, the others travel before.
struct OneSidedHeader {
  Op op;
  uint8_t flags;
  uint16_t generation;  ///< of the initiator's request
  uint32_t index;
  Segment segment;  ///< atomic: `length` is an AtomicWord; result: only `length` is used
};

/// What an atomic packet asks, in place of a length: elements from here to the end of the segment,
/// though this packet may bring less of them.
struct AtomicWord {
  uint32_t count;
  uint8_t op;        ///< enum fi_op
  uint8_t datatype;  ///< enum fi_datatype
  uint16_t reserved;
};
static_assert(sizeof(AtomicWord) == sizeof(uint64_t));

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

inline ControlHeader control(Op op, RequestId to, int status = 0) noexcept {
  return {op, 0, to.generation, to.index, 0, 0, 0, status, 0, 0};
}

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
static_assert(sizeof(OneSidedHeader) == transport::kHeaderBytes);
static_assert(std::is_trivially_copyable_v<MessageHeader> &&
              std::is_trivially_copyable_v<ControlHeader> &&
              std::is_trivially_copyable_v<OneSidedHeader>);

}  // namespace erdma::protocol::wire
