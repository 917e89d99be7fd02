#include <dlfcn.h>
#include <linux/membarrier.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <functional>
#include <thread>

#include <rdma/fi_errno.h>

#include "libcheck.h"
#include "transport/impostor.h"
#include "transport/shm/link.h"
#include "transport/shm/shm_transport.h"

/// Stops an endpoint that is about to sleep at its barrier on all processors, or a peer that is
/// about to wake it, and lets others act meanwhile.
namespace erdma::test {
namespace {

std::function<void()> g_at_barrier;
unsigned g_barriers = 0;
unsigned g_slow_barriers = 0;  ///< barriers on all processors of the host

/// What the kernel offers. One that keeps processors free of interrupts (nohz_full=) has no barrier
/// on all processors.
long g_offered = MEMBARRIER_CMD_GLOBAL | MEMBARRIER_CMD_GLOBAL_EXPEDITED |
                 MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED;

unsigned g_refused_datagrams = 0;  ///< the kernel has no memory for so many

/// A thread that is stopped when it is about to ring the bell of a peer.
thread_local bool t_stops_at_bell = false;
std::atomic<bool> g_stopped = false, g_continues = false;

unsigned slow_barriers_of_first_sleep(Side& side) {
  g_slow_barriers = 0;
  while (!side.transport->arm()) side.poll();
  side.transport->disarm();
  return g_slow_barriers;
}

TEST(the_first_sleep_makes_no_slow_barrier_among_peers_that_registered) {
  Met pair;
  ck_assert_uint_eq(slow_barriers_of_first_sleep(pair.a), 0);
}

TEST(the_first_sleep_makes_a_slow_barrier_if_one_peer_has_not_registered) {
  Met pair;
  Impostor stranger;  // it has not registered for fast barriers
  ck_assert(stranger.greet(pair.a.name, own_port(0)));
  ck_assert_uint_eq(slow_barriers_of_first_sleep(pair.a), 1);
}

unsigned barriers_of_sleep(Side& side) {
  g_barriers = 0;
  while (!side.transport->arm()) side.poll();
  side.transport->disarm();
  return g_barriers;
}

void poll_for_long(Side& side) {
  for (uint32_t i = 0; i < transport::shm::ShmTransport::kPollsAwake; ++i) side.poll();
}

/// The word that makes senders to `side` fence.
bool told_to_fence(transport::Link& to_side) {
  return static_cast<transport::shm::ShmLink&>(to_side).out().chunk().wake.may_sleep.load() != 0;
}

TEST(a_receiver_that_polls_for_long_is_sent_to_without_a_fence_again) {
  Met pair;
  ck_assert(!told_to_fence(pair.b_to_a()));
  for (int i = 0; i < 2; ++i) {
    ck_assert_uint_eq(barriers_of_sleep(pair.a), 1);
    ck_assert(told_to_fence(pair.b_to_a()));
    ck_assert_uint_eq(barriers_of_sleep(pair.a), 0);
    poll_for_long(pair.a);
    ck_assert(!told_to_fence(pair.b_to_a()));
  }
}

TEST(a_receiver_that_sleeps_is_woken_however_long_another_thread_polls) {
  Met pair;
  ck_assert(pair.poll_until([&] { return pair.a.transport->arm(); }));
  poll_for_long(pair.a);
  ck_assert(told_to_fence(pair.b_to_a()));
  ck_assert_int_eq(pair.send(pair.b_to_a(), 1, nullptr, 0), 0);
  pollfd bell{pair.a.transport->wait_fd(), POLLIN, 0};
  ck_assert_int_eq(poll(&bell, 1, 10'000), 1);
}

/// Its next sleep would need a barrier on all processors of the host, which takes milliseconds.
TEST(a_receiver_of_peers_that_have_not_registered_stays_known_as_one_that_sleeps) {
  Met pair;
  Impostor stranger;
  ck_assert(stranger.greet(pair.a.name, own_port(0)));
  ck_assert_uint_eq(barriers_of_sleep(pair.a), 1);
  poll_for_long(pair.a);
  ck_assert(told_to_fence(pair.b_to_a()));
  ck_assert_uint_eq(barriers_of_sleep(pair.a), 0);
}

TEST(a_receiver_without_slow_barriers_stays_known_as_one_that_sleeps) {
  g_offered &= ~MEMBARRIER_CMD_GLOBAL;
  Met pair;
  for (int i = 0; i < 2; ++i) {
    ck_assert(told_to_fence(pair.b_to_a()));
    (void)barriers_of_sleep(pair.a);
    ck_assert_uint_eq(g_slow_barriers, 0);
    poll_for_long(pair.a);
  }
}

/// The receiver publishes room without a fence of its own. Therefore the sender needs a barrier on
/// the receiver's processor after it has announced that it waits, and before its last look.
TEST(a_sender_without_room_makes_a_barrier_between_its_word_and_its_last_look) {
  Pair pair;
  ck_assert(open_side(pair.a) && open_side(pair.b));
  ck_assert_int_eq(pair.send(pair.a_to_b(), 0, nullptr, 0), 0);
  ck_assert(pair.poll_until([&] { return pair.b.sink->packets.size() == 1; }));
  (void)slow_barriers_of_first_sleep(pair.a);  // the first sleep has a barrier for another reason
  transport::Link& link = pair.a_to_b();
  const iovec nothing{nullptr, 0};
  while (link.send(numbered(1), &nothing, 1, 0, transport::SendHint::none) == 0) continue;
  bool woken = false;
  g_barriers = 0;
  g_at_barrier = [&] {
    if (g_barriers != 1) return;
    pair.b.poll();  // takes packets and finds a sender that waits for room
    pollfd bell{pair.a.transport->wait_fd(), POLLIN, 0};
    woken = poll(&bell, 1, 0) == 1;
  };
  const bool may_sleep = pair.a.transport->arm();
  g_at_barrier = nullptr;
  ck_assert_uint_ge(g_barriers, 1);
  ck_assert(woken);
  ck_assert(!may_sleep);
  ck_assert_int_eq(link.send(numbered(1), &nothing, 1, 0, transport::SendHint::none), 0);
}

/// A process may be stopped at any instruction. Others wake the receiver for what they send
/// meanwhile.
TEST(a_sender_that_is_stopped_before_it_rings_keeps_nobody_asleep) {
  Met pair;
  Side third;
  ck_assert(open_side(third));
  transport::Link& link = **third.transport->link_to(pair.a.name);
  const iovec nothing{nullptr, 0};
  const auto send_third = [&] {
    third.poll();
    return link.send(numbered(3), &nothing, 1, 0, transport::SendHint::none) == 0;
  };
  ck_assert(pair.poll_until(send_third));
  ck_assert(pair.poll_until([&] { return pair.a.sink->packets.size() == 2; }));
  ck_assert(pair.poll_until([&] { return pair.a.transport->arm(); }));
  std::thread stopped([&] {
    t_stops_at_bell = true;
    (void)pair.b_to_a().send(numbered(2), &nothing, 1, 0, transport::SendHint::none);
  });
  g_stopped.wait(false);
  ck_assert(send_third());
  pollfd bell{pair.a.transport->wait_fd(), POLLIN, 0};
  const bool woken = poll(&bell, 1, 10'000) == 1;
  g_continues = true;
  g_continues.notify_all();
  stopped.join();
  ck_assert(woken);
  pair.a.transport->disarm();
  ck_assert(pair.poll_until([&] { return pair.a.sink->packets.size() == 4; }));
}

/// Nobody rings a second time for the same mail.
TEST(an_endpoint_is_woken_though_the_kernel_had_no_memory_for_a_datagram) {
  auto bell = transport::shm::WakeSocket::open();
  ck_assert(bool(bell));
  g_refused_datagrams = 2;
  bell->ring();
  pollfd rung{bell->fd(), POLLIN, 0};
  ck_assert_int_eq(poll(&rung, 1, 0), 1);
}

}  // namespace

}  // namespace erdma::test

extern "C" ssize_t sendto(int fd, const void* bytes, size_t length, int flags, const sockaddr* to,
                          socklen_t to_length) {
  if (erdma::test::g_refused_datagrams > 0) {
    errno = --erdma::test::g_refused_datagrams ? ENOMEM : ENOBUFS;
    return -1;
  }
  return syscall(SYS_sendto, fd, bytes, length, flags, to, to_length);
}

extern "C" ssize_t send(int fd, const void* bytes, size_t length, int flags) {
  if (erdma::test::t_stops_at_bell) {
    erdma::test::g_stopped = true;
    erdma::test::g_stopped.notify_all();
    erdma::test::g_continues.wait(false);
  }
  return sendto(fd, bytes, length, flags, nullptr, 0);
}

/// A fake membarrier() that any kernel has. The test acts in one thread and needs no real barrier.
/// The function reads six arguments, though callers pass fewer; AddressSanitizer would object.
extern "C" [[gnu::no_sanitize("address")]] long syscall(long number, ...) noexcept {
  va_list list;
  va_start(list, number);
  long argument[6];
  for (long& each : argument) each = va_arg(list, long);
  va_end(list);
  if (number != SYS_membarrier) {
    static const auto real = reinterpret_cast<long (*)(long, ...)>(dlsym(RTLD_NEXT, "syscall"));
    return real(number, argument[0], argument[1], argument[2], argument[3], argument[4],
                argument[5]);
  }
  const long command = argument[0] & 0x7fffffff;
  if (command == MEMBARRIER_CMD_QUERY) return erdma::test::g_offered;
  if (command & ~erdma::test::g_offered) return errno = EINVAL, -1;
  if (command == MEMBARRIER_CMD_GLOBAL || command == MEMBARRIER_CMD_GLOBAL_EXPEDITED) {
    ++erdma::test::g_barriers;
    erdma::test::g_slow_barriers += command == MEMBARRIER_CMD_GLOBAL;
    if (erdma::test::g_at_barrier) erdma::test::g_at_barrier();
  }
  return 0;
}
