// Tests messages with FI_MORE, which a NIC holds back until the next one.
#include "libcheck.h"
#include "protocol/one_sided_rig.h"

namespace {

using erdma::fake::Network;
using erdma::fake::Transport;
using erdma::protocol::Probe;
using erdma::protocol::SendArgs;
using namespace erdma::test;

/// A node that is connected to b by a NIC, and to c by another transport.
struct Rig {
  Rig() : local_a(local, address_with_port(5000)), a(nics, 0, kConfig, local_a) {
    must(a.send(1, nullptr, 0, 0));
    a.by_other = true;
    must(a.send(2, nullptr, 0, 0));
    while (!a.sent.entries.empty()) ck_assert_int_eq(a.sent.take().error, 0);
    at_b().inbound.clear();
    a.transport.behaviour.chains = true;
    a.transport.before_poll = [this] { ++polls; };
  }
  int send(uint64_t to, bool more, size_t length = 0, bool inject = false) {
    static std::vector<char> bytes(kConfig.inject_size + 1);
    const iovec iov{bytes.data(), length};
    SendArgs args = Node::send_args(to, iov, 1);
    args.more = more;
    args.inject = inject;
    return a.engine.post_send(args);
  }
  Transport::FakeLink& at_b() { return b.transport.link(a.transport.name); }

  Network nics, local;
  Transport local_a;
  Node a;
  Node b{nics, 1, kConfig};
  Node c{local, 2, kConfig};
  unsigned polls = 0;
};

TEST(messages_with_more_to_come_leave_together) {
  Rig rig;
  for (int i = 0; i < 3; ++i) {
    must(rig.send(1, true));
    ck_assert_int_eq(rig.a.sent.take().error, 0);
    ck_assert_uint_eq(rig.at_b().inbound.size(), 0);
  }
  must(rig.send(1, false));
  ck_assert_uint_eq(rig.at_b().inbound.size(), 4);
  ck_assert_uint_eq(rig.polls, 0);
  must(rig.send(1, false));
  ck_assert_uint_eq(rig.at_b().inbound.size(), 5);
  ck_assert_uint_eq(rig.polls, 0);
  rig.b.end_work({});
}

/// The sends are complete, so the application may call nothing more after its last call, whatever
/// becomes of it (fi_msg(3), FI_MORE).
TEST(delayed_messages_leave_with_the_next_call, 10) {
  Rig rig;
  must(rig.send(1, true));
  ck_assert_int_eq(rig.a.sent.take().error, 0);
  const iovec none{nullptr, 0};
  erdma::protocol::OneSidedArgs access{};
  switch (_i) {
    case 0:  // to another peer, by another transport
      must(rig.send(2, false));
      break;
    case 1:  // likewise, with still more to come
      must(rig.send(2, true));
      must(rig.send(2, false));
      break;
    case 2:  // no such address
      ck_assert_int_eq(rig.send(9, false), -FI_EINVAL);
      break;
    case 3:  // too long
      ck_assert_int_eq(rig.send(1, false, kConfig.inject_size + 1, true), -FI_EMSGSIZE);
      break;
    case 4:  // no room
      rig.a.transport.behaviour.room = 0;
      must(rig.send(1, false));
      break;
    case 5:  // a message of deferred work
      must(rig.a.engine.post_send(Node::send_args(2, none, 1), rig.a.received));
      break;
    case 6:  // a write, which is refused here
      access.local = Node::send_args(2, none, 0);
      ck_assert_int_eq(rig.a.engine.post_one_sided(access), -FI_EINVAL);
      break;
    case 7:  // a receive from a peer that there is not
      ck_assert_int_eq(rig.a.receive(nullptr, 0, 1, nullptr, 0, 9), -FI_EINVAL);
      break;
    case 8:  // nothing to claim
      ck_assert_int_ne(rig.a.engine.probe(Node::receive_args(none, 1), Probe::claim), 0);
      break;
    default:  // a call that fabric/ refuses
      rig.a.engine.let_leave();
  }
  ck_assert_uint_ge(rig.at_b().inbound.size(), 1);
  rig.a.end_work({});
  rig.b.end_work({});
  rig.c.end_work({});
}

}  // namespace
