#include <algorithm>
#include <cstdint>
#include <vector>

#include "libcheck.h"
#include "protocol/pair.h"

/// Tests that a receiver which lags behind its senders leaves packets in the rings, where they cost
/// nothing, instead of keeping ever more unexpected messages.
namespace {

using namespace erdma::test;
using erdma::protocol::LeftPackets;

struct LaggingReceiver : Pair {
  LaggingReceiver()
      : Pair({.inject_size = 4096,
              .unexpected_bytes = 1 << 24,
              .send_limit = 4096,
              .clock = &clock}) {
    b.transport.behaviour.leaves = true;
    b.transport.before_poll = [this] { ++polls; };
  }
  void send(uint32_t count = 1) {
    for (uint32_t i = 0; i < count; ++i, ++sent) must(a.send(1, &sent, sizeof(sent), 7));
  }
  /// Sends messages and lets b keep them.
  void keep(uint32_t count) {
    send(count);
    b.engine.progress(true);
    polls = 0;
  }
  /// The messages that came unexpected and are not received yet.
  size_t kept() { return sent - taken - b_to_a().inbound.size(); }
  /// Receives the next message, as an application does that reads its queue until it is empty.
  void take() {
    uint32_t got = UINT32_MAX;
    must(b.receive(&got, sizeof(got), 7));
    while (b.received.entries.empty()) b.engine.progress();
    (void)b.received.take();
    ck_assert_uint_eq(got, taken);
    ++taken;
    if (!b.engine.needs_no_poll()) b.engine.progress();
  }

