#include "libcheck.h"
#include "transport/verbs/quarantines.h"

namespace erdma::transport::verbs {
namespace {

constexpr uint64_t kTick = 100;

/// Calls age() once per tick for this many ticks.
uint64_t let_pass(Quarantines& quarantines, uint64_t now, int ticks) {
  for (int i = 0; i < ticks; ++i) quarantines.age(now += kTick);
  return now;
}

TEST(a_range_is_let_go_after_ten_ticks_and_not_before) {
  Quarantines quarantines(kTick);
  ck_assert(quarantines.empty());
  ck_assert(quarantines.add({100, 200}, 0));
  ck_assert(quarantines.overlap({199, 300}));
  ck_assert(!quarantines.overlap({200, 300}));
  const uint64_t now = let_pass(quarantines, 0, 10);
  ck_assert(quarantines.overlap({100, 101}));
  quarantines.age(now + kTick - 1);  // a full tick has not passed yet
  ck_assert(quarantines.overlap({100, 101}));
  quarantines.age(now + kTick);
  ck_assert(quarantines.empty());
}

TEST(a_process_that_was_stopped_has_had_one_tick) {
  Quarantines quarantines(kTick);
  ck_assert(quarantines.add({100, 200}, 0));
  quarantines.age(1000 * kTick);
  ck_assert(quarantines.overlap({100, 200}));
}

TEST(a_range_that_changes_again_starts_anew) {
  Quarantines quarantines(kTick);
  ck_assert(quarantines.add({100, 200}, 0));
  uint64_t now = let_pass(quarantines, 0, 9);
  ck_assert(!quarantines.add({120, 180}, now));  // lies within: restarts the whole range
  now = let_pass(quarantines, now, 10);
  ck_assert(quarantines.overlap({100, 110}));
  let_pass(quarantines, now, 1);
  ck_assert(quarantines.empty());
}

TEST(as_many_as_can_be_kept_are_kept_apart) {
  constexpr uintptr_t kMost = 64;
  Quarantines quarantines(kTick);
  for (uintptr_t i = 1; i <= kMost; ++i)
    ck_assert_int_eq(quarantines.add({1000 * i, 1000 * i + 10}, 0), i == 1);
  ck_assert(quarantines.overlap({1000 * kMost, 1000 * kMost + 1}));
  ck_assert(!quarantines.overlap({999, 1000}));
  ck_assert(!quarantines.add({10, 20}, 0));
  ck_assert(quarantines.overlap({999, 1000}));
}

TEST(more_than_can_be_kept_put_all_memory_under_quarantine) {
  Quarantines quarantines(kTick);
  for (uintptr_t i = 0; i < 1000; ++i)
    ck_assert_int_eq(quarantines.add({1000 * i, 1000 * i + 10}, 0), i == 0);
  ck_assert(quarantines.overlap({999, 1000}));
  ck_assert(quarantines.overlap({UINTPTR_MAX - 1, UINTPTR_MAX}));
  let_pass(quarantines, 0, 11);
  ck_assert(quarantines.empty());
}

}  // namespace

}  // namespace erdma::transport::verbs
