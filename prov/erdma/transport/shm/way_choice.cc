#include "transport/shm/way_choice.h"

#include <algorithm>

namespace erdma::transport::shm {

WayChoice::Way WayChoice::choose() noexcept {
  if (x_trials_left > 0) {
    --x_trials_left;
    return {x_prefers_second, true};
  }
  if (++x_operations < x_pause) return {!x_prefers_second, times_usual()};
  const bool never_tried = x_pause < kFirstPause;
  x_pause = never_tried ? kFirstPause : std::min(2 * x_pause, kLongestPause);
  x_operations = 0;
  x_trials_left = (never_tried ? kFirstTrials : kTrials) - 1;
  if (x_prefers_second && ++x_untimed > kMostUntimed) return give_up();
  return {x_prefers_second, false};
}

/// Some operations cannot be timed, such as those that overlap. If none can, what is known may be
/// out of date.
WayChoice::Way WayChoice::give_up() noexcept {
  *this = WayChoice{};
  x_pause = kFirstPause;
  return {true, true};
}

void WayChoice::record(size_t length, bool first, uint64_t nanoseconds) noexcept {
  (first ? x_first : x_second).add(length, nanoseconds);
  if (!first) x_untimed = 0;
  const util::RecentRates& usual = x_prefers_second ? x_second : x_first;
  const util::RecentRates& other = x_prefers_second ? x_first : x_second;
  if (usual.count() < kTimed || other.count() < kTimed) return;
  if (other.middle() <= util::RecentRates::kClearly * usual.typical()) return;
  x_prefers_second = !x_prefers_second;
  x_pause = kFirstPause;
  x_operations = 0;
  x_trials_left = 0;
}

}  // namespace erdma::transport::shm
