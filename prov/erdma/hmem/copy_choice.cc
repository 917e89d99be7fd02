#include "hmem/copy_choice.h"

#include <algorithm>
#include <bit>

namespace erdma::hmem {

size_t CopyChoice::class_of(size_t length) noexcept {
  return std::min(size_t(std::bit_width((length - 1) / (2 * kLeast))), kClasses - 1);
}

bool CopyChoice::SizeClass::offered(CopyMethod method, Offer offer) const noexcept {
  switch (method) {
    case CopyMethod::loop:
      return true;
    case CopyMethod::string:
      return offer.string;
    case CopyMethod::stream:
      return offer.stream && rate(best).count() >= kTrials && rate(best).typical() < kSlow;
  }
  return false;
}

CopyMethod CopyChoice::SizeClass::on_trial(Offer offer) noexcept {
  tries_other = !tries_other;
  if (!tries_other) return best;
  for (size_t i = 0; i < kMethods; ++i) {
    other = CopyMethod((size_t(other) + 1) % kMethods);
    if (other != best && offered(other, offer)) return other;
  }
  return best;
}

void CopyChoice::record(size_t length, CopyMethod used, uint64_t nanoseconds) noexcept {
  SizeClass& own = x_classes[class_of(length)];
  own.rates[size_t(used)].add(length, nanoseconds);
  const util::RecentRates& usual = own.rate(own.best);
  if (usual.count() < kTrials) return;
  for (size_t i = 0; i < kMethods; ++i) {
    const util::RecentRates& rate = own.rates[i];
    if (rate.count() < kTrials || rate.typical() <= util::RecentRates::kClearly * usual.typical())
      continue;
    own.best = CopyMethod(i);
    own.pause = kFirstPause;
    return;
  }
  own.pause = std::min(2 * own.pause, kLongestPause);
}

}  // namespace erdma::hmem
