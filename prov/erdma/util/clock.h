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

/// Nanoseconds, right within a factor of three, of a counter of the processor. To read it touches
/// no memory: with more processes than cores, the code and the data of SystemClock have often left
/// the caches. It may go back if the process moves to another machine.
class CycleClock final : public Clock {
 public:
  uint64_t now() const noexcept override {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc() / 2;  // processors count with 1 to 5 GHz
#elif defined(__aarch64__)
    uint64_t ticks, per_second;
    asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    asm("mrs %0, cntfrq_el0" : "=r"(per_second));
    constexpr uint64_t kSecond = 1'000'000'000;
    if (per_second == 0) return SystemClock().now();  // the firmware has not set it
    return ticks / per_second * kSecond + ticks % per_second * kSecond / per_second;
#else
    return SystemClock().now();
#endif
  }
};

}  // namespace erdma::util
