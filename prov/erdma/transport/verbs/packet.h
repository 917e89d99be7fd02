#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "transport/transport.h"

/// What one SEND carries: a prefix of the transport and a body that depends on the kind. Host byte
/// order: the handshake refuses a peer with another one.
namespace erdma::transport::verbs {

enum class Kind : uint8_t {
  packet = 1,  ///< header and payload of the protocol
  ready,       ///< the active side's first packet: the passive side may send
  credit,      ///< credits only; the one kind that may use the last credit
  grow,        ///< GrowBody: receives are bigger from a sequence number on
  /// RetireBody: asks to give the connection up; the sender's last packet, if the peer agrees.
  retire,
  /// RetireBody: agrees; the last packet of this side, unless the asking side takes its request
  /// back.
  retire_ok,
  retire_no,    ///< RetireBody: refuses, because the connection is in use
  bye,          ///< the endpoint closes: the last packet
  pull,         ///< BouncedBody: asks for the bytes of bounced memory
  data,         ///< BouncedBody and bytes: a part of what a pull asked for
  push,         ///< BouncedBody and bytes: a part of a put() to bounced memory
  answer,       ///< BouncedBody: pull or push is over, `status`
  retire_back,  ///< RetireBody: takes that request back, whatever was answered
};

/// Bits of `flags` in a prefix.
inline constexpr uint8_t kWantsMore = 1;  ///< the sender would use more and larger receives

struct Prefix {
  Kind kind;
  uint8_t flags;
  uint16_t credits;   ///< receives posted since the last packet
  uint32_t argument;  ///< reserved: 0
};
static_assert(sizeof(Prefix) == 8 && std::is_trivially_copyable_v<Prefix>);

inline constexpr size_t kPrefixBytes = sizeof(Prefix);
/// Precedes the payload of a protocol packet.
inline constexpr size_t kPacketOverhead = kPrefixBytes + kHeaderBytes;

struct GrowBody {
  uint32_t from;   ///< number of the first packet (counted from 0, modulo 2^32) ...
  uint32_t bytes;  ///< ... whose receive has this size, prefix included
};
static_assert(sizeof(GrowBody) == 8 && std::is_trivially_copyable_v<GrowBody>);

/// The body of all four packets about retiring.
struct RetireBody {
  uint32_t request;  ///< counts the requests of the asking side
};
static_assert(sizeof(RetireBody) == 4 && std::is_trivially_copyable_v<RetireBody>);

/// One transfer through packets. `data` and `answer` return the requester's handle.
struct BouncedBody {
  uint32_t memory_index;
  uint32_t requester_index;
  uint16_t memory_generation;
  uint16_t requester_generation;
  int32_t status;   ///< `answer`: 0 or a negative fi_errno
  uint64_t offset;  ///< of the bytes that follow, from the beginning of the shared memory
  uint64_t length;  ///< of the whole transfer
};
static_assert(sizeof(BouncedBody) == 32 && std::is_trivially_copyable_v<BouncedBody>);

inline constexpr size_t kBouncedOverhead = kPrefixBytes + sizeof(BouncedBody);

/// The smallest receive that a peer may offer: it holds any control packet, and kAlwaysEager.
inline constexpr size_t kMinReceiveBytes = kPacketOverhead + 2 * kAlwaysEager;

}  // namespace erdma::transport::verbs
