#pragma once

#include <atomic>

namespace erdma::util {

/// A pair of fences for two sides of which one runs far more often (membarrier(2),
/// MEMBARRIER_CMD_PRIVATE_EXPEDITED): the frequent side only keeps the compiler from reordering,
/// and the rare side executes a fence on every thread of the process.
struct ThreadBarrier {
  /// True if this process may call everywhere(). It may ask any number of times.
  static bool available() noexcept;

  static void here() noexcept { std::atomic_signal_fence(std::memory_order_seq_cst); }
  /// Every thread of the process executes a full fence before this returns. False: the kernel
  /// refused, although the barrier was available; the other threads have then had a millisecond,
  /// in which a processor empties its store buffer many times.
  static bool everywhere() noexcept;
};

}  // namespace erdma::util
