#include "transport/shm/doorbell.h"

#include <fcntl.h>
#include <poll.h>

#include <cstdint>
#include <utility>

#include <rdma/fi_errno.h>

#include "libcheck.h"

/// A process is woken by who knows its secret, and nobody who wakes it ever waits for it.
namespace erdma::transport::shm {
namespace {

Doorbell open_doorbell() {
  auto bell = Doorbell::open();
  ck_assert(bool(bell));
  return std::move(*bell);
}

Ringer ringer_of(const DoorbellAddress& address) {
  auto ringer = Ringer::to(address);
  ck_assert(bool(ringer));
  return std::move(*ringer);
}

bool rings(const Doorbell& bell) {
  pollfd fd{bell.fd(), POLLIN, 0};
  return poll(&fd, 1, 0) == 1;
}

TEST(a_doorbell_rings_until_it_is_drained) {
  const Doorbell bell = open_doorbell();
  ck_assert(!rings(bell));
  const Ringer peer = ringer_of(bell.address());
  for (int i = 0; i < 3; ++i) {
    peer.ring();
    ck_assert(rings(bell));
    bell.drain();
    ck_assert(!rings(bell));
    bell.ring();  // by its own process
    ck_assert(rings(bell));
    bell.drain();
    ck_assert(!rings(bell));
  }
}

TEST(one_drain_takes_whatever_came) {
  const Doorbell bell = open_doorbell();
  const Ringer peers[] = {ringer_of(bell.address()), ringer_of(bell.address())};
  for (int i = 0; i < 2'000; ++i) peers[i % 2].ring(), bell.ring();
  bell.drain();
  ck_assert(!rings(bell));
  peers[0].ring();
  ck_assert(rings(bell));
}

TEST(a_ring_without_the_secret_wakes_nobody) {
  const Doorbell bell = open_doorbell();
  DoorbellAddress guess = bell.address();
  const Ringer peer = ringer_of(guess);
  guess.secret ^= 1;
  ringer_of(guess).ring();
  guess.secret ^= 1 | uint64_t(1) << 63;
  ringer_of(guess).ring();
  ck_assert(!rings(bell));
  peer.ring();
  ck_assert(rings(bell));
}

TEST(nobody_who_rings_a_bell_that_is_never_drained_waits) {
  const Doorbell bell = open_doorbell();
  const Ringer peer = ringer_of(bell.address());
  // Its owner can make only its own end blocking.
  ck_assert_int_eq(fcntl(bell.fd(), F_SETFL, fcntl(bell.fd(), F_GETFL) & ~O_NONBLOCK), 0);
  for (int i = 0; i < 5'000; ++i) peer.ring();
  for (int i = 0; i < 5'000; ++i) bell.ring();
  ck_assert(rings(bell));
}

TEST(a_bell_that_is_never_drained_takes_nothing_from_others) {
  const Doorbell stuck = open_doorbell();
  const Doorbell bell = open_doorbell();
  const Ringer to_stuck = ringer_of(stuck.address());
  const Ringer to_bell = ringer_of(bell.address());
  for (int i = 0; i < 5'000; ++i) to_stuck.ring();
  to_bell.ring();
  ck_assert(rings(bell));
}

TEST(a_bell_that_is_gone_is_refused_and_rung_in_vain) {
  DoorbellAddress address;
  Ringer peer;
  {
    const Doorbell bell = open_doorbell();
    address = bell.address();
    peer = ringer_of(address);
  }
  peer.ring();
  ck_assert_int_eq(Ringer::to(address).error(), -FI_ECONNREFUSED);
}

}  // namespace

}  // namespace erdma::transport::shm
