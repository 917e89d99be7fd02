// A thread that polls without success yields: with more threads than cores, it may wait for a
// thread that needs its core. Where a yield takes long, it sleeps.
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>

#include "fabric/cntr.h"
#include "fabric/cq.h"
#include "fabric/rig.h"

// For poll sets, which libfabric 2 deprecates.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace {
int g_yields;
bool g_others;     // another thread wants the core
long g_switches;   // switches of this thread
uint64_t g_now;    // ns
uint64_t g_takes;  // ns that a yield takes, by g_now
}  // namespace

// Replaces the C library's function, which the provider would call.
extern "C" int sched_yield() noexcept {
  ++g_yields;
  g_switches += g_others;
  g_now += g_takes;
  return 0;
}
extern "C" int getrusage(__rusage_who_t who, rusage* usage) noexcept {
  ck_assert_int_eq(who, RUSAGE_THREAD);
  *usage = {};
  usage->ru_nivcsw = g_switches;
  return 0;
}

namespace {

using erdma::fabric::CompletionQueue;
using erdma::fabric::Counter;
using erdma::fabric::IdleReads;
using erdma::fabric::Rest;
using namespace erdma::test;
using erdma::util::DomainLock;
using erdma::util::Guard;

DomainLock g_lock(erdma::util::LockKind::mutex);

TEST(reads_of_an_empty_queue_yield_now_and_then) {
  fi_cq_attr attr{};
  attr.format = FI_CQ_FORMAT_TAGGED;
  auto made = erdma::fabric::make_cq({g_lock, FI_VERSION(1, 9), false, {}}, &attr, nullptr);
  ck_assert_int_eq(made.error(), 0);
  CompletionQueue& cq = **made;
  fi_cq_tagged_entry entry;
  g_yields = 0;
  for (unsigned i = 1; i <= 4 * IdleReads::kMostReads; ++i) {
    ck_assert_int_eq(fi_cq_read(&cq, &entry, 1), -FI_EAGAIN);
    ck_assert_int_eq(g_yields, int(i / IdleReads::kMostReads));
  }
  // A successful read restarts the count.
  g_yields = 0;
  for (unsigned i = 0; i < 4 * IdleReads::kMostReads; ++i) {
    if (i % IdleReads::kMostReads == 0) {
      const Guard guard(g_lock);
      cq.push(erdma::protocol::Completion{}, nullptr);
    }
    ck_assert_int_eq(fi_cq_read(&cq, &entry, 1), i % IdleReads::kMostReads ? -FI_EAGAIN : 1);
  }
  ck_assert_int_eq(g_yields, 0);
  ck_assert_int_eq(fi_close(&cq.fid), 0);
}

unsigned reads_before_rest(IdleReads& reads) {
  unsigned count = 1;
  while (!reads.should_rest(false)) ++count;
  return count;
}
// The number of unsuccessful reads until the next yield.
unsigned reads_before_yield(IdleReads& reads) {
  const unsigned count = reads_before_rest(reads);
  reads.yield();
  return count;
}

TEST(a_thread_among_others_yields_sooner) {
  IdleReads reads;
  ck_assert_uint_eq(reads_before_yield(reads), 256);
  ck_assert_uint_eq(reads_before_yield(reads), 256);
  g_others = true;
  ck_assert_uint_eq(reads_before_yield(reads), 256);
  ck_assert_uint_eq(reads_before_yield(reads), 64);
  ck_assert_uint_eq(reads_before_yield(reads), 16);
  ck_assert_uint_eq(reads_before_yield(reads), 16);
  g_others = false;
  ck_assert_uint_eq(reads_before_yield(reads), 16);
  ck_assert_uint_eq(reads_before_yield(reads), 32);
  for (int i = 0; i < 4; ++i) reads_before_yield(reads);
  ck_assert_uint_eq(reads_before_yield(reads), 256);
}

// The scheduler may also take the core away before the thread gives it up.
TEST(a_thread_that_was_interrupted_is_among_others) {
  IdleReads reads;
  reads_before_yield(reads);
  ++g_switches;
  reads_before_yield(reads);
  ck_assert_uint_eq(reads_before_yield(reads), 64);
}

TEST(what_is_found_begins_the_count_anew_among_others_too) {
  IdleReads reads;
  g_others = true;
  for (int i = 0; i < 4; ++i) reads_before_yield(reads);
  for (int i = 0; i < 100; ++i) ck_assert(!reads.should_rest(i % 16 == 15));
}

uint64_t fake_now() noexcept {
  return g_now;
}

/// Yields to a thread that computes: each takes a time slice.
void yield_for_long(IdleReads& reads, unsigned times = 1) {
  g_takes = IdleReads::kLongYield;
  for (unsigned i = 0; i < times; ++i) reads_before_yield(reads);
  g_takes = 0;
}

TEST(a_thread_beside_one_that_computes_sleeps) {
  IdleReads reads(fake_now);
  yield_for_long(reads, IdleReads::kLongYields - 1);
  ck_assert(reads.choose(false) == Rest::yield);
  reads_before_yield(reads);  // a short one between them
  yield_for_long(reads, IdleReads::kLongYields - 1);
  ck_assert(reads.choose(false) == Rest::yield);
  yield_for_long(reads);
  ck_assert(reads.choose(false) == Rest::sleep);
  ck_assert_uint_eq(reads_before_rest(reads), IdleReads::kReadsBeforeSleep);
}

TEST(peers_on_this_core_are_asked_for_only_after_a_long_yield) {
  IdleReads reads(fake_now);
  ck_assert(!reads.depends_on_peers());
  reads_before_yield(reads);
  ck_assert(!reads.depends_on_peers());
  for (unsigned i = 0; i < IdleReads::kLongYields; ++i) {
    yield_for_long(reads);
    ck_assert(reads.depends_on_peers());
  }
  ck_assert(reads.choose(false) == Rest::sleep);
  ck_assert(reads.depends_on_peers());
}

TEST(a_thread_beside_a_peer_yields_however_long_that_takes) {
  IdleReads reads(fake_now);
  for (int i = 0; i < 8; ++i) {
    yield_for_long(reads, 2 * IdleReads::kLongYields);
    ck_assert(reads.choose(true) == Rest::yield);
    ck_assert_uint_eq(reads_before_rest(reads), IdleReads::kMostReads);
  }
  yield_for_long(reads, IdleReads::kLongYields);
  ck_assert(reads.choose(false) == Rest::sleep);
  ck_assert(reads.choose(true) == Rest::yield);
  ck_assert(reads.choose(false) == Rest::yield);
  ck_assert_uint_eq(reads_before_rest(reads), IdleReads::kMostReads);
}

// Sleeps until a yield shall tell whether the other thread still computes.
unsigned sleeps_until_yield(IdleReads& reads, bool woken, uint64_t each) {
  unsigned count = 0;
  while (reads.choose(false) == Rest::sleep) {
    g_now += each;
    reads.slept(woken);
    ++count;
  }
  return count;
}

TEST(now_and_then_one_yield_finds_out_whether_others_still_compute) {
  constexpr uint64_t kEach = 1'000'000;
  IdleReads reads(fake_now);
  yield_for_long(reads, IdleReads::kLongYields);
  uint64_t trust = IdleReads::kFirstTrust;
  for (int i = 0; i < 6; ++i) {
    ck_assert_uint_eq(sleeps_until_yield(reads, true, kEach), trust / kEach);
    ck_assert_uint_eq(reads_before_rest(reads), IdleReads::kMostReads);
    yield_for_long(reads);
    ck_assert(reads.choose(false) == Rest::sleep);
    trust = std::min(2 * trust, IdleReads::kLastTrust);
  }
  sleeps_until_yield(reads, true, kEach);
  reads_before_yield(reads);
  ck_assert(reads.choose(false) == Rest::yield);
  yield_for_long(reads, IdleReads::kLongYields - 1);
  ck_assert(reads.choose(false) == Rest::yield);
  yield_for_long(reads);
  ck_assert_uint_eq(sleeps_until_yield(reads, true, kEach), IdleReads::kFirstTrust / kEach);
}

// Whoever polls two queues in turn would sleep on one while the other has news.
TEST(sleeps_that_nothing_ends_are_few) {
  IdleReads reads(fake_now);
  yield_for_long(reads, IdleReads::kLongYields);
  ck_assert_uint_eq(sleeps_until_yield(reads, false, 1), IdleReads::kVainSleeps);
  yield_for_long(reads);
  for (unsigned i = 0; i < 4 * IdleReads::kVainSleeps; ++i) {
    ck_assert(reads.choose(false) == Rest::sleep);
    g_now += 1;
    reads.slept(i % IdleReads::kVainSleeps == 0);
  }
  ck_assert(reads.choose(false) == Rest::sleep);
}

TEST(reads_of_a_counter_that_stands_still_yield_now_and_then) {
  auto made = erdma::fabric::make_cntr({g_lock, FI_VERSION(1, 9), false, {}}, nullptr, nullptr);
  ck_assert_int_eq(made.error(), 0);
  Counter& cntr = **made;
  g_yields = 0;
  for (unsigned i = 1; i <= 2 * IdleReads::kMostReads; ++i) {
    ck_assert_uint_eq(fi_cntr_read(&cntr), 0);
    ck_assert_int_eq(g_yields, int(i / IdleReads::kMostReads));
  }
  g_yields = 0;
  for (unsigned i = 1; i <= 2 * IdleReads::kMostReads; ++i) {
    ck_assert_int_eq(fi_cntr_add(&cntr, 1), 0);
    ck_assert_uint_eq(fi_cntr_read(&cntr), i);
  }
  ck_assert_int_eq(g_yields, 0);
  ck_assert_int_eq(fi_close(&cntr.fid), 0);
}

TEST(polls_of_a_set_without_news_yield_now_and_then) {
  g_device = "shm";
  Root root;
  fid_poll* set = nullptr;
  fid_cntr* cntr = nullptr;
  fi_poll_attr attr{};
  void* context = nullptr;
  ck_assert_int_eq(fi_poll_open(root.domain, &attr, &set), 0);
  ck_assert_int_eq(fi_cntr_open(root.domain, nullptr, &cntr, nullptr), 0);
  ck_assert_int_eq(fi_poll_add(set, &cntr->fid, 0), 0);
  g_yields = 0;
  for (unsigned i = 1; i <= 2 * IdleReads::kMostReads; ++i) {
    ck_assert_int_eq(fi_poll(set, &context, 1), 0);
    ck_assert_int_eq(g_yields, int(i / IdleReads::kMostReads));
  }
  ck_assert_int_eq(fi_close(&set->fid), 0);
  ck_assert_int_eq(fi_close(&cntr->fid), 0);
}

}  // namespace
