#include "fabric/cntr.h"

#include <sched.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>

#include "fake/progress_source.h"
#include "libcheck.h"

using erdma::fabric::Counter;
using erdma::fabric::make_cntr;
using erdma::fabric::try_wait;
using namespace erdma::test;
using erdma::util::DomainLock;
using erdma::util::Guard;

namespace {

constexpr int kForever = -1;
DomainLock g_lock(erdma::util::LockKind::mutex);
erdma::fabric::Children g_open;

Counter& open(fi_wait_obj wait = FI_WAIT_UNSPEC) {
  fi_cntr_attr attr{};
  attr.wait_obj = wait;
  auto made = make_cntr({g_lock, FI_VERSION(1, 9), false, &g_open}, &attr, nullptr);
  ck_assert_int_eq(made.error(), 0);
  return **made;
}

int ask(Counter& cntr) {
  fid* fids[] = {&cntr.fid};
  return try_wait(fids, 1);
}

/// A thread in fi_cntr_wait, and the result of the call.
struct Waiter {
  Waiter(Counter& cntr, uint64_t threshold)
      : thread([this, &cntr, threshold] { result = fi_cntr_wait(&cntr, threshold, kForever); }) {}
  int join() {
    thread.join();
    return result;
  }
  int result = 0;
  std::thread thread;
};

void await_sleeper(Counter& cntr) {
  for (;; sched_yield()) {
    const Guard guard(g_lock);
    if (cntr.sleeping()) return;
  }
}

struct Attached {
  Attached(Counter& c, FakeSource& s) : cntr(c), source(s) {
    const Guard guard(g_lock);
    cntr.attach(source);
  }
  ~Attached() {
    const Guard guard(g_lock);
    cntr.detach(source);
  }
  Counter& cntr;
  FakeSource& source;
};

}  // namespace

TEST(counter_adds_and_sets_both_values_apart) {
  Counter& cntr = open(FI_WAIT_NONE);
  ck_assert_uint_eq(fi_cntr_read(&cntr), 0);
  ck_assert_uint_eq(fi_cntr_readerr(&cntr), 0);
  ck_assert_int_eq(fi_cntr_set(&cntr, 10), 0);
  ck_assert_int_eq(fi_cntr_seterr(&cntr, 20), 0);
  ck_assert_int_eq(fi_cntr_add(&cntr, 3), 0);
  ck_assert_int_eq(fi_cntr_adderr(&cntr, 4), 0);
  {
    const Guard guard(g_lock);
    cntr.add_success(5);
    cntr.add_failure();
  }
  ck_assert_uint_eq(fi_cntr_read(&cntr), 18);
  ck_assert_uint_eq(fi_cntr_readerr(&cntr), 25);
  ck_assert_int_eq(fi_close(&cntr.fid), 0);
}

TEST(open_refuses_what_it_does_not_have) {
  const auto attr = [](int events, int wait, uint64_t flags) {
    fi_cntr_attr made{};
    std::memcpy(&made.events, &events, sizeof(events));
    std::memcpy(&made.wait_obj, &wait, sizeof(wait));
    made.flags = flags;
    return made;
  };
  const struct {
    fi_cntr_attr attr;
    int error;
  } cases[] = {
      {attr(1, FI_WAIT_NONE, 0), -FI_ENOSYS},       {attr(99, FI_WAIT_NONE, 0), -FI_ENOSYS},
      {attr(0, FI_WAIT_SET, 0), -FI_EINVAL},        {attr(0, FI_WAIT_MUTEX_COND, 0), -FI_ENOSYS},
      {attr(0, FI_WAIT_POLLFD + 1, 0), -FI_EINVAL}, {attr(0, FI_WAIT_NONE, 1), -FI_EINVAL}};
  for (const auto& c : cases)
    ck_assert_int_eq(make_cntr({g_lock, 0, false, {}}, &c.attr, nullptr).error(), c.error);
}

