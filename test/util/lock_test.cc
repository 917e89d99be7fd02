// Locks of a parent in a forked child.
#include "util/lock.h"

#include <atomic>
#include <mutex>
#include <thread>

#include "libcheck.h"
#include "quiet_fork.h"

namespace {

using erdma::test::holds_in_child;
using erdma::util::OptionalLock;
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

template <typename Lock>
void check_free_in_child(Lock& lock) {
  erdma::util::register_fork_handler();
  const Holder holder(lock);
  ck_assert(lock.owned() && !lock.try_lock());
  ck_assert(holds_in_child([&] {
    const std::lock_guard guard(lock);
    return !lock.owned() && lock.try_lock();
  }));
  ck_assert(!lock.try_lock());
}

TEST(a_mutex_that_is_held_at_a_fork_is_free_in_the_child) {
  OwnedMutex mutex;
  check_free_in_child(mutex);
}

TEST(an_active_lock_that_is_held_at_a_fork_is_free_in_the_child) {
  OptionalLock lock(true);
  check_free_in_child(lock);
}

TEST(an_inactive_lock_is_always_free_and_knows_whose_it_is) {
  erdma::util::register_fork_handler();
  OptionalLock lock(false);
  const std::lock_guard guard(lock);
  ck_assert(lock.try_lock() && lock.owned());
  ck_assert(holds_in_child([&] { return !lock.owned(); }));
}

}  // namespace
