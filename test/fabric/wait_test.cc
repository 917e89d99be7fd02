#include "fabric/wait.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/eventfd.h>

#include <climits>
#include <memory>
#include <mutex>
#include <thread>

#include "fabric/cq.h"
#include "fake/progress_source.h"
#include "libcheck.h"
#include "quiet_fork.h"
#include "util/process_epoch.h"

using erdma::fabric::CompletionQueue;
using erdma::fabric::Deadline;
using erdma::fabric::make_cq;
using erdma::fabric::ProgressSource;
using erdma::fabric::Sleepers;
using erdma::fabric::Slept;
using erdma::fabric::try_wait;
using erdma::fabric::Waitable;
using erdma::fabric::WaitObject;
using namespace erdma::test;
using erdma::util::DomainLock;

namespace {

std::unique_ptr<WaitObject> make() {
  auto made = WaitObject::create();
  ck_assert_int_eq(made.error(), 0);
  return std::move(*made);
}

/// A source whose descriptor epoll refuses.
class FileSource final : public ProgressSource {
 public:
  ~FileSource() { ::close(x_fd); }
  int progress() noexcept override { return 0; }
  bool arm() noexcept override { return true; }
  void disarm() noexcept override {}
  int wait_fds(int* fds, int) const noexcept override {
    fds[0] = x_fd;
    return 1;
  }

 private:
  int x_fd = ::open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
};

}  // namespace

/// True if a thread in a blocking call would wake at once.
bool woken(WaitObject& wait) {
  return wait.wait(Deadline(0)) == Slept::woken;
}

TEST(watchers_are_woken_until_that_is_cleared_and_nobody_else) {
  auto wait = make();
  ck_assert(!readable(wait->fd()));
  wait->wake_watchers();
  wait->wake_watchers();
  wait->clear_sleepers();
  ck_assert(readable(wait->fd()) && !woken(*wait));
  ck_assert(wait->clear_watchers());
  ck_assert(!readable(wait->fd()));
  ck_assert(wait->clear_watchers());
}

TEST(sleepers_are_woken_until_that_is_cleared_and_nobody_else) {
  auto wait = make();
  ck_assert(!woken(*wait));
  wait->wake_sleepers();
  wait->wake_sleepers();
  ck_assert(wait->clear_watchers());
  ck_assert(!readable(wait->fd()) && woken(*wait));
  ck_assert(wait->clear_sleepers());
  ck_assert(!woken(*wait));
  ck_assert(wait->clear_sleepers());
}

TEST(all_are_woken_while_an_added_descriptor_is_readable) {
  auto wait = make();
  erdma::util::Fd event(eventfd(1, EFD_CLOEXEC));
  ck_assert_int_eq(wait->add(event.get()), 0);
  ck_assert(readable(wait->fd()) && woken(*wait));
  wait->remove(event.get());
  ck_assert(!readable(wait->fd()) && !woken(*wait));
  wait->remove(event.get());
}

TEST(who_was_told_is_waited_for) {
  Sleepers sleepers;
  ck_assert(!sleepers.tell() && sleepers.all_looked());
  const Sleepers::Ticket first = sleepers.enter(), second = sleepers.enter();
  ck_assert(sleepers.tell() && !sleepers.all_looked());
  ck_assert(sleepers.told(first));
  sleepers.leave(first);
  ck_assert(!sleepers.all_looked());
  ck_assert(sleepers.tell() && !sleepers.all_looked());
  ck_assert(sleepers.told(second));
  sleepers.leave(second);
  ck_assert(sleepers.all_looked());
  const Sleepers::Ticket third = sleepers.enter();
  ck_assert(!sleepers.told(third));
  sleepers.leave(third);
  ck_assert(sleepers.all_looked());
  ck_assert_uint_eq(sleepers.count(), 0);
}

TEST(clear_does_not_hide_a_signal_from_those_inside) {
  auto wait = make();
  const WaitObject::Ticket first = wait->enter();
  const WaitObject::Ticket second = wait->enter();
  wait->signal();
  ck_assert(!wait->clear_sleepers());
  ck_assert(woken(*wait));
  ck_assert(wait->signalled(first) && wait->signalled(second));
  const WaitObject::Ticket late = wait->enter();
  ck_assert(!wait->signalled(late));
  wait->leave(first);
  ck_assert(!wait->clear_sleepers());
  ck_assert(woken(*wait));
  wait->leave(second);
  ck_assert(wait->clear_sleepers());
  ck_assert(!woken(*wait));
  wait->leave(late);
  ck_assert(!wait->take_signal());
}

TEST(signal_that_meets_nobody_is_for_the_next) {
  auto wait = make();
  wait->signal();
  ck_assert(wait->take_signal());
  ck_assert(!wait->take_signal());
  wait->signal();
  const WaitObject::Ticket ticket = wait->enter();
  ck_assert(wait->signalled(ticket));
  wait->signal();
  ck_assert(wait->signalled(ticket));
  wait->leave(ticket);
  const WaitObject::Ticket next = wait->enter();
  ck_assert(!wait->signalled(next));
  wait->leave(next);
  wait->signal();
  ck_assert(readable(wait->fd()));
  ck_assert(!wait->clear_watchers());
  ck_assert(wait->clear_watchers());
  ck_assert(!readable(wait->fd()));
}

TEST(deadline_rounds_up_and_may_never_come) {
  ck_assert_int_eq(Deadline(-1).left(), -1);
  ck_assert_int_eq(Deadline(0).left(), 0);
  ck_assert_int_gt(Deadline(INT_MAX).left(), INT_MAX / 2);
}