TEST(counter_without_attributes_has_no_wait_object) {
  auto made = make_cntr({g_lock, 0, false, {}}, nullptr, nullptr);
  ck_assert_int_eq(made.error(), 0);
  Counter& cntr = **made;
  int fd;
  ck_assert_int_eq(fi_cntr_wait(&cntr, 0, 0), 0);
  ck_assert_int_eq(fi_cntr_wait(&cntr, 1, 0), -FI_ETIMEDOUT);
  ck_assert_int_eq(fi_control(&cntr.fid, FI_GETWAIT, &fd), -FI_ENODATA);
  ck_assert_int_eq(ask(cntr), -FI_EINVAL);
  ck_assert_int_eq(cntr.fid.ops->bind(&cntr.fid, &cntr.fid, 0), -FI_ENOSYS);
  ck_assert_int_eq(fi_close(&cntr.fid), 0);
}

TEST(read_makes_progress) {
  Counter& cntr = open(FI_WAIT_NONE);
  FakeSource source;
  {
    const Attached attached(cntr, source);
    source.hand_in([&] { cntr.add_success(1); });
    ck_assert_uint_eq(fi_cntr_read(&cntr), 1);
    source.hand_in([&] { cntr.add_failure(); });
    ck_assert_uint_eq(fi_cntr_readerr(&cntr), 1);
  }
  ck_assert_int_eq(fi_close(&cntr.fid), 0);
}

TEST(wait_without_a_wait_object_polls) {
  Counter& cntr = open(FI_WAIT_NONE);
  FakeSource source;
  {
    const Attached attached(cntr, source);
    source.hand_in([&] { cntr.add_success(1); });
    ck_assert_int_eq(fi_cntr_wait(&cntr, 1, kForever), 0);
    ck_assert_int_eq(fi_cntr_wait(&cntr, 2, 1), -FI_ETIMEDOUT);
  }
  ck_assert_int_eq(fi_close(&cntr.fid), 0);
}

TEST(wait_returns_at_once_when_the_threshold_is_reached) {
  Counter& cntr = open();
  ck_assert_int_eq(fi_cntr_wait(&cntr, 0, kForever), 0);
  fi_cntr_set(&cntr, 5);
  ck_assert_int_eq(fi_cntr_wait(&cntr, 5, kForever), 0);
  ck_assert_int_eq(fi_cntr_wait(&cntr, 4, 0), 0);
  ck_assert_int_eq(fi_close(&cntr.fid), 0);
}

TEST(wait_gives_up_when_the_time_is_over, 2) {
  Counter& cntr = open();
  ck_assert_int_eq(fi_cntr_wait(&cntr, 1, _i), -FI_ETIMEDOUT);
  // An error from before the wait does not end it.
  fi_cntr_adderr(&cntr, 1);
  ck_assert_int_eq(fi_cntr_wait(&cntr, 1, _i), -FI_ETIMEDOUT);
  ck_assert_int_eq(fi_close(&cntr.fid), 0);
}

TEST(wait_ends_with_the_change_that_it_waits_for, 6) {
  Counter& cntr = open();
  FakeSource source;
  {
    const Attached attached(cntr, source);
    const struct {
      std::function<void()> change;
      int result;
    } cases[] = {
        {[&] { fi_cntr_add(&cntr, 2); }, 0},
        {[&] { fi_cntr_set(&cntr, 7); }, 0},
        {[&] { fi_cntr_adderr(&cntr, 1); }, -FI_EAVAIL},
        {[&] { fi_cntr_seterr(&cntr, 1); }, -FI_EAVAIL},
        {[&] { source.hand_in([&] { cntr.add_success(2); }); }, 0},
        {[&] { source.hand_in([&] { cntr.add_failure(); }); }, -FI_EAVAIL},
    };
    Waiter waiter(cntr, 2);
    await_sleeper(cntr);
    cases[_i].change();
    ck_assert_int_eq(waiter.join(), cases[_i].result);
  }
  ck_assert_int_eq(fi_close(&cntr.fid), 0);
}

TEST(wait_goes_on_below_the_threshold) {
  Counter& cntr = open();
  Waiter waiter(cntr, 3);
  for (int i = 0; i < 3; ++i) {
    await_sleeper(cntr);
    fi_cntr_add(&cntr, 1);
  }
  ck_assert_int_eq(waiter.join(), 0);
  ck_assert_uint_eq(fi_cntr_read(&cntr), 3);
  ck_assert_int_eq(fi_close(&cntr.fid), 0);
}

