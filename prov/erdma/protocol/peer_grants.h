#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "protocol/regions.h"
#include "transport/memory.h"
#include "util/intrusive_list.h"

namespace erdma::protocol {

struct Access;

/// A peer's region that this endpoint may access directly. The checks against this grant are the
/// only ones before the device's.
struct Grant {
  uint64_t key = 0;
  uint64_t address = 0;  ///< virtual, in the peer's process
  uint64_t length = 0;   ///< bytes
  bool reads = false, writes = false;
  bool fresh = true;               ///< not used yet, by direct access or a retractable packet
  bool flushes = false;            ///< own device memory: only the NIC may read it, never a copy
  bool revoked = false;            ///< the grant stays until `users` is 0
  uint32_t users = 0;              ///< operations under way
  transport::RemoteRegion region;  ///< `memory` unpacked, after the first use of the fast path
  transport::RemoteKey memory;
};

/// A peer's direct access to a region of this domain.
struct Granted {
  RegionUse use;
  transport::RegionSharing* sharing = nullptr;  ///< shares the region; null: it is registered
  transport::RemoteKey shared_key;
  bool revoked = false;  ///< the revoke packet was sent
  bool busy = false;     ///< revoked, but the peer said that its operations are under way
};

/// Direct access between this endpoint and one peer, both ways, over the link that the peer had at
/// the first grant. Invariant: it ends with that link.
struct PeerGrants {
  /// Limit of grants each way. Packets access regions beyond it.
  static constexpr size_t kMost = 65536;
  std::unordered_map<uint64_t, Grant> remote;     ///< regions of the peer, by its key
  std::unordered_map<uint64_t, Granted> granted;  ///< regions of this domain, by key
  /// Those by the fast path. They end before the grants do.
  util::IntrusiveList<Access> accesses;
  Grant* recent = nullptr;      ///< in `remote`: last used by the fast path
  bool slow_path_only = false;  ///< the link has no fast path
  uint32_t reads = 0;  ///< own small reads under way; operations that must not overtake them wait
  // For retractable_rma.h.
  uint32_t polls = 0;       ///< calls of progress() since the last answer
  uint32_t pause = 0;       ///< number of next operations that use no retractable packet
  uint32_t next_pause = 0;  ///< half of the pause that the next retraction sets
  bool slow = false;        ///< the peer answered a revocation too late: do not wait for the next

  void erase(std::unordered_map<uint64_t, Grant>::iterator grant) noexcept {
    if (recent == &grant->second) recent = nullptr;
    remote.erase(grant);
  }
};

}  // namespace erdma::protocol
