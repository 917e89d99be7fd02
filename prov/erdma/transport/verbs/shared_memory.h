#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/counters.h"
#include "transport/transport.h"
#include "transport/verbs/registration.h"
#include "util/pool.h"

namespace erdma::transport::verbs {

class VerbsLink;
struct Stream;

/// A range of the peer's memory, as a work request names it.
struct RemotePiece {
  uint64_t address = 0;
  uint64_t length = 0;
  uint32_t rkey = 0;
};

/// A decoded RemoteKey: either pieces of registered memory (a region has one), or bounced memory,
/// which its owner reads and writes itself as packets ask for it.
struct RemoteMemory {
  util::PoolHandle handle;  ///< the owner's SharedMemory
  bool bounced = false;
  bool region = false;
  size_t count = 0;
  uint64_t length = 0;  ///< sum of the pieces
  RemotePiece pieces[kMaxIov];
};

/// The rights that the NIC must give a peer to memory that is shared in this way.
constexpr int rights_of(Access access) noexcept {
  const bool for_writes = access == Access::remote_write;
  return peer_rights(!for_writes, for_writes);
}

void encode(const RemoteMemory& memory, RemoteKey& remote_key) noexcept;
/// The key of a registered region.
RemoteKey key_of(const RemotePiece& piece) noexcept;
/// False: encode() cannot have made it.
[[nodiscard]] bool decode(const RemoteKey& remote_key, RemoteMemory& memory) noexcept;

/// Why register_all() refused.
enum class CopyReason : uint8_t { always, too_short, room, memory };
/// `rc`: the status of register_all(). Rare, so it takes no place among code that runs often.
[[gnu::cold]] CopyReason copy_reason_of(RegistrationCache& cache, const iovec* memory, size_t count,
                                        int rc) noexcept;
/// Counts bytes that move in another way for this reason.
void count_refused(CopyReason refusal, uint64_t bytes, NicCounters& counters) noexcept;

/// Memory of this process that a peer may access until revoke().
struct SharedMemory {
  const VerbsLink* link = nullptr;
  iovec memory[kMaxIov];
  Registration registrations[kMaxIov];
  size_t count = 0;
  uint64_t length = 0;
  Access access = Access::remote_read;
  bool bounced = false;
  CopyReason refusal = CopyReason::memory;  ///< why it is bounced
  Stream* stream = nullptr;                 ///< on its way to the peer

  /// What the peer is told. `handle`: of this object.
  RemoteMemory named(util::PoolHandle handle) const noexcept;
};

/// Registers all pieces or none. -FI_EOPNOTSUPP, -FI_ENOMEM: move the bytes in another way.
[[nodiscard]] int register_all(RegistrationCache& cache, const iovec* memory, size_t count,
                               int rights, Registration* registrations) noexcept;
void release_all(RegistrationCache& cache, Registration* registrations, size_t count) noexcept;

}  // namespace erdma::transport::verbs
