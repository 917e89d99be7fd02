// The lock of a domain: the side of the data calls, and that of the control calls.
#include "util/domain_lock.h"

#include <sys/syscall.h>

#include <cerrno>
#include <thread>

#include "fake/lock_wait.h"
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

TEST(each_side_waits_for_the_other) {
  for (const LockKind kind : {LockKind::biased, LockKind::mutex}) {
    DomainLock lock(kind);
    for (int i = 0; i < 3; ++i) {  // the gate is open, and then closed
      ck_assert(fake::waits(lock.data(), lock));
      ck_assert(fake::waits(lock, lock.data()));
      ck_assert(fake::waits(lock, lock));
    }
  }
  DomainLock lock(LockKind::none);
  ck_assert(!fake::waits(lock.data(), lock));
  ck_assert(!fake::waits(lock, lock.data()));
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

constexpr int kDetours = 64;  ///< data calls through the mutex, of which the last opens the gate

void make_data_calls(DomainLock& lock, int count) {
  for (int i = 0; i < count; ++i) const DataGuard guard(lock);
}

/// True if a data call takes the mutex. It is one more of those that open the gate. Two data calls
/// at a time break the rule for a biased lock, which ThreadSanitizer notices.
bool takes_mutex(DomainLock& lock) {
  return fake::waits(lock.data(), lock.data());
}

TEST(the_gate_opens_after_some_data_calls, 2) {
  if (!ThreadBarrier::available()) return;
  const bool enough = _i;
  DomainLock lock(LockKind::biased);
  for (int round = 0; round < 2; ++round) {
    { const Guard guard(lock); }
    make_data_calls(lock, round == 0 || enough ? kDetours : kDetours - 1);
  }
#ifdef __SANITIZE_THREAD__
  return;  // see takes_mutex()
#endif
  ck_assert_int_eq(takes_mutex(lock), !enough);
}

TEST(the_gate_stays_closed_once_membarrier_was_refused) {
  DomainLock lock(LockKind::biased);
  fake::refuse_call(SYS_membarrier, EPERM);
  { const Guard guard(lock); }
  make_data_calls(lock, 2 * kDetours);
#ifdef __SANITIZE_THREAD__
  return;  // see takes_mutex()
#endif
  ck_assert(takes_mutex(lock));
}

}  // namespace
}  // namespace erdma::util
