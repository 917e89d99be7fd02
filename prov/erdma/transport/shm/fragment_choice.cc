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
  if (++own.messages < own.pause)
    return {!own.prefers_rendezvous, own.messages % kTimedEvery <= kTrials};
  own.pause = own.pause < kFirstPause ? kFirstPause : std::min(2 * own.pause, kLongestPause);
  own.messages = 0;
  own.trials_left = kTrials - 1;
  return {own.prefers_rendezvous, true};
}

void FragmentChoice::record(size_t length, bool fragments, uint64_t nanoseconds) noexcept {
  SizeClass& own = x_classes[class_of(length)];
  (fragments ? own.fragments : own.rendezvous).add(length, nanoseconds);
  const RecentRates& usual = own.prefers_rendezvous ? own.rendezvous : own.fragments;
  const RecentRates& other = own.prefers_rendezvous ? own.fragments : own.rendezvous;
  if (usual.count() < kTrials || other.count() < kTrials) return;
  if (other.typical() > RecentRates::kClearly * usual.typical())
    own.prefers_rendezvous = !own.prefers_rendezvous;
}

}  // namespace erdma::transport::shm
