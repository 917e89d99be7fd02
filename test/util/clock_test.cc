#include "util/clock.h"

#include "libcheck.h"

namespace erdma::util {
namespace {

// Of the two intervals that are compared, one encloses the other, so no delay of this thread
// matters.
TEST(the_clock_of_the_processor_is_right_within_a_factor_of_three) {
  const SystemClock system;
  const CycleClock cycles;
  const uint64_t before = system.now(), first = cycles.now(), begin = system.now();
  while (system.now() < begin + 20 * kMillisecond) continue;
  const uint64_t end = system.now(), last = cycles.now(), after = system.now();
  ck_assert_uint_ge(last - first, (end - begin) / 3);
  ck_assert_uint_le(last - first, (after - before) * 3);
}

}  // namespace
}  // namespace erdma::util
