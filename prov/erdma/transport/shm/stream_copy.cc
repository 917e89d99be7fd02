#include "transport/shm/stream_copy.h"

#include <algorithm>
#include <cstring>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace erdma::transport::shm {
namespace {

#ifdef __x86_64__

constexpr size_t kLine = 64;
constexpr size_t kWorthwhile = 256;  // below this the fence costs more than the cache

// Each copies `lines` lines to an aligned address.
void stream_lines_sse2(std::byte* to, const std::byte* from, size_t lines) noexcept {
  for (; lines > 0; --lines, to += kLine, from += kLine) {
    const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16));
    const __m128i c = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 32));
    const __m128i d = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 48));
    _mm_stream_si128(reinterpret_cast<__m128i*>(to), a);
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + 16), b);
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + 32), c);
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + 48), d);
  }
}

__attribute__((target("avx"))) void stream_lines_avx(std::byte* to, const std::byte* from,
                                                     size_t lines) noexcept {
  for (; lines > 0; --lines, to += kLine, from += kLine) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), a);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + 32), b);
  }
}

__attribute__((target("avx512f"))) void stream_lines_avx512(std::byte* to, const std::byte* from,
                                                            size_t lines) noexcept {
  for (; lines > 0; --lines, to += kLine, from += kLine)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
}

using StreamLines = void (*)(std::byte*, const std::byte*, size_t) noexcept;

StreamLines best_stream_lines() noexcept {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return stream_lines_avx512;
  if (__builtin_cpu_supports("avx")) return stream_lines_avx;
  return stream_lines_sse2;
}

#endif

}  // namespace

void plain_copy(void* to, const void* from, size_t length) noexcept {
  std::memcpy(to, from, length);
}

void stream_copy(void* to, const void* from, size_t length) noexcept {
#ifdef __x86_64__
  static const StreamLines stream_lines = best_stream_lines();
  if (length < kWorthwhile) return plain_copy(to, from, length);
  auto* target = static_cast<std::byte*>(to);
  auto* source = static_cast<const std::byte*>(from);
  const size_t head = -reinterpret_cast<uintptr_t>(target) % kLine;
  std::memcpy(target, source, head);
  const size_t lines = (length - head) / kLine;
  stream_lines(target + head, source + head, lines);
  const size_t done = head + lines * kLine;
  std::memcpy(target + done, source + done, length - done);
  _mm_sfence();
#else
  plain_copy(to, from, length);
#endif
}

double StreamingChoice::Arm::best() const noexcept {
  return *std::max_element(rates, rates + kRecent);
}

size_t StreamingChoice::class_of(size_t length) noexcept {
  if (length <= kSmall) return 0;
  if (length <= kMedium) return 1;
  return length <= kLarge ? 2 : 3;
}

// Streaming out as well leaves the received data outside the caches: never good for its consumer,
// so it only competes where the data would not fit there anyway.
size_t StreamingChoice::arms_of(size_t size_class) noexcept {
  return size_class == kClasses - 1 ? kStreamings : kStreamings - 1;
}

Streaming StreamingChoice::choose(size_t length) noexcept {
  const size_t size_class = class_of(length);
  if (x_policy == StreamingPolicy::never) return Streaming::none;
  if (x_policy == StreamingPolicy::always) return Streaming(arms_of(size_class) - 1);
  return learnt(size_class);
}

Streaming StreamingChoice::learnt(size_t size_class) noexcept {
  SizeClass& known = x_classes[size_class];
  const size_t arms = arms_of(size_class);
  const auto fewer_trials = [](const Arm& a, const Arm& b) { return a.recorded < b.recorded; };
  const Arm* least = std::min_element(known.arms, known.arms + arms, fewer_trials);
  ++known.transfers;
  if (least->recorded < kTrials) return Streaming(least - known.arms);
  const auto slower = [](const Arm& a, const Arm& b) { return a.best() < b.best(); };
  const size_t best = size_t(std::max_element(known.arms, known.arms + arms, slower) - known.arms);
  if (known.transfers % kRetryEvery != 0) return Streaming(best);
  known.retried = unsigned((known.retried + 1) % arms);
  if (known.retried == best) known.retried = unsigned((known.retried + 1) % arms);
  return Streaming(known.retried);
}

void StreamingChoice::record(size_t length, Streaming used, uint64_t nanoseconds) noexcept {
  if (x_policy != StreamingPolicy::calibrate || size_t(used) >= kStreamings) return;
  Arm& arm = x_classes[class_of(length)].arms[size_t(used)];
  arm.rates[arm.recorded % kRecent] = double(length) / double(std::max<uint64_t>(nanoseconds, 1));
  // Stays above kTrials when it wraps.
  arm.recorded = arm.recorded + 1 == 0 ? kRecent : arm.recorded + 1;
}

}  // namespace erdma::transport::shm
