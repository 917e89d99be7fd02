#include "libcheck.h"
#include "transport/verbs/quarantines.h"

namespace erdma::transport::verbs {
namespace {

constexpr uint64_t kTick = 100;

/// As many looks at the clock, each a tick after the one before.
uint64_t let_pass(Quarantines& quarantines, uint64_t now, int ticks) {
  for (int i = 0; i < ticks; ++i) quarantines.age(now += kTick);
  return now;
}

START_TEST(a_range_is_let_go_after_ten_ticks_and_not_before) {
  Quarantines quarantines(kTick);
  ck_assert(quarantines.empty());
  ck_assert(quarantines.add({100, 200}, 0));
  ck_assert(quarantines.overlap({199, 300}));
  ck_assert(!quarantines.overlap({200, 300}));
  const uint64_t now = let_pass(quarantines, 0, 10);
  ck_assert(quarantines.overlap({100, 101}));
  quarantines.age(now + kTick - 1);  // not a tick yet
  ck_assert(quarantines.overlap({100, 101}));
  quarantines.age(now + kTick);
  ck_assert(quarantines.empty());
}
END_TEST

START_TEST(a_process_that_was_stopped_has_had_one_tick) {
  Quarantines quarantines(kTick);
  ck_assert(quarantines.add({100, 200}, 0));
  quarantines.age(1000 * kTick);
  ck_assert(quarantines.overlap({100, 200}));
}
END_TEST

START_TEST(a_range_that_changes_again_starts_anew) {
  Quarantines quarantines(kTick);
  ck_assert(quarantines.add({100, 200}, 0));
  uint64_t now = let_pass(quarantines, 0, 9);
  ck_assert(!quarantines.add({120, 180}, now));  // within: the whole of it
  now = let_pass(quarantines, now, 10);
  ck_assert(quarantines.overlap({100, 110}));
  let_pass(quarantines, now, 1);
  ck_assert(quarantines.empty());
}
END_TEST

START_TEST(more_than_can_be_kept_put_all_memory_under_quarantine) {
  Quarantines quarantines(kTick);
  for (uintptr_t i = 0; i < 1000; ++i)
    ck_assert_int_eq(quarantines.add({1000 * i, 1000 * i + 10}, 0), i == 0);
  ck_assert(quarantines.overlap({999, 1000}));
  ck_assert(quarantines.overlap({UINTPTR_MAX - 1, UINTPTR_MAX}));
  let_pass(quarantines, 0, 11);
  ck_assert(quarantines.empty());
}
END_TEST

Suite* suite() {
  Suite* suite = suite_create("quarantines");
  TCase* tc = tcase_create("quarantines");
  tcase_add_test(tc, a_range_is_let_go_after_ten_ticks_and_not_before);
  tcase_add_test(tc, a_process_that_was_stopped_has_had_one_tick);
  tcase_add_test(tc, a_range_that_changes_again_starts_anew);
  tcase_add_test(tc, more_than_can_be_kept_put_all_memory_under_quarantine);
  suite_add_tcase(suite, tc);
  return suite;
}

}  // namespace
}  // namespace erdma::transport::verbs

int main() {
  SRunner* runner = srunner_create(erdma::transport::verbs::suite());
  srunner_run_all(runner, CK_NORMAL);
  const int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? 1 : 0;
}
