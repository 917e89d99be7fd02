#include "hmem/copy.h"

#include <algorithm>
#include <vector>

#include "libcheck.h"

using erdma::hmem::copy_loop;
using erdma::hmem::copy_payload;
using erdma::hmem::copy_short;
using erdma::hmem::copy_string;

TEST(short_copy_writes_every_byte_and_none_beyond) {
  constexpr size_t kMargin = 40;
  constexpr std::byte kUntouched{0xa5};
  for (size_t length = 0; length <= 100; ++length) {
    std::vector<std::byte> from(length);
    for (size_t i = 0; i < length; ++i) from[i] = std::byte(i + 1);
    std::vector<std::byte> to(kMargin + length + kMargin, kUntouched);
    copy_short(to.data() + kMargin, from.data(), length);
    for (size_t i = 0; i < to.size(); ++i) {
      const bool inside = i >= kMargin && i < kMargin + length;
      ck_assert_int_eq(int(to[i]), int(inside ? from[i - kMargin] : kUntouched));
    }
  }
}

/// Uses lengths around the bounds of each way of copying, and each offset within a cache line.
TEST(payload_copy_writes_every_byte_and_none_beyond, 3) {
  constexpr decltype(&copy_payload) copies[] = {copy_payload, copy_loop, copy_string};
  constexpr size_t kMargin = 64, kMost = (size_t{1} << 20) + 1;
  std::vector<std::byte> from(kMost + kMargin), to(kMost + 3 * kMargin);
  for (size_t i = 0; i < from.size(); ++i) from[i] = std::byte(i * 31 + i / 251);
  for (const size_t length : {size_t(0), size_t(33), size_t(2047), size_t(2048), size_t(2111),
                              size_t(4096), size_t(4097), size_t(16384), kMost - 1, kMost})
    for (size_t place = 0; place<kMargin; place += length> 20'000 ? 21 : 1) {
      const size_t begin = kMargin + place;
      std::fill(to.begin(), to.end(), std::byte(0xee));
      copies[_i](to.data() + begin, from.data() + place / 2, length);
      ck_assert_mem_eq(to.data() + begin, from.data() + place / 2, length);
      for (size_t i = begin - kMargin; i < begin; ++i) ck_assert(to[i] == std::byte(0xee));
      for (size_t i = 0; i < kMargin; ++i) ck_assert(to[begin + length + i] == std::byte(0xee));
    }
}
