#include <cstdint>
#include <vector>

#include "libcheck.h"
#include "protocol/pair.h"

/// Tests that a sender polls often enough to hear that the receiver's memory for unexpected
/// messages is used up: a receiver ends the link of a sender that goes on with eager messages.
namespace {

using namespace erdma::test;

/// The node's links send messages of up to 64 KiB in packets of this size.
void fragment(Node& node, size_t packet) {
  node.transport.behaviour.eager = packet;
  node.transport.behaviour.fragmented = 65536;
}

/// The sender polls rarely, since its last poll found packets, but often enough for the receiver to
/// keep the link.
TEST(a_sender_that_only_sends_learns_of_the_budget) {
  constexpr size_t kBytes = 65536;
  Pair pair({4096, 1 << 20, 1024});
  for (Node* node : {&pair.a, &pair.b}) fragment(*node, 8192);
  const char byte = 'x';
  must(pair.b.send(0, &byte, 1, 9));
  pair.a.engine.progress();
  const auto bytes = pattern(kBytes);
  for (int i = 0; i < 600; ++i) {
    must(pair.a.send(1, bytes.data(), kBytes, 7));
    pair.b.engine.progress();
  }
  ck_assert_uint_eq(pair.b_to_a().ended, 0);
  ck_assert_uint_lt(pair.b_to_a().arrived, 600 * kBytes / 8192);
  pair.end_work();
}

/// A pair whose receiver runs on another core: it progresses whenever the sender polls. It charges
/// a message of kOverPower bytes twice its length.
struct BusyPair : Pair {
  static constexpr size_t kPacketBytes = 16384, kOverPower = kPacketBytes + 1;

  BusyPair() : Pair({4096, 65536, 2048}) {
    for (Node* node : {&a, &b}) fragment(*node, kPacketBytes);
    a.transport.before_poll = [this] { b.engine.progress(); };
  }
  /// The sender's last poll brought something, so its sends poll as seldom as they may.
  void bring() {
    const char byte = 'x';
    must(b.send(0, &byte, 1, 9));
    a.engine.progress();
  }
  void send(size_t messages, size_t length) {
    for (size_t i = 0; i < messages; ++i) must(a.send(1, bytes.data(), length, 7));
  }
  void expect_no_end() {
    b.engine.progress();
    ck_assert_uint_eq(b_to_a().ended, 0);
    end_work();
  }

  const std::vector<char> bytes = pattern(4 * kPacketBytes);  ///< outlive the queued sends
};

TEST(a_queue_of_packets_does_not_exceed_what_a_receiver_tolerates) {
  BusyPair pair;
  pair.a.transport.behaviour.room = 0;
  pair.send(1100, BusyPair::kPacketBytes);
  pair.a.transport.behaviour.room = SIZE_MAX;
  pair.a.engine.progress();
  pair.expect_no_end();
}

TEST(a_queue_and_new_messages_do_not_exceed_what_a_receiver_tolerates) {
  BusyPair pair;
  pair.a.transport.behaviour.room = 0;
  pair.bring();
  pair.send(255, BusyPair::kOverPower);
  pair.a.transport.behaviour.room = SIZE_MAX;
  pair.bring();
  pair.send(256, BusyPair::kOverPower);
  pair.expect_no_end();
}

TEST(direct_packets_do_not_exceed_what_a_receiver_tolerates) {
  BusyPair pair;
  pair.a.transport.behaviour.eager = 4 * BusyPair::kPacketBytes;
  pair.bring();
  pair.send(500, 4 * BusyPair::kPacketBytes);
  pair.expect_no_end();
}

/// Receives one message with one poll. Returns whether that poll might leave packets.
bool poll_may_leave(Pair& pair) {
  char byte = 0;
  int context;
  must(pair.b.receive(&byte, 1, 7, &context));
  must(pair.a.send(1, "x", 1, 7));
  pair.b.engine.progress();
  ck_assert_ptr_eq(pair.b.received.take().context, &context);
  return pair.b.engine.take_served();
}

/// A budget packet may be among packets that polls leave in their rings. So few polls in succession
/// may do so, and only while little has been sent.
TEST(polls_that_leave_packets_are_few) {
  Pair pair({4096, 1 << 20, 1024});
  fragment(pair.b, 8192);
  pair.a.engine.progress();
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 16; ++i) ck_assert(poll_may_leave(pair));
    ck_assert(!poll_may_leave(pair));
  }
  const auto message = pattern(8192);
  size_t sent = 0;
  for (; sent < 200 << 10; sent += message.size())
    must(pair.b.send(0, message.data(), message.size(), 8));
  ck_assert(poll_may_leave(pair));
  for (; sent < 300 << 10; sent += message.size())
    must(pair.b.send(0, message.data(), message.size(), 8));
  ck_assert(!poll_may_leave(pair));
  ck_assert(poll_may_leave(pair));
  pair.end_work();
}

}  // namespace
