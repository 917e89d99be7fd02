// Tests what an engine reports about unfinished operations.
#include "protocol/waits.h"

#include <string>
#include <vector>

#include "protocol/direct_rig.h"
#include "protocol/pair.h"

namespace {

using namespace erdma;
using namespace erdma::test;

struct Waits final : protocol::WaitsSink {
  struct OfPeer {
    protocol::OpenOperations sends, receives, unexpected, matched;
    std::string send_kind, sends_for, matched_for, link;
    bool any, throttled;
  };
  void on_peer_waits(const protocol::PeerWaits& waits) noexcept override {
    peers.push_back({waits.sends, waits.receives, waits.unexpected, waits.matched, waits.send_kind,
                     waits.sends_for, waits.matched_for, waits.link.state, waits.any(),
                     waits.throttled});
  }
  void on_endpoint_waits(const protocol::OpenOperations& any_receives) noexcept override {
    any = any_receives;
    ++answers;
  }
  std::vector<OfPeer> peers;
  protocol::OpenOperations any;
  int answers = 0;
};

/// Two engines that a test asks about unfinished operations.
struct AskedPair : Pair {
  explicit AskedPair(Waits& waits)
      : Pair({kConfig.inject_size, kConfig.unexpected_bytes, kConfig.send_limit, nullptr, &waits}),
        x_waits(waits) {}
  /// Returns the answer about the only peer.
  Waits::OfPeer ask(test::Node& node) {
    x_waits.peers.clear();
    const int before = x_waits.answers;
    transport::Sink& sink = node.engine;
    sink.on_question();
    ck_assert_int_eq(x_waits.answers, before + 1);
    ck_assert_uint_eq(x_waits.peers.size(), 1);
    return x_waits.peers[0];
  }

