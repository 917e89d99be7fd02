#include "transport/shm/core_sharing.h"

#include "libcheck.h"

namespace {

using erdma::transport::shm::CoreSharing;

CoreSharing::Usage usage;

CoreSharing::Usage look() noexcept {
  return usage;
}

/// What goes by between two looks.
struct Span {
  uint64_t passed, ran;  ///< us
  uint64_t forced, willing;
};
constexpr Span kAlone{1000, 1000, 0, 0};
constexpr Span kShares{1000, 500, 8, 0};

struct Thread {
  CoreSharing core{look};
  uint64_t now = 1'000'000'000;

  Thread() {
    usage = {pthread_self(), 77, 33, 123'456};
    core.judge(now);
  }
  bool lives(const Span& span) {
    now += span.passed * 1000;
    usage.forced += span.forced;
    usage.willing += span.willing;
    usage.ran += span.ran;
    core.judge(now);
    return core.shared();
  }
};

TEST(a_first_look_says_nothing) {
  const Thread thread;
  ck_assert(!thread.core.shared());
}

TEST(a_thread_that_others_push_aside_shares_its_core) {
  Thread thread;
  ck_assert(!thread.lives(kAlone));
  ck_assert(thread.lives(kShares));
  ck_assert(!thread.lives(kAlone));
}

TEST(neither_sleep_nor_a_single_switch_is_a_shared_core) {
  constexpr Span kNeither[] = {
      {1000, 500, 1, 0},   // one switch: a timer, a page that was waited for
      {1000, 100, 0, 50},  // sleeps of itself
      {1000, 100, 3, 50},  // mostly
      {1000, 990, 9, 0},   // pushed aside by what took no time
  };
  for (const Span& span : kNeither) {
    Thread thread;
    ck_assert(!thread.lives(span));
  }
}

TEST(what_is_unclear_changes_nothing) {
  constexpr Span kUnclear{1000, 800, 8, 0};
  Thread thread;
  ck_assert(!thread.lives(kUnclear));
  ck_assert(thread.lives(kShares));
  ck_assert(thread.lives(kUnclear));
}

TEST(another_threads_counts_are_not_compared) {
  Thread thread;
  usage.thread = pthread_t{};
  ck_assert(!thread.lives(kShares));
  ck_assert(thread.lives(kShares));
}

TEST(a_look_is_due_once_in_a_while) {
  CoreSharing core(look);
  unsigned due = 0;
  for (unsigned i = 0; i < 10 * CoreSharing::kEvery; ++i) due += core.on_message();
  ck_assert_uint_eq(due, 10);
}

TEST(the_kernel_counts_the_time_of_this_thread) {
  CoreSharing core;
  const uint64_t begin = 1'000'000'000;
  core.judge(begin);
  core.judge(begin + 1000);  // nothing: it ran for longer than that
  ck_assert(!core.shared());
}

}  // namespace
