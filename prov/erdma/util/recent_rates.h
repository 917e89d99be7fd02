#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace erdma::util {

/// The last few rates of one way to move bytes.
class RecentRates {
 public:
  void add(size_t length, uint64_t nanoseconds) noexcept {
    x_rates[x_next] = float(length) / float(std::max<uint64_t>(nanoseconds, 1));
    x_next = uint8_t((x_next + 1) % kRecent);
    x_count = uint8_t(std::min<unsigned>(x_count + 1u, kRecent));
  }
  /// Rates added, but at most those that are remembered.
  unsigned count() const noexcept { return x_count; }
  /// The second best: losing the processor makes a rate too low, and overlapping transfers make one
  /// too high.
  float typical() const noexcept {
    float best = 0, second = 0;
    for (const float rate : x_rates) {
      second = std::max(second, std::min(best, rate));
      best = std::max(best, rate);
    }
    return x_count < 2 ? best : second;
  }

  /// The common rate of all but the best and the worst. If half of the operations are fast and half
  /// are slow, it lies between, where typical() is that of the fast ones.
  float middle() const noexcept {
    float rates[kRecent];
    std::copy_n(x_rates, x_count, rates);
    // With std::sort() g++ 12 warns that 16 elements may be read.
    std::partial_sort(rates, rates + x_count, rates + x_count);
    if (x_count < kRecent) return rates[x_count / 2];
    return 2 / (1 / rates[1] + 1 / rates[2]);
  }

  /// By how much a way must be faster to be changed to, because changing costs time, too.
  static constexpr float kClearly = 1.125F;

 private:
  static constexpr unsigned kRecent = 4;
  float x_rates[kRecent] = {};
  uint8_t x_count = 0;
  uint8_t x_next = 0;
};

}  // namespace erdma::util
