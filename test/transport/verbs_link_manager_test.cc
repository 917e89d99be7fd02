#include <cerrno>
#include <vector>

#include "libcheck.h"
#include "transport/verbs_rig.h"

/// Tests how links go up and down on a fake NIC: what their users are told, and what is left of
/// their connections.
namespace erdma::test {
namespace {

using transport::Link;
using transport::RemoteKey;
using transport::SendHint;

/// Attempts that wait for resources get them from one connection after the other.
TEST(crowding_gives_up_one_connection_at_a_time) {
  Rig rig;
  Side a, peers[3];
  ck_assert(rig.open(a, {}, &rig.clock));
  const auto until = [&](auto condition) {
    for (int i = 0; i < 10'000; ++i) {
      if (condition()) return true;
      a.poll();
      for (Side& peer : peers) peer.poll();
      rig.clock.time += 10'000;
    }
    return false;
  };
  for (Side& peer : peers) ck_assert(rig.open(peer, {}, &rig.clock));
  for (Side& peer : peers) {
    Link& link = **a.transport->link_to(peer.name);
    ck_assert(until([&] { return !link.send(numbered(1), nullptr, 0, 0, SendHint::none); }));
    ck_assert(until([&] { return peer.sink->packets.size() == 1; }));
  }
  verbs::MailSink& mail = *rig.fabric.find(a.name)->config().mail;
  for (uint64_t given_up = 1; given_up < 3; ++given_up) {
    for (int times = 0; times < 2; ++times) mail.post({.type = verbs::Mail::Type::crowded});
    ck_assert(until([&] { return Rig::transport(a).counters().reclaimed == given_up; }));
    (void)until([] { return false; });
    ck_assert_uint_eq(Rig::transport(a).counters().reclaimed, given_up);
    ck_assert_uint_eq(Rig::transport(a).connections(), 3 - given_up);
  }
  ck_assert(a.sink->downs.empty());
}

/// Sends to each peer that is lost.
struct Resending final : transport::Sink {
  void on_packet(Link&, const std::byte*, const std::byte*, size_t) noexcept override {}
  void on_done(uint64_t, int) noexcept override {}
  void on_link_down(Link& link, int) noexcept override {
    sent.push_back(link.send(numbered(7), nullptr, 0, 0, SendHint::none));
  }
  std::vector<int> sent;  ///< results
};

/// The mail about the peer's connection is opened before the failure was reported.
TEST(a_link_whose_failure_is_told_as_its_peer_connects_asks_for_no_connection) {
  Two two;
  two.pair.a_to_b().fail(-FI_ETIMEDOUT);
  ck_assert_int_eq(two.pair.b_to_a().send(numbered(1), nullptr, 0, 0, SendHint::none), -FI_EAGAIN);
  ck_assert_uint_eq(two.rig.fabric.attempts, 1);
  Resending resending;
  two.a().transport->poll(resending);
  ck_assert_uint_eq(resending.sent.size(), 1);
  ck_assert_int_eq(resending.sent[0], -FI_EAGAIN);
  ck_assert_uint_eq(two.rig.fabric.attempts, 1);
  ck_assert_int_eq(two.pair.send(two.pair.a_to_b(), 8, nullptr, 0), 0);
  ck_assert(two.until([&] { return two.b().sink->packets.size() == 1; }));
}

TEST(packets_of_a_link_that_failed_are_not_delivered) {
  Two two;
  two.meet();
  ck_assert_int_eq(two.pair.send(two.pair.b_to_a(), 1, nullptr, 0), 0);
  ck_assert(two.until([&] { return two.a().sink->packets.size() == 1; }));
  for (uint64_t number = 2; number < 5; ++number)
    ck_assert_int_eq(two.pair.b_to_a().send(numbered(number), nullptr, 0, 0, SendHint::none), 0);
  two.rig.nic.run();
  two.pair.a_to_b().fail(-FI_EIO);
  ck_assert(two.until([&] { return two.a().sink->downs.size() == 1; }));
  ck_assert_int_eq(two.a().sink->downs[0].status, -FI_EIO);
  ck_assert_uint_eq(two.a().sink->packets.size(), 1);
}

/// It waits for blocks of its own, which its end releases.
TEST(a_connection_that_ended_has_no_work_left) {
  Two two;
  two.meet();
  constexpr size_t kLength = 4'000'000;
  std::vector<std::byte> source(kLength), target(kLength);
  const iovec from{source.data(), kLength}, to{target.data(), kLength};
  RemoteKey at_a;
  ck_assert_int_eq(two.pair.a_to_b().share(&to, 1, kLength, transport::Access::remote_write, at_a),
                   0);
  two.rig.cache.refuse = true;
  two.rig.nic.flush = false;
  two.rig.nic.hold = true;
  verbs::BlockPool& pool = Rig::transport(two.b()).resources().bounce_blocks(false);
  std::vector<verbs::BlockPool::Block> held(1);
  ck_assert(pool.acquire(held.back()));  // makes the only slab
  two.rig.nic.refuse_regions = ENOMEM;
  ck_assert_int_eq(two.pair.b_to_a().put({at_a, 0, kLength}, &from, 1, 1, false), 0);
  for (held.emplace_back(); pool.acquire(held.back());) held.emplace_back();
  held.pop_back();
  for (int i = 0; i < 10; ++i) two.b().poll();
  two.pair.b_to_a().fail(-FI_EIO);
  two.b().poll();
  two.rig.clock.time += 25'000'000;
  two.b().poll();  // the connection is drained and ends
  ck_assert_uint_eq(two.b().sink->downs.size(), 1);
  ck_assert(two.b().transport->arm());
  two.b().transport->disarm();
  two.rig.nic.refuse_regions = 0;
  for (const auto& block : held) pool.release(block);
  two.pair.a_to_b().revoke(at_a);
}

/// Such a peer cannot miss anything, as this side sent it nothing.
TEST(the_end_waits_for_no_peer_that_was_not_heard_from) {
  Two two;
  two.rig.nic.hold = true;
  ck_assert_int_eq(two.pair.b_to_a().send(numbered(1), nullptr, 0, 0, SendHint::none), -FI_EAGAIN);
  two.a().poll();
  ck_assert_uint_eq(Rig::transport(two.a()).connections(), 1);
  const unsigned long polls = two.rig.nic.polls;
  two.a().transport->shutdown();
  ck_assert_uint_eq(two.rig.nic.polls, polls);
}

}  // namespace
}  // namespace erdma::test
