#include <algorithm>
#include <vector>

#include "libcheck.h"
#include "transport/verbs_rig.h"

/// Tests after which silence a peer counts as dead, on a fake NIC.
namespace erdma::test {
namespace {

using transport::Link;
using transport::SendHint;

TEST(a_silent_peer_is_found_dead_in_time) {
  verbs::Options options;
  options.peer_timeout_ns = 3'000'000'000;
  Two two(options);
  two.meet();
  two.rig.fabric.quiet_deaths = true;
  for (int i = 0; i < 300; ++i) two.pair.poll();
  two.rig.nic.hold = true;
  const uint64_t begin = two.rig.clock.time;
  ck_assert(two.until([&] { return two.a().sink->downs.size() == 1; }));
  ck_assert_int_eq(two.a().sink->downs[0].status, -FI_ETIMEDOUT);
  ck_assert_uint_le(two.rig.clock.time - begin, 5'000'000'000);
}

/// The application computes, and polls once a second, after a time in which it polled all the time.
TEST(a_thread_that_polls_rarely_finds_a_silent_peer_dead_in_time) {
  Two two;
  two.meet();
  two.rig.fabric.quiet_deaths = true;
  for (int i = 0; i < 300; ++i) two.pair.poll();
  two.rig.nic.hold = true;
  verbs::MailSink& mail = *two.rig.fabric.find(two.a().name)->config().mail;
  int seconds = 0;
  for (; two.a().sink->downs.empty() && seconds < 60; ++seconds) {
    two.rig.clock.time += 1'000'000'000;
    mail.remind();
    two.a().poll();
  }
  ck_assert_uint_eq(two.a().sink->downs.size(), 1);
  ck_assert_int_eq(two.a().sink->downs[0].status, -FI_ETIMEDOUT);
  ck_assert_int_le(seconds, 13);
}

/// Polls `side` until it has looked at its clock and at its connections.
void let_watch(Side& side) {
  for (int i = 0; i < 256; ++i) side.poll();
}

/// This process was stopped, and asked its peer for no sign of life meanwhile. The peer's answer
/// then takes a moment, or never comes.
TEST(a_peer_answers_for_the_time_in_which_this_process_was_stopped, 2) {
  const bool dead = _i;
  verbs::Options options;
  options.peer_timeout_ns = 3'000'000'000;
  Two two(options);
  two.meet();
  two.rig.fabric.quiet_deaths = true;
  for (int i = 0; i < 600; ++i) {
    two.a().poll();
    two.rig.clock.time += 1'000'000;
  }
  two.rig.clock.time += 4'000'000'000;
  two.rig.nic.hold = true;
  const uint64_t begin = two.rig.clock.time;
  let_watch(two.a());
  two.rig.clock.time += 300'000'000;
  let_watch(two.a());
  two.rig.nic.hold = dead;
  while (two.a().sink->downs.empty() && two.rig.clock.time < begin + 5'000'000'000) {
    let_watch(two.a());
    two.rig.clock.time += 50'000'000;
  }
  ck_assert_uint_eq(two.a().sink->downs.size(), dead);
  if (!dead) return;
  ck_assert_int_eq(two.a().sink->downs[0].status, -FI_ETIMEDOUT);
  ck_assert_uint_ge(two.rig.clock.time - begin, 1'700'000'000);
  ck_assert_uint_le(two.rig.clock.time - begin, 2'300'000'000);
}

/// This process was stopped with more signs of life in a queue than it takes at once.
TEST(signs_of_life_that_wait_in_a_queue_count) {
  constexpr size_t kPeers = 40;  // the first queue has room for 8, the second one for 32
  Two two;
  std::vector<Side> peers(kPeers);
  for (Side& peer : peers) {
    ck_assert(two.rig.open(peer, {}, &two.rig.clock));
    Link& link = **peer.transport->link_to(two.a().name);
    ck_assert(two.until([&] {
      peer.poll();
      return !link.send(numbered(1), nullptr, 0, 0, SendHint::none);
    }));
  }
  ck_assert(two.until([&] { return two.a().sink->packets.size() == kPeers; }));
  const verbs::Resources& resources = Rig::transport(two.a()).resources();
  ck_assert_uint_eq(resources.queues.count(), 2);
  two.rig.clock.time += verbs::Options{}.peer_timeout_ns / 2;
  let_watch(two.a());  // sees the packets
  two.rig.clock.time += verbs::Options{}.peer_timeout_ns / 2;
  two.rig.nic.hold = true;
  let_watch(two.a());  // posts a heartbeat for each peer
  Link& link = **peers[20].transport->link_to(two.a().name);
  ck_assert_int_eq(link.send(numbered(2), nullptr, 0, 0, SendHint::none), 0);
  while (resources.polls % 256 != 255) two.a().poll();
  two.rig.nic.hold = false;
  two.rig.nic.run();
  size_t most = 0;
  for (const fake::Qp* qp : two.rig.nic.qps)
    most = std::max(most, static_cast<const fake::Cq*>(qp->recv_cq)->ready.size());
  ck_assert_uint_eq(most, 33);
  two.rig.clock.time += verbs::Options{}.peer_timeout_ns;
  two.a().poll();
  for (int i = 0; i < 8; ++i) two.a().poll();
  ck_assert_uint_eq(two.a().sink->downs.size(), 0);
}

/// No packet arrives at all, so neither side knows where to read the other's heartbeat.
TEST(a_connection_that_is_lost_before_its_first_packet_ends_in_time_on_both_sides) {
  verbs::Options options;
  options.peer_timeout_ns = 3'000'000'000;
  Two two(options);
  two.rig.fabric.quiet_deaths = true;
  two.rig.nic.hold = true;
  Link& link = two.pair.a_to_b();
  ck_assert_int_eq(link.send(numbered(1), nullptr, 0, 0, SendHint::none), -FI_EAGAIN);
  const uint64_t begin = two.rig.clock.time;
  ck_assert(two.until(
      [&] { return two.a().sink->downs.size() == 1 && two.b().sink->downs.size() == 1; }));
  for (Side* side : {&two.a(), &two.b()})
    ck_assert_int_eq(side->sink->downs[0].status, -FI_ETIMEDOUT);
  ck_assert_uint_le(two.rig.clock.time - begin, 5'000'000'000);
  two.rig.nic.hold = false;
  two.meet();
}

/// The connector's thread connects the peer, which then does not poll for a hundred times the
/// timeout.
TEST(a_peer_that_computes_from_the_start_is_not_dead, 2) {
  verbs::Options options;
  options.peer_timeout_ns = 1'000'000'000;
  Two two(options);
  ck_assert_int_eq(two.pair.a_to_b().send(numbered(1), nullptr, 0, 0, SendHint::none), -FI_EAGAIN);
  Side& awake = _i ? two.b() : two.a();
  for (int i = 0; i < 100'000; ++i) {
    awake.poll();
    two.rig.clock.time += 1'000'000;
  }
  ck_assert_uint_eq(awake.sink->downs.size(), 0);
  two.meet();
}

TEST(a_peer_that_only_computes_is_not_dead) {
  verbs::Options options;
  options.peer_timeout_ns = 3'000'000'000;
  Two two(options);
  two.meet();
  for (int i = 0; i < 100'000; ++i) {
    two.a().poll();
    two.rig.clock.time += 1'000'000;
  }
  ck_assert_uint_eq(two.a().sink->downs.size(), 0);
}

}  // namespace

}  // namespace erdma::test
