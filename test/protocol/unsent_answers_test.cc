// Tests that a message is reported once the answers to earlier operations of its sender have left.
// Nobody at the target watches those operations, so the message may be the last event for which its
// application calls progress.
#include <rdma/fi_atomic.h>

#include "protocol/one_sided_rig.h"

namespace {

using erdma::fake::Transport;
using erdma::protocol::Probe;
using namespace erdma::test;

enum class Asked { write, read, atomic, refused, long_write };
constexpr int kOperations = 5;
/// How the message comes, and who takes it.
enum class Comes {
  posted,
  unexpected,
  into_parts,
  in_fragments,
  written,
  multi,
  discarded,
  until_delivered
};
constexpr int kWays = 8;

/// The target has executed an operation and has no room for its answer; then a message follows.
struct LateAnswer : OneSidedPair {
  explicit LateAnswer(Asked what, Comes how = Comes::posted)
      : operation(what),
        way(how),
        local(what == Asked::long_write ? 5000 : 8),
        bytes(pattern(length())),
        got(length()) {
    a.transport.behaviour.fragmented = b.transport.behaviour.fragmented = 8000;
    if (way == Comes::written) {
      a.transport.behaviour.fragmented = 0;
      a.transport.behaviour.prefers_read = b.transport.behaviour.prefers_read = false;
    }
  }
  size_t length() const { return way == Comes::in_fragments || way == Comes::written ? 5000 : 50; }
  void post_operation() {
    using erdma::protocol::wire::Op;
    const bool reads = operation == Asked::read;
    const iovec iov{local.data(), local.size()};
    const erdma::protocol::wire::Segment segment{reinterpret_cast<uint64_t>(memory.data()),
                                                 operation == Asked::refused ? 1 : kKey,
                                                 local.size()};
    const Op op = operation == Asked::atomic ? Op::atomic : reads ? Op::read : Op::write;
    auto args =
        OneSidedNode::args(op, 1, &iov, operation == Asked::atomic ? 0 : 1, &segment, 1, &g_one);
    if (operation == Asked::atomic) {
      args.word = {0, FI_SUM, FI_UINT64, 0};
      args.element = local.size();
      args.count = 1;
      args.operands = &iov;
      args.operand_count = 1;
    }
    must(a.engine.post_one_sided(args));
  }
  void post_message() {
    const iovec iov{bytes.data(), bytes.size()};
    auto args = Node::send_args(1, iov, 7, nullptr);
    args.until_delivered = way == Comes::until_delivered;
    must(a.engine.post_send(args));
  }
  void post_receive() {
    const iovec parts[] = {{got.data(), 20}, {got.data() + 20, got.size() - 20}};
    auto args = Node::receive_args(parts[0], 7, &g_two);
    args.iov = parts;
    args.count = 2;
    args.length = got.size();
    const iovec whole{got.data(), got.size()};
    if (way != Comes::into_parts) {
      args.iov = &whole;
      args.count = 1;
    }
    args.multi = way == Comes::multi;
    must(b.engine.post_receive(args));
  }
  /// The message is here, and not reported.
  void bring_message() {
    b.transport.behaviour.room = 0;
    post_operation();
    const bool late = way == Comes::unexpected || way == Comes::discarded;
    if (!late) post_receive();
    run_until_idle();
    post_message();
    run_until_idle();
    if (way == Comes::discarded) {
      must(b.engine.probe(Node::receive_args({}, 7, &g_two), Probe::peek_discard));
    } else if (late) {
      post_receive();
    }
    run_until_idle();
    ck_assert(way == Comes::discarded || way == Comes::written || got == bytes);
    ck_assert_msg(b.received.entries.empty(), "the message is reported too soon");
  }
  void expect_message() {
    ck_assert_uint_eq(b.received.entries.size(), 1);
    const auto done = b.received.take();
    ck_assert_int_eq(done.error, 0);
    ck_assert_ptr_eq(done.context, &g_two);
    ck_assert_uint_eq(done.length, bytes.size());
    ck_assert_uint_eq(done.tag, 7);
    ck_assert(way == Comes::discarded || got == bytes);
  }

