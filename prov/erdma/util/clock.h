#pragma once

#include <cstdint>
#include <ctime>

namespace erdma::util {

inline constexpr uint64_t kMillisecond = 1'000'000;  ///< in nanoseconds, the unit of Clock

/// Monotonic nanoseconds. Code that decides by time takes a Clock& in its constructor, so that
/// tests can set the time.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual uint64_t now() const noexcept = 0;
};

/// Nanoseconds of a clock of clock_gettime(2).
inline uint64_t nanoseconds_of(clockid_t clock) noexcept {
  timespec time{};
  clock_gettime(clock, &time);
  return uint64_t(time.tv_sec) * 1'000'000'000u + uint64_t(time.tv_nsec);
}

class SystemClock final : public Clock {
 public:
  uint64_t now() const noexcept override { return nanoseconds_of(CLOCK_MONOTONIC); }
};

}  // namespace erdma::util
