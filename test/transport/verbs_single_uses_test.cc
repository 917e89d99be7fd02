// Tests memory that cannot be watched, which is registered for one use at a time: no stale region
// is found, no region stays behind, and users are told why their job runs slower.
#include <sys/wait.h>

#include "fake/captured_log.h"
#include "fake/captured_stderr.h"
#include "transport/verbs_registration_rig.h"
#include "transport/verbs_stale_memory.h"
#include "util/notice.h"

namespace {

using namespace erdma::test;
using erdma::transport::verbs::Registration;
using erdma::transport::verbs::SingleUses;

void use_singly() {
  g_single_uses = true;
}

SET_UPS("stale memory", use_singly);

TEST_CASE(.set_up = use_singly);

TEST(what_is_given_back_is_deregistered) {
  Rig rig;
  Registration use;
  ck_assert_int_eq(rig.acquire(0, 4, use), 0);
  ck_assert_uint_eq(rig.log.count(), 1);
  ck_assert_uint_eq(use.lkey, region_of(use).lkey);
  ck_assert_uint_eq(use.rkey, region_of(use).rkey);
  rig.cache->release(use);
  ck_assert_uint_eq(rig.log.count(), 0);
}

/// While the second use lasts, pages that only the first one covers may change.
TEST(a_use_under_way_shares_its_region_with_no_other) {
  Rig rig;
  Registration first, second, third;
  ck_assert_int_eq(rig.acquire(0, 8, first), 0);
  ck_assert_int_eq(rig.acquire(4, 4, second), 0);
  ck_assert_uint_ne(first.lkey, second.lkey);
  rig.cache->release(first);
  rig.arena.map(0, 4);
  ck_assert_int_eq(rig.acquire(0, 8, third), 0);
  for (size_t i = 0; i < 8; ++i)
    ck_assert_uint_eq(region_of(third).numbers[i], rig.arena.number(i));
  rig.cache->release(second);
  rig.cache->release(third);
}

/// A registration lasts only as long as its use, so memory of any kind can be registered.
TEST(shared_memory_is_registered_as_well) {
  RegionLog log;
  auto cache = make_any_cache(log);
  void* memory =
      mmap(nullptr, Arena::bytes(4), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  Registration use;
  ck_assert_int_eq(cache->acquire(memory, Arena::bytes(4), 0, use), 0);
  cache->release(use);
  munmap(memory, Arena::bytes(4));
}

TEST(what_are_no_bytes_or_no_rights_is_refused) {
  Rig rig;
  Registration use;
  ck_assert_int_eq(rig.cache->acquire(rig.arena.at(0), 0, 0, use), -FI_EINVAL);
  ck_assert_int_eq(rig.cache->acquire(reinterpret_cast<void*>(UINTPTR_MAX - 10), 5, 0, use),
                   -FI_EINVAL);
  ck_assert_int_eq(rig.acquire(0, 1, use, IBV_ACCESS_REMOTE_ATOMIC), -FI_EINVAL);
  ck_assert_uint_eq(rig.log.made, 0);
}

TEST(a_child_registers_nothing_and_leaves_its_parents_alone) {
  Rig rig;
  Registration use, none;
  ck_assert_int_eq(rig.acquire(0, 4, use), 0);
  const pid_t child = fork();
  if (child == 0) {
    rig.cache->release(use);
    const int rc = rig.acquire(0, 4, none);
    rig.cache.reset();
    _exit(rc == -FI_EOPNOTSUPP && rig.log.count() == 1 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  ck_assert_int_eq(status, 0);
  rig.cache->release(use);
  ck_assert_uint_eq(rig.log.count(), 0);
}

// --- limits

struct Limited {
  explicit Limited(const SingleUses::Limits& limits)
      : arena(64), cache(std::make_unique<TestRegions>(log), limits, "a cause, and its remedy") {
    arena.map(0, 64);
    log.arena = &arena;
  }
  int acquire(size_t page, size_t count, Registration& use) {
    return cache.acquire(arena.at(page), Arena::bytes(count), 0, use);
  }
  Arena arena;
  RegionLog log;
  SingleUses cache;
};

constexpr SingleUses::Limits kAnyLength = {.least_bytes = 1};

TEST(as_much_is_registered_as_the_limits_permit, 2) {
  SingleUses::Limits limits = kAnyLength;
  limits.max_bytes = Arena::bytes(4);
  limits.max_regions = 2;
  Limited rig(limits);
  Registration first, second, third;
  ck_assert_int_eq(rig.acquire(0, _i ? 1 : 3, first), 0);
  ck_assert_int_eq(rig.acquire(3, 1, second), 0);
  ck_assert_int_eq(rig.acquire(8, 1, third), -FI_ENOMEM);
  rig.cache.release(first);
  ck_assert_int_eq(rig.acquire(8, 1, third), 0);
  rig.cache.release(second);
  rig.cache.release(third);
}

TEST(what_is_too_long_is_refused_and_told_of_once, 2) {
  SingleUses::Limits limits = kAnyLength;
  (_i ? limits.max_bytes : limits.max_region_bytes) = Arena::bytes(4);
  Limited rig(limits);
  Registration use;
  ck_assert_int_eq(rig.acquire(0, 4, use), 0);
  rig.cache.release(use);
  g_log.clear();
  for (int twice = 0; twice < 2; ++twice) ck_assert_int_eq(rig.acquire(0, 5, use), -FI_EOPNOTSUPP);
  ck_assert(contains(only_log_line(), _i ? "limit of locked memory" : "registers at once"));
}

constexpr SingleUses::Limits kLater = {.least_bytes = 1, .later = true};

TEST(what_nobody_uses_is_deregistered_by_itself_and_found_by_no_other_use) {
  Limited rig(kLater);
  Registration first, second;
  ck_assert_int_eq(rig.acquire(0, 4, first), 0);
  rig.cache.release(first);
  ck_assert_int_eq(rig.acquire(0, 4, second), 0);
  ck_assert_uint_eq(rig.log.made, 2);
  while (rig.log.count() > 1) sched_yield();  // the time limit of the suite ends the loop
  rig.cache.release(second);
  while (rig.log.count() > 0) sched_yield();
}

/// The thread gathers regions only while there is room for more. Rows: regions, bytes.
TEST(what_waits_to_be_deregistered_waits_less_where_room_is_short, 2) {
  SingleUses::Limits limits = kLater;
  limits.gather_ms = 3'600'000;
  if (_i == 0) limits.max_regions = 8;
  if (_i == 1) limits.max_bytes = Arena::bytes(32);
  Limited rig(limits);
  for (int twice = 0; twice < 2; ++twice) {
    for (int times = 0; times < 5; ++times) {
      Registration use;
      ck_assert_int_eq(rig.acquire(0, 4, use), 0);
      rig.cache.release(use);
    }
    ck_assert_uint_eq(rig.log.made, 5u * unsigned(twice + 1));
    while (rig.log.count() > 0) sched_yield();
  }
}

/// A region that waits to be deregistered is destroyed at once if a limit on bytes or regions, or
/// the room of the device, is reached.
TEST(what_waits_to_be_deregistered_takes_nobodys_room, 3) {
  SingleUses::Limits limits = kLater;
  if (_i == 0) limits.max_bytes = Arena::bytes(4);
  if (_i == 1) limits.max_regions = 1;
  Limited rig(limits);
  if (_i == 2) rig.log.room = Arena::bytes(4);
  for (int times = 0; times < 100; ++times) {
    Registration use;
    ck_assert_int_eq(rig.acquire(0, 4, use), 0);
    rig.cache.release(use);
  }
  ck_assert_uint_eq(rig.log.made, 100);
}

/// The thread may be in any state when the child is forked. The child has copies of the list and of
/// the rig's log as they were then.
TEST(a_child_leaves_alone_what_waits_to_be_deregistered) {
  RegionLog log;
  Arena arena(4);
  arena.map(0, 4);
  auto cache = std::make_unique<SingleUses>(std::make_unique<TestRegions>(log), kLater, "a cause");
  Registration use;
  ck_assert_int_eq(cache->acquire(arena.at(0), Arena::bytes(4), 0, use), 0);
  cache->release(use);
  const pid_t child = fork();
  if (child == 0) {
    cache.reset();
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  ck_assert_int_eq(status, 0);
}

/// The thread deregisters after a while, but a fork does so at once.
TEST(a_child_has_what_waits_to_be_deregistered_where_registered_memory_is_kept_from_it) {
  SingleUses::Limits limits = kLater;
  limits.kept_from_children = true;
  Limited rig(limits);
  Registration used, held;
  ck_assert_int_eq(rig.acquire(8, 4, held), 0);
  ck_assert_int_eq(rig.acquire(0, 4, used), 0);
  rig.cache.release(used);
  const pid_t child = fork();
  if (child == 0) _exit(rig.log.count() == 1 ? 0 : 1);
  int status = -1;
  waitpid(child, &status, 0);
  ck_assert_int_eq(status, 0);
  rig.cache.release(held);
}

TEST(what_the_device_has_no_room_for_is_told_of_once) {
  Limited rig(kAnyLength);
  rig.log.room = Arena::bytes(4);
  Registration held, use;
  ck_assert_int_eq(rig.acquire(0, 2, held), 0);
  g_log.clear();
  ck_assert_int_eq(rig.acquire(2, 4, use), -FI_ENOMEM);
  ck_assert(contains(only_log_line(), "ulimit -l"));
  rig.cache.release(held);
  ck_assert_int_eq(rig.acquire(2, 4, use), 0);  // nothing else is registered now
  rig.cache.release(use);
  ck_assert_int_eq(rig.acquire(0, 5, use), -FI_ENOMEM);
  rig.log.room = SIZE_MAX;
  ck_assert_int_eq(rig.acquire(0, 5, use), -FI_ENOMEM);  // the adapter is not asked again
  ck_assert_int_eq(rig.acquire(0, 4, use), 0);
  rig.cache.release(use);
  ck_assert(only_log_line().empty());
}

TEST(an_error_that_room_does_not_mend_is_final) {
  Limited rig(kAnyLength);
  Registration use;
  rig.log.refuse = EFAULT;
  ck_assert_int_eq(rig.acquire(0, 4, use), -FI_EOPNOTSUPP);
  rig.log.refuse = 0;
  ck_assert_int_eq(rig.acquire(0, 4, use), 0);
  rig.cache.release(use);
}

TEST(nothing_is_registered_beyond_the_limits) {
  Limited rig({.max_regions = 0, .least_bytes = 1});
  Registration use;
  ck_assert_int_eq(rig.acquire(0, 4, use), -FI_ENOMEM);
  ck_assert_uint_eq(rig.log.made, 0);
}

// --- what users hear

TEST(short_memory_is_refused) {
  Limited rig({});
  Registration use;
  const size_t least = verbs::kLeastSingleUse;
  ck_assert_uint_le(least, Arena::bytes(64));
  iovec memory{rig.arena.at(0), least - 1};
  ck_assert_int_eq(verbs::register_all(rig.cache, &memory, 1, 0, &use), -FI_EOPNOTSUPP);
  ck_assert_uint_eq(rig.log.made, 0);
  memory.iov_len = least;
  ck_assert_int_eq(verbs::register_all(rig.cache, &memory, 1, 0, &use), 0);
  verbs::release_all(rig.cache, &use, 1);
}

/// All domains of a process together warn once, at the first use. The warning has the cause, the
/// cost and the remedy.
TEST(the_first_use_says_once_what_is_missing, 2) {
  const CapturedStderr error_output;
  g_log_level = -1;
  Limited first({}), second({});
  ck_assert_uint_eq(error_output.only_write().size(), 0);
  Registration use;
  for (Limited* rig : {&first, &second, &first})
    if (!rig->acquire(0, _i ? 64 : 1, use)) rig->cache.release(use);
  const std::string line = error_output.only_write();
  for (const char* part : {"zero copy is limited", "256 KiB", "processor time",
                           "a cause, and its remedy", "FI_ERDMA_MR_CACHE=off"})
    ck_assert_msg(contains(line, part), "%s", line.c_str());
}

TEST(a_run_that_copies_all_hears_of_it_once) {
  const CapturedStderr error_output;
  g_log_level = -1;
  for (const char* why : {"a cause, and its remedy", "another one"}) verbs::warn_of_copies(why);
  const std::string line = error_output.only_write();
  for (const char* part : {"zero copy is off", "processor", "a cause, and its remedy"})
    ck_assert_msg(contains(line, part), "%s", line.c_str());
}

// --- memory in pieces

/// The length of the whole transfer decides.
TEST(a_short_piece_of_a_long_transfer_is_registered, 2) {
  Limited rig({});
  const size_t least = verbs::kLeastSingleUse, piece = least - 16;
  const iovec pieces[] = {
      {rig.arena.at(1), 16}, {nullptr, 0}, {rig.arena.at(0), piece - size_t(_i)}, {nullptr, 0}};
  Registration uses[4];
  ck_assert_int_eq(verbs::register_all(rig.cache, pieces, 4, 0, uses), _i ? -FI_EOPNOTSUPP : 0);
  ck_assert_uint_eq(rig.log.made, _i ? 0 : 2);
  verbs::release_all(rig.cache, uses, 4);
  ck_assert_uint_eq(rig.log.count(), 0);
}

}  // namespace