  struct Clock final : erdma::util::Clock {
    uint64_t now() const noexcept override { return time; }
    uint64_t time = 1;
  } clock;
  unsigned polls = 0;  ///< of b
  uint32_t sent = 0, taken = 0;
};

constexpr uint32_t kMany = 256;

TEST(a_receiver_of_kept_messages_polls_after_a_few_receives) {
  LaggingReceiver pair;
  pair.keep(kMany);
  for (unsigned i = 1; i <= 3 * (LeftPackets::kMostSkipped + 1); ++i) {
    pair.take();
    ck_assert_uint_eq(pair.polls, i / (LeftPackets::kMostSkipped + 1));
  }
  pair.end_work();
}

/// What lies in the ring when the last of the kept messages is taken stays there, so that the next
/// receives take it from the ring.
TEST(a_receiver_that_has_taken_all_goes_on_with_the_ring) {
  LaggingReceiver pair;
  pair.keep(3);
  pair.send(LeftPackets::kMost);
  for (int i = 0; i < 3; ++i) pair.take();
  ck_assert_uint_eq(pair.polls, 0);
  for (unsigned i = 1; i <= LeftPackets::kMost; ++i) {
    pair.take();
    ck_assert_uint_le(pair.kept(), 1);
  }
  pair.end_work();
}

/// The polls of a receiver that is served from the ring go on behind its message now and then, to
/// one message at a time if it waits for nothing else.
TEST(a_receiver_that_is_served_from_the_ring_looks_behind_its_message) {
  LaggingReceiver pair;
  pair.send(kMany);
  size_t most = 0;
  for (unsigned i = 0; i < kMany; ++i) {
    pair.take();
    most = std::max(most, pair.kept());
  }
  ck_assert_uint_le(most, 2);
  pair.end_work();
}

TEST(a_receiver_that_waits_for_a_fin_takes_all_that_lies_before_it) {
  LaggingReceiver pair;
  const auto message = pattern(5000);
  std::vector<char> got(message.size());
  int context;
  must(pair.b.send(0, message.data(), message.size(), 8, &context));  // a rendezvous
  must(pair.a.receive(got.data(), got.size(), 8));
  pair.send(kMany / 2);
  while (pair.a.received.entries.empty()) pair.a.engine.progress();
  (void)pair.a.received.take();
  for (unsigned i = 0; i <= LeftPackets::kMost; ++i) pair.take();
  ck_assert_uint_eq(pair.b.sent.entries.size(), 1);
  ck_assert_uint_eq(pair.kept(), kMany / 2 - LeftPackets::kMost - 1);
  while (pair.taken < pair.sent) pair.take();
  pair.end_work({&context});
}

TEST(progress_without_a_receive_polls) {
  LaggingReceiver pair;
  pair.keep(kMany);
  for (unsigned i = 1; i <= 3; ++i) {
    pair.b.engine.progress();
    ck_assert_uint_eq(pair.polls, i);
  }
  pair.end_work();
}

/// What the endpoint waits for may lie behind the messages.
TEST(a_receiver_that_waits_for_something_else_polls_each_time, 5) {
  LaggingReceiver pair;
  pair.b.transport.behaviour.hold_transfers = true;
  pair.keep(kMany);
  const auto message = pattern(5000);
  std::vector<char> got(message.size());
  char byte = 0;
  int context;
  if (_i == 0) must(pair.b.send(0, message.data(), message.size(), 7));  // a rendezvous
  if (_i == 1) must(pair.b.receive(&byte, 1, 8, &context));
  if (_i == 2) pair.b.transport.behaviour.room = 0;
  if (_i == 2) must(pair.b.send(0, &byte, 1, 7));  // waits for room
  if (_i == 4) {                                   // the bytes of a message that was matched
    must(pair.b.receive(got.data(), got.size(), 9));
    must(pair.a.send(1, message.data(), message.size(), 9));
    pair.b.engine.progress(true);
  }
  pair.polls = 0;
  for (unsigned i = 1; i <= 20; ++i) {
    if (_i == 3)  // as many short sends as make progress by themselves
      for (unsigned n = 0; n < 64; ++n) must(pair.b.send(0, &byte, 1, 7));
    pair.take();
    ck_assert_uint_ge(pair.polls, i);
  }
  pair.end_work({&context});
}

/// Peers may wait for accesses to memory here.
TEST(a_receiver_that_computes_between_receives_leaves_out_one_poll_at_most) {
  LaggingReceiver pair;
  pair.keep(kMany);
  pair.take();
  for (unsigned i = 1; i <= 40; ++i) {
    pair.clock.time += LeftPackets::kLongestSkip + 1;
    pair.take();
    ck_assert_uint_ge(pair.polls, i / 2);
  }
  pair.end_work();
}

/// The time counts from the first poll that is left out.
TEST(a_receiver_that_begins_to_compute_leaves_out_one_more_poll_at_most,
     LeftPackets::kMostSkipped) {
  LaggingReceiver pair;
  pair.keep(kMany);
  for (int i = 0; i < _i; ++i) pair.take();
  for (unsigned i = 1; pair.polls == 0; ++i) {
    ck_assert_uint_le(i, _i == 0 ? 2 : 1);
    pair.clock.time += LeftPackets::kLongestSkip + 1;
    pair.take();
  }
  pair.end_work();
}

/// The request of a peer may lie behind the messages.
TEST(a_receiver_that_computes_goes_on_to_all_packets) {
  LaggingReceiver pair;
  pair.send(kMany);
  for (unsigned i = 0; i <= LeftPackets::kMost; ++i) {
    pair.clock.time += LeftPackets::kLongest / LeftPackets::kMost;
    pair.take();
  }
  ck_assert(pair.b_to_a().inbound.empty());
  while (pair.taken < pair.sent) pair.take();
  pair.end_work();
}

/// A budget packet may lie behind the messages.
TEST(a_receiver_that_sends_short_messages_goes_on_to_all_packets) {
  LaggingReceiver pair;
  pair.send(kMany);
  for (unsigned i = 0; i < kMany && !pair.b_to_a().inbound.empty(); ++i) {
    for (unsigned n = 0; n < 60; ++n) must(pair.b.send(0, nullptr, 0, 7));
    pair.take();
  }
  ck_assert_uint_ge(pair.kept(), kMany / 2);
  while (pair.taken < pair.sent) pair.take();
  pair.a.engine.progress(true);
  pair.end_work();
}

/// The sender's ring always holds more than one poll takes.
TEST(a_receiver_that_lags_behind_keeps_few_messages) {
  LaggingReceiver pair;
  size_t most = 0;
  for (unsigned i = 0; i < 20000; ++i) {
    const size_t waiting = pair.b_to_a().inbound.size();
    if (waiting < 64) pair.send(uint32_t(64 - waiting));
    pair.take();
    most = std::max(most, pair.kept());
  }
  ck_assert_uint_le(most, 2);
  pair.end_work();
}

}  // namespace
