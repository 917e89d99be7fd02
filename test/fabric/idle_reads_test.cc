// Whoever polls in vain lets others run: with more threads than cores it may be them it waits for.
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fabric/cntr.h"
#include "fabric/cq.h"
#include "fabric/rig.h"

// Of poll sets, which libfabric 2 deprecates.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace {
int g_yields;
}

// In place of the C library's, which the provider would call.
extern "C" int sched_yield() noexcept {
  ++g_yields;
  return int(syscall(SYS_sched_yield));
}

namespace {

using erdma::fabric::CompletionQueue;
using erdma::fabric::Counter;
using erdma::fabric::IdleReads;
using erdma::test::g_device;
using erdma::test::Root;
using erdma::util::Guard;
using erdma::util::OptionalLock;

OptionalLock g_lock(true);

TEST(reads_of_an_empty_queue_yield_now_and_then) {
  fi_cq_attr attr{};
  attr.format = FI_CQ_FORMAT_TAGGED;
  auto made = erdma::fabric::make_cq({g_lock, FI_VERSION(1, 9), false, {}}, &attr, nullptr);
  ck_assert_int_eq(made.error(), 0);
  CompletionQueue& cq = **made;
  fi_cq_tagged_entry entry;
  g_yields = 0;
  for (unsigned i = 1; i <= 4 * IdleReads::kPerYield; ++i) {
    ck_assert_int_eq(fi_cq_read(&cq, &entry, 1), -FI_EAGAIN);
    ck_assert_int_eq(g_yields, int(i / IdleReads::kPerYield));
  }
  // What is found begins the count anew.
  g_yields = 0;
  for (unsigned i = 0; i < 4 * IdleReads::kPerYield; ++i) {
    if (i % IdleReads::kPerYield == 0) {
      const Guard guard(g_lock);
      cq.push(erdma::protocol::Completion{}, nullptr);
    }
    ck_assert_int_eq(fi_cq_read(&cq, &entry, 1), i % IdleReads::kPerYield ? -FI_EAGAIN : 1);
  }
  ck_assert_int_eq(g_yields, 0);
  ck_assert_int_eq(fi_close(&cq.fid), 0);
}

TEST(reads_of_a_counter_that_stands_still_yield_now_and_then) {
  auto made = erdma::fabric::make_cntr({g_lock, FI_VERSION(1, 9), false, {}}, nullptr, nullptr);
  ck_assert_int_eq(made.error(), 0);
  Counter& cntr = **made;
  g_yields = 0;
  for (unsigned i = 1; i <= 2 * IdleReads::kPerYield; ++i) {
    ck_assert_uint_eq(fi_cntr_read(&cntr), 0);
    ck_assert_int_eq(g_yields, int(i / IdleReads::kPerYield));
  }
  g_yields = 0;
  for (unsigned i = 1; i <= 2 * IdleReads::kPerYield; ++i) {
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
  for (unsigned i = 1; i <= 2 * IdleReads::kPerYield; ++i) {
    ck_assert_int_eq(fi_poll(set, &context, 1), 0);
    ck_assert_int_eq(g_yields, int(i / IdleReads::kPerYield));
  }
  ck_assert_int_eq(fi_close(&set->fid), 0);
  ck_assert_int_eq(fi_close(&cntr->fid), 0);
}

}  // namespace
