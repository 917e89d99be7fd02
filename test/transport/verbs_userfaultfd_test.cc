// Tests the userfaultfd of a process at moments that only its own threads see. It replaces
// functions of the C library.
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <ctime>
#include <memory>
#include <thread>

#include "fake/lock_wait.h"
#include "libcheck.h"
#include "transport/verbs/memory_monitor.h"
#include "util/event_fd.h"
#include "watched_memory.h"

namespace erdma::test {
namespace {

using transport::verbs::MemoryChanges;
using transport::verbs::MemoryMonitor;
using transport::verbs::MemoryRange;

SUITE(.offered = can_watch_memory);

/// A place where the first thread that comes stands still until the test lets it go on.
class Gate {
 public:
  void close() { x_closed = true; }
  void open() {
    x_closed = false;
    x_closed.notify_all();
  }
  void pass() {
    if (!x_closed || x_reached.exchange(true)) return;
    x_reached.notify_all();
    x_closed.wait(true);
  }
  void await() { x_reached.wait(false); }

 private:
  std::atomic<bool> x_closed = false, x_reached = false;
};

Gate g_events;   ///< of a thread that has read events and told nobody yet
Gate g_unwatch;  ///< of a thread that is about to let go of memory
Gate g_end;      ///< of the reader that is about to end
std::atomic<int> g_userfaultfd = -1;
std::atomic<unsigned> g_naps = 0;
std::atomic<bool> g_invalid = false;  ///< the reader has found its descriptor closed
constexpr int kNone = -2;
std::atomic<int> g_polled = kNone;  ///< the descriptor that the reader watched afterwards

/// Another thread, which makes one call.
class Beside {
 public:
  template <typename Call>
  explicit Beside(Call call)
      : x_thread([this, call] {
          x_id = gettid();
          call();
          x_done = true;
        }) {}
  ~Beside() { x_thread.join(); }

  bool done() const { return x_done; }
  /// Returns once the call has returned, or waits for another thread. True: it waits.
  bool waits() const {
    while (!x_done && !(x_id && fake::sleeps(x_id))) sched_yield();
    return !x_done;
  }

 private:
  std::atomic<pid_t> x_id = 0;
  std::atomic<bool> x_done = false;
  std::thread x_thread;
};

/// Memory of one page.
class Page {
 public:
  Page() : x_at(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    ck_assert_ptr_ne(x_at, MAP_FAILED);
  }
  ~Page() { munmap(x_at, kBytes); }

  MemoryRange range() const {
    const auto start = reinterpret_cast<uintptr_t>(x_at);
    return {start, start + kBytes};
  }
  /// Returns once the event of this was read.
  void replace() {
    constexpr int kAnew = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    ck_assert_ptr_eq(mmap(x_at, kBytes, PROT_READ | PROT_WRITE, kAnew, -1, 0), x_at);
  }

 private:
  const size_t kBytes = size_t(sysconf(_SC_PAGESIZE));
  void* x_at;
};

std::unique_ptr<MemoryMonitor> monitor_of(const util::EventFd& wake) {
  const char* why = nullptr;
  auto created = MemoryMonitor::create(wake, why);
  ck_assert(bool(created));
  return std::move(*created);
}

bool tell_of(const MemoryChanges& changes, const MemoryRange& range) {
  for (size_t i = 0; i < changes.count; ++i)
    if (changes.changes[i].range.start == range.start) return true;
  return false;
}

/// A domain's monitor, which watches one page.
struct Domain {
  Domain() : monitor(monitor_of(wake)) { ck_assert_int_eq(monitor->watch(page.range()), 0); }
  bool told_of(const MemoryRange& range) const { return tell_of(changes, range); }

