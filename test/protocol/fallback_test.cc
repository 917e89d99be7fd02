// Tests two paths to one peer: a link that never came up is replaced by another one.
#include <vector>

#include "fake/captured_log.h"
#include "fake/captured_stderr.h"
#include "libcheck.h"
#include "protocol/one_sided_rig.h"

namespace {

using erdma::fake::Network;
using erdma::fake::Transport;
using namespace erdma::test;

/// Two nodes that are connected by two networks. `near` is the first choice, `far` the second.
struct Rig {
  Rig()
      : far_a(far, address_with_port(5000)),
        far_b(far, address_with_port(5001)),
        a(near, 0, kConfig, far_a),
        b(near, 1, kConfig, far_b) {
    near_ab().up_once = near_ba().up_once = false;
  }

  void run_until_idle() {
    while (a.engine.progress() + b.engine.progress() > 0) {
    }
  }
  void end_work(std::initializer_list<const void*> contexts) {
    a.end_work(contexts);
    b.end_work(contexts);
  }
  /// Makes connections over the near network fail.
  void cut_near() { near.by_port.clear(); }
  Transport::FakeLink& near_ab() { return a.transport.link(b.transport.name); }
  Transport::FakeLink& near_ba() { return b.transport.link(a.transport.name); }
  Transport::FakeLink& far_ab() { return far_a.link(b.transport.name); }
  Transport::FakeLink& far_ba() { return far_b.link(a.transport.name); }

