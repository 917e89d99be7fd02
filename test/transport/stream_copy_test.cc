#include "transport/shm/stream_copy.h"

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <vector>

#include "libcheck.h"

namespace erdma::transport::shm {
namespace {

constexpr size_t kLengths[] = {0, 1, 15, 16, 63, 64, 255, 256, 257, 319, 4096, 32768, 32769};

START_TEST(stream_copy_is_exact_at_every_alignment) {
  const size_t length = kLengths[_i];
  std::vector<unsigned char> from(length + 128), to(length + 192);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i * 7 + 3);
  for (size_t source = 0; source < 64; source += 7) {
    for (size_t target = 64; target < 128; target += 3) {
      std::memset(to.data(), 0xEE, to.size());
      stream_copy(to.data() + target, from.data() + source, length);
      ck_assert_int_eq(std::memcmp(to.data() + target, from.data() + source, length), 0);
      ck_assert_int_eq(to[target - 1], 0xEE);
      ck_assert_int_eq(to[target + length], 0xEE);
    }
  }
}
END_TEST

constexpr size_t kSmallLength = 64 * 1024;
constexpr size_t kLargeLength = 64 * 1024 * 1024;

/// Runs transfers whose rate is given per way, and tells what was chosen last.
Streaming settle(StreamingChoice& choice, size_t length, const uint64_t (&nanoseconds)[3],
                 unsigned transfers) {
  Streaming last = Streaming::none;
  for (unsigned i = 0; i < transfers; ++i) {
    last = choice.choose(length);
    choice.record(length, last, nanoseconds[size_t(last)]);
  }
  return last;
}

struct SettleCase {
  size_t length;
  uint64_t nanoseconds[3];
  Streaming expect;
};
constexpr SettleCase kSettleCases[] = {
    {kSmallLength, {100, 200, 300}, Streaming::none},
    {kSmallLength, {200, 100, 300}, Streaming::in},
    {kSmallLength, {200, 100, 1}, Streaming::in},  // both is for large transfers only
    {kLargeLength, {100, 200, 300}, Streaming::none},
    {kLargeLength, {200, 100, 300}, Streaming::in},
    {kLargeLength, {300, 200, 100}, Streaming::both},
};

START_TEST(choice_settles_on_the_fastest_way) {
  const SettleCase& c = kSettleCases[_i];
  StreamingChoice choice(StreamingPolicy::calibrate);
  ck_assert_int_eq(int(settle(choice, c.length, c.nanoseconds, 20)), int(c.expect));
}
END_TEST

START_TEST(choice_tries_each_way_twice_first) {
  StreamingChoice choice(StreamingPolicy::calibrate);
  unsigned tried[3] = {};
  for (unsigned i = 0; i < 6; ++i) {
    const Streaming way = choice.choose(kLargeLength);
    ++tried[size_t(way)];
    choice.record(kLargeLength, way, 100);
  }
  for (unsigned count : tried) ck_assert_uint_eq(count, 2);
}
END_TEST

START_TEST(choice_follows_when_another_way_becomes_faster) {
  StreamingChoice choice(StreamingPolicy::calibrate);
  ck_assert_int_eq(int(settle(choice, kSmallLength, {100, 200, 0}, 10)), int(Streaming::none));
  const Streaming later = settle(choice, kSmallLength, {100, 50, 0}, StreamingChoice::kRetryEvery);
  ck_assert_int_eq(int(later), int(Streaming::in));
}
END_TEST

START_TEST(choice_forgives_one_slow_transfer) {
  StreamingChoice choice(StreamingPolicy::calibrate);
  settle(choice, kSmallLength, {100, 200, 0}, 10);
  choice.record(kSmallLength, Streaming::none, 1'000'000);
  ck_assert_int_eq(int(choice.choose(kSmallLength)), int(Streaming::none));
}
END_TEST

START_TEST(choice_keeps_size_classes_apart) {
  StreamingChoice choice(StreamingPolicy::calibrate);
  settle(choice, kSmallLength, {100, 200, 0}, 10);
  ck_assert_int_eq(int(settle(choice, kLargeLength, {300, 100, 200}, 10)), int(Streaming::in));
  ck_assert_int_eq(int(choice.choose(kSmallLength)), int(Streaming::none));
}
END_TEST

START_TEST(choice_obeys_a_fixed_policy) {
  StreamingChoice never(StreamingPolicy::never);
  StreamingChoice always(StreamingPolicy::always);
  for (unsigned i = 0; i < 600; ++i) {
    ck_assert_int_eq(int(never.choose(kLargeLength)), int(Streaming::none));
    ck_assert_int_eq(int(always.choose(kLargeLength)), int(Streaming::both));
    ck_assert_int_eq(int(always.choose(kSmallLength)), int(Streaming::in));
    never.record(kLargeLength, Streaming::none, 1000);
    always.record(kSmallLength, Streaming::none, 1);
  }
}
END_TEST

Suite* suite() {
  Suite* suite = suite_create("stream_copy");
  TCase* tc = tcase_create("stream_copy");
  tcase_add_loop_test(tc, stream_copy_is_exact_at_every_alignment, 0, int(std::size(kLengths)));
  tcase_add_loop_test(tc, choice_settles_on_the_fastest_way, 0, int(std::size(kSettleCases)));
  tcase_add_test(tc, choice_tries_each_way_twice_first);
  tcase_add_test(tc, choice_follows_when_another_way_becomes_faster);
  tcase_add_test(tc, choice_forgives_one_slow_transfer);
  tcase_add_test(tc, choice_keeps_size_classes_apart);
  tcase_add_test(tc, choice_obeys_a_fixed_policy);
  suite_add_tcase(suite, tc);
  return suite;
}

}  // namespace
}  // namespace erdma::transport::shm

int main() {
  SRunner* runner = srunner_create(erdma::transport::shm::suite());
  srunner_run_all(runner, CK_ENV);
  const int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? 1 : 0;
}
