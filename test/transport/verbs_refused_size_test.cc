// Tests what happens after the device refused to register memory: it is not asked for each
// transfer, and zero copy comes back if the cause passes.
#include "fake/captured_log.h"
#include "libcheck.h"
#include "transport/verbs/refused_size.h"
#include "transport/verbs_registration_rig.h"
#include "watched_memory.h"

namespace {

using namespace erdma::test;
using erdma::transport::verbs::RefusedSize;
using erdma::transport::verbs::Registration;

constexpr uint64_t kPause = RefusedSize::kFirstPause;

/// Returns how many of these uses asked the device, which refused each time.
unsigned asked(RefusedSize& refused, size_t bytes, uint64_t uses) {
  unsigned result = 0;
  for (uint64_t i = 0; i < uses; ++i) {
    if (refused.refuses(bytes)) continue;
    ++result;
    refused.failed(bytes, true);
  }
  return result;
}

/// Returns the number of uses until one may ask, at most `most`.
uint64_t uses_until_one_asks(RefusedSize& refused, size_t bytes, uint64_t most = 1'000'000) {
  uint64_t result = 1;
  while (result < most && refused.refuses(bytes)) ++result;
  return result;
}

TEST(what_was_never_refused_is_asked_for) {
  RefusedSize refused;
  ck_assert(!refused.refuses(4096));
  ck_assert(!refused.made(4096));
}

TEST(each_pause_is_twice_as_long_as_the_one_before) {
  RefusedSize refused;
  refused.failed(100, true);
  for (const uint64_t pause : {kPause, 2 * kPause, 4 * kPause, 8 * kPause}) {
    ck_assert_uint_eq(uses_until_one_asks(refused, 100), pause + 1);
    refused.failed(100, true);
  }
}

TEST(a_device_that_refuses_for_good_is_asked_few_times) {
  RefusedSize refused;
  ck_assert_uint_eq(asked(refused, 100, 1'000'000), 16);  // log2(1'000'000 / 16) + 1, rounded down
}

/// While other regions are in use, the end of one of them may help at once.
TEST(what_is_refused_beside_others_may_be_asked_for_again_at_once) {
  RefusedSize refused;
  refused.failed(100, false);
  ck_assert(!refused.refuses(100));
}

/// The attempt after a pause counts as one, whatever else is registered by then.
TEST(a_failed_attempt_beside_others_lengthens_the_pause) {
  RefusedSize refused;
  refused.failed(100, true);
  ck_assert_uint_eq(uses_until_one_asks(refused, 100), kPause + 1);
  refused.failed(100, false);
  ck_assert_uint_eq(uses_until_one_asks(refused, 100), 2 * kPause + 1);
}

TEST(shorter_memory_is_asked_for_and_longer_memory_is_not) {
  RefusedSize refused;
  refused.failed(100, true);
  ck_assert(!refused.refuses(99));
  ck_assert(!refused.made(99));
  ck_assert(refused.refuses(101));
  ck_assert(refused.refuses(100));
}

TEST(a_shorter_size_that_is_refused_takes_the_place_of_a_longer_one) {
  RefusedSize refused;
  refused.failed(100, true);
  refused.failed(50, true);
  ck_assert(refused.refuses(50));
  ck_assert(!refused.refuses(49));
}

TEST(a_success_ends_the_refusal) {
  RefusedSize refused;
  ck_assert_uint_eq(asked(refused, 100, 10 * kPause), 4);
  ck_assert(refused.made(100));
  ck_assert(!refused.refuses(100));
  refused.failed(100, true);
  ck_assert_uint_eq(uses_until_one_asks(refused, 100), kPause + 1);
}

/// Uses of both sizes take turns, and the device still refuses the longer one. The shorter one must
/// not wait for ever because the longer one asks at each end of a pause.
TEST(a_size_that_is_refused_for_good_does_not_keep_a_shorter_one_out, 2) {
  RefusedSize refused;
  refused.failed(100, true);
  refused.failed(1000, true);
  for (uint64_t use = 0; use < 8 * kPause; ++use) {
    const size_t bytes = (use + uint64_t(_i)) % 2 ? 100 : 1000;
    if (refused.refuses(bytes)) continue;
    if (bytes == 100) return ck_assert(refused.made(100));
    refused.failed(1000, true);
  }
  ck_abort_msg("the shorter size was never asked for");
}

/// The size that was refused first is not used any more.
TEST(a_longer_size_asks_where_no_use_has_the_refused_one) {
  RefusedSize refused;
  refused.failed(100, true);
  ck_assert_uint_eq(uses_until_one_asks(refused, 1000), 2 * kPause + 1);
  refused.failed(1000, true);
  ck_assert(!refused.refuses(500));  // the device was never asked for this size
  ck_assert(refused.made(500));
  ck_assert(!refused.refuses(1000));
}

TEST(two_sizes_that_are_refused_for_good_are_asked_for_few_times) {
  RefusedSize refused;
  unsigned result = 0;
  for (int turn = 0; turn < 1000; ++turn)
    for (const size_t bytes : {100, 1000}) result += asked(refused, bytes, 100);
  ck_assert_uint_le(result, 40);
}

// --- of the caches

struct Refusing : Rig {
  Refusing() {
    if (g_single_uses) (void)key(0, 1);  // the first use tells that zero copy is limited
    g_log.clear();
    log.asked = 0;
  }
  /// Uses memory until it is registered. Returns the number of uses that were not.
  unsigned uses_refused(size_t page, size_t count, unsigned most) {
    Registration use;
    for (unsigned refused = 0; refused < most; ++refused) {
      const int rc = acquire(page, count, use);
      if (!rc) return cache->release(use), refused;
      ck_assert_int_eq(rc, -FI_ENOMEM);
    }
    return most;
  }
};

/// Chooses WatchedCache, or SingleUses. False: the former does not work here.
bool chosen(int which) {
  g_single_uses = which == 1;
  return g_single_uses || can_watch_memory();
}

TEST(zero_copy_comes_back_when_the_device_has_room_again, 2) {
  if (!chosen(_i)) return;
  Refusing rig;
  rig.log.room = 0;
  ck_assert_uint_eq(rig.uses_refused(0, 4, 100), 100);
  ck_assert(contains(only_log_line(), "could not be registered"));
  rig.log.room = SIZE_MAX;
  ck_assert_uint_le(rig.uses_refused(0, 4, 1000), 100);
  ck_assert(contains(only_log_line(), "can be registered again"));
  ck_assert_uint_eq(rig.uses_refused(8, 4, 1), 0);
  ck_assert(only_log_line().empty());
}

TEST(a_size_that_is_refused_for_good_is_asked_for_few_times, 2) {
  if (!chosen(_i)) return;
  Refusing rig;
  rig.log.room = Arena::bytes(3);
  ck_assert_uint_eq(rig.uses_refused(0, 4, 100'000), 100'000);
  ck_assert_uint_le(rig.log.asked, 13);  // log2(100'000 / 16) + 1
  ck_assert_uint_eq(rig.uses_refused(0, 3, 1), 0);
}

/// Regions that were made since then would have to go for each attempt.
TEST(a_size_that_is_asked_for_again_does_not_empty_the_cache_again) {
  if (!chosen(0)) return;
  Refusing rig;
  rig.log.room = Arena::bytes(8);
  ck_assert_uint_eq(rig.uses_refused(0, 10, 1), 1);
  const uint32_t kept = rig.key(20, 4);
  ck_assert_uint_eq(rig.uses_refused(0, 10, 10'000), 10'000);
  ck_assert_uint_ge(rig.log.asked, 5);
  ck_assert_uint_eq(rig.key(20, 4), kept);
}

TEST(a_refusal_after_a_success_is_told_of_again, 2) {
  if (!chosen(_i)) return;
  Refusing rig;
  for (int twice = 0; twice < 2; ++twice) {
    rig.log.refuse = ENOMEM;
    ck_assert_uint_eq(rig.uses_refused(size_t(twice) * 8, 4, 2), 2);
    ck_assert(contains(only_log_line(), "could not be registered"));
    rig.log.refuse = 0;
    ck_assert_uint_le(rig.uses_refused(size_t(twice) * 8, 4, 100), kPause);
    ck_assert(contains(only_log_line(), "can be registered again"));
  }
}

}  // namespace
