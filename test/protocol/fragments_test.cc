#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "fake/pretended_device.h"
#include "libcheck.h"
#include "protocol/pair.h"

/// Tests eager messages of several packets.
namespace {

using erdma::protocol::ErrorCompletion;
using erdma::protocol::Probe;
using namespace erdma::test;
namespace wire = erdma::protocol::wire;
using erdma::fake::Transport;

int g_one, g_two, g_three;

constexpr size_t kPacket = 1024;  ///< packet size of the fake link
constexpr size_t kLength = 3 * kPacket + 100;

/// Two engines whose links send messages of up to 64 KiB in fragments.
struct FragmentPair : Pair {
  explicit FragmentPair(erdma::protocol::EngineConfig config = kConfig) : Pair(config) {
    for (Node* node : {&a, &b}) {
      node->transport.behaviour.eager = kPacket;
      node->transport.behaviour.fragmented = 65536;
    }
  }
  /// Sends `bytes` from a. Only `packets` of the packets reach b.
  void send_part(size_t packets, bool delivered = false) {
    a.transport.behaviour.room = packets;
    const iovec iov{bytes.data(), bytes.size()};
    auto args = Node::send_args(1, iov, 7, &g_one);
    args.until_delivered = delivered;
    must(a.engine.post_send(args));
    b.engine.progress();
    ck_assert_uint_eq(b_to_a().arrived, packets);
  }
  void send_rest() {
    a.transport.behaviour.room = SIZE_MAX;
    run_until_idle();
  }
  void receive() { must(b.engine.post_receive(receive_args())); }
  erdma::protocol::ReceiveArgs receive_args() { return Node::receive_args(into, 7, &g_two); }
  /// Fails unless nothing is left.
  void finish() {
    expect_clean(*this);
    end_work();
  }

