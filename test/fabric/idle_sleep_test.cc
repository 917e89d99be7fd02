// Endpoints of this host whose threads poll without success beside a thread that computes. A thread
// sleeps unless a connected peer is on its core, and whatever it may wait for wakes it. One thread
// plays all threads: the test says on which core it is, what time it is, and what happens while it
// sleeps.
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <optional>

#include "fabric/idle_reads.h"
#include "fabric/rig.h"

// For poll sets, which libfabric 2 deprecates.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace {
constexpr uint64_t kMillisecond = 1'000'000;
int g_core;
bool g_computes = true;  ///< a thread that computes has the core during each yield
unsigned g_yields;
unsigned g_sleeps;
bool g_woken;                       ///< the last sleep ended before its time
std::function<void()> g_meanwhile;  ///< what happens in each sleep
thread_local uint64_t t_now;        ///< ns; 0 in the provider's threads, which see the real time

long real_epoll_wait(int fd, epoll_event* events, int count, int timeout) {
  return syscall(SYS_epoll_pwait, fd, events, count, timeout, nullptr, 8);
}
}  // namespace

// The functions of the C library that the provider calls.
extern "C" int sched_yield() noexcept {
  ++g_yields;
  if (g_computes) t_now += 3 * kMillisecond;
  return 0;
}
extern "C" int sched_getcpu() noexcept {
  return g_core;
}
extern "C" int getrusage(__rusage_who_t, rusage* usage) noexcept {
  *usage = {};
  return 0;
}
extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  if (t_now == 0) return int(syscall(SYS_clock_gettime, clock, time));
  *time = {time_t(t_now / 1'000'000'000), long(t_now % 1'000'000'000)};
  return 0;
}
extern "C" int epoll_wait(int fd, epoll_event* events, int count, int timeout) {
  if (t_now == 0) return int(real_epoll_wait(fd, events, count, timeout));
  ++g_sleeps;
  ck_assert_int_le(timeout, erdma::fabric::IdleReads::kNapMs);
  constexpr int kPatienceMs = 20'000;  // the provider's threads may need a while
  if (g_meanwhile) g_meanwhile();
  const long ready = real_epoll_wait(fd, events, count, g_meanwhile ? kPatienceMs : 0);
  g_woken = ready > 0;
  if (!g_woken) t_now += uint64_t(timeout) * kMillisecond;
  return int(ready);
}

namespace {

using namespace erdma::test;
using erdma::fabric::IdleReads;

/// A read of a queue or a counter. True: it found nothing.
using Read = std::function<bool()>;

Read reads_of(const Port& port) {
  return [cq = port.cq] { return fi_cq_read(cq, nullptr, 0) == -FI_EAGAIN; };
}

/// Reads on this core until the thread rests. Returns the number of reads.
unsigned rest(int core, const Read& read) {
  g_core = core;
  const unsigned rests = g_yields + g_sleeps;
  unsigned reads = 0;
  for (; g_yields + g_sleeps == rests; ++reads) ck_assert(read());
  return reads;
}

/// Rests until peers have seen on which core.
void show(int core, const Read& read) {
  for (unsigned i = 0; i < IdleReads::kLookEvery; ++i) rest(core, read);
}

/// Reads on this core while a thread computes there. True: the thread slept, just now.
bool sleeps(int core, const Read& read) {
  const unsigned sleeps = g_sleeps;
  constexpr unsigned kMostRests = IdleReads::kLookEvery + IdleReads::kLongYields + 1;
  for (unsigned i = 0; i < kMostRests && g_sleeps == sleeps; ++i) rest(core, read);
  return g_sleeps != sleeps;
}

/// Two connected endpoints. Each was last seen on its own core: `one` on 1, `other` on 2.
struct Two {
  explicit Two(fi_wait_obj wait = FI_WAIT_NONE) : one(root, wait), other(std::in_place, root) {
    to_other = one.insert(*other);
    to_one = other->insert(one);
    g_computes = false;
    exchange(one, *other, to_other, 8);
    exchange(*other, one, to_one, 8);
    show(2, reads_of(*other));
    show(1, reads_of(one));
    g_computes = true;
  }

