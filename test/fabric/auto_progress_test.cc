#include "fabric/auto_progress.h"

#include <sched.h>
#include <sys/syscall.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <semaphore>

#include <rdma/fi_errno.h>

#include "fake/refused_call.h"
#include "libcheck.h"

namespace erdma::fabric {
namespace {

/// A source whose work makes its descriptor readable.
class Source final : public ProgressSource {
 public:
  void hand_in_work() {
    x_work = true;
    x_event.ring();
  }
  bool await_arm() { return arms_within(std::chrono::seconds(20)); }
  bool arms_within(std::chrono::milliseconds time) { return idle.try_acquire_for(time); }
  bool await_progress() { return done.try_acquire_for(std::chrono::seconds(20)); }
  int progress() noexcept override {
    if (!x_work.exchange(false)) return 0;
    done.release();
    return 1;
  }
  bool arm() noexcept override {
    idle.release();
    return true;
  }
  void disarm() noexcept override { x_event.drain(); }
  int wait_fds(int* fds, int) const noexcept override {
    fds[0] = x_event.fd();
    return 1;
  }

 private:
  std::counting_semaphore<> idle{0}, done{0};
  std::atomic<bool> x_work{false};
  util::EventFd x_event;
};

TEST(a_source_is_driven_whether_or_not_its_descriptor_can_be_watched, 2) {
  util::DomainLock lock(erdma::util::LockKind::mutex);
  auto thread = AutoProgress::start(lock);
  ck_assert(thread);
  if (_i) fake::refuse_call(SYS_epoll_ctl, ENOSPC);
  Source source;
  {
    const util::Guard guard(lock);
    (*thread)->expect_one_more();
    (*thread)->add(source);
  }
  ck_assert(source.await_arm());
  source.hand_in_work();
  ck_assert(source.await_progress());
  (*thread)->remove(source);
}

TEST(the_thread_sleeps_again_when_what_it_could_not_watch_is_gone) {
  util::DomainLock lock(erdma::util::LockKind::mutex);
  auto thread = AutoProgress::start(lock);
  ck_assert(thread);
  Source watched, unwatched;
  const auto add = [&](Source& source) {
    const util::Guard guard(lock);
    (*thread)->expect_one_more();
    (*thread)->add(source);
  };
  add(watched);
  fake::refuse_call(SYS_epoll_ctl, ENOSPC);
  add(unwatched);
  (*thread)->remove(unwatched);
  // A thread that polls arms its sources every millisecond.
  int rounds = 0;
  while (rounds < 2000 && watched.arms_within(std::chrono::milliseconds(200))) ++rounds;
  ck_assert_int_lt(rounds, 2000);
  (*thread)->remove(watched);
}

TEST(a_thread_that_nobody_could_wake_is_not_started) {
  util::DomainLock lock(erdma::util::LockKind::mutex);
  // The kernel refuses so without memory, or at its limit of watches (max_user_watches).
  fake::refuse_call(SYS_epoll_ctl, ENOSPC);
  ck_assert_int_eq(AutoProgress::start(lock).error(), -FI_ENOSPC);
}

/// The flags that pthread_create(3) passes to clone(2). Only clones with them are refused, as the
/// leak check of AddressSanitizer needs a clone of its own at exit.
constexpr uint32_t kThreadFlags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SYSVSEM |
                                  CLONE_SIGHAND | CLONE_THREAD | CLONE_SETTLS |
                                  CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;

/// The kernel refuses threads above RLIMIT_NPROC or a container's limit of pids.
TEST(a_thread_that_the_kernel_refuses_is_an_error) {
  util::DomainLock lock(erdma::util::LockKind::mutex);
  fake::refuse_call(SYS_clone3, ENOSYS);
  fake::refuse_call(SYS_clone, EAGAIN, 0, kThreadFlags);
  ck_assert_int_eq(AutoProgress::start(lock).error(), -FI_EAGAIN);
}

}  // namespace

}  // namespace erdma::fabric
