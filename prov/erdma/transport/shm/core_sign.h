#pragma once

#include <cstdint>

#include "transport/transport.h"
#include "util/clock.h"

/// What an endpoint writes into its memory when its thread gives up its core, so that its peers
/// know whether they share this core: the core + 1 in the low half, milliseconds in the high half.
/// A peer may write anything there. That makes others yield where they would sleep, or the reverse;
/// both end in time.
namespace erdma::transport::shm {

/// A sign that is older says nothing: its thread polls with success, computes, sleeps or is gone. A
/// thread that shares its core with dozens of others gets it back sooner.
inline constexpr uint32_t kSignLife = 1000;  ///< ms

/// 0: the core is not known.
constexpr uint64_t core_sign(const CoreUse& use) noexcept {
  if (use.core < 0) return 0;
  return (uint64_t(use.core) + 1) | use.now / util::kMillisecond << 32;
}

/// The clocks of two cores may differ a little.
constexpr bool same_core(uint64_t one, uint64_t other) noexcept {
  const auto later = uint32_t(one >> 32) - uint32_t(other >> 32);
  return uint32_t(one) != 0 && uint32_t(one) == uint32_t(other) &&
         (later <= kSignLife || 0 - later <= kSignLife);
}

}  // namespace erdma::transport::shm
