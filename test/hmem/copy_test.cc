#include "hmem/copy.h"

#include <vector>

#include "libcheck.h"

using erdma::hmem::copy_short;

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
