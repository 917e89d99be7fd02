#include "hmem/copy.h"

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>

#include "hmem/copy_choice.h"
#include "util/clock.h"
#endif

namespace erdma::hmem {

#ifdef __x86_64__
namespace {

/// The C library copies less by vectors, and more in a way that spares the cache.
constexpr size_t kLoopLeast = 2048, kLoopMost = size_t{1} << 20;
/// Shorter payloads of kLoopLeast and more are copied by the loop: string copies, which memcpy()
/// may use as well, do not leave them in the first cache, where the application wants them.
constexpr size_t kStringLeast = 4097;

// Each function copies whole lines to an aligned address.
void copy_lines_sse2(std::byte* to, const std::byte* from, size_t lines) noexcept {
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

__attribute__((target("avx2"))) void copy_lines_avx2(std::byte* to, const std::byte* from,
                                                     size_t lines) noexcept {
  for (; lines > 0; --lines, to += kCacheLine, from += kCacheLine) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32));
    _mm256_store_si256(reinterpret_cast<__m256i*>(to), a);
    _mm256_store_si256(reinterpret_cast<__m256i*>(to + 32), b);
  }
}

__attribute__((target("avx512f"))) void copy_lines_avx512(std::byte* to, const std::byte* from,
                                                          size_t lines) noexcept {
  for (; lines > 0; --lines, to += kCacheLine, from += kCacheLine)
    _mm512_store_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
}

/// Vectors of a whole line read 4 KiB from a near core a sixth faster on Zen 4. Those of half a
/// line gain little there, but half a round trip takes a seventh less on Zen 3, which has no longer
/// ones. Intel's processors before Ice Lake, which lack VBMI2, may run slower while they use whole
/// lines.
using CopyLines = void (*)(std::byte*, const std::byte*, size_t) noexcept;
CopyLines best_copy_lines() noexcept {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512vbmi2")) return copy_lines_avx512;
  return __builtin_cpu_supports("avx2") ? copy_lines_avx2 : copy_lines_sse2;
}
const CopyLines g_copy_lines = best_copy_lines();

/// Enhanced REP MOVSB (Intel SDM, CPUID leaf 7). Without it, string copies move bytes one by one.
bool has_fast_strings() noexcept {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && ebx >> 9 & 1;
}

const bool g_fast_strings = has_fast_strings();
constinit thread_local CopyChoice t_choice;

void copy_by(CopyMethod method, void* to, const void* from, size_t length) noexcept {
  if (method == CopyMethod::string)
    copy_string(to, from, length);
  else if (method == CopyMethod::library)
    std::memcpy(to, from, length);
  else
    copy_loop(to, from, length);
}

}  // namespace

bool string_copies_possible() noexcept {
  return g_fast_strings;
}

void copy_string(void* to, const void* from, size_t length) noexcept {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  std::memcpy(to, from, length);  // sanitizers do not look into asm
#else
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(length) : : "memory");
#endif
}

void copy_loop(void* to, const void* from, size_t length) noexcept {
  if (length < kLoopLeast || length > kLoopMost)
    std::memcpy(to, from, length);
  else
    copy_by_lines(to, from, length, g_copy_lines);
}

void copy_payload(void* to, const void* from, size_t length) noexcept {
  if (length < kStringLeast || length > kLoopMost) return copy_loop(to, from, length);
  const CopyChoice::Choice choice = t_choice.choose(length, {g_fast_strings, false});
  if (!choice.timed) [[likely]]
    return copy_by(choice.method, to, from, length);
  const util::SystemClock clock;
  const uint64_t start = clock.now();
  copy_by(choice.method, to, from, length);
  t_choice.record(length, choice.method, clock.now() - start);
}
#else
bool string_copies_possible() noexcept {
  return false;
}

void copy_string(void* to, const void* from, size_t length) noexcept {
  std::memcpy(to, from, length);
}

void copy_loop(void* to, const void* from, size_t length) noexcept {
  std::memcpy(to, from, length);
}

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
