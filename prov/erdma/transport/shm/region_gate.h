#pragma once

#include <atomic>
#include <cstdint>

#include "transport/memory.h"
#include "transport/shm/layout.h"
#include "transport/shm/ordering.h"

/// Memory that a peer accesses by itself, with CMA. No device refuses what is over, so the owner
/// revokes what it shared in a word that the peer looks at before each call, having said that it
/// is inside: either the peer sees the revocation, or the owner sees it inside (both sequentially
/// consistent). The words lie in the control words of the peer's cold ring, in the memory of
/// the owner.
namespace erdma::transport::shm {

/// Of a peer. Not thread-safe. Control is ColdControl, or its model (ordering_test.cc).
template <typename Control>
class PeerGateOf {
 public:
  PeerGateOf() noexcept = default;
  /// `heard`: revocations that this side has heard of over the link, perhaps before it knew the
  /// place. Not what the place counts: what was revoked by now, it may not have heard of.
  PeerGateOf(Control& control, uint64_t heard) noexcept : x_control(&control), x_seen(heard) {}

  /// False: something was revoked that this side has not heard of. True: leave() is to follow.
  bool enter() noexcept { return enter(x_seen); }
  /// Of an access in several steps that began when this side had heard of `heard` revocations.
  /// False: it has heard of another one since, which may be that of the memory: the owner waits for
  /// nobody who is outside when it revocations.
  bool enter(uint64_t heard) noexcept {
    if (heard != x_seen) return false;
    x_control->inside.store(1, std::memory_order_seq_cst);
    if (x_control->revocations.load(std::memory_order_seq_cst) == x_link + x_seen) return true;
    leave();
    return false;
  }
  void leave() noexcept { store_release(x_control->inside, 0u); }
  void region_revoked() noexcept { ++x_seen; }
  uint64_t heard() const noexcept { return x_seen; }
  /// What is to be accessed was shared over the owner's link of this number: all that is shared
  /// with this side over one of its own was. The owner may have ended it, and we not know.
  void belongs_to(uint32_t link) noexcept { x_link = link_base(link); }
  static constexpr uint64_t link_base(uint32_t link) noexcept { return uint64_t(link) << 32; }

 private:
  Control* x_control = nullptr;
  uint64_t x_link = 0;
  uint64_t x_seen = 0;
};
using PeerGate = PeerGateOf<ColdControl>;

/// Of the owner. What a peer writes is believed only so far as it concerns itself.
template <typename Control>
class OwnerGateOf {
 public:
  /// What a place says until the owner's polling thread knows of its peer.
  static constexpr uint64_t kClosed = UINT64_MAX;

  /// `revocations` so far over the owner's link number `link`: their news may still be on its way.
  OwnerGateOf(Control& control, uint32_t link, uint32_t revocations) noexcept : x_control(control) {
    store_release(x_control.revocations, PeerGateOf<Control>::link_base(link) + revocations);
  }

  void revoke_region() noexcept {
    if (!x_ended) x_control.revocations.fetch_add(1, std::memory_order_seq_cst);
  }
  /// For good.
  void end() noexcept {
    x_ended = true;
    x_control.revocations.store(kClosed, std::memory_order_seq_cst);
  }
  bool inside() const noexcept { return x_control.inside.load(std::memory_order_seq_cst) != 0; }
  bool take_help() noexcept {
    return x_control.help.load(std::memory_order_relaxed) && exchange_acq_rel(x_control.help, 0u);
  }

 private:
  Control& x_control;
  bool x_ended = false;
};
using OwnerGate = OwnerGateOf<ColdControl>;

/// What a peer needs to know of memory that was shared with it: a RemoteKey of KeyKind::region.
struct SharedRegion {
  KeyHead head{KeyKind::region};  ///< of SharedRegions::share()
  uint64_t address = 0;           ///< in the owner's process
  uint64_t length = 0;
  uint32_t link = 0;  ///< number of the owner's link, see Borrowing
  uint32_t zero = 0;
};
static_assert(sizeof(SharedRegion) == 32);

}  // namespace erdma::transport::shm
