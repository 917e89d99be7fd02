#pragma once

#include <atomic>
#include <cstdint>

#include "transport/memory.h"
#include "transport/shm/layout.h"
#include "transport/shm/ordering.h"

/// Memory that a peer accesses by itself, with CMA. No device refuses an access that is no longer
/// permitted. So the owner revokes by a word that the peer reads before each call, after storing
/// that it is inside. Either the peer sees the revocation, or the owner sees the peer inside (both
/// accesses are sequentially consistent). The words are control words of the peer's cold ring, in
/// the owner's memory.
namespace erdma::transport::shm {

/// The peer's side. Not thread-safe. Control is ColdControl, or its model (ordering_test.cc).
template <typename Control>
class PeerGateOf {
 public:
  PeerGateOf() noexcept = default;
  /// `heard`: revocations that this side has been told of over the link, perhaps before it knew the
  /// place. The count in the place would be wrong here: it includes revocations that this side has
  /// not been told of.
  PeerGateOf(Control& control, uint64_t heard) noexcept : x_control(&control), x_seen(heard) {}

  /// False: something was revoked that this side has not been told of. True: leave() must follow.
  bool enter() noexcept { return enter(x_seen); }
  /// For an access in several steps that began when this side had been told of `heard` revocations.
  /// False: it has been told of another since, which may be that of this memory. The owner does not
  /// wait for a peer that is outside when it revokes.
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
  /// Sets the number of the owner's link over which the memory was shared. All memory shared with
  /// this side over one of its own links has the same number. The owner may have ended that link
  /// without this side knowing.
  void belongs_to(uint32_t link) noexcept { x_link = link_base(link); }
  static constexpr uint64_t link_base(uint32_t link) noexcept { return uint64_t(link) << 32; }

 private:
  Control* x_control = nullptr;
  uint64_t x_link = 0;
  uint64_t x_seen = 0;
};
using PeerGate = PeerGateOf<ColdControl>;

/// The owner's side, whose state is all in the place. It believes the peer's words only in matters
/// that concern the peer alone.
template <typename Control>
class OwnerGateOf {
 public:
  /// The count of a place until the owner's polling thread knows its peer.
  static constexpr uint64_t kClosed = UINT64_MAX;

  explicit OwnerGateOf(Control& control) noexcept : x_control(control) {}

  /// `revocations`: those so far over the owner's link number `link`; the peer may not have been
  /// told of all of them yet.
  void open(uint32_t link, uint32_t revocations) noexcept {
    store_release(x_control.revocations, PeerGateOf<Control>::link_base(link) + revocations);
  }
  void revoke_region() noexcept {
    if (x_control.revocations.load(std::memory_order_relaxed) != kClosed)
      x_control.revocations.fetch_add(1, std::memory_order_seq_cst);
  }
  /// Revokes everything, for good.
  void end() noexcept { x_control.revocations.store(kClosed, std::memory_order_seq_cst); }
  bool inside() const noexcept { return x_control.inside.load(std::memory_order_seq_cst) != 0; }
  bool take_help() noexcept {
    return x_control.help.load(std::memory_order_relaxed) && exchange_acq_rel(x_control.help, 0u);
  }

 private:
  Control& x_control;
};
using OwnerGate = OwnerGateOf<ColdControl>;

/// What a peer must know about memory that was shared with it: a RemoteKey of KeyKind::region.
struct SharedRegion {
  KeyHead head{KeyKind::region};  ///< from SharedRegions::share()
  uint64_t address = 0;           ///< in the owner's process
  uint64_t length = 0;
  uint32_t link = 0;  ///< number of the owner's link, see PeerGateOf::belongs_to()
  uint32_t zero = 0;
};
static_assert(sizeof(SharedRegion) == 32);

}  // namespace erdma::transport::shm
