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
    case CopyMethod::library:
      return true;
    case CopyMethod::string:
      return offer.string;
    case CopyMethod::stream:
      return offer.stream && rate(best).count() >= kTrials && may_stream();
  }
  return false;
}

bool CopyChoice::SizeClass::may_stream() const noexcept {
  const float fastest =
      std::max({rate(CopyMethod::loop).typical(), rate(CopyMethod::library).typical(),
                rate(CopyMethod::string).typical()});
  return fastest < (best == CopyMethod::stream ? util::RecentRates::kClearly * slow : slow);
}

CopyMethod CopyChoice::SizeClass::on_trial(Offer offer) noexcept {
  knows_all = true;
  for (size_t i = 0; i < kMethods; ++i)
    if (offered(CopyMethod(i), offer) && rate(CopyMethod(i)).count() < kTrials) knows_all = false;
  if (!knows_all) pause = kFirstPause;  // also if streaming becomes possible late
  tries_other = !tries_other;
  if (!tries_other) return best;
  for (size_t i = 0; i < kMethods; ++i) {
    other = CopyMethod((size_t(other) + 1) % kMethods);
    if (other != best && offered(other, offer)) return other;
  }
  return best;
}

void CopyChoice::SizeClass::choose_best() noexcept {
  if (best == CopyMethod::stream && !may_stream()) {
    best = CopyMethod::loop;
    pause = kFirstPause;
  }
  if (rate(best).count() < kTrials) return;
  for (size_t i = 0; i < kMethods; ++i) {
    const auto method = CopyMethod(i);
    if (rate(method).count() < kTrials || (method == CopyMethod::stream && !may_stream()) ||
        rate(method).typical() <= util::RecentRates::kClearly * rate(best).typical())
      continue;
    best = method;
    pause = kFirstPause;
    return;
  }
  if (knows_all) pause = std::min(2 * pause, kLongestPause);
}

void CopyChoice::record(size_t length, CopyMethod used, uint64_t nanoseconds) noexcept {
  SizeClass& own = x_classes[class_of(length)];
  own.rates[size_t(used)].add(length, nanoseconds);
  own.choose_best();
}

}  // namespace erdma::hmem