TEST(trywait_refuses_once_for_each_change) {
  Counter& cntr = open(FI_WAIT_FD);
  int fd = -1;
  ck_assert_int_eq(fi_control(&cntr.fid, FI_GETWAIT, &fd), 0);
  ck_assert_int_eq(ask(cntr), 0);
  ck_assert(!readable(fd));
  fi_cntr_add(&cntr, 1);
  ck_assert(readable(fd));
  ck_assert_int_eq(ask(cntr), -FI_EAGAIN);
  ck_assert_int_eq(ask(cntr), 0);
  ck_assert(!readable(fd));
  fi_cntr_adderr(&cntr, 1);
  ck_assert(readable(fd));
  ck_assert_uint_eq(fi_cntr_readerr(&cntr), 1);
  ck_assert_int_eq(ask(cntr), -FI_EAGAIN);
  ck_assert_int_eq(ask(cntr), 0);
  ck_assert(!readable(fd));
  ck_assert_int_eq(fi_close(&cntr.fid), 0);
}

/// An application may set a counter back in each round, and then it grows to the value of which the
/// last fi_trywait has told.
TEST(trywait_refuses_also_after_a_change_to_the_value_before) {
  Counter& cntr = open(FI_WAIT_FD);
  FakeSource source;
  {
    const Attached attached(cntr, source);
    for (int i = 0; i < 2; ++i) {
      ck_assert_int_eq(fi_cntr_set(&cntr, 0), 0);
      ck_assert_uint_eq(fi_cntr_read(&cntr), 0);
      source.hand_in([&] { cntr.add_success(1); });
      ck_assert_int_eq(ask(cntr), -FI_EAGAIN);
      ck_assert_int_eq(ask(cntr), 0);
    }
  }
  ck_assert_int_eq(fi_close(&cntr.fid), 0);
}

/// The thread that asks may have read the old value, and another thread the new one.
TEST(trywait_refuses_also_after_a_change_that_was_read) {
  Counter& cntr = open(FI_WAIT_FD);
  FakeSource source;
  {
    const Attached attached(cntr, source);
    ck_assert_uint_eq(fi_cntr_read(&cntr), 0);
    source.hand_in([&] { cntr.add_success(1); });
    ck_assert_uint_eq(fi_cntr_read(&cntr), 1);
    ck_assert_int_eq(ask(cntr), -FI_EAGAIN);
    ck_assert_int_eq(ask(cntr), 0);
  }
  ck_assert_int_eq(fi_close(&cntr.fid), 0);
}

TEST(close_is_refused_while_a_source_is_attached_and_told_once) {
  Counter& cntr = open();
  FakeSource source;
  {
    const Attached attached(cntr, source);
    ck_assert_int_eq(fi_close(&cntr.fid), -FI_EBUSY);
  }
  ck_assert_int_eq(g_open.count(), 1);
  ck_assert_int_eq(fi_close(&cntr.fid), 0);
  ck_assert_int_eq(g_open.count(), 0);
}

/// The thread is asleep or, without a wait object, about to look again.
TEST(close_is_refused_while_a_thread_waits, 2) {
  Counter& cntr = open(_i == 0 ? FI_WAIT_UNSPEC : FI_WAIT_NONE);
  {
    FakeSource source;
    std::atomic<bool> inside = false;
    source.still_wanted = [&] { return inside = true; };
    const Attached attached(cntr, source);
    Waiter waiter(cntr, 1);
    while (!inside) sched_yield();
    {
      const Guard guard(g_lock);
      cntr.detach(source);
    }
    for (int i = 0; i < 100; ++i) ck_assert_int_eq(fi_close(&cntr.fid), -FI_EBUSY);
    fi_cntr_add(&cntr, 1);
    ck_assert_int_eq(waiter.join(), 0);
  }
  ck_assert_int_eq(fi_close(&cntr.fid), 0);
}