  const Asked operation;
  const Comes way;
  std::vector<char> local;
  std::vector<char> bytes, got;
};

TEST(message_is_reported_after_earlier_answers_have_left, kOperations* kWays) {
  LateAnswer pair(Asked(_i % kOperations), Comes(_i / kOperations));
  pair.bring_message();
  pair.b.transport.behaviour.room = 1000;
  pair.run_until_idle();
  pair.expect_message();
  auto& done = pair.operation == Asked::read ? pair.initiator.reads : pair.initiator.writes;
  ck_assert_int_eq(done.take().error, pair.operation == Asked::refused ? FI_EACCES : 0);
  ck_assert_int_eq(pair.a.sent.take().error, 0);
  run_until_idle(pair);
  pair.expect_silent();
}

/// What the peer asks for later does not matter, so that a peer which goes on asking delays its
/// messages no longer than necessary.
TEST(message_does_not_wait_for_later_answers, kOperations) {
  LateAnswer pair{Asked(_i)};
  pair.bring_message();
  pair.post_operation();
  pair.run_until_idle();
  pair.b.transport.behaviour.room = 1;
  pair.b.engine.progress();
  ck_assert_uint_eq(pair.a.transport.link(pair.b.transport.name).inbound.size(), 1);
  pair.expect_message();
  pair.b.transport.behaviour.room = 1000;
  pair.run_until_idle();
  ck_assert(pair.b.received.entries.empty());
  pair.initiator.reads.entries.clear();
  pair.initiator.writes.entries.clear();
  pair.a.sent.entries.clear();
  run_until_idle(pair);
  pair.expect_silent();
}

/// Another message, of which the sender wants to learn that it is here, for a receive with g_one.
void send_another(LateAnswer& pair, std::vector<char>& there) {
  must(pair.b.receive(there.data(), there.size(), 8, &g_one));
  const iovec iov{pair.bytes.data(), pair.bytes.size()};
  auto args = Node::send_args(1, iov, 8, nullptr);
  args.until_delivered = true;
  must(pair.a.engine.post_send(args));
  pair.run_until_idle();
}
void end(LateAnswer& pair) {
  pair.b.transport.behaviour.room = 1000;
  pair.run_until_idle();
  pair.expect_message();
  pair.initiator.reads.entries.clear();
  pair.initiator.writes.entries.clear();
  pair.a.sent.entries.clear();
  run_until_idle(pair);
  pair.expect_silent();
}

TEST(messages_are_reported_in_order, kOperations) {
  LateAnswer pair{Asked(_i)};
  pair.bring_message();
  std::vector<char> there(pair.bytes.size());
  send_another(pair, there);
  ck_assert(pair.b.received.entries.empty());
  pair.b.transport.behaviour.room = 1000;
  pair.b.engine.progress();
  ck_assert_uint_eq(pair.b.received.entries.size(), 2);
  ck_assert_ptr_eq(pair.b.received.entries[1].context, &g_one);
  pair.b.received.entries.pop_back();
  end(pair);
}

/// The second message is not reported before another answer has left; the first is.
TEST(message_does_not_wait_for_the_report_of_a_later_one) {
  LateAnswer pair{Asked::read};
  pair.b.transport.behaviour.room = 0;
  pair.post_operation();
  pair.run_until_idle();
  std::vector<char> there(pair.bytes.size());
  send_another(pair, there);
  pair.bring_message();
  pair.b.transport.behaviour.room = 1;
  pair.b.engine.progress();  // the fin of the first message leaves
  ck_assert(pair.b.received.entries.empty());
  pair.b.transport.behaviour.room = 2;
  pair.b.engine.progress();
  ck_assert_ptr_eq(pair.b.received.take().context, &g_one);
  ck_assert(pair.b.received.entries.empty());
  end(pair);
}

/// Two endpoints that flood each other with operations and messages go on, although each has room
/// for one packet only.
TEST(both_sides_may_wait_at_the_same_time, kOperations) {
  LateAnswer pair{Asked(_i)};
  OneSidedNode& other = pair.target;
  FakeRegion region(pair.got.data(), pair.got.size(), OneSidedPair::kAll);
  pair.initiator.regions.by_key[OneSidedPair::kKey] = &region;
  pair.a.transport.behaviour.room = pair.b.transport.behaviour.room = 1;
  constexpr size_t kRounds = 20;
  std::vector<char> there(50), here(50);
  for (size_t i = 0; i < kRounds; ++i) {
    must(pair.b.receive(there.data(), there.size(), 7, &g_two));
    must(pair.a.receive(here.data(), here.size(), 7, &g_two));
    pair.post_operation();
    must(other.write(0, pair.bytes.data(), 8, pair.got.data(), OneSidedPair::kKey, &g_one));
    must(pair.a.send(1, pair.bytes.data(), 50, 7));
    must(pair.b.send(0, pair.bytes.data(), 50, 7));
  }
  pair.run_until_idle();
  ck_assert_uint_eq(pair.a.received.entries.size(), kRounds);
  ck_assert_uint_eq(pair.b.received.entries.size(), kRounds);
  ck_assert_uint_eq(pair.initiator.reads.entries.size() + pair.initiator.writes.entries.size(),
                    kRounds);
  ck_assert_uint_eq(other.writes.entries.size(), kRounds);
  pair.end_work();
}

/// A write with data after a read of which nobody here learns, and a read that is counted after
/// such a write. There is room for one answer.
TEST(operation_is_reported_after_earlier_answers_have_left, 2) {
  LateAnswer pair{_i ? Asked::write : Asked::read};
  pair.b.transport.behaviour.room = 0;
  pair.post_operation();
  pair.run_until_idle();
  pair.target.remote_reads.counted = _i == 1;
  pair.b.transport.behaviour.room = 1;
  const iovec iov{pair.bytes.data(), 8};
  const erdma::protocol::wire::Segment segment{reinterpret_cast<uint64_t>(pair.memory.data()),
                                               LateAnswer::kKey, 8};
  using erdma::protocol::wire::Op;
  auto args = OneSidedNode::args(_i ? Op::read : Op::write, 1, &iov, 1, &segment, 1, &g_two);
  args.local.has_data = _i == 0;
  must(pair.a.engine.post_one_sided(args));
  pair.b.engine.progress();
  auto& learned = _i ? pair.target.remote_reads : pair.target.remote_writes;
  ck_assert(learned.entries.empty());
  pair.run_until_idle();
  ck_assert_uint_eq(learned.entries.size(), 1);
  pair.initiator.reads.entries.clear();
  pair.initiator.writes.entries.clear();
  run_until_idle(pair);
  pair.expect_silent();
}

/// Its bytes were under way when the answer had to wait.
TEST(long_write_is_reported_after_the_result_of_a_read) {
  LateAnswer pair{Asked::read};
  pair.b.transport.behaviour.hold_transfers = true;
  std::vector<char> bytes = pattern(5000);
  const iovec iov{bytes.data(), bytes.size()};
  const erdma::protocol::wire::Segment segment{reinterpret_cast<uint64_t>(pair.memory.data()),
                                               LateAnswer::kKey, bytes.size()};
  auto args = OneSidedNode::args(erdma::protocol::wire::Op::write, 1, &iov, 1, &segment, 1, &g_two);
  args.local.has_data = true;
  must(pair.a.engine.post_one_sided(args));
  pair.run_until_idle();
  pair.b.transport.behaviour.room = 0;
  pair.post_operation();
  pair.run_until_idle();
  pair.b.transport.behaviour.hold_transfers = false;
  pair.b.transport.behaviour.room = 1;
  pair.b.engine.progress();
  ck_assert(pair.target.remote_writes.entries.empty());
  pair.run_until_idle();
  ck_assert_uint_eq(pair.target.remote_writes.entries.size(), 1);
  expect_done(pair.initiator.writes, FI_RMA | FI_WRITE, 0, &g_two);
  expect_done(pair.initiator.reads, FI_RMA | FI_READ);
  run_until_idle(pair);
  pair.expect_silent();
}

TEST(lost_link_ends_the_wait, kOperations) {
  LateAnswer pair{Asked(_i)};
  pair.bring_message();
  Transport::bring_down(pair.b_to_a(), -FI_ECONNRESET, pair.b.engine);
  pair.expect_message();
  pair.end_work();
}

TEST(endpoint_that_closes_reports_the_message, kOperations) {
  LateAnswer pair{Asked(_i)};
  pair.bring_message();
  pair.b.engine.detach(true);
  pair.expect_message();
  pair.b.transport.behaviour.room = 1000;
  pair.run_until_idle();
  ck_assert(pair.b.received.entries.empty());
}

}  // namespace
