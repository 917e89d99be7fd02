#pragma once

#include <algorithm>
#include <cstdint>

namespace erdma::util {

/// Limits log lines that a peer can cause: a burst, then one line per second.
class RateLimit {
 public:
  explicit constexpr RateLimit(unsigned burst = 10) noexcept : x_burst(burst), x_tokens(burst) {}

  /// `now`: nanoseconds of a monotonic clock. False: write no line. True: write it; `suppressed`
  /// lines were left out since the last one that was written.
  bool allow(uint64_t now, unsigned& suppressed) noexcept {
    // `now` may be older than in the call before: a thread reads the clock before it takes the
    // lock.
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