  Network near, far;
  Transport far_a, far_b;
  Node a, b;
};

TEST(what_waits_for_a_link_that_never_came_up_goes_another_way) {
  Rig rig;
  rig.cut_near();
  const auto large = pattern(5000);
  std::vector<char> first(8), second(5000);
  must(rig.b.receive(first.data(), 8, 1));
  must(rig.b.receive(second.data(), 5000, 2));
  must(rig.a.send(1, large.data(), 8, 1, &g_one));
  must(rig.a.send(1, large.data(), large.size(), 2, &g_two));
  Transport::bring_down(rig.near_ab(), -FI_ECONNREFUSED, rig.a.engine);
  ck_assert_int_eq(rig.a.detour_status, -FI_ECONNREFUSED);
  rig.run_until_idle();
  ck_assert_ptr_eq(rig.a.sent.take().context, &g_one);
  ck_assert_ptr_eq(rig.a.sent.take().context, &g_two);
  ck_assert_uint_eq(rig.b.received.take().length, 8);
  ck_assert_uint_eq(rig.b.received.take().length, 5000);
  ck_assert(second == large);
  ck_assert(rig.far_a.shared.empty());
}

/// Messages come over one link, and the answers go over another.
TEST(a_peer_on_hold_goes_on_when_the_link_that_should_tell_it_fails) {
  namespace wire = erdma::protocol::wire;
  Rig rig;
  rig.near_ba().up_once = true;
  rig.b.by_other = true;
  char byte = 'b';
  must(rig.b.send(0, &byte, 1, 1));
  rig.far_b.behaviour.room = 0;
  const std::vector<char> payload(1024, 'x');
  const uint32_t messages = 9'000;
  for (uint32_t i = 0; i < messages; ++i) {
    const wire::MessageHeader header{wire::Op::eager, wire::kTagged, 1, i, i, 0, payload.size()};
    rig.near_ba().inject(&header, sizeof(header), payload.data(), payload.size());
  }
  rig.b.engine.progress();
  ck_assert(rig.near_ba().held);
  ck_assert(!rig.near_ba().inbound.empty());
  Transport::bring_down(rig.far_ba(), -FI_ECONNRESET, rig.b.engine);
  ck_assert(!rig.near_ba().held);
  rig.b.engine.progress();  // the peer still cannot be told
  ck_assert(rig.near_ba().held);
  rig.far_b.behaviour.room = SIZE_MAX;
  while (!rig.near_ba().inbound.empty()) rig.b.engine.progress();
  ck_assert(!rig.near_ba().held);
  ck_assert_uint_eq(rig.near_ba().ended, 0);
  std::vector<char> bytes(1024);
  for (uint32_t i = 0; i < messages; ++i) {
    must(rig.b.receive(bytes.data(), bytes.size(), i));
    ck_assert_int_eq(rig.b.received.take().error, 0);
  }
}

TEST(a_link_that_was_up_is_not_replaced_when_it_dies) {
  Rig rig;
  rig.near_ab().up_once = true;
  rig.near.by_port.clear();
  char byte = 'a';
  must(rig.a.send(1, &byte, 1, 1, &g_one));
  Transport::bring_down(rig.near_ab(), -FI_ECONNRESET, rig.a.engine);
  ck_assert_int_eq(rig.a.sent.take().error, FI_ECONNRESET);
  ck_assert_int_eq(rig.a.detour_status, 0);
}

TEST(without_another_way_each_operation_fails_once) {
  Rig rig;
  rig.cut_near();
  rig.a.other = nullptr;
  char byte = 'a';
  must(rig.a.send(1, &byte, 1, 1, &g_one));
  Transport::bring_down(rig.near_ab(), -FI_EACCES, rig.a.engine);
  ck_assert_int_eq(rig.a.sent.take().error, FI_EACCES);
  ck_assert(rig.a.sent.entries.empty());
}

TEST(a_detour_that_fails_too_ends_the_operation) {
  Rig rig;
  rig.cut_near();
  rig.far_ab().up_once = false;
  rig.far.by_port.clear();
  char byte = 'a';
  must(rig.a.send(1, &byte, 1, 1, &g_one));
  Transport::bring_down(rig.near_ab(), -FI_ECONNREFUSED, rig.a.engine);
  ck_assert(rig.a.sent.entries.empty());
  Transport::bring_down(rig.far_ab(), -FI_ETIMEDOUT, rig.a.engine);
  ck_assert_int_eq(rig.a.sent.take().error, FI_ETIMEDOUT);
  ck_assert(rig.a.sent.entries.empty());
}

TEST(a_peer_that_comes_another_way_is_answered_that_way) {
  Rig rig;
  rig.cut_near();
  char byte = 'a', got = 0;
  must(rig.a.receive(&got, 1, 1));
  must(rig.a.send(1, &byte, 1, 2, &g_one));  // the message waits for the near link
  rig.b.by_other = true;
  must(rig.b.send(0, &byte, 1, 1));
  must(rig.b.receive(&got, 1, 2));
  rig.run_until_idle();
  ck_assert_ptr_eq(rig.a.sent.take().context, &g_one);
  ck_assert_uint_eq(rig.b.received.entries.size(), 1);
  // The outcome of the near connection no longer matters.
  Transport::bring_down(rig.near_ab(), -FI_ECONNREFUSED, rig.a.engine);
  ck_assert(rig.a.sent.entries.empty());
}

/// The sender has shared its memory over the near link, which tells the far link nothing.
TEST(what_waits_to_be_read_is_shared_anew_over_another_link, 2) {
  Rig rig;
  rig.cut_near();
  rig.far_a.keys_made = 100;  // no key is valid on both links by chance
  const bool injected = _i == 1;
  for (Transport* transport : {&rig.a.transport, &rig.b.transport, &rig.far_a, &rig.far_b}) {
    transport->behaviour.prefers_read = !injected;
    transport->behaviour.eager = 1024;
  }
  const auto large = pattern(injected ? 2000 : 5000);
  std::vector<char> at_b(large.size());
  char byte = 'b', got = 0;
  iovec iov{const_cast<char*>(large.data()), large.size()};
  erdma::protocol::SendArgs args = Node::send_args(1, iov, 2);
  args.inject = injected;
  args.report = !injected;
  must(rig.a.receive(&got, 1, 1));
  must(rig.a.engine.post_send(args));
  ck_assert_uint_eq(rig.a.transport.shared.size(), 1);
  rig.b.by_other = true;
  must(rig.b.send(0, &byte, 1, 1));
  must(rig.b.receive(at_b.data(), at_b.size(), 2));
  rig.run_until_idle();
  ck_assert_int_eq(rig.b.received.take().error, 0);
  ck_assert(at_b == large);
  ck_assert(rig.a.transport.shared.empty() && rig.far_a.shared.empty());
  Transport::bring_down(rig.near_ab(), -FI_ECONNREFUSED, rig.a.engine);
}

/// Node a sends over the near network, b over the far one. Each keeps its path to keep the order.
struct Crossed : Rig {
  explicit Crossed(bool prefers_read) {
    near_ab().up_once = near_ba().up_once = true;
    b.by_other = true;
    far_a.behaviour.prefers_read = far_b.behaviour.prefers_read = prefers_read;
    a.transport.behaviour.prefers_read = b.transport.behaviour.prefers_read = prefers_read;
    char byte = 'x';
    must(a.send(1, &byte, 1, 90));
    must(b.send(0, &byte, 1, 91));
    run_until_idle();
    a.sent.entries.clear();
    b.sent.entries.clear();
  }
};

/// Each receive completes when its fin has left, or cannot leave any more. The end of the link of
/// the message changes nothing.
TEST(a_receive_completes_with_its_answer_over_another_link, 3) {
  Crossed rig(true);
  const auto large = pattern(5000);
  std::vector<char> at_b(5000);
  rig.far_b.behaviour.room = 0;
  must(rig.b.receive(at_b.data(), at_b.size(), 1, &g_two));
  must(rig.a.send(1, large.data(), large.size(), 1, &g_one));
  rig.run_until_idle();
  ck_assert(at_b == large);
  ck_assert(rig.b.received.entries.empty());
  if (_i >= 1) Transport::bring_down(rig.near_ba(), -FI_ECONNRESET, rig.b.engine);
  ck_assert(rig.b.received.entries.empty());
  if (_i == 2) {
    Transport::bring_down(rig.far_ba(), -FI_ECONNRESET, rig.b.engine);
  } else {
    rig.far_b.behaviour.room = 1000;
    rig.run_until_idle();
    ck_assert_ptr_eq(rig.a.sent.take().context, &g_one);
  }
  const auto done = rig.b.received.take();
  ck_assert_int_eq(done.error, 0);
  ck_assert_ptr_eq(done.context, &g_two);
  ck_assert(rig.b.received.entries.empty());
  rig.end_work({&g_one, &g_two});
}

TEST(large_messages_move_over_the_link_that_announced_them, 2) {
  Crossed rig(_i == 0);
  const auto large = pattern(5000);
  std::vector<char> at_a(5000), at_b(5000);
  must(rig.a.receive(at_a.data(), 5000, 1));
  must(rig.b.receive(at_b.data(), 5000, 2));
  must(rig.b.send(0, large.data(), 5000, 1));
  must(rig.a.send(1, large.data(), 5000, 2));
  rig.run_until_idle();
  ck_assert_int_eq(rig.a.received.entries.size(), 1);
  ck_assert_int_eq(rig.b.received.entries.size(), 1);
  ck_assert(at_a == large && at_b == large);
  for (const Transport* transport : {&rig.a.transport, &rig.b.transport, &rig.far_a, &rig.far_b})
    ck_assert(transport->shared.empty());
  rig.end_work({&g_one, &g_two});
}

/// The peer says over the link on which it sends that its budget is used up. It does not say so
/// again while that link is up, whatever happens to the other one.
TEST(a_sender_keeps_to_the_budget_until_the_link_that_told_it_ends) {
  namespace wire = erdma::protocol::wire;
  Crossed rig(true);
  const wire::ControlHeader budget = wire::control(wire::Op::budget, {}, 1);
  rig.far_ab().inject(&budget, sizeof(budget), nullptr, 0);
  rig.a.engine.progress();
  const auto message = pattern(1000);
  const auto is_rendezvous = [&] {
    const uint32_t shared = rig.a.transport.keys_made;
    must(rig.a.send(1, message.data(), message.size(), 1));
    return rig.a.transport.keys_made > shared;
  };
  ck_assert(is_rendezvous());
  const wire::ControlHeader other = wire::control(wire::Op::budget, {}, wire::kUnexpected);
  rig.far_ab().inject(&other, sizeof(other), nullptr, 0);
  rig.a.engine.progress();
  ck_assert(is_rendezvous());
  Transport::bring_down(rig.near_ab(), -FI_ECONNRESET, rig.a.engine);
  ck_assert(is_rendezvous());
  Transport::bring_down(rig.far_ab(), -FI_ECONNRESET, rig.a.engine);
  ck_assert(!is_rendezvous());
  rig.end_work({&g_one, &g_two});
}

/// Node b answers over the far link, which ends on both sides with the answer in it: the fin of a
/// message that b has read, or the permission to write.
TEST(the_end_of_a_link_ends_what_awaited_an_answer_over_it, 2) {
  Crossed rig(_i == 0);
  rig.a.received.entries.clear();
  const auto large = pattern(5000);
  std::vector<char> at_b(5000);
  rig.far_b.behaviour.room = 0;
  must(rig.b.receive(at_b.data(), 5000, 1, &g_two));
  must(rig.a.send(1, large.data(), 5000, 1, &g_one));
  rig.run_until_idle();
  Transport::bring_down(rig.far_ba(), -FI_ECONNRESET, rig.b.engine);
  Transport::bring_down(rig.far_ab(), -FI_ECONNRESET, rig.a.engine);
  rig.far_b.behaviour.room = 1000;
  rig.run_until_idle();
  ck_assert_int_eq(rig.a.sent.take().error, FI_ECONNRESET);
  ck_assert_int_eq(rig.b.received.take().error, _i == 0 ? 0 : FI_ECONNRESET);
  ck_assert(rig.a.sent.entries.empty() && rig.b.received.entries.empty());
  rig.end_work({&g_one, &g_two});
}

TEST(the_end_of_one_link_spares_what_moves_over_the_other) {
  Crossed rig(true);
  rig.a.received.entries.clear();
  const auto large = pattern(5000);
  std::vector<char> at_a(5000);
  must(rig.a.receive(at_a.data(), 5000, 1));
  rig.far_a.behaviour.hold_transfers = true;
  must(rig.b.send(0, large.data(), 5000, 1));
  rig.run_until_idle();
  Transport::bring_down(rig.near_ab(), -FI_ECONNRESET, rig.a.engine);
  ck_assert(rig.a.received.entries.empty());
  rig.far_a.behaviour.hold_transfers = false;
  rig.run_until_idle();
  ck_assert_uint_eq(rig.a.received.take().length, 5000);
  ck_assert(at_a == large);
  rig.end_work({&g_one, &g_two});
}

/// The segments of a write are here, and the write itself is still to come over the same link.
TEST(the_end_of_one_link_spares_segments_that_came_over_the_other) {
  namespace wire = erdma::protocol::wire;
  Crossed rig(true);
  OneSidedNode initiator(rig.a), target(rig.b);
  auto text = pattern(16);
  std::vector<char> memory(16);
  FakeRegion region(memory.data(), memory.size(), FI_REMOTE_WRITE);
  target.regions.by_key[5] = &region;
  rig.b.received.entries.clear();
  rig.a.received.entries.clear();
  rig.a.transport.behaviour.room = 1;
  const iovec iov{text.data(), 16};
  const wire::Segment segments[] = {{uint64_t(&memory[8]), 5, 8}, {uint64_t(&memory[0]), 5, 8}};
  must(rig.a.engine.post_one_sided(
      OneSidedNode::args(wire::Op::write, 1, &iov, 1, segments, 2, &g_one)));
  rig.b.engine.progress();
  Transport::bring_down(rig.far_ba(), -FI_ECONNRESET, rig.b.engine);
  rig.a.transport.behaviour.room = 10;
  rig.run_until_idle();
  ck_assert_uint_eq(initiator.writes.entries.size(), 1);
  ck_assert_int_eq(initiator.writes.take().error, 0);
  ck_assert(std::equal(text.begin(), text.begin() + 8, memory.begin() + 8) &&
            std::equal(text.begin() + 8, text.end(), memory.begin()));
  ck_assert(!rig.near_ba().failed);
  rig.end_work({&g_one, &g_two});
}

/// A message for a receive from any source may still come over the other link.
TEST(a_peer_is_lost_to_a_receive_from_any_source_by_its_last_link) {
  Crossed rig(true);
  rig.b.received.entries.clear();
  char byte;
  must(rig.b.receive(&byte, 1, 1, &g_one));
  const erdma::test::CapturedStderr error_output;
  erdma::test::g_log_level = -1;
  Transport::bring_down(rig.near_ba(), -FI_ETIMEDOUT, rig.b.engine);
  ck_assert(error_output.writes().empty());
  Transport::bring_down(rig.far_ba(), -FI_ECONNRESET, rig.b.engine);
  ck_assert(error_output.only_write().find("receives from any source") != std::string::npos);
  ck_assert(rig.b.received.entries.empty());
  rig.end_work({&g_one});
}

TEST(the_end_of_the_peers_link_ends_what_moves_over_it) {
  Crossed rig(true);
  rig.a.received.entries.clear();
  const auto large = pattern(5000);
  std::vector<char> at_a(5000), late(5000);
  must(rig.a.receive(at_a.data(), 5000, 1));
  rig.far_a.behaviour.hold_transfers = true;
  must(rig.b.send(0, large.data(), 5000, 1));
  must(rig.b.send(0, large.data(), 5000, 2));  // an unexpected message
  rig.run_until_idle();
  Transport::bring_down(rig.far_ab(), -FI_ECONNRESET, rig.a.engine);
  ck_assert_int_eq(rig.a.received.take().error, FI_ECONNRESET);
  must(rig.a.receive(late.data(), 5000, 2));
  ck_assert_int_eq(rig.a.received.take().error, FI_ECONNRESET);
  ck_assert(rig.a.received.entries.empty());
  rig.end_work({&g_one, &g_two});
}

}  // namespace