  std::vector<char> bytes = pattern(kLength), got = std::vector<char>(kLength, '.');
  const iovec into{got.data(), got.size()};
};

TEST(a_message_arrives_in_fragments_without_a_rendezvous) {
  for (const size_t length : {kPacket + 1, 2 * kPacket, kLength, size_t{65536}}) {
    FragmentPair pair;
    const auto bytes = pattern(length);
    std::vector<char> got(length + 1, '.');
    must(pair.b.receive(got.data(), got.size(), 7, &g_two));
    must(pair.a.send(1, bytes.data(), length, 7, &g_one));
    ck_assert_ptr_eq(pair.a.sent.take().context, &g_one);
    pair.run_until_idle();
    const ErrorCompletion done = pair.b.received.take();
    ck_assert_ptr_eq(done.context, &g_two);
    ck_assert_uint_eq(done.length, length);
    ck_assert_uint_eq(done.tag, 7);
    ck_assert(std::equal(bytes.begin(), bytes.end(), got.begin()));
    ck_assert_int_eq(got.back(), '.');
    ck_assert_uint_eq(pair.b_to_a().arrived, (length + kPacket - 1) / kPacket);
    ck_assert_uint_eq(pair.a_to_b().arrived, 0);
    pair.finish();
  }
}

/// The link is asked also for a message that fits into a packet, but only above asks_above.
TEST(a_message_that_fits_may_be_a_rendezvous) {
  for (const size_t asks_above : {kPacket - 1, kPacket, SIZE_MAX})
    for (const size_t fragmented : {size_t{0}, kPacket}) {
      FragmentPair pair;
      pair.a.transport.behaviour.asks_above = asks_above;
      pair.a.transport.behaviour.fragmented = fragmented;
      const auto bytes = pattern(kPacket);
      std::vector<char> got(kPacket);
      must(pair.b.receive(got.data(), got.size(), 7, &g_two));
      must(pair.a.send(1, bytes.data(), bytes.size(), 7, &g_one));
      const bool asks = asks_above < kPacket;
      ck_assert_uint_eq(pair.a_to_b().asked, asks);
      ck_assert_int_eq(pair.a.sent.entries.empty(), asks && fragmented == 0);
      pair.run_until_idle();
      ck_assert_ptr_eq(pair.a.sent.take().context, &g_one);
      ck_assert_ptr_eq(pair.b.received.take().context, &g_two);
      ck_assert_uint_eq(pair.b_to_a().arrived, 1);
      ck_assert(got == bytes);
      pair.finish();
    }
}

TEST(a_longer_message_is_a_rendezvous) {
  FragmentPair pair;
  const auto bytes = pattern(65537);
  std::vector<char> got(bytes.size());
  must(pair.b.receive(got.data(), got.size(), 7, &g_two));
  must(pair.a.send(1, bytes.data(), bytes.size(), 7, &g_one));
  ck_assert(pair.a.sent.entries.empty());
  pair.run_until_idle();
  ck_assert_ptr_eq(pair.a.sent.take().context, &g_one);
  ck_assert_ptr_eq(pair.b.received.take().context, &g_two);
  ck_assert(got == bytes);
  pair.finish();
}

TEST(an_unexpected_message_is_kept_until_it_is_received) {
  FragmentPair pair;
  must(pair.a.send(1, pair.bytes.data(), kLength, 7, &g_one));
  pair.run_until_idle();
  pair.receive();
  ck_assert_uint_eq(pair.b.received.take().length, kLength);
  ck_assert(pair.got == pair.bytes);
  pair.a.sent.take();
  pair.finish();
}

/// The receive is posted after the first fragments, and completes only with the last byte.
TEST(a_receive_posted_between_two_fragments_gets_all_bytes) {
  for (const size_t packets : {1u, 2u, 3u}) {
    FragmentPair pair;
    pair.send_part(packets);
    pair.receive();
    pair.b.engine.progress();
    ck_assert(pair.b.received.entries.empty() && pair.a.sent.entries.empty());
    pair.send_rest();
    ck_assert_ptr_eq(pair.b.received.take().context, &g_two);
    ck_assert(pair.got == pair.bytes);
    ck_assert_ptr_eq(pair.a.sent.take().context, &g_one);
    pair.finish();
  }
}

TEST(a_later_message_does_not_overtake) {
  FragmentPair pair;
  const char small = 's';
  std::vector<char> first(kLength), second(kLength);
  must(pair.b.receive(first.data(), first.size(), 7, &g_two));
  must(pair.b.receive(second.data(), second.size(), 7, &g_three));
  pair.send_part(2);
  must(pair.a.send(1, &small, 1, 7));
  pair.send_rest();
  ck_assert_ptr_eq(pair.b.received.take().context, &g_two);
  const ErrorCompletion done = pair.b.received.take();
  ck_assert_ptr_eq(done.context, &g_three);
  ck_assert_uint_eq(done.length, 1);
  ck_assert(first == pair.bytes);
  pair.a.sent.entries.clear();
  pair.finish();
}

TEST(a_shorter_receive_is_truncated) {
  for (const bool early : {false, true}) {
    FragmentPair pair;
    if (!early) must(pair.b.receive(pair.got.data(), 1500, 7, &g_two));
    pair.send_part(3);
    if (early) must(pair.b.receive(pair.got.data(), 1500, 7, &g_two));
    pair.send_rest();
    const ErrorCompletion done = pair.b.received.take();
    ck_assert_int_eq(done.error, FI_ETRUNC);
    ck_assert_uint_eq(done.overflow, kLength - 1500);
    ck_assert(std::equal(pair.got.begin(), pair.got.begin() + 1500, pair.bytes.begin()));
    ck_assert(
        std::all_of(pair.got.begin() + 1500, pair.got.end(), [](char c) { return c == '.'; }));
    pair.a.sent.entries.clear();
    pair.end_work();
  }
}

TEST(delivery_complete_waits_for_the_last_fragment) {
  for (const bool early : {false, true}) {
    FragmentPair pair;
    if (!early) pair.receive();
    pair.send_part(3, true);
    if (early) pair.receive();
    pair.b.engine.progress();
    pair.a.engine.progress();
    ck_assert(pair.a.sent.entries.empty());
    pair.send_rest();
    ck_assert_ptr_eq(pair.b.received.take().context, &g_two);
    ck_assert_ptr_eq(pair.a.sent.take().context, &g_one);
    pair.finish();
  }
}

TEST(a_multi_receive_buffer_takes_fragments) {
  FragmentPair pair;
  std::vector<char> got(3 * kLength);
  const iovec iov{got.data(), got.size()};
  auto args = Node::receive_args(iov, 7, &g_two);
  args.multi = true;
  must(pair.b.engine.post_receive(args));
  must(pair.a.send(1, pair.bytes.data(), kLength, 7));
  must(pair.a.send(1, pair.bytes.data(), kLength, 7));
  pair.run_until_idle();
  for (const size_t at : {size_t{0}, kLength}) {
    const ErrorCompletion done = pair.b.received.take();
    ck_assert_ptr_eq(done.buffer, got.data() + at);
    ck_assert_uint_eq(done.length, kLength);
    ck_assert(std::equal(pair.bytes.begin(), pair.bytes.end(), got.begin() + ptrdiff_t(at)));
  }
  pair.a.sent.entries.clear();
  pair.end_work({&g_two});
}

TEST(a_send_of_which_a_fragment_left_is_not_cancelled) {
  FragmentPair pair;
  pair.send_part(1);
  ck_assert_int_eq(pair.a.engine.cancel(&g_one), -FI_ENOENT);
  pair.receive();
  pair.send_rest();
  ck_assert(pair.got == pair.bytes);
  ck_assert_int_eq(pair.a.sent.take().error, 0);
  pair.b.received.take();
  pair.end_work();
}

TEST(a_throttled_peer_sends_no_fragments) {
  FragmentPair pair({4096, 2 * kLength, 64});
  for (int i = 0; i < 3; ++i) must(pair.a.send(1, pair.bytes.data(), kLength, 7));
  pair.run_until_idle();
  const uint64_t before = pair.b_to_a().arrived;
  must(pair.a.send(1, pair.bytes.data(), kLength, 7));
  pair.run_until_idle();
  ck_assert_uint_eq(pair.b_to_a().arrived, before + 1);
  for (int i = 0; i < 4; ++i) {
    std::vector<char> got(kLength);
    must(pair.b.receive(got.data(), got.size(), 7, &g_two));
    pair.run_until_idle();
    ck_assert(got == pair.bytes);
  }
  pair.a.sent.entries.clear();
  pair.b.received.entries.clear();
  pair.finish();
}

// --- FI_PEEK, FI_CLAIM, FI_DISCARD --------------------------------------------------------------

TEST(a_peek_tells_the_whole_length_before_all_is_here) {
  FragmentPair pair;
  pair.send_part(1);
  must(pair.b.engine.probe(pair.receive_args(), Probe::peek_claim));
  ck_assert_uint_eq(pair.b.received.take().length, kLength);
  must(pair.b.engine.probe(pair.receive_args(), Probe::claim));
  ck_assert(pair.b.received.entries.empty());
  pair.send_rest();
  ck_assert_ptr_eq(pair.b.received.take().context, &g_two);
  ck_assert(pair.got == pair.bytes);
  pair.a.sent.take();
  pair.finish();
}

TEST(a_discarded_message_is_answered_after_its_last_fragment) {
  FragmentPair pair;
  char small = 's', got = 0;
  pair.send_part(2, true);
  const iovec iov{&got, 1};
  must(pair.b.engine.probe(Node::receive_args(iov, 7, &g_two), Probe::peek_discard));
  ck_assert(pair.b.received.entries.empty());
  ck_assert_uint_eq(pair.a_to_b().arrived, 0);
  pair.send_rest();
  ck_assert_ptr_eq(pair.b.received.take().context, &g_two);
  ck_assert_ptr_eq(pair.a.sent.take().context, &g_one);
  must(pair.a.send(1, &small, 1, 8));
  must(pair.b.receive(&got, 1, 8, &g_three));
  pair.run_until_idle();
  ck_assert_ptr_eq(pair.b.received.take().context, &g_three);
  ck_assert_int_eq(got, 's');
  pair.a.sent.take();
  pair.finish();
}

// --- device memory ------------------------------------------------------------------------------

/// Part of the message is here before the receive into device memory is posted. If one copy fails,
/// the receive and the sender that waits for the delivery both get its error, once.
TEST(fragments_are_copied_to_device_memory, 2) {
  erdma::fake::PretendedDevice device;
  erdma::protocol::EngineConfig config = kConfig;
  config.device_memory = &device;
  FragmentPair pair(config);
  auto args = pair.receive_args();
  args.device = true;
  pair.send_part(2, true);
  must(pair.b.engine.post_receive(args));
  ck_assert_uint_eq(device.to_count, 1);
  if (_i) device.status = -FI_EIO;
  pair.a.transport.behaviour.room = 1;
  pair.a.engine.progress();
  pair.b.engine.progress();
  device.status = 0;
  pair.send_rest();
  ck_assert_int_eq(pair.b.received.take().error, _i ? FI_EIO : 0);
  ck_assert_int_eq(pair.a.sent.take().error, _i ? FI_EIO : 0);
  ck_assert(_i || pair.got == pair.bytes);
  pair.finish();
}

// --- failure ------------------------------------------------------------------------------------

TEST(a_link_that_ends_between_two_fragments_fails_both_sides_once) {
  FragmentPair pair;
  pair.receive();
  pair.send_part(2);
  Transport::bring_down(pair.b_to_a(), -FI_ECONNRESET, pair.b.engine);
  Transport::bring_down(pair.a_to_b(), -FI_ECONNRESET, pair.a.engine);
  ck_assert_int_eq(pair.b.received.take().error, FI_ECONNRESET);
  ck_assert_int_eq(pair.a.sent.take().error, FI_ECONNRESET);
  expect_clean(pair);
  // The next message begins anew.
  pair.receive();
  pair.a.transport.behaviour.room = SIZE_MAX;
  must(pair.a.send(1, pair.bytes.data(), kLength, 7, &g_one));
  pair.run_until_idle();
  ck_assert_int_eq(pair.b.received.take().error, 0);
  ck_assert(pair.got == pair.bytes);
  pair.a.sent.take();
  pair.finish();
}

TEST(an_unexpected_message_that_lost_its_link_fails_its_receive) {
  FragmentPair pair;
  pair.send_part(2);
  Transport::bring_down(pair.b_to_a(), -FI_ECONNRESET, pair.b.engine);
  pair.receive();
  ck_assert_int_eq(pair.b.received.take().error, FI_ECONNRESET);
  pair.end_work();
  pair.a.sent.entries.clear();
}

TEST(a_claimed_message_that_lost_its_link_fails_its_receive) {
  FragmentPair pair;
  pair.send_part(2);
  must(pair.b.engine.probe(pair.receive_args(), Probe::peek_claim));
  pair.b.received.take();
  Transport::bring_down(pair.b_to_a(), -FI_ECONNRESET, pair.b.engine);
  must(pair.b.engine.probe(pair.receive_args(), Probe::claim));
  ck_assert_int_eq(pair.b.received.take().error, FI_ECONNRESET);
  pair.end_work();
  pair.a.sent.entries.clear();
}

/// A hostile peer breaks each rule of fragments. It loses its connection.
TEST(fragments_against_the_rules_end_the_connection) {
  struct Bad {
    const char* what;
    bool begun;  ///< a correct first fragment of 100 of 300 bytes came before
    wire::Op op;
    uint64_t number;  ///< length of the message, or offset of the fragment
    size_t length;    ///< length of the payload
  };
  constexpr Bad kBad[] = {
      {"a fragment of nothing", false, wire::Op::fragment, 100, 100},
      {"nothing", false, wire::Op::first_fragment, 300, 0},
      {"a whole message", false, wire::Op::first_fragment, 100, 100},
      {"more than the message", false, wire::Op::first_fragment, 99, 100},
      {"too long a message", false, wire::Op::first_fragment, wire::kMaxFragmented + 1, 100},
      {"no limit at all", false, wire::Op::first_fragment, UINT64_MAX, 100},
      {"a message within another", true, wire::Op::first_fragment, 300, 100},
      {"an empty fragment", true, wire::Op::fragment, 100, 0},
      {"a gap", true, wire::Op::fragment, 101, 100},
      {"bytes again", true, wire::Op::fragment, 99, 100},
      {"bytes beyond the end", true, wire::Op::fragment, 100, 201},
  };
  const auto bytes = pattern(300);
  for (const Bad& bad : kBad) {
    for (const bool posted : {false, true}) {
      Pair pair;
      std::vector<char> got(1000, '.');
      if (posted) must(pair.a.receive(got.data(), 300, 7, &g_one, 0, 1));
      const auto say = [&](wire::Op op, uint64_t number, size_t length) {
        if (op == wire::Op::first_fragment) {
          const wire::MessageHeader first{op, wire::kTagged, 1, 0, 7, 0, number};
          pair.a_to_b().inject(&first, sizeof(first), bytes.data(), length);
        } else {
          wire::ControlHeader next = wire::control(op, {0, 1});
          next.length = number;
          pair.a_to_b().inject(&next, sizeof(next), bytes.data(), length);
        }
      };
      if (bad.begun) say(wire::Op::first_fragment, 300, 100);
      say(bad.op, bad.number, bad.length);
      pair.a.engine.progress();
      ck_assert_msg(pair.a_to_b().ended == 1, "%s", bad.what);
      ck_assert(std::all_of(got.begin() + 300, got.end(), [](char c) { return c == '.'; }));
      if (posted && bad.begun) ck_assert_int_eq(pair.a.received.take().error, FI_ECONNRESET);
      pair.end_work({&g_one});
    }
  }
}

/// This provider does not send such messages, but the rules permit them.
TEST(a_short_message_in_fragments_is_received) {
  Pair pair;
  const auto bytes = pattern(60);
  const wire::MessageHeader first{wire::Op::first_fragment, wire::kTagged, 1, 0, 7, 0, 60};
  wire::ControlHeader next = wire::control(wire::Op::fragment, {0, 1});
  next.length = 25;
  pair.a_to_b().inject(&first, sizeof(first), bytes.data(), 25);
  pair.a_to_b().inject(&next, sizeof(next), bytes.data() + 25, 35);
  pair.a.engine.progress();
  std::vector<char> got(60);
  must(pair.a.receive(got.data(), 60, 7, &g_one));
  ck_assert_uint_eq(pair.a.received.take().length, 60);
  ck_assert(got == bytes);
  pair.end_work();
}

// --- in random order ----------------------------------------------------------------------------

/// Messages of all kinds from a to b with few tags. The messages of a tag are received in their
/// order, whole or truncated.
struct RandomRun {
  explicit RandomRun(unsigned seed) : random(seed) {
    for (Node* node : {&pair.a, &pair.b}) {
      node->transport.behaviour.prefers_read = of(2) == 0;
      node->transport.behaviour.reads_at_once = of(2) == 0;
      node->transport.behaviour.eager = of(2) ? kPacket : 200;
    }
  }
  size_t of(size_t bound) { return size_t(random() % bound); }
  struct Message {
    std::vector<char> bytes;
    bool sent = false;
  };
  struct Posted {
    std::vector<char> bytes;
    Message* gets = nullptr;
  };

