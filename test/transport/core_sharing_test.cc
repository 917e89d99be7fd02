#include "transport/shm/core_sharing.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "libcheck.h"
#include "transport/shm/recent_links.h"
#include "util/clock.h"

namespace {

using erdma::transport::shm::CoreSharing;

CoreSharing::Usage usage;

CoreSharing::Usage look() noexcept {
  return usage;
}

/// The CPU usage between two calls of judge().
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

TEST(the_links_of_the_last_messages_are_counted) {
  using erdma::transport::shm::RecentLinks;
  RecentLinks recent;
  char links[20];
  const auto after = [&](const char* link) {
    const size_t with = recent.links_with(link);
    recent.add(link);
    return with;
  };
  for (size_t i = 0; i < 20; ++i)
    ck_assert_uint_eq(after(&links[i]), std::min(i, RecentLinks::kLast) + 1);
  for (size_t i = 0; i < 20; ++i)
    ck_assert_uint_eq(after(links), i < RecentLinks::kLast ? RecentLinks::kLast - i + 1 : 1);
  ck_assert_uint_eq(after(&links[1]), 2);
}

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
      {1000, 500, 1, 0},   // one switch: a timer or a page fault
      {1000, 100, 0, 50},  // the thread sleeps voluntarily
      {1000, 100, 3, 50},  // the thread mostly sleeps
      {1000, 990, 9, 0},   // the threads that preempted it used no time
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

/// Pins the calling thread to this core.
void stay_on(size_t core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  ck_assert_int_eq(pthread_setaffinity_np(pthread_self(), sizeof(set), &set), 0);
}

TEST(the_kernel_tells_of_another_thread_on_this_core) {
  const auto here = size_t(sched_getcpu());
  std::atomic<bool> over = false;
  std::thread other([&] {
    stay_on(here);
    while (!over) sched_yield();
  });
  stay_on(here);
  CoreSharing core;
  const erdma::util::SystemClock clock;
  while (!core.shared()) {  // the test's time limit ends the loop
    for (int i = 0; i < 1000; ++i) sched_yield();
    core.judge(clock.now());
  }
  over = true;
  other.join();
}

}  // namespace
