// Tests chains: packets with more to come, which share a doorbell.
#include "libcheck.h"
#include "transport/verbs_rig.h"

namespace erdma::test {
namespace {

using transport::Link;
using transport::RemoteKey;
using transport::SendHint;

TEST(packets_with_more_to_come_share_a_doorbell) {
  Two two;
  two.meet();
  Link& link = two.pair.a_to_b();
  const unsigned long before = two.rig.nic.doorbells;
  for (uint64_t i = 1; i < 5; ++i)
    ck_assert_int_eq(link.send(numbered(i), nullptr, 0, 0, SendHint::more), 0);
  ck_assert_uint_eq(two.rig.nic.doorbells, before);
  ck_assert_int_eq(link.send(numbered(5), nullptr, 0, 0, SendHint::none), 0);
  ck_assert_uint_eq(two.rig.nic.doorbells, before + 1);
  for (int i = 0; i < 4; ++i) two.pair.poll();
  ck_assert_int_eq(link.send(numbered(6), nullptr, 0, 0, SendHint::more), 0);
  ck_assert(two.pair.poll_until([&] { return two.b().sink->packets.size() == 7; }));
  for (uint64_t i = 0; i < 7; ++i) ck_assert_uint_eq(two.b().sink->packets[i].number(), i);
}

/// The first endpoint is connected to two others.
struct WithThird : Two {
  WithThird() {
    ck_assert(rig.open(third, {}, &rig.clock));
    meet();
    ck_assert_int_eq(pair.send(other(), 1, nullptr, 0), 0);
    ck_assert(until([&] { return third.poll(), third.sink->packets.size() == 1; }));
  }
  Link& other() { return **a().transport->link_to(third.name); }
  Side third;
};

/// The sends to the first peer are complete, so the application may call nothing after its last
/// send, whatever this is: a packet, a packet that is too long to be inline, an access, or a packet
/// with more to come.
TEST(packets_with_more_to_come_leave_before_what_another_peer_gets, 4) {
  WithThird two;
  Side& third = two.third;
  Link& other = two.other();
  std::vector<std::byte> bytes(900), there(8);
  const iovec payload{bytes.data(), bytes.size()};
  Link& back = **third.transport->link_to(two.a().name);
  auto open = back.optional().registrar->open({there.data(), there.size()}, nullptr, true, true);
  ck_assert(open);
  RemoteKey remote_key;
  (*open)->describe(remote_key);
  transport::DeviceAddress first;
  ck_assert(other.optional().fast->unpack(remote_key, first));

  Link& link = two.pair.a_to_b();
  for (uint64_t i = 1; i < 4; ++i)
    ck_assert_int_eq(link.send(numbered(i), nullptr, 0, 0, SendHint::more), 0);
  const unsigned long before = two.rig.nic.doorbells;
  const SendHint hint = _i == 3 ? SendHint::more : SendHint::none;
  ck_assert_int_eq(_i == 2   ? other.optional().fast->put(first, bytes.data(), 8, 1)
                   : _i == 1 ? other.send(numbered(2), &payload, 1, bytes.size(), hint)
                             : other.send(numbered(2), nullptr, 0, 0, hint),
                   0);
  ck_assert_uint_eq(two.rig.nic.doorbells, before + (_i == 3 ? 1 : 2));
  for (int i = 0; i < 8; ++i) two.b().poll();
  ck_assert_uint_eq(two.b().sink->packets.size(), 4);
}

/// A packet that follows the chain of another peer and that the device refuses was not sent.
TEST(chain_of_one_peer_and_a_refusal_for_another_do_not_mix) {
  WithThird two;
  Link& other = two.other();
  ck_assert_int_eq(two.pair.a_to_b().send(numbered(1), nullptr, 0, 0, SendHint::more), 0);
  two.rig.nic.post_send_error = EINVAL;
  ck_assert_int_eq(other.send(numbered(2), nullptr, 0, 0, SendHint::none), 0);
  ck_assert(two.until([&] { return two.a().sink->downs.size() == 1; }));
  ck_assert_ptr_eq(two.a().sink->downs[0].link, &two.pair.a_to_b());
  ck_assert(two.until([&] { return two.third.poll(), two.third.sink->packets.size() == 2; }));
}

/// A chain is followed by a message that is too long for it, or by a write.
TEST(nothing_overtakes_a_chain_that_is_refused, 2) {
  Two two;
  two.meet();
  Link& link = two.pair.a_to_b();
  std::vector<std::byte> bytes(900), there(8);
  const iovec payload{bytes.data(), bytes.size()};
  auto open = two.pair.b_to_a().optional().registrar->open({there.data(), there.size()}, nullptr,
                                                           true, true);
  ck_assert(open);
  RemoteKey remote_key;
  (*open)->describe(remote_key);
  transport::DeviceAddress first;
  ck_assert(link.optional().fast->unpack(remote_key, first));
  ck_assert_int_eq(link.send(numbered(1), nullptr, 0, 0, SendHint::more), 0);
  two.rig.nic.post_send_error = EINVAL;
  ck_assert_int_eq(_i ? link.optional().fast->put(first, bytes.data(), 8, 1)
                      : link.send(numbered(2), &payload, 1, bytes.size(), SendHint::none),
                   -FI_EAGAIN);
  ck_assert(two.until([&] { return two.a().sink->downs.size() == 1; }));
  ck_assert(two.until([&] { return two.b().sink->downs.size() == 1; }));
  ck_assert_uint_eq(two.b().sink->packets.size(), 1);  // the very first packet
}

}  // namespace
}  // namespace erdma::test