  void send() {
    const uint64_t tag = of(3);
    constexpr size_t kSizes[] = {0, 8, 1000, 1025, 4000, 9000, 60000, 70000};
    auto& message = *messages.emplace_back(std::make_unique<Message>());
    message.bytes = pattern(kSizes[of(8)], unsigned(of(1000)));
    iovec iov{message.bytes.data(), message.bytes.size()};
    auto args = Node::send_args(1, iov, tag, &message);
    args.until_delivered = of(3) == 0;
    if (pair.a.engine.post_send(args) == 0)
      order[tag].push_back(&message);
    else
      messages.pop_back();
  }
  void receive() {
    const uint64_t tag = of(3);
    auto& posted = *receives.emplace_back(std::make_unique<Posted>());
    posted.bytes.assign(of(4) ? 70000 : 2000, '.');
    waiting[tag].push_back(&posted);
    must(pair.b.receive(posted.bytes.data(), posted.bytes.size(), tag, &posted));
  }
  void collect() {
    while (!pair.a.sent.entries.empty()) {
      const ErrorCompletion done = pair.a.sent.take();
      auto& message = *static_cast<Message*>(done.context);
      ck_assert(done.error == 0 && !message.sent);
      message.sent = true;
    }
    while (!pair.b.received.entries.empty()) {
      const ErrorCompletion done = pair.b.received.take();
      auto& posted = *static_cast<Posted*>(done.context);
      check(done, posted);
    }
  }
  void check(const ErrorCompletion& done, Posted& posted) {
    Message& message = matched(done.tag, posted);
    const size_t length = std::min(message.bytes.size(), posted.bytes.size());
    ck_assert_int_eq(done.error, length < message.bytes.size() ? FI_ETRUNC : 0);
    ck_assert_uint_eq(done.length, length);
    ck_assert(std::equal(message.bytes.begin(), message.bytes.begin() + ptrdiff_t(length),
                         posted.bytes.begin()));
    ++received;
  }
  /// Returns the message of a receive: the n-th receive of a tag gets the n-th message. The
  /// receives may complete in another order.
  Message& matched(uint64_t tag, Posted& posted) {
    auto& queue = waiting[tag];
    const auto place = std::find(queue.begin(), queue.end(), &posted);
    ck_assert(place != queue.end());
    Message* const message = order[tag].at(size_t(place - queue.begin()));
    *place = nullptr;
    return *message;
  }
  void run() {
    for (int step = 0; step < 2000; ++step) {
      pair.a.transport.behaviour.room = 1 + of(20);
      pair.b.transport.behaviour.room = 1 + of(20);
      if (of(2) && messages.size() < 300) send();
      if (of(2) && receives.size() < 300) receive();
      if (of(2)) pair.a.engine.progress();
      if (of(3)) pair.b.engine.progress();
      collect();
    }
    while (receives.size() < 1000 && messages.size() > received) finish();
  }
  /// Receives the remaining messages of each tag.
  void finish() {
    for (uint64_t tag = 0; tag < 3; ++tag) {
      while (waiting[tag].size() < order[tag].size()) {
        auto& posted = *receives.emplace_back(std::make_unique<Posted>());
        posted.bytes.assign(70000, '.');
        waiting[tag].push_back(&posted);
        must(pair.b.receive(posted.bytes.data(), posted.bytes.size(), tag, &posted));
      }
      for (; order[tag].size() < waiting[tag].size(); pair.run_until_idle(), collect()) {
        auto& message = *messages.emplace_back(std::make_unique<Message>());
        message.bytes = pattern(10);
        iovec iov{message.bytes.data(), message.bytes.size()};
        if (pair.a.engine.post_send(Node::send_args(1, iov, tag, &message)) == 0)
          order[tag].push_back(&message);
        else
          messages.pop_back();
      }
    }
    pair.run_until_idle();
    collect();
  }

  std::minstd_rand random;
  FragmentPair pair;
  std::vector<std::unique_ptr<Message>> messages;
  std::vector<std::unique_ptr<Posted>> receives;
  std::deque<Message*> order[3];
  std::deque<Posted*> waiting[3];
  size_t received = 0;
};

TEST(messages_of_a_tag_arrive_in_order_whatever_their_size) {
  const char* const given = std::getenv("ERDMA_MODEL_SEED");
  const unsigned first = given ? unsigned(std::strtoul(given, nullptr, 0)) : std::random_device()();
  std::printf("ERDMA_MODEL_SEED=%u\n", first);
  for (unsigned seed = first; seed < first + 8; ++seed) {
    RandomRun run(seed);
    run.run();
    ck_assert_uint_eq(run.received, run.messages.size());
    for (const auto& message : run.messages) ck_assert(message->sent);
    expect_clean(run.pair);
    run.pair.end_work();
  }
}

}  // namespace
