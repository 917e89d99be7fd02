#include "transport/shm/wake_socket.h"

#include <fcntl.h>
#include <poll.h>

#include <cstdint>
#include <utility>

#include <rdma/fi_errno.h>

#include "libcheck.h"

/// Tests that only a process that knows the secret can wake another, and that it never waits for
/// it.
namespace erdma::transport::shm {
namespace {

WakeSocket open_doorbell() {
  auto bell = WakeSocket::open();
  ck_assert(bool(bell));
  return std::move(*bell);
}

Waker ringer_of(const WakeAddress& address) {
  auto waker = Waker::to(address);
  ck_assert(bool(waker));
  return std::move(*waker);
}

bool rings(const WakeSocket& bell) {
  pollfd fd{bell.fd(), POLLIN, 0};
  return poll(&fd, 1, 0) == 1;
}

TEST(a_doorbell_rings_until_it_is_drained) {
  const WakeSocket bell = open_doorbell();
  ck_assert(!rings(bell));
  const Waker peer = ringer_of(bell.address());
  for (int i = 0; i < 3; ++i) {
    peer.ring();
    ck_assert(rings(bell));
    bell.drain();
    ck_assert(!rings(bell));
    bell.ring();  // rung by its own process
    ck_assert(rings(bell));
    bell.drain();
    ck_assert(!rings(bell));
  }
}

TEST(one_drain_takes_whatever_came) {
  const WakeSocket bell = open_doorbell();
  const Waker peers[] = {ringer_of(bell.address()), ringer_of(bell.address())};
  for (int i = 0; i < 2'000; ++i) peers[i % 2].ring(), bell.ring();
  bell.drain();
  ck_assert(!rings(bell));
  peers[0].ring();
  ck_assert(rings(bell));
}

TEST(a_ring_without_the_secret_wakes_nobody) {
  const WakeSocket bell = open_doorbell();
  WakeAddress guess = bell.address();
  const Waker peer = ringer_of(guess);
  guess.secret ^= 1;
  ringer_of(guess).ring();
  guess.secret ^= 1 | uint64_t(1) << 63;
  ringer_of(guess).ring();
  ck_assert(!rings(bell));
  peer.ring();
  ck_assert(rings(bell));
}

TEST(nobody_who_rings_a_bell_that_is_never_drained_waits) {
  const WakeSocket bell = open_doorbell();
  const Waker peer = ringer_of(bell.address());
  // The owner can change only its own end to blocking.
  ck_assert_int_eq(fcntl(bell.fd(), F_SETFL, fcntl(bell.fd(), F_GETFL) & ~O_NONBLOCK), 0);
  for (int i = 0; i < 5'000; ++i) peer.ring();
  for (int i = 0; i < 5'000; ++i) bell.ring();
  ck_assert(rings(bell));
}

TEST(a_bell_that_is_never_drained_takes_nothing_from_others) {
  const WakeSocket stuck = open_doorbell();
  const WakeSocket bell = open_doorbell();
  const Waker to_stuck = ringer_of(stuck.address());
  const Waker to_bell = ringer_of(bell.address());
  for (int i = 0; i < 5'000; ++i) to_stuck.ring();
  to_bell.ring();
  ck_assert(rings(bell));
}

TEST(a_bell_that_is_gone_is_refused_and_rung_in_vain) {
  WakeAddress address;
  Waker peer;
  {
    const WakeSocket bell = open_doorbell();
    address = bell.address();
    peer = ringer_of(address);
  }
  peer.ring();
  ck_assert_int_eq(Waker::to(address).error(), -FI_ECONNREFUSED);
}

}  // namespace

}  // namespace erdma::transport::shm