 private:
  Waits& x_waits;
};

TEST(an_engine_that_nobody_wants_to_hear_of_is_asked_in_vain) {
  Pair pair;
  transport::Sink& sink = pair.a.engine;
  sink.on_question();
}

TEST(the_oldest_receive_of_a_peer_is_told_and_how_many_there_are) {
  Waits waits;
  AskedPair pair(waits);
  char bytes[8];
  int contexts[3];
  for (const uint64_t tag : {5u, 6u}) must(pair.a.receive(bytes, 8, tag, &contexts[tag - 5], 0, 1));
  must(pair.a.receive(bytes, 4, 7, &contexts[2], 1));
  const auto first = pair.ask(pair.a);
  ck_assert_uint_eq(first.receives.count, 2);
  ck_assert_uint_eq(first.receives.tag, 5);
  ck_assert_uint_eq(first.receives.bytes, 8);
  ck_assert_uint_eq(first.sends.count + first.unexpected.count + first.matched.count, 0);
  ck_assert_uint_eq(waits.any.count, 1);
  ck_assert_uint_eq(waits.any.tag, 7);
  ck_assert_uint_eq(waits.any.ignore, 1);
  ck_assert_uint_eq(pair.ask(pair.a).receives.id, first.receives.id);
  ck_assert_int_eq(pair.a.engine.cancel(&contexts[0]), 0);
  const auto second = pair.ask(pair.a);
  ck_assert_uint_eq(second.receives.count, 1);
  ck_assert_uint_eq(second.receives.tag, 6);
  ck_assert_uint_ne(second.receives.id, first.receives.id);
  pair.end_work({&contexts[1], &contexts[2]});
}

TEST(a_message_that_nothing_matched_is_told_of_its_sender) {
  Waits waits;
  AskedPair pair(waits);
  must(pair.b.send(0, "12345678", 8, 9));
  pair.run_until_idle();
  const auto of_b = pair.ask(pair.a);
  ck_assert_uint_eq(of_b.unexpected.count, 1);
  ck_assert_uint_eq(of_b.unexpected.tag, 9);
  ck_assert_uint_eq(of_b.unexpected.bytes, 8);
  ck_assert(of_b.any);
  ck_assert(!pair.ask(pair.b).any);  // b has nothing left to do
  pair.end_work();
}

TEST(a_long_send_waits_for_a_match_and_then_for_its_bytes) {
  Waits waits;
  AskedPair pair(waits);
  const auto message = test::pattern(4096);
  std::vector<char> room(4096);
  must(pair.a.send(1, message.data(), message.size(), 3));
  pair.run_until_idle();
  const auto announced = pair.ask(pair.a);
  ck_assert_str_eq(announced.sends_for.c_str(), "match");
  ck_assert_str_eq(announced.send_kind.c_str(), "message");
  ck_assert_uint_eq(announced.sends.bytes, 4096);
  ck_assert_uint_eq(announced.sends.tag, 3);
  ck_assert_uint_gt(announced.sends.id, 0);
  ck_assert_uint_eq(pair.ask(pair.b).unexpected.bytes, 4096);
  pair.b.transport.behaviour.hold_transfers = true;
  must(pair.b.receive(room.data(), room.size(), 3));
  pair.run_until_idle();
  const auto of_a = pair.ask(pair.b);
  ck_assert_uint_eq(of_a.matched.count, 1);
  ck_assert_str_eq(of_a.matched_for.c_str(), "bytes");
  ck_assert_uint_eq(of_a.matched.bytes, 4096);
  ck_assert_uint_eq(of_a.unexpected.count, 0);
  pair.end_work();
}

TEST(a_send_without_room_says_so_and_one_without_a_connection_too, 2) {
  const bool connected = _i == 0;
  Waits waits;
  AskedPair pair(waits);
  pair.a_to_b().up_once = connected;
  pair.b.transport.behaviour.room = 0;
  pair.a.transport.behaviour.room = 0;
  must(pair.a.send(1, "12345678", 8, 9));
  const auto of_b = pair.ask(pair.a);
  ck_assert_uint_eq(of_b.sends.count, 1);
  ck_assert_str_eq(of_b.sends_for.c_str(), connected ? "room" : "connection");
  ck_assert_str_eq(of_b.link.c_str(), connected ? "up" : "connecting");
  pair.end_work();
}

TEST(short_accesses_alone_are_told_apart) {
  Waits waits;
  test::DirectPair pair(
      true, test::OneSidedPair::kAll,
      {kConfig.inject_size, kConfig.unexpected_bytes, kConfig.send_limit, nullptr, &waits});
  pair.introduce();
  transport::Sink& sink = pair.a.engine;
  char byte = 0;
  std::vector<uint64_t> ids;
  for (int i = 0; i < 2; ++i) {
    must(pair.initiator.write(1, &byte, 1, pair.memory.data(), test::DirectPair::kKey,
                              &test::g_one));
    for (int look = 0; look < 2; ++look) {
      waits.peers.clear();
      sink.on_question();
      ck_assert_uint_eq(waits.peers.size(), 1);
      ck_assert_uint_eq(waits.peers[0].sends.count, 1);
      ck_assert_str_eq(waits.peers[0].sends_for.c_str(), "target");
      ck_assert_str_eq(waits.peers[0].send_kind.c_str(), "write");
      ids.push_back(waits.peers[0].sends.id);
    }
    pair.run_until_idle();
  }
  ck_assert_uint_gt(ids[0], 0);
  ck_assert_uint_eq(ids[0], ids[1]);
  ck_assert_uint_ne(ids[1], ids[2]);
  pair.forget();
}

TEST(an_operation_on_memory_of_the_peer_is_told_by_its_kind, 3) {
  using protocol::wire::Op;
  constexpr Op kOps[] = {Op::write, Op::read, Op::atomic};
  constexpr const char* kKinds[] = {"write", "read", "atomic"};
  Waits waits;
  test::OneSidedPair pair(
      4096, test::OneSidedPair::kAll,
      {kConfig.inject_size, kConfig.unexpected_bytes, kConfig.send_limit, nullptr, &waits});
  pair.a.transport.behaviour.room = 0;
  uint32_t value = 1;
  const iovec local{&value, sizeof(value)};
  const protocol::wire::Segment segment{reinterpret_cast<uint64_t>(pair.memory.data()),
                                        test::OneSidedPair::kKey, sizeof(value)};
  protocol::OneSidedArgs args =
      test::OneSidedNode::args(kOps[_i], 1, &local, 1, &segment, 1, &test::g_one);
  args.word = {0, uint8_t(protocol::AtomicOp::sum), uint8_t(protocol::Datatype::uint32), 0};
  args.element = sizeof(value);
  args.count = args.operand_count = 1;
  args.operands = &local;
  must(pair.a.engine.post_one_sided(args));
  transport::Sink& sink = pair.a.engine;
  sink.on_question();
  ck_assert_uint_eq(waits.peers.size(), 1);
  ck_assert_str_eq(waits.peers[0].send_kind.c_str(), kKinds[_i]);
  ck_assert_str_eq(waits.peers[0].sends_for.c_str(), "room");
  pair.end_work();
}

}  // namespace
