#pragma once

#include <cstddef>
#include <cstdint>

#include "util/recent_rates.h"

namespace erdma::transport::shm {

/// Learns which of two ways moves bytes faster, for operations of like lengths. All take one way,
/// as a rule the first, until a few have tried the other; the way that proves slower is tried again
/// ever more rarely. Table-tested; uses no clock.
class WayChoice {
 public:
  struct Way {
    bool first;
    bool timed;  ///< record() shall be told how long this operation takes
  };
  /// Call it before the first choice, if the second way is likely to be faster.
  void begin_with_second() noexcept { x_prefers_second = true; }
  /// Chooses for the operation that begins now.
  Way choose() noexcept;
  /// An operation that was to be timed is over after this time.
  void record(size_t length, bool first, uint64_t nanoseconds) noexcept;

  static constexpr unsigned kTimed = 3;  ///< of each way, before both are compared
  /// Operations in a row that try the other way. The first one is not timed, because its bytes are
  /// not yet where that way leaves them.
  static constexpr unsigned kTrials = 1 + kTimed;
  /// The first time, a way may have to get memory, too.
  static constexpr unsigned kFirstTrials = kTrials + 3;
  /// Operations before the other way is tried first, and until it is tried again. Each further
  /// pause is twice as long, up to kLongestPause, until the other way proves faster.
  static constexpr unsigned kFirstTrial = 16;
  static constexpr unsigned kFirstPause = 32;
  static constexpr unsigned kLongestPause = 1024;
  static constexpr unsigned kMostUntimed = 2;  ///< trials, until the second way is given up
  /// Of the operations that go the usual way: of the last kBeforeTrial ones before a trial, and of
  /// those before them. Odd, because two kinds of operations may alternate.
  static constexpr unsigned kTimedEvery = 5;
  static constexpr unsigned kRarelyTimedEvery = 7 * kTimedEvery;
  static constexpr unsigned kBeforeTrial = 64;

 private:
  Way give_up() noexcept;
  bool times_usual() const noexcept {
    const bool near = x_pause - x_operations <= kBeforeTrial;
    return x_operations % (near ? kTimedEvery : kRarelyTimedEvery) == 0;
  }

  util::RecentRates x_first, x_second;
  uint32_t x_operations = 0;  ///< since the last trial
  uint32_t x_pause = kFirstTrial;
  uint8_t x_trials_left = 0;
  uint8_t x_untimed = 0;  ///< trials since the second way was timed last, if it is preferred
  bool x_prefers_second = false;
};

}  // namespace erdma::transport::shm
