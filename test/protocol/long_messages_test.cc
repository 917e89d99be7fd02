#include "protocol/long_messages.h"

#include <algorithm>
#include <vector>

#include "libcheck.h"
#include "protocol/pair.h"

/// Tests which long messages go in fragments.
namespace {

using erdma::protocol::LongMessages;
using namespace erdma::test;
namespace wire = erdma::protocol::wire;

/// Sends up to `most` messages. Returns how many are rendezvous before the first in fragments.
unsigned pause(LongMessages& messages, unsigned most = 100'000) {
  unsigned count = 0;
  for (; count < most && !messages.expected(); ++count) messages.sent(false);
  return count;
}

TEST(long_messages_go_in_fragments_until_one_was_unexpected) {
  LongMessages messages;
  for (int i = 0; i < 10'000; ++i) {
    ck_assert(messages.expected());
    messages.sent(true);
  }
  messages.came_unexpected();
  ck_assert_uint_eq(pause(messages), LongMessages::kFirstPause);
}

TEST(each_pause_is_twice_as_long_up_to_a_limit) {
  LongMessages messages;
  unsigned expected = LongMessages::kFirstPause;
  for (int i = 0; i < 20; ++i) {
    messages.came_unexpected();
    ck_assert_uint_eq(pause(messages), expected);
    expected = std::min(2 * expected, unsigned(LongMessages::kLongestPause));
    messages.sent(true);
  }
}

/// Several messages are on their way when the first proves to be unexpected.
TEST(what_arrives_during_a_pause_does_not_count) {
  LongMessages messages;
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 5; ++i) messages.came_unexpected();
    ck_assert_uint_eq(pause(messages), LongMessages::kFirstPause << round);
  }
}

TEST(expected_messages_end_the_growth_of_pauses) {
  for (const unsigned expected : {LongMessages::kFirstPause - 1u, LongMessages::kFirstPause + 0u}) {
    LongMessages messages;
    messages.came_unexpected();
    pause(messages);
    for (unsigned i = 0; i < expected; ++i) messages.sent(true);
    messages.came_unexpected();
    const bool forgotten = expected == LongMessages::kFirstPause;
    ck_assert_uint_eq(pause(messages), LongMessages::kFirstPause << (forgotten ? 0 : 1));
  }
}

/// Two engines whose links send long messages in fragments.
struct LongPair : Pair {
  LongPair() {
    for (Node* node : {&a, &b}) {
      node->transport.behaviour.eager = 8192;
      node->transport.behaviour.fragmented = wire::kMaxFragmented;
    }
  }
  void receive(std::vector<char>& into) {
    const iovec iov{into.data(), into.size()};
    must(b.engine.post_receive(Node::receive_args(iov, 7, &into)));
  }
  /// Sends a message, and returns whether it was a rendezvous. `late`: its receive comes later.
  bool message(size_t length, bool late) {
    const auto bytes = pattern(length);
    std::vector<char> got(length);
    const uint32_t shared = a.transport.keys_made;
    if (!late) receive(got);
    must(a.send(1, bytes.data(), length, 7, &got));
    run_until_idle();
    if (late) receive(got);
    run_until_idle();
    ck_assert_ptr_eq(b.received.take().context, &got);
    ck_assert_ptr_eq(a.sent.take().context, &got);
    ck_assert(got == bytes);
    return a.transport.keys_made > shared;
  }
  void finish() {
    expect_clean(*this);
    end_work();
  }
};

TEST(after_an_unexpected_long_message_others_are_rendezvous_for_a_while) {
  constexpr size_t kLength = LongMessages::kLong + 1;
  LongPair pair;
  ck_assert(!pair.message(kLength, false));
  ck_assert(!pair.message(kLength, true));
  ck_assert(!pair.message(LongMessages::kLong, false));  // is not long
  for (unsigned i = 0; i < LongMessages::kFirstPause; ++i)
    ck_assert(pair.message(kLength, i % 2 == 0));
  ck_assert(!pair.message(kLength, false));
  pair.finish();
}

TEST(unexpected_messages_that_are_not_long_change_nothing) {
  LongPair pair;
  for (int i = 0; i < 3; ++i) ck_assert(!pair.message(LongMessages::kLong, true));
  ck_assert(!pair.message(LongMessages::kLong + 1, false));
  ck_assert_uint_eq(pair.a_to_b().arrived, 0);  // b has told nothing
  pair.finish();
}

/// The pause counts messages that have left, not tries.
TEST(a_message_that_waits_for_room_counts_once) {
  constexpr size_t kLength = LongMessages::kLong + 1;
  LongPair pair;
  ck_assert(!pair.message(kLength, true));
  const auto bytes = pattern(kLength);
  std::vector<char> got(kLength);
  pair.a.transport.behaviour.room = 0;
  must(pair.a.send(1, bytes.data(), kLength, 7, &got));
  for (unsigned i = 0; i < 2 * LongMessages::kFirstPause; ++i) pair.a.engine.progress();
  pair.a.transport.behaviour.room = SIZE_MAX;
  pair.receive(got);
  pair.run_until_idle();
  ck_assert_ptr_eq(pair.b.received.take().context, &got);
  ck_assert_ptr_eq(pair.a.sent.take().context, &got);
  for (unsigned i = 1; i < LongMessages::kFirstPause; ++i) ck_assert(pair.message(kLength, false));
  ck_assert(!pair.message(kLength, false));
  pair.finish();
}

/// Three messages are unexpected, with room on the link of the receiver from the first, second or
/// third one on, or not at all.
TEST(a_receiver_tells_once_and_keeps_no_packet, 4) {
  constexpr size_t kLength = LongMessages::kLong + 1;
  LongPair pair;
  const auto bytes = pattern(kLength);
  std::vector<char> got(kLength);
  for (int burst = 0; burst < 2; ++burst) {
    const uint64_t before = pair.a_to_b().arrived;
    for (int i = 0; i < 3; ++i) {
      pair.b.transport.behaviour.room = i >= _i ? SIZE_MAX : 0;
      must(pair.a.send(1, bytes.data(), kLength, 7, &got));
      pair.b.engine.progress();
    }
    ck_assert(!pair.b.engine.has_injected());
    for (int i = 0; i < 3; ++i) {
      pair.receive(got);
      pair.b.engine.progress();
      ck_assert_ptr_eq(pair.b.received.take().context, &got);
      ck_assert_ptr_eq(pair.a.sent.take().context, &got);
      ck_assert(got == bytes);
    }
    pair.a.engine.progress();
    ck_assert_uint_eq(pair.a_to_b().arrived - before, _i < 3 ? 1 : 0);
    if (_i == 3) continue;
    for (unsigned n = 0; n < unsigned(LongMessages::kFirstPause) << burst; ++n)
      ck_assert(pair.message(kLength, false));
  }
  pair.finish();
}

/// What the peer has told over a link ends with it.
TEST(a_link_that_ends_ends_the_pause) {
  constexpr size_t kLength = LongMessages::kLong + 1;
  LongPair pair;
  ck_assert(!pair.message(kLength, true));
  ck_assert(pair.message(kLength, false));
  erdma::fake::Transport::bring_down(pair.a_to_b(), -FI_ECONNRESET, pair.a.engine);
  ck_assert(!pair.message(kLength, false));
  pair.finish();
}

}  // namespace
