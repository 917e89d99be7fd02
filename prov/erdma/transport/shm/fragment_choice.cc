#include "transport/shm/fragment_choice.h"

#include <algorithm>

namespace erdma::transport::shm {

size_t FragmentChoice::class_of(size_t length) noexcept {
  return length <= 2 * kShortest ? 0 : 1;
}

FragmentChoice::Way FragmentChoice::choose(size_t length) noexcept {
  SizeClass& own = x_classes[class_of(length)];
  if (own.trials_left > 0) {
    --own.trials_left;
    return {own.prefers_rendezvous, true};
  }
  if (++own.messages < own.pause) return {!own.prefers_rendezvous, own.messages % kTimedEvery == 0};
  own.pause = own.pause < kFirstPause ? kFirstPause : std::min(2 * own.pause, kLongestPause);
  own.messages = 0;
  own.trials_left = kTrials - 1;
  if (own.prefers_rendezvous && ++own.untimed > kMostUntimed) return give_up(own);
  return {own.prefers_rendezvous, true};
}

/// Rendezvous are timed one at a time. Where they overlap, none is, and what is known may be out of
/// date.
FragmentChoice::Way FragmentChoice::give_up(SizeClass& own) noexcept {
  own = SizeClass{};
  own.pause = kFirstPause;
  return {true, true};
}

void FragmentChoice::record(size_t length, bool fragments, uint64_t nanoseconds) noexcept {
  SizeClass& own = x_classes[class_of(length)];
  (fragments ? own.fragments : own.rendezvous).add(length, nanoseconds);
  if (!fragments) own.untimed = 0;
  const util::RecentRates& usual = own.prefers_rendezvous ? own.rendezvous : own.fragments;
  const util::RecentRates& other = own.prefers_rendezvous ? own.fragments : own.rendezvous;
  if (usual.count() < kTrials || other.count() < kTrials) return;
  if (other.typical() > util::RecentRates::kClearly * usual.typical())
    own.prefers_rendezvous = !own.prefers_rendezvous;
}

}  // namespace erdma::transport::shm
