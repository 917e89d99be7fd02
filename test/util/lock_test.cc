// Locks of a parent in a forked child.
#include "util/lock.h"

#include <atomic>
#include <mutex>
#include <thread>

#include "libcheck.h"
#include "quiet_fork.h"
#include "util/domain_lock.h"

namespace {

using erdma::test::holds_in_child;
using erdma::util::DataGuard;
using erdma::util::DomainLock;
using erdma::util::EpochLock;
using erdma::util::Guard;
using erdma::util::LockKind;
using erdma::util::OwnedMutex;

/// Holds the lock on a thread of its own during its lifetime.
template <typename Lock>
class Holder {
 public:
  explicit Holder(Lock& lock)
      : x_thread([this, &lock] {
          const std::lock_guard guard(lock);
          tell(x_held);
          x_over.wait(false);
        }) {
    x_held.wait(false);
  }
  ~Holder() {
    tell(x_over);
    x_thread.join();
  }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;

 private:
  static void tell(std::atomic<bool>& event) {
    event = true;
    event.notify_one();
  }

  std::atomic<bool> x_held{false}, x_over{false};
  std::thread x_thread;
};

TEST(a_mutex_that_is_held_at_a_fork_is_free_in_the_child) {
  erdma::util::register_fork_handler();
  OwnedMutex mutex;
  const Holder holder(mutex);
  ck_assert(mutex.owned() && !mutex.try_lock());
  ck_assert(holds_in_child([&] {
    const std::lock_guard guard(mutex);
    return !mutex.owned() && mutex.try_lock();
  }));
  ck_assert(!mutex.try_lock());
}

/// `side`: the side of `lock` that another thread holds.
template <typename Side>
void check_free_in_child(DomainLock& lock, Side& side) {
  erdma::util::register_fork_handler();
  const Holder holder(side);
  ck_assert(lock.owned());
  ck_assert(holds_in_child([&] {
    for (int i = 0; i < 2; ++i) {
      const Guard control(lock);
      const DataGuard data(lock);
    }
    return !lock.owned();
  }));
}

TEST(a_domain_lock_that_is_held_at_a_fork_is_free_in_the_child) {
  for (const LockKind kind : {LockKind::none, LockKind::biased, LockKind::mutex}) {
    DomainLock of_control_calls(kind), of_data_calls(kind);
    check_free_in_child(of_control_calls, of_control_calls);
    check_free_in_child(of_data_calls, of_data_calls.data());
  }
}

TEST(an_epoch_lock_that_is_held_at_a_fork_is_free_in_the_child_and_still_excludes) {
  erdma::util::register_fork_handler();
  EpochLock lock;
  const Holder holder(lock);
  ck_assert(!lock.try_lock());
  ck_assert(holds_in_child([&] {
    const std::lock_guard guard(lock);
    return !lock.try_lock() && holds_in_child([&] { return lock.try_lock(); });
  }));
  ck_assert(!lock.try_lock());
}

}  // namespace
