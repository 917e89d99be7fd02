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

class SystemClock final : public Clock {
 public:
  uint64_t now() const noexcept override {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return uint64_t(time.tv_sec) * 1'000'000'000u + uint64_t(time.tv_nsec);
  }
};

}  // namespace erdma::util