  Root root;
  Port one;
  std::optional<Port> other;
  fi_addr_t to_other, to_one;
};

void set_up() {
  on_shm();
  timespec now{};
  t_now = 0;
  clock_gettime(CLOCK_MONOTONIC, &now);
  t_now = uint64_t(now.tv_sec) * 1'000'000'000u + uint64_t(now.tv_nsec);
}
TEST_CASE(.set_up = set_up);

TEST(a_thread_beside_one_that_computes_sleeps) {
  Two two;
  ck_assert(sleeps(1, reads_of(two.one)));
}

TEST(a_thread_that_nobody_keeps_from_its_core_yields) {
  Two two;
  g_computes = false;
  for (int i = 0; i < 8; ++i) ck_assert(!sleeps(1, reads_of(two.one)));
}

TEST(a_thread_beside_a_peer_yields) {
  Two two;
  for (int i = 0; i < 8; ++i) {
    show(1, reads_of(*two.other));
    ck_assert(!sleeps(1, reads_of(two.one)));
  }
}

TEST(a_thread_beside_a_peer_that_polls_a_set_yields) {
  Two two;
  fid_poll* set = nullptr;
  fi_poll_attr attr{};
  ck_assert_int_eq(fi_poll_open(two.root.domain, &attr, &set), 0);
  ck_assert_int_eq(fi_poll_add(set, &two.other->cq->fid, 0), 0);
  void* context = nullptr;
  show(1, [&] { return fi_poll(set, &context, 1) == 0; });
  ck_assert(!sleeps(1, reads_of(two.one)));
  ck_assert_int_eq(fi_close(&set->fid), 0);
}

TEST(a_peer_that_has_moved_away_keeps_nobody_from_sleep) {
  Two two;
  show(1, reads_of(*two.other));
  show(2, reads_of(*two.other));
  ck_assert(sleeps(1, reads_of(two.one)));
}

TEST(a_thread_that_has_moved_to_another_core_sleeps_there) {
  Two two;
  show(1, reads_of(*two.other));
  ck_assert(!sleeps(1, reads_of(two.one)));
  ck_assert(sleeps(3, reads_of(two.one)));
}

// It computes, or sleeps in a call.
TEST(a_peer_that_has_not_polled_for_long_keeps_nobody_from_sleep) {
  Two two;
  show(1, reads_of(*two.other));
  t_now += 900 * kMillisecond;
  ck_assert(!sleeps(1, reads_of(two.one)));
  t_now += 200 * kMillisecond;
  ck_assert(sleeps(1, reads_of(two.one)));
}

TEST(a_peer_that_is_gone_keeps_nobody_from_sleep) {
  Two two;
  show(1, reads_of(*two.other));
  const uint64_t before = t_now;
  two.other.reset();
  while (!sleeps(1, reads_of(two.one)))  // the test's time limit ends the loop
    t_now = before;                      // what the peer has shown does not become old
}

TEST(a_thread_that_sleeps_yields_as_before_once_a_peer_comes_to_its_core) {
  Two two;
  ck_assert(sleeps(1, reads_of(two.one)));
  ck_assert_uint_eq(rest(1, reads_of(two.one)), IdleReads::kReadsBeforeSleep);
  show(1, reads_of(*two.other));
  const unsigned sleeps = g_sleeps;
  rest(1, reads_of(two.one));
  ck_assert_uint_eq(rest(1, reads_of(two.one)), IdleReads::kMostReads);
  ck_assert_uint_eq(g_sleeps, sleeps);
}

// Sleep needs descriptors of its own.
TEST(a_thread_that_cannot_sleep_yields) {
  Two two;
  rlimit limit{};
  ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{0, limit.rlim_max};
  ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
  for (int i = 0; i < 8; ++i) ck_assert(!sleeps(1, reads_of(two.one)));
  ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

TEST(a_thread_that_does_not_know_its_core_yields) {
  Two two;
  for (int i = 0; i < 8; ++i) ck_assert(!sleeps(-1, reads_of(two.one)));
}

// --- what wakes it ------------------------------------------------------------------------------

/// Lets this happen in the thread's next sleep, which it must end.
void wakes(const Read& read, std::function<void()> meanwhile) {
  ck_assert(sleeps(1, read));
  g_meanwhile = std::move(meanwhile);
  const unsigned before = g_sleeps;
  while (g_sleeps == before) rest(1, read);  // large messages make yields of their own
  ck_assert(g_woken);
  g_meanwhile = nullptr;
}

constexpr fi_wait_obj kWaits[] = {FI_WAIT_NONE, FI_WAIT_FD};

TEST(a_message_wakes_it, 6) {
  constexpr size_t kSizes[] = {8, 64 * 1024, 1024 * 1024};
  Two two(kWaits[_i % 2]);
  std::vector<char> message(kSizes[_i / 2]), buffer(message.size());
  fi_context context[2];
  ck_assert_int_eq(fi_trecv(two.one.ep, buffer.data(), buffer.size(), nullptr, FI_ADDR_UNSPEC, 7, 0,
                            &context[0]),
                   0);
  wakes(reads_of(two.one), [&] {
    ck_assert_int_eq(fi_tsend(two.other->ep, message.data(), message.size(), nullptr, two.to_one, 7,
                              &context[1]),
                     0);
  });
  ck_assert_ptr_eq(two.one.wait(&*two.other).op_context, &context[0]);
  ck_assert_ptr_eq(two.other->wait(&two.one).op_context, &context[1]);
}

TEST(a_new_peer_wakes_it, 2) {
  Two two(kWaits[_i]);
  Port third(two.root);
  const fi_addr_t to_one = third.insert(two.one);
  fi_context context;
  wakes(reads_of(two.one), [&] {
    while (fi_tsend(third.ep, nullptr, 0, nullptr, to_one, 7, &context) == -FI_EAGAIN) continue;
  });
}

TEST(a_peer_that_closes_wakes_it, 2) {
  Two two(kWaits[_i]);
  wakes(reads_of(two.one), [&] { two.other.reset(); });
}

/// It would leave functions that are noexcept, which would end the process.
TEST(it_is_not_cancelled_in_its_sleep) {
  Two two;
  int asleep = -1, awake = -1;
  wakes(reads_of(two.one), [&] {
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &asleep);
    two.other.reset();
  });
  pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &awake);
  ck_assert_int_eq(asleep, PTHREAD_CANCEL_DISABLE);
  ck_assert_int_eq(awake, PTHREAD_CANCEL_ENABLE);
}

