#include "transport/shm/stream_copy.h"

#include "hmem/copy.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace erdma::transport::shm {
namespace {

#ifdef __x86_64__

using hmem::kCacheLine;
constexpr size_t kWorthwhile = 256;  // below this the fence costs more than the cache

// Each function copies whole lines to an aligned address.
void stream_lines_sse2(std::byte* to, const std::byte* from, size_t lines) noexcept {
  for (; lines > 0; --lines, to += kCacheLine, from += kCacheLine) {
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
  for (; lines > 0; --lines, to += kCacheLine, from += kCacheLine) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), a);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + 32), b);
  }
}

__attribute__((target("avx512f"))) void stream_lines_avx512(std::byte* to, const std::byte* from,
                                                            size_t lines) noexcept {
  for (; lines > 0; --lines, to += kCacheLine, from += kCacheLine)
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
  hmem::copy_payload(to, from, length);
}

void stream_copy(void* to, const void* from, size_t length) noexcept {
#ifdef __x86_64__
  static const StreamLines stream_lines = best_stream_lines();
  if (length < kWorthwhile) return plain_copy(to, from, length);
  hmem::copy_by_lines(to, from, length, stream_lines);
  _mm_sfence();
#else
  plain_copy(to, from, length);
#endif
}

}  // namespace erdma::transport::shm
