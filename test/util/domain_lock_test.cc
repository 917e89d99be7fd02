// The lock of a domain: the side of the data calls, and that of the control calls.
#include "util/domain_lock.h"

#include <sys/syscall.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "fake/refused_call.h"
#include "fake/weak_memory.h"
#include "libcheck.h"

namespace erdma::util {
namespace {

using fake::weak::Atomic;
using fake::weak::Model;

// ---- the order of the two sides, in a model of weakly ordered memory ----------------------------

constexpr auto kPlain = std::memory_order_relaxed;

struct Barrier {
  static void here() {}
  static bool everywhere() {
    fake::weak::g_model->fence_everywhere();
    return true;
  }
};
struct NoBarrier {
  static void here() {}
  static bool everywhere() { return true; }
};

/// A word whose stores release nothing.
struct PlainWord : Atomic<uint32_t> {
  using Atomic::Atomic;
  void store(uint32_t value, std::memory_order) { Atomic::store(value, kPlain); }
};

/// A model can't wait, so whoever finds the mutex or the data side occupied does without its turn.
template <typename Word, typename Barrier, int kDataCalls, int kControlCalls>
struct Contest {
  static constexpr size_t kThreads = 2;
  Atomic<uint32_t> mutex;
  BiasOrder<Word, Barrier> bias{true};
  Atomic<int> sum;  ///< what the lock protects
  int turns = 0, last = 0;

  bool try_lock() {
    uint32_t free = 0;
    return mutex.compare_exchange_strong(free, 1, std::memory_order_acq_rel,
                                         std::memory_order_acquire);
  }
  void unlock() { mutex.store(0, std::memory_order_release); }
  void add() {
    last = sum.load(kPlain) + 1;
    sum.store(last, kPlain);
    ++turns;
  }
  void data_call() {
    if (bias.enter()) {
      add();
      return bias.leave();
    }
    bias.leave();
    if (!try_lock()) return;
    bias.open();
    add();
    unlock();
  }
  void control_call() {
    if (!try_lock()) return;
    bias.close();
    if (!bias.occupied()) add();
    unlock();
  }
  void thread(size_t index) {
    for (int i = 0; index == 0 && i < kDataCalls; ++i) data_call();
    for (int i = 0; index == 1 && i < kControlCalls; ++i) control_call();
  }
  bool wrong() const { return last != turns; }
};

using Word = Atomic<uint32_t>;

TEST(data_calls_and_control_calls_never_overlap) {
  uint64_t runs = 0;
  ck_assert_uint_eq((Model::wrong_runs<Contest<Word, Barrier, 2, 1>>(&runs)), 0);
  ck_assert_uint_gt(runs, 1000);
  ck_assert_uint_eq((Model::wrong_runs<Contest<Word, Barrier, 1, 2>>(&runs)), 0);
  ck_assert_uint_gt(runs, 1000);
}

TEST(each_order_of_the_two_sides_is_needed) {
  ck_assert_uint_gt((Model::wrong_runs<Contest<Word, NoBarrier, 1, 1>>()), 0);
  ck_assert_uint_gt((Model::wrong_runs<Contest<PlainWord, Barrier, 2, 1>>()), 0);
}

// ---- the lock
// ------------------------------------------------------------------------------------

/// One thread makes data calls, two make control calls, and all change the same number.
/// Returns what is missing from the sum.
int lost_under(DomainLock& lock) {
  constexpr int kDataCalls = 200'000, kControlCalls = 500;
  int sum = 0;
  const auto control_calls = [&] {
    for (int i = 0; i < kControlCalls; ++i) {
      const Guard guard(lock);
      ++sum;
    }
  };
  std::thread one(control_calls), other(control_calls);
  for (int i = 0; i < kDataCalls; ++i) {
    const DataGuard guard(lock);
    ++sum;
  }
  one.join();
  other.join();
  return kDataCalls + 2 * kControlCalls - sum;
}

TEST(no_call_under_the_lock_is_lost) {
  for (const LockKind kind : {LockKind::biased, LockKind::mutex}) {
    DomainLock lock(kind);
    ck_assert_int_eq(lost_under(lock), 0);
  }
}

TEST(data_calls_under_a_mutex_may_come_from_several_threads) {
  constexpr int kCalls = 100'000;
  DomainLock lock(LockKind::mutex);
  int sum = 0;
  const auto data_calls = [&] {
    for (int i = 0; i < kCalls; ++i) {
      const DataGuard guard(lock);
      ++sum;
    }
  };
  std::thread other(data_calls);
  data_calls();
  other.join();
  ck_assert_int_eq(sum, 2 * kCalls);
}

TEST(a_biased_lock_without_membarrier_is_a_mutex) {
  fake::refuse_call(SYS_membarrier, EPERM);
  DomainLock lock(LockKind::biased);
  ck_assert_int_eq(lost_under(lock), 0);
}

TEST(membarrier_may_be_refused_later) {
  DomainLock lock(LockKind::biased);
  fake::refuse_call(SYS_membarrier, EPERM);
  ck_assert_int_eq(lost_under(lock), 0);
}

}  // namespace
}  // namespace erdma::util
