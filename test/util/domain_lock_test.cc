// The lock of a domain: the side of the data calls, and that of the control calls.
#include "util/domain_lock.h"

#include <sys/syscall.h>

#include <cerrno>
#include <thread>

#include "fake/refused_call.h"
#include "libcheck.h"

namespace erdma::util {
namespace {

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
