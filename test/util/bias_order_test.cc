// The order of the two sides of a biased lock, in a model of weakly ordered memory.
#include "util/bias_order.h"

#include <atomic>
#include <cstdint>

#include "fake/weak_memory.h"
#include "libcheck.h"

namespace erdma::util {
namespace {

using fake::weak::Atomic;
using fake::weak::Model;

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

}  // namespace
}  // namespace erdma::util