TEST(a_peer_that_takes_what_was_sent_wakes_it, 2) {
  Two two(kWaits[_i]);
  std::vector<char> message(4 * 1024 * 1024), buffer(message.size());
  fi_context context[2];
  ck_assert_int_eq(
      fi_tsend(two.one.ep, message.data(), message.size(), nullptr, two.to_other, 7, &context[0]),
      0);
  wakes(reads_of(two.one), [&] {
    ck_assert_int_eq(fi_trecv(two.other->ep, buffer.data(), buffer.size(), nullptr, FI_ADDR_UNSPEC,
                              7, 0, &context[1]),
                     0);
    for (int i = 0; i < 1000; ++i) {
      two.other->progress();
      t_now += kMillisecond;  // it waits some time for the sender's help
    }
  });
  ck_assert_ptr_eq(two.one.wait(&*two.other).op_context, &context[0]);
}

TEST(a_thread_that_reads_a_counter_sleeps_until_it_changes) {
  Root root;
  fid_cntr* cntr = nullptr;
  ck_assert_int_eq(fi_cntr_open(root.domain, nullptr, &cntr, nullptr), 0);
  const std::unique_ptr<fid_cntr, void (*)(fid_cntr*)> closed(
      cntr, [](fid_cntr* opened) { ck_assert_int_eq(fi_close(&opened->fid), 0); });
  Port sender(root), receiver(root);
  ck_assert_int_eq(fi_ep_bind(receiver.ep, &cntr->fid, FI_RECV), 0);
  const fi_addr_t to_receiver = sender.insert(receiver), to_sender = receiver.insert(sender);
  g_computes = false;
  exchange(sender, receiver, to_receiver, 8);
  exchange(receiver, sender, to_sender, 8);
  show(2, reads_of(sender));
  g_computes = true;
  char byte = 0;
  fi_context context[2];
  const uint64_t before = fi_cntr_read(cntr);
  ck_assert_int_eq(fi_trecv(receiver.ep, &byte, 1, nullptr, FI_ADDR_UNSPEC, 7, 0, &context[0]), 0);
  wakes([&] { return fi_cntr_read(cntr) == before; },
        [&] {
          ck_assert_int_eq(fi_tsend(sender.ep, &byte, 1, nullptr, to_receiver, 7, &context[1]), 0);
        });
  ck_assert_uint_eq(fi_cntr_read(cntr), before + 1);
}

}  // namespace
