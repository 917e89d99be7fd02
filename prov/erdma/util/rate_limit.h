#pragma once

#include <algorithm>
#include <cstdint>

namespace erdma::util {

/// Limits log lines that others can cause: a burst, then one line a second.
class RateLimit {
 public:
  explicit constexpr RateLimit(unsigned burst = 10) noexcept : x_burst(burst), x_tokens(burst) {}

  /// False: write no line now. True: write it; `suppressed` lines were left out since the last one.
  bool allow(uint64_t now, unsigned& suppressed) noexcept {
    // A reading of the clock may be older than the one before: a thread reads it before it is let
    // in.
    const uint64_t seconds = std::max(now / 1'000'000'000, x_second);
    x_tokens = unsigned(std::min<uint64_t>(x_burst, x_tokens + (seconds - x_second)));
    x_second = seconds;
    if (!x_tokens) {
      ++x_suppressed;
      return false;
    }
    --x_tokens;
    suppressed = x_suppressed;
    x_suppressed = 0;
    return true;
  }

 private:
  const unsigned x_burst;
  unsigned x_tokens;
  uint64_t x_second = 0;
  unsigned x_suppressed = 0;
};

}  // namespace erdma::util
