#include "hmem/copy.h"

#include <vector>

#include "libcheck.h"

using erdma::hmem::copy_short;

START_TEST(short_copy_writes_every_byte_and_none_beyond) {
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
END_TEST

int main() {
  Suite* suite = suite_create("copy");
  TCase* tc = tcase_create("copy");
  tcase_add_test(tc, short_copy_writes_every_byte_and_none_beyond);
  suite_add_tcase(suite, tc);
  SRunner* runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  const int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? 1 : 0;
}
