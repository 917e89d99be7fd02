#pragma once

#include <cstdint>
#include <memory>

#include "transport/memory.h"
#include "transport/shm/cma.h"
#include "transport/shm/shared_regions.h"

namespace erdma::transport::shm {

class ShmLink;
struct Mail;

/// Memory that the two sides of one link share until the link ends. RMA accesses it by CMA, without
/// the owner's processor. Polling thread only.
class DirectAccess final : public RegionSharing {
 public:
  explicit DirectAccess(ShmLink& link) noexcept : x_link(link) {}

  /// Takes over what is permitted on the peer: from the first channel, or from a later verdict.
  void learn(const Mail& mail) noexcept;
  CmaPeer& peer() noexcept { return x_peer; }
  const CmaPeer& peer() const noexcept { return x_peer; }

  // The owner's side. possible() is true even if this process is refused: the peer's permission may
  // differ, and the peer finds out itself.
  bool possible() const noexcept override;
  int share(const iovec& memory, bool for_reads, bool for_writes,
            RemoteKey& remote_key) noexcept override;
  void revoke(const RemoteKey& remote_key) noexcept override;
  bool unused() noexcept override;
  SharedRegions* region() const noexcept { return x_shared_regions.get(); }
  uint32_t link_number() const noexcept { return x_link_number; }
  uint32_t revocations_made() const noexcept { return x_revocations_made; }

  // The peer's side.
  void on_revoked() noexcept override;
  uint32_t revocations_seen() const noexcept { return x_revocations_seen; }
  int access(CmaCall call, const RemoteRange& remote, const iovec* local, size_t count,
             uint64_t token) noexcept;

  /// The link ends.
  void end() noexcept;

 private:
  ShmLink& x_link;
  CmaPeer x_peer;
  std::unique_ptr<SharedRegions> x_shared_regions;  ///< shared with the peer until the link ends
  bool x_final = false;                             ///< no further probe can permit more
  uint32_t x_revocations_seen = 0;  ///< revocations by the peer since the link began
  uint32_t x_link_number = 1;       ///< counts up each time the link begins
  /// Revocations made here since the link began, over all its channels.
  uint32_t x_revocations_made = 0;
};

}  // namespace erdma::transport::shm