  Page page;
  const util::EventFd wake;
  std::unique_ptr<MemoryMonitor> monitor;
  MemoryChanges changes;
};

/// The thread that made the change goes on as soon as the event was read.
TEST(a_look_waits_until_all_are_told_of_an_event) {
  Domain domain;
  g_events.close();
  domain.page.replace();
  g_events.await();
  std::atomic<bool> stable = false;
  {
    const Beside look([&] { stable = domain.monitor->look(domain.changes); });
    const bool waited = look.waits();
    g_events.open();
    ck_assert(waited);
  }
  ck_assert(stable);
  ck_assert(domain.told_of(domain.page.range()));
}

/// Each transfer looks. 1: earlier, there was a change.
TEST(a_look_without_a_change_waits_for_no_thread, 2) {
  Domain domain;
  const Page other;
  ck_assert_int_eq(domain.monitor->watch(other.range()), 0);
  if (_i == 1) {
    domain.page.replace();
    ck_assert(domain.monitor->look(domain.changes));
    ck_assert(domain.told_of(domain.page.range()));
  }
  g_unwatch.close();
  const Beside unwatch([&] { domain.monitor->unwatch(other.range()); });
  g_unwatch.await();
  const Beside look([&] { (void)domain.monitor->look(domain.changes); });
  const bool waited = look.waits();
  g_unwatch.open();
  ck_assert(!waited);
}

/// The second domain has never watched memory near this page, so it is not told that the first one
/// lets go of it.
TEST(memory_stays_watched_for_a_domain_that_begins_while_another_ends) {
  Domain first;
  const util::EventFd wake;
  const auto second = monitor_of(wake);
  int watched = -1;
  bool stable = false;
  MemoryChanges changes;
  g_unwatch.close();
  {
    const Beside unwatch([&] { first.monitor->unwatch(first.page.range()); });
    g_unwatch.await();
    const Beside watch([&] {
      watched = second->watch(first.page.range());
      stable = second->look(changes);
    });
    (void)watch.waits();  // or is done
    g_unwatch.open();
  }
  ck_assert_int_eq(watched, 0);
  ck_assert(stable);
  first.page.replace();
  ck_assert(second->look(changes));
  ck_assert(tell_of(changes, first.page.range()));
}

/// Else the kernel would refuse the next domain memory that the last one still watches.
TEST(a_userfaultfd_is_closed_before_the_next_is_opened) {
  auto last = std::make_unique<Domain>();
  g_end.close();
  const Beside end([&] { last->monitor.reset(); });
  g_end.await();
  const Beside next([] { const Domain domain; });
  // A thread that waits for a lock of this kind polls it, and naps now and then.
  while (!next.done() && g_naps == 0) sched_yield();
  const bool waited = !next.done();
  g_end.open();
  ck_assert(waited);
}

TEST(the_reader_of_a_descriptor_that_other_code_closed_comes_to_rest) {
  Domain domain;
  g_events.close();
  domain.page.replace();
  g_events.await();
  ck_assert_int_eq(close(g_userfaultfd), 0);
  g_events.open();
  g_polled.wait(kNone);
  ck_assert_int_eq(g_polled, -1);
  ck_assert(!domain.monitor->look(domain.changes));
  ck_assert(domain.changes.all);
}

/// The next domains share the one that takes its place.
TEST(a_userfaultfd_that_other_code_closed_is_replaced) {
  auto lost = std::make_unique<Domain>();
  const util::EventFd other;
  ck_assert_int_eq(dup3(other.fd(), g_userfaultfd, O_CLOEXEC), g_userfaultfd);
  Domain next;
  lost->monitor.reset();
  Domain beside;
  ck_assert_int_eq(beside.monitor->watch(next.page.range()), 0);
  next.page.replace();
  for (Domain* domain : {&next, &beside}) {
    ck_assert(domain->monitor->look(domain->changes));
    ck_assert(domain->told_of(next.page.range()));
  }
}

}  // namespace
}  // namespace erdma::test

extern "C" ssize_t read(int fd, void* buffer, size_t bytes) {
  const ssize_t got = syscall(SYS_read, fd, buffer, bytes);
  // Other code reads other lengths.
  if (got > 0 && bytes % sizeof(uffd_msg) == 0) erdma::test::g_events.pass();
  return got;
}

extern "C" int ioctl(int fd, unsigned long request, ...) noexcept {
  va_list rest;
  va_start(rest, request);
  void* const argument = va_arg(rest, void*);
  va_end(rest);
  if (request == UFFDIO_REGISTER) erdma::test::g_userfaultfd = fd;
  if (request == UFFDIO_UNREGISTER) erdma::test::g_unwatch.pass();
  return int(syscall(SYS_ioctl, fd, request, argument));
}

extern "C" int usleep(useconds_t microseconds) {
  ++erdma::test::g_naps;
  const timespec time{0, long(microseconds) * 1000};
  return nanosleep(&time, nullptr);
}

/// Only the reader waits for two descriptors without end.
extern "C" int poll(pollfd* fds, nfds_t count, int timeout) {
  using namespace erdma::test;
  const timespec time{timeout / 1000, timeout % 1000 * 1'000'000};
  const bool reader = count == 2 && timeout < 0;
  asm("" : "+r"(fds));  // poll(2) is declared not to read them
  if (reader && g_invalid) {
    g_polled = fds[0].fd;
    g_polled.notify_all();
  }
  const int ready = ppoll(fds, count, timeout < 0 ? nullptr : &time, nullptr);
  if (reader && fds[0].revents & POLLNVAL) g_invalid = true;
  if (reader && fds[1].revents) g_end.pass();
  return ready;
}
