// Tests the fin, the last packet of a delivery, for which the sender waits.
#include <iterator>

#include <rdma/fi_atomic.h>

#include "protocol/one_sided_rig.h"

namespace {

using erdma::fake::Transport;
using erdma::protocol::Probe;
using namespace erdma::test;

/// The receive has completed, once.
void expect_received(Pair& pair, size_t length) {
  const auto done = pair.b.received.take();
  ck_assert_int_eq(done.error, 0);
  ck_assert_ptr_eq(done.context, &g_two);
  ck_assert_uint_eq(done.length, length);
  ck_assert(pair.b.received.entries.empty());
  pair.end_work({&g_one, &g_two});
}

/// An application that has all its completions may stop calling progress. The sender waits for the
/// fin, so the receive must not complete before the fin has left.
TEST(receive_completes_once_the_link_has_taken_its_fin, 3) {
  Pair pair;
  if (_i == 2)
    pair.a.transport.behaviour.prefers_read = pair.b.transport.behaviour.prefers_read = false;
  const auto message = pattern(5000);
  std::vector<char> got(5000);
  iovec iov{const_cast<char*>(message.data()), message.size()};
  erdma::protocol::SendArgs args = Node::send_args(1, iov, 7, &g_one);
  args.until_delivered = _i == 2;
  pair.a.transport.behaviour.hold_transfers = pair.b.transport.behaviour.hold_transfers = true;
  must(pair.b.receive(got.data(), got.size(), 7, &g_two));
  must(pair.a.engine.post_send(args));
  pair.run_until_idle();
  pair.b.transport.behaviour.room = 0;
  pair.a.transport.behaviour.hold_transfers = pair.b.transport.behaviour.hold_transfers = false;
  pair.run_until_idle();
  ck_assert(got == message);
  ck_assert(pair.b.received.entries.empty());
  if (_i == 1) {
    Transport::bring_down(pair.b.transport.link(pair.a.transport.name), -FI_ECONNRESET,
                          pair.b.engine);
  } else {
    pair.b.transport.behaviour.room = 1000;
    pair.run_until_idle();
    ck_assert_ptr_eq(pair.a.sent.take().context, &g_one);
  }
  expect_received(pair, 5000);
}

/// The close of an endpoint waits for injected messages that have not left, not for a receive of
/// the peer. The message is one packet, or several.
TEST(an_injected_message_that_waits_for_its_fin_has_left, 2) {
  Pair pair;
  pair.a.transport.behaviour.fragmented = 5000;
  const auto message = pattern(_i ? 4000 : 50);
  std::vector<char> got(message.size());
  iovec iov{const_cast<char*>(message.data()), message.size()};
  erdma::protocol::SendArgs args = Node::send_args(1, iov, 7, &g_one);
  args.inject = args.until_delivered = true;
  must(pair.a.engine.post_send(args));
  ck_assert(!pair.a.engine.has_injected());
  ck_assert(pair.a.sent.entries.empty());
  must(pair.b.receive(got.data(), got.size(), 7, &g_two));
  pair.run_until_idle();
  ck_assert_ptr_eq(pair.a.sent.take().context, &g_one);
  ck_assert(got == message);
  expect_received(pair, message.size());
}

/// The same for a message of one packet whose sender waits for the delivery, posted or unexpected.
TEST(receive_of_a_short_message_completes_once_the_link_has_taken_its_fin, 2) {
  Pair pair;
  const auto message = pattern(50);
  std::vector<char> got(50);
  iovec iov{const_cast<char*>(message.data()), message.size()};
  erdma::protocol::SendArgs args = Node::send_args(1, iov, 7, &g_one);
  args.until_delivered = true;
  if (_i == 0) must(pair.b.receive(got.data(), got.size(), 7, &g_two));
  pair.b.transport.behaviour.room = 0;
  must(pair.a.engine.post_send(args));
  pair.run_until_idle();
  if (_i == 1) must(pair.b.receive(got.data(), got.size(), 7, &g_two));
  pair.run_until_idle();
  ck_assert(got == message);
  ck_assert(pair.b.received.entries.empty());
  pair.b.transport.behaviour.room = 1000;
  pair.run_until_idle();
  ck_assert_ptr_eq(pair.a.sent.take().context, &g_one);
  expect_received(pair, 50);
}

/// A message that the application discards is reported once its sender can learn of it, too. The
/// sender's link may be lost meanwhile.
TEST(discard_completes_once_the_link_has_taken_the_fin, 8) {
  const bool is_long = _i & 1, claims = _i & 2, loses = _i & 4;
  Pair pair;
  const auto message = pattern(is_long ? 5000 : 50);
  iovec iov{const_cast<char*>(message.data()), message.size()};
  erdma::protocol::SendArgs args = Node::send_args(1, iov, 7, &g_one);
  args.until_delivered = true;
  must(pair.a.engine.post_send(args));
  pair.run_until_idle();
  pair.b.transport.behaviour.room = 0;
  const iovec nothing{nullptr, 0};
  const auto which = Node::receive_args(nothing, 7, &g_two);
  if (claims) must(pair.b.engine.probe(which, Probe::peek_claim));
  if (claims) pair.b.received.take();
  must(pair.b.engine.probe(which, claims ? Probe::claim_discard : Probe::peek_discard));
  pair.b.engine.progress();
  ck_assert(pair.b.received.entries.empty());
  if (loses) {
    Transport::bring_down(pair.b_to_a(), -FI_ECONNRESET, pair.b.engine);
  } else {
    pair.b.transport.behaviour.room = 1000;
    pair.run_until_idle();
    ck_assert_ptr_eq(pair.a.sent.take().context, &g_one);
  }
  const auto done = pair.b.received.take();
  ck_assert_int_eq(done.error, 0);
  ck_assert_ptr_eq(done.context, &g_two);
  ck_assert_uint_eq(done.length, message.size());
  ck_assert_uint_eq(done.tag, 7);
  ck_assert_uint_eq(done.source, 0);
  ck_assert(pair.b.received.entries.empty());
  pair.end_work();
}

/// Operations of a peer on memory here, after which this side may stop calling progress as well.
struct PeersOperation {
  const char* name;
  size_t bytes;
  bool reads, atomic;
};
constexpr PeersOperation kOperations[] = {
    {"a short write with data", 50, false, false},
    {"a long write with data", 5000, false, false},
    {"a short read", 50, true, false},
    {"a long read", 5000, true, false},
    {"an atomic", 8, false, true},
    {"a fetching atomic", 8, true, true},
};
constexpr int kOperationCount = int(std::size(kOperations));

int post(OneSidedPair& pair, const PeersOperation& operation, std::vector<char>& local) {
  using erdma::protocol::wire::Op;
  const iovec iov{local.data(), operation.bytes};
  const erdma::protocol::wire::Segment segment{reinterpret_cast<uint64_t>(pair.memory.data()),
                                               OneSidedPair::kKey, operation.bytes};
  const Op op = operation.atomic ? Op::atomic : operation.reads ? Op::read : Op::write;
  const bool one_way = operation.atomic && !operation.reads;
  auto args = OneSidedNode::args(op, 1, &iov, !one_way, &segment, 1, &g_one);
  args.local.has_data = !operation.reads && !operation.atomic;
  args.local.data = 77;
  if (operation.atomic) {
    args.word = {0, FI_SUM, FI_UINT64, 0};
    args.element = 8;
    args.count = 1;
    args.operands = &iov;
    args.operand_count = 1;
    args.flags = operation.reads ? erdma::protocol::wire::kFetch : 0;
  }
  return pair.a.engine.post_one_sided(args);
}

/// What the target has learned of the operation, in all.
size_t reports(OneSidedPair& pair) {
  return pair.target.remote_reads.entries.size() + pair.target.remote_writes.entries.size() +
         pair.region.events.size();
}

/// Two for each operation: at the endpoint and at the region.
TEST(target_reports_an_operation_once_the_link_has_taken_its_answer, kOperationCount) {
  const PeersOperation& operation = kOperations[_i];
  OneSidedPair pair;
  std::vector<char> local = pattern(5000);
  pair.target.remote_reads.counted = pair.target.remote_writes.counted = true;
  pair.b.transport.behaviour.room = 0;
  must(post(pair, operation, local));
  pair.run_until_idle();
  ck_assert_msg(pair.initiator.reads.entries.empty() && pair.initiator.writes.entries.empty(),
                "%s is over too soon", operation.name);
  ck_assert_msg(reports(pair) == 0, "%s is reported before its answer has left", operation.name);
  pair.b.transport.behaviour.room = 1000;
  pair.run_until_idle();
  ck_assert_uint_eq(reports(pair), 2);
  auto& done = operation.reads ? pair.initiator.reads : pair.initiator.writes;
  ck_assert_int_eq(done.take().error, 0);
  run_until_idle(pair);
  pair.expect_silent();
}

/// An operation that the target has executed, and of which its link has not taken the answer.
struct Unanswered : OneSidedPair {
  explicit Unanswered(const PeersOperation& what) : operation(what) {
    target.remote_reads.counted = target.remote_writes.counted = true;
    b.transport.behaviour.room = 0;
    must(post(*this, operation, local));
    run_until_idle();
    ck_assert_uint_eq(reports(*this), 0);
    ck_assert_uint_gt(region.users, 0);
  }
  /// Whatever happens next, the operation is reported once.
  void expect_reported() {
    ck_assert_uint_eq(reports(*this), 2);
    b.transport.behaviour.room = 1000;
    run_until_idle();
    ck_assert_uint_eq(reports(*this), 2);
    ck_assert_uint_eq(region.users, 0);
  }

  const PeersOperation& operation;
  std::vector<char> local = pattern(5000);
};

/// fi_close of the region does not wait for the peer to take the answer.
TEST(region_that_closes_is_reported_on_and_let_go, kOperationCount) {
  Unanswered pair(kOperations[_i]);
  pair.b.engine.abandon(pair.region, false);
  ck_assert_uint_eq(pair.region.users, 0);
  pair.expect_reported();
  auto& done = pair.operation.reads ? pair.initiator.reads : pair.initiator.writes;
  ck_assert_int_eq(done.take().error, 0);
}

TEST(endpoint_that_closes_reports_what_it_has_executed, kOperationCount) {
  Unanswered pair(kOperations[_i]);
  pair.b.engine.detach(true);
  pair.expect_reported();
}

TEST(lost_link_ends_an_operation_that_is_over_with_its_report, kOperationCount) {
  Unanswered pair(kOperations[_i]);
  Transport::bring_down(pair.b_to_a(), -FI_ECONNRESET, pair.b.engine);
  ck_assert_uint_eq(reports(pair), 2);
  ck_assert_uint_eq(pair.region.users, 0);
  pair.end_work();
}

}  // namespace
