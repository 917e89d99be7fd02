#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "protocol/regions.h"
#include "transport/memory.h"

namespace erdma::protocol {

/// A peer's region that we may access directly: what was checked here is checked by nobody else
/// before the device.
struct Grant {
  uint64_t key = 0;
  uint64_t address = 0;  ///< virtual, in the peer's process
  uint64_t length = 0;   ///< bytes
  bool reads = false, writes = false;
  bool fresh = true;     ///< nothing was accessed yet
  bool flushes = false;  ///< device memory of our own: reads of it take the NIC's way, or fail
  bool revoked = false;  ///< stays until nobody uses it
  uint32_t users = 0;    ///< operations under way
  transport::RemoteRegion region;  ///< `key` unpacked, once the fast path has asked for it
  transport::RemoteKey memory;
};

/// A peer's direct access to a region of ours.
struct Granted {
  RegionUse use;
  transport::RegionSharing* sharing = nullptr;  ///< shared by it; null: registered
  transport::RemoteKey shared_key;
  bool revoked = false;  ///< the peer was told
  bool busy = false;     ///< revoked, but something of the peer's is under way
};

/// Direct access between us and one peer, both ways, over the link that the peer had when the first
/// was granted. Invariant: it ends with that link.
struct PeerGrants {
  /// More than one peer's grants are worth; what comes above is accessed by packets.
  static constexpr size_t kMost = 65536;
  std::unordered_map<uint64_t, Grant> remote;     ///< by the peer's key
  std::unordered_map<uint64_t, Granted> granted;  ///< our regions, by key
  Grant* recent = nullptr;                        ///< of ours, the last that the fast path took
  bool slow_path_only = false;                    ///< the link has no fast one
  uint32_t reads = 0;  ///< small ones of ours under way: what must not overtake them waits
  // Small operations that a packet carries, as long as the peer looks at it soon.
  uint32_t polls = 0;       ///< since the last answer
  uint32_t pause = 0;       ///< operations that are to go without
  uint32_t next_pause = 0;  ///< half of what the next retraction brings
  bool slow = false;        ///< let a revocation wait for too long: the next is not waited for

  void erase(std::unordered_map<uint64_t, Grant>::iterator grant) noexcept {
    if (recent == &grant->second) recent = nullptr;
    remote.erase(grant);
  }
};

}  // namespace erdma::protocol
