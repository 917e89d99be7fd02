#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "transport/transport.h"

/// All headers on the wire, in host byte order: x86-64 and little-endian AArch64 only. The
/// handshake of each transport refuses a peer of another byte order. docs/wire-protocol.md has the
/// diagrams.
namespace erdma::protocol::wire {

/// The handshakes of both transports compare it (transport/version.h). Increase it with each change
/// of a header, an Op, a flag or a RemoteKey, or of their meaning (test/protocol/wire_test.cc has
/// their bytes).
inline constexpr uint8_t kVersion = 7;

/// Returns the same bytes as another type, like std::bit_cast(), which libstdc++ 10 lacks.
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
  cts = 3,     ///< clear to send, to the sender; payload = RemoteKey of the memory to put() to
  fin = 4,     ///< to the sender or initiator: the operation with this id is over, or has failed
  done = 5,    ///< to the receiver: the put() into its memory is over
  budget = 6,  ///< to the sender: how it should send messages that may be unexpected (Budget)
  // One-sided. A fin, or the last byte of the result, completes the operation at the initiator.
  segments = 7,  ///< further segments of the write or read that follows; payload = Segment[]
  write = 8,     ///< payload = the bytes, or RemoteKey of the initiator's memory to get() from
  read = 9,      ///< payload = none, or RemoteKey of the initiator's memory to put() to
  atomic = 10,   ///< payload = operands, then values to compare with
  result = 11,   ///< to the initiator: the next bytes that were read or fetched
  grant = 12,    ///< to the initiator: the segment may be accessed directly; payload = RemoteKey
  revoke = 13,   ///< to the initiator: the grant ends; it must answer with revoked
  revoked = 14,  ///< to the target: no access is under way any more, or (kBusy) not yet
  first_fragment = 15,  ///< an eager message begins; payload = its first bytes
  fragment = 16,        ///< the next bytes of the message that began last on this link
};

enum Flags : uint8_t {
  kTagged = 1,
  kHasData = 2,  ///< `data` holds remote CQ data
  kWantFin = 4,  ///< the sender waits for a fin, also if it writes (FI_DELIVERY_COMPLETE)
  kFailed = 8,   ///< done: the put() has failed
  // One-sided. kHasData: the payload begins with eight bytes of remote CQ data.
  kLast = 4,       ///< atomic: the operation's last packet
  kKeyed = 16,     ///< the payload is a RemoteKey
  kSegments = 32,  ///< the `segments` packet before belongs to this operation
  kFetch = 64,     ///< atomic: the old values are returned in result packets
  kCompare = 128,  ///< atomic: the payload has values to compare with
  // grant, revoked.
  kGrantReads = 1,
  kGrantWrites = 2,
  kBusy = 1,  ///< revoked: operations are under way; another revoked packet follows
};

/// The status of a budget packet.
enum Budget : int32_t {
  kFree = 0,        ///< there is memory for unexpected messages again
  kUsedUp = 1,      ///< it is used up: send headers only
  kUnexpected = 2,  ///< a long message in fragments was unexpected; see LongMessages
};

/// Names a request of the process that made it. That process ignores stale ids.
struct RequestId {
  uint32_t index;
  uint16_t generation;
};

/// Longest message in fragments, in bytes.
inline constexpr uint64_t kMaxFragmented = uint64_t(1) << 20;

/// Header of eager, rts and first_fragment.
struct MessageHeader {
  Op op;
  uint8_t flags;
  uint16_t generation;  ///< of the sender's request (rts, first_fragment, or kWantFin)
  uint32_t index;
  uint64_t tag;
  uint64_t data;
  uint64_t length;  ///< bytes of the message; eager: equal to the payload's
};

/// A range of the target's memory.
struct Segment {
  uint64_t address;  ///< virtual, in the target's process
  uint64_t key;
  uint64_t length;  ///< bytes
};
static_assert(sizeof(Segment) == 24 && std::is_trivially_copyable_v<Segment>);

/// Header of segments, write, read, atomic, result, grant, revoke and revoked. The last two use
/// only the segment's key. An operation of several segments has the first one here; a `segments`
/// packet before it has the others.
struct OneSidedHeader {
  Op op;
  uint8_t flags;
  uint16_t generation;  ///< of the initiator's request
  uint32_t index;
  Segment segment;  ///< atomic: `length` is an AtomicWord; result: only `length` is used
};

/// Takes the place of Segment::length in an atomic packet. `count`: elements from here to the end
/// of the segment; the packet may carry fewer.
struct AtomicWord {
  uint32_t count;
  uint8_t op;        ///< enum fi_op
  uint8_t datatype;  ///< enum fi_datatype
  uint16_t reserved;
};
static_assert(sizeof(AtomicWord) == sizeof(uint64_t));

/// Header of cts, fin, done, budget and fragment.
struct ControlHeader {
  Op op;
  uint8_t flags;
  uint16_t generation;  ///< with `index`: the request at the destination of this packet
  uint32_t index;
  uint16_t reply_generation;  ///< cts, with `reply_index`: the receiver's delivery, for done
  uint16_t reserved;
  uint32_t reply_index;
  int32_t status;  ///< fin, done: 0 or negative fi_errno; budget: a Budget
  uint32_t reserved2;
  uint64_t length;  ///< cts: bytes for which the receiver has room; fragment: bytes before it
};

inline ControlHeader control(Op op, RequestId to, int status = 0) noexcept {
  return {op, 0, to.generation, to.index, 0, 0, 0, status, 0, 0};
}

/// Encodes a header for Link::send(). It is built of whole words: wide loads of a header that was
/// stored in smaller pieces would wait until every piece has left the store buffer.
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
