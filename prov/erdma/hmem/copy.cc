#include "hmem/copy.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace erdma::hmem {

#ifdef __x86_64__
namespace {

/// The C library copies less by vectors, and more in a way that spares the cache.
constexpr size_t kLoopLeast = 2048, kLoopMost = size_t{1} << 20;

/// Wider vectors than those of every x86-64 gain nothing: the lines come from another core.
void copy_lines(std::byte* to, const std::byte* from, size_t lines) noexcept {
  for (; lines > 0; --lines, to += kCacheLine, from += kCacheLine) {
    const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16));
    const __m128i c = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 32));
    const __m128i d = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 48));
    _mm_store_si128(reinterpret_cast<__m128i*>(to), a);
    _mm_store_si128(reinterpret_cast<__m128i*>(to + 16), b);
    _mm_store_si128(reinterpret_cast<__m128i*>(to + 32), c);
    _mm_store_si128(reinterpret_cast<__m128i*>(to + 48), d);
  }
}

}  // namespace

void copy_payload(void* to, const void* from, size_t length) noexcept {
  if (length < kLoopLeast || length > kLoopMost) {
    std::memcpy(to, from, length);
    return;
  }
  copy_by_lines(to, from, length, copy_lines);
}
#else
void copy_payload(void* to, const void* from, size_t length) noexcept {
  std::memcpy(to, from, length);
}
#endif

size_t total_length(const iovec* iov, size_t count) noexcept {
  size_t total = 0;
  for (size_t i = 0; i < count; ++i)
    if (__builtin_add_overflow(total, iov[i].iov_len, &total)) return SIZE_MAX;
  return total;
}

size_t gather(void* to, const iovec* iov, size_t count, size_t offset, size_t length) noexcept {
  return for_each_part(iov, count, offset, length,
                       [to](std::byte* part, size_t done, size_t bytes) {
                         copy_payload(static_cast<std::byte*>(to) + done, part, bytes);
                       });
}

size_t scatter(const iovec* iov, size_t count, size_t offset, const void* from,
               size_t length) noexcept {
  return for_each_part(iov, count, offset, length,
                       [from](std::byte* part, size_t done, size_t bytes) {
                         copy_payload(part, static_cast<const std::byte*>(from) + done, bytes);
                       });
}

size_t slice(const iovec* iov, size_t count, size_t offset, size_t length, iovec* out) noexcept {
  size_t used = 0;
  for_each_part(iov, count, offset, length, [&](std::byte* part, size_t, size_t bytes) {
    out[used++] = {part, bytes};
  });
  return used;
}

}  // namespace erdma::hmem