TEST(source_with_work_keeps_everyone_awake) {
  Waitable waitable(make(), false);
  FakeSource idle, busy;
  waitable.attach(idle);
  waitable.attach(busy);
  busy.hand_in([] {});
  ck_assert(!waitable.watch());
  ck_assert(!waitable.sleeping());
  waitable.progress();
  ck_assert(waitable.watch());
  ck_assert(waitable.sleeping());
  waitable.detach(busy);
  waitable.detach(busy);
  waitable.detach(idle);
  ck_assert(!waitable.busy());
}

/// A source whose descriptor stays readable from the first event to disarm(), like a device's.
class LatchedSource final : public ProgressSource {
 public:
  void happen() { eventfd_write(x_event.get(), 1); }
  int progress() noexcept override { return 0; }
  bool arm() noexcept override { return true; }
  void disarm() noexcept override {
    eventfd_t value;
    eventfd_read(x_event.get(), &value);
  }
  int wait_fds(int* fds, int) const noexcept override {
    fds[0] = x_event.get();
    return 1;
  }

 private:
  erdma::util::Fd x_event{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
};

/// Two applications: one sleeps on the descriptor; the other has a thread in a blocking call, after
/// it called fi_trywait once for a second queue of the source.
TEST(an_event_wakes_once) {
  LatchedSource source;
  Waitable watched(make(), false), other(make(), false);
  DomainLock lock(erdma::util::LockKind::mutex);
  std::unique_lock held(lock);
  watched.attach(source);
  other.attach(source);
  ck_assert(watched.watch());
  for (int i = 0; i < 200; ++i) {
    source.happen();
    ck_assert(readable(watched.wait_object()->fd()));
    watched.progress();
    ck_assert(watched.watch());
    ck_assert(!readable(watched.wait_object()->fd()));
    source.happen();
    other.sleep(held, Deadline(0));
    ck_assert(!woken(*other.wait_object()));
  }
  watched.detach(source);
  other.detach(source);
}

TEST(sleep_lets_others_have_the_lock_even_if_it_can_not_sleep) {
  Waitable waitable(make(), false);
  FileSource source;
  waitable.attach(source);
  ck_assert(!waitable.watch());
  DomainLock lock(erdma::util::LockKind::mutex);
  std::unique_lock held(lock);
  waitable.sleep(held, Deadline(-1));
  ck_assert(held.owns_lock());
  waitable.detach(source);
  ck_assert(waitable.watch());
}

TEST(trywait_refuses_bad_arguments) {
  ck_assert_int_eq(try_wait(nullptr, 0), 0);
  ck_assert_int_eq(try_wait(nullptr, 1), -FI_EINVAL);
  fid* none[] = {nullptr};
  ck_assert_int_eq(try_wait(none, -1), -FI_EINVAL);
  ck_assert_int_eq(try_wait(none, 1), -FI_EINVAL);
  fid domain{};
  domain.fclass = FI_CLASS_DOMAIN;
  fid* wrong[] = {&domain};
  ck_assert_int_eq(try_wait(wrong, 1), -FI_EINVAL);
}

TEST(trywait_asks_every_object) {
  DomainLock lock(erdma::util::LockKind::none);
  fi_cq_attr attr{};
  attr.wait_obj = FI_WAIT_FD;
  auto idle = make_cq({lock, 0, false, {}}, &attr, nullptr);
  auto busy = make_cq({lock, 0, false, {}}, &attr, nullptr);
  fid* fids[] = {&(*idle)->fid, &(*busy)->fid};
  ck_assert_int_eq(try_wait(fids, 2), 0);
  (*busy)->push({}, nullptr);
  ck_assert_int_eq(try_wait(fids, 2), -FI_EAGAIN);
  ck_assert_int_eq(try_wait(fids, 1), 0);
  ck_assert_int_eq(fi_close(fids[0]), 0);
  ck_assert_int_eq(fi_close(fids[1]), 0);
}

namespace {

/// A queue on which a thread sleeps until the destructor.
struct ReadQueue {
  ReadQueue() {
    reader = std::thread([this] {
      fi_cq_entry entry;
      result = fi_cq_sread(&cq, &entry, 1, nullptr, -1);
    });
    for (bool asleep = false; !asleep; sched_yield()) {
      const std::lock_guard guard(lock);
      asleep = cq.sleeping();
    }
  }
  ~ReadQueue() {
    {
      const std::lock_guard guard(lock);
      cq.push({}, nullptr);
    }
    reader.join();
    ck_assert_int_eq(result, 1);
    ck_assert_int_eq(fi_close(&cq.fid), 0);
  }
  ReadQueue(const ReadQueue&) = delete;
  ReadQueue& operator=(const ReadQueue&) = delete;

  static CompletionQueue& open(DomainLock& lock) {
    fi_cq_attr attr{};
    attr.wait_obj = FI_WAIT_UNSPEC;
    return **make_cq({lock, 0, false, {}}, &attr, nullptr);
  }

  DomainLock lock{erdma::util::LockKind::mutex};
  CompletionQueue& cq = open(lock);
  ssize_t result = 0;
  std::thread reader;
};

}  // namespace

TEST(queue_is_not_closed_under_a_reader) {
  ReadQueue queue;
  for (int i = 0; i < 100; ++i) ck_assert_int_eq(fi_close(&queue.cq.fid), -FI_EBUSY);
}

TEST(a_child_closes_a_queue_that_a_thread_of_the_parent_reads) {
  erdma::util::register_fork_handler();
  ReadQueue queue;
  ck_assert(holds_in_child([&] { return fi_close(&queue.cq.fid) == 0; }));
}
