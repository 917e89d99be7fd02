#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "transport/transport.h"

/// What one SEND carries: a prefix of the transport's own and a body that depends on the kind.
/// Host byte order: the handshake refuses a peer of another one.
namespace erdma::transport::verbs {

enum class Kind : uint8_t {
  packet = 1,  ///< Header and payload of the protocol
  ready,       ///< the active side's first: the passive side may speak
  credit,      ///< credits only; the one kind that may use the last credit
  grow,        ///< GrowBody: receives are bigger from a sequence number on
  retire,      ///< RetireBody: the sender's last packet, if the peer agrees
  retire_ok,   ///< RetireBody: agreed: the last packet of this side, unless the asker takes it back
  retire_no,   ///< RetireBody: busy: go on
  bye,         ///< the endpoint closes: the last packet
  pull,        ///< BouncedBody: send me your bounced memory
  data,        ///< BouncedBody and bytes: a part of what pull asked for
  push,        ///< BouncedBody and bytes: a part of a put() to bounced memory
  answer,      ///< BouncedBody: pull or push is over, `status`
  retire_back,  ///< RetireBody: forget that request, whatever was answered
};

/// `flags` of a prefix.
inline constexpr uint8_t kWantsMore = 1;  ///< the sender would use more and bigger receives

struct Prefix {
  Kind kind;
  uint8_t flags;
  uint16_t credits;   ///< receives posted since the last packet
  uint32_t argument;  ///< reserved: 0
};
static_assert(sizeof(Prefix) == 8 && std::is_trivially_copyable_v<Prefix>);

inline constexpr size_t kPrefixBytes = sizeof(Prefix);
/// In front of the payload of a protocol packet.
inline constexpr size_t kPacketOverhead = kPrefixBytes + kHeaderBytes;

struct GrowBody {
  uint32_t from;   ///< number of the first packet (counted from 0, modulo 2^32) ...
  uint32_t bytes;  ///< ... whose receive has this size, prefix included
};
static_assert(sizeof(GrowBody) == 8 && std::is_trivially_copyable_v<GrowBody>);

/// Of all four packets about retiring.
struct RetireBody {
  uint32_t request;  ///< counts those of the asking side
};
static_assert(sizeof(RetireBody) == 4 && std::is_trivially_copyable_v<RetireBody>);

/// One transfer through packets. The requester's handle comes back in `data` and `answer`.
struct BouncedBody {
  uint32_t memory_index;
  uint32_t requester_index;
  uint16_t memory_generation;
  uint16_t requester_generation;
  int32_t status;   ///< `answer`: 0 or a negative fi_errno
  uint64_t offset;  ///< of the bytes that follow, from the start of the shared memory
  uint64_t length;  ///< of the whole transfer
};
static_assert(sizeof(BouncedBody) == 32 && std::is_trivially_copyable_v<BouncedBody>);

inline constexpr size_t kBouncedOverhead = kPrefixBytes + sizeof(BouncedBody);

/// The smallest receive that a peer may offer: any control packet, and kAlwaysEager.
inline constexpr size_t kMinReceiveBytes = kPacketOverhead + 2 * kAlwaysEager;

}  // namespace erdma::transport::verbs
