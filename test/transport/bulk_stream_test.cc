#include "fake/bulk_channel.h"
#include "libcheck.h"

/// Tests when messages that follow each other are copied through the slots of a channel although
/// CMA is permitted.
namespace erdma::transport::shm {
namespace {

/// A channel with both ways permitted, and pairs of messages, of which the second waits behind the
/// first: it belongs to a stream.
struct Pairs {
  explicit Pairs(bool fast, size_t length_ = kMiB, Ways ways = Ways::chosen)
      : channel(ways, true, plain()), length(length_) {
    channel.memory.affordable = true;
    channel.memory.fast = fast;
    channel.out.poll();
  }
  static Options plain() {
    Options options;
    options.streaming = StreamingPolicy::never;
    return options;
  }
  /// Returns whether the second was copied. `pause`: between polls.
  bool send(uint64_t pause = 0) {
    const uint64_t before = channel.in_counters.bounce_in_bytes;
    uint64_t with_first = 0;
    channel.sink.then = [&](uint64_t done, int) {
      if (done == token) with_first = channel.in_counters.bounce_in_bytes - before;
    };
    Message first(channel, length, token), second(channel, length, token + 1);
    while (channel.in.active()) {
      channel.in.poll(channel.sink);
      channel.clock.pass(pause);
      channel.out.poll();
    }
    ck_assert(first.arrived() && second.arrived());
    token += 2;
    // One transfer at a time has the slots.
    const uint64_t copied = channel.in_counters.bounce_in_bytes - before;
    return copied == (with_first == length ? 2 * length : length);
  }
  /// Returns how many of the next pairs were sent so that the second was copied.
  unsigned copied_of(unsigned pairs, uint64_t pause = 0) {
    unsigned copied = 0;
    for (unsigned i = 0; i < pairs; ++i) copied += send(pause);
    return copied;
  }

  /// From now on each call of this kind takes so long.
  void slow_down(fake::CmaCalls::Plan& calls, uint64_t nanoseconds) {
    calls.meanwhile = [this, &calls, nanoseconds] {
      channel.clock.pass(nanoseconds);
      slow_down(calls, nanoseconds);
    };
  }

  Channel channel;
  size_t length;
  uint64_t token = 0;
};

/// Rows: both sides stream, or not; calls of the kernel are fast, or not.
TEST(streams_both_ways_are_read_by_fast_calls, 4) {
  Pairs pairs(_i / 2);
  pairs.channel.memory.both_ways = true;
  pairs.channel.memory.streams = _i % 2;
  const unsigned each = _i / 2 ? PathChoice::kRarely : 1;
  ck_assert_int_eq(pairs.copied_of(each * PathChoice::kFirstTrial * 5 / 4) > 0, _i != 3);
}

/// Rows: calls are slow, or fast.
TEST(a_stream_is_soon_copied_where_calls_are_slow, 2) {
  Pairs pairs(_i);
  ck_assert_uint_eq(pairs.copied_of(PathChoice::kFirstCopy), 0);
  ck_assert_uint_eq(pairs.copied_of(4), _i ? 0 : 4);
}

/// Copies of longer messages have given the slots memory.
TEST(a_stream_of_messages_that_mostly_cross_the_ring_is_not) {
  Pairs pairs(false);
  ck_assert_uint_eq(pairs.copied_of(PathChoice::kFirstCopy + 1), 1);
  pairs.length = PathChoice::kOneCopy;
  ck_assert_uint_eq(pairs.copied_of(PathChoice::kFirstCopy + 4), 0);
}

/// A trial through all slots goes on until enough of its transfers tell something: those of 256 KiB
/// have nine pieces, and the first eight of them use slots for the first time.
TEST(a_trial_ends_after_all_slots_were_used) {
  Pairs pairs(false, 256 * kKiB);
  Channel& channel = pairs.channel;
  pairs.slow_down(channel.calls.read, 300'000);
  const auto copied = [&](unsigned messages) {
    const uint64_t before = channel.in_counters.bounce_in_bytes;
    for (unsigned i = 0; i < messages; ++i) {
      Message message(channel, pairs.length, pairs.token++);
      channel.run();
    }
    return (channel.in_counters.bounce_in_bytes - before) / pairs.length;
  };
  ck_assert_uint_eq(copied(PathChoice::kFirstTrial - 1), 0);
  ck_assert_uint_eq(copied(8 + PathChoice::kLongTrials), 8 + PathChoice::kLongTrials);
  ck_assert_uint_eq(copied(1), 1);
}

/// Of a longer message a trial moves a part.
TEST(a_trial_through_all_slots_moves_a_large_part_of_a_message) {
  Pairs pairs(false, 8 * kMiB);
  Channel& channel = pairs.channel;
  for (unsigned i = 0; i < PathChoice::kFirstTrial; ++i) {
    ck_assert_uint_eq(channel.in_counters.bounce_in_bytes, 0);
    Message message(channel, pairs.length, pairs.token++);
    channel.run();
  }
  ck_assert_uint_eq(channel.in_counters.bounce_in_bytes, BulkTransfers::kTriedWhole);
}

/// Nobody measures calls for messages that take turns, before a trial is due.
TEST(calls_are_measured_for_the_first_stream) {
  Pairs pairs(false);
  for (uint64_t token = 100; token < 100 + PathChoice::kFirstTrial - 2; ++token) {
    Message message(pairs.channel, kMiB, token);
    pairs.channel.run();
  }
  ck_assert_uint_eq(pairs.channel.memory.measured, 0);
  pairs.send();
  ck_assert_uint_gt(pairs.channel.memory.measured, 0);
}

/// Of transfers that are under way at the same time, one may end right after another, so that the
/// time between the ends says nothing: here the sender is inside a call for the second message
/// until the third one has been read. Rows: copies take longer than the calls, or less.
TEST(cma_in_a_stream_counts_as_its_calls, 2) {
  Pairs pairs(false, 256 * kKiB);
  Channel& channel = pairs.channel;
  pairs.slow_down(channel.calls.read, _i ? 300'000 : 1'000);
  // Two of three transfers belong to the stream. Then both ways are timed, and no trial is due.
  constexpr unsigned kRounds = PathChoice::kFirstCopy / 2 + 7;
  static_assert(14 < PathChoice::kFirstTrial);
  for (unsigned i = 0; i < kRounds; ++i) {
    channel.calls.write.meanwhile = [&] {
      for (int poll = 0; poll < 4; ++poll) channel.in.poll(channel.sink);
    };
    Message leading(channel, pairs.length, 1000 + i);
    pairs.send(_i ? 50'000 : 100'000);
    ck_assert(leading.arrived());
  }
  ck_assert_int_eq(channel.in_counters.bounce_in_bytes == 14 * pairs.length, _i);
}

/// Here nobody times calls but the sender, which moves one message after the other.
TEST(a_stream_that_only_the_sender_moves_counts_from_end_to_end) {
  Pairs pairs(false, 256 * kKiB, Ways::write_only);
  pairs.slow_down(pairs.channel.calls.write, 300'000);
  // A copy takes 300 us; CMA 400 us, and 800 us for both of a pair.
  const unsigned copied = pairs.copied_of(3 * PathChoice::kFirstTrial, 100'000);
  ck_assert_uint_gt(copied, 0);
  ck_assert_uint_le(copied, PathChoice::kTrials);
}

/// The sender is inside calls that take as long there as here. Rows: the calls and the pause, in
/// ns; the longest wait is 2 ms.
constexpr uint64_t kPauses[][2] = {{400'000, 600'000}, {10'000'000, 2'100'000}};
TEST(a_copy_waits_longer_for_the_sender_where_calls_are_slow, 2) {
  Pairs pairs(false);
  Channel& channel = pairs.channel;
  pairs.slow_down(channel.calls.read, kPauses[_i][0]);
  ck_assert_uint_eq(pairs.copied_of(PathChoice::kFirstCopy), 0);
  const uint64_t before = channel.in_counters.bounce_in_bytes;
  channel.sink.then = nullptr;
  channel.calls.read.meanwhile = nullptr;
  Message first(channel, kMiB, 100), second(channel, kMiB, 101);
  while (channel.sink.done.count(100) == 0) {
    channel.in.poll(channel.sink);
    if (channel.sink.done.count(100) == 0) channel.out.poll();
  }
  channel.in.poll(channel.sink);
  channel.clock.pass(kPauses[_i][1]);
  channel.in.poll(channel.sink);
  channel.run();
  ck_assert(first.arrived() && second.arrived());
  ck_assert_int_eq(channel.in_counters.bounce_in_bytes - before == kMiB, !_i);
}

/// How long a message that follows no other takes whose sender does not come.
uint64_t time_without_sender(Channel& channel, uint64_t token) {
  const uint64_t start = channel.clock.now();
  Message message(channel, kMiB, token);
  while (channel.in.active()) channel.in.poll(channel.sink);
  ck_assert(message.arrived());
  return channel.clock.now() - start;
}

TEST(a_slow_call_makes_only_the_next_absence_long) {
  Pairs pairs(false);
  Channel& channel = pairs.channel;
  pairs.slow_down(channel.calls.read, 10'000'000);
  pairs.send();
  channel.calls.read.meanwhile = nullptr;
  uint64_t token = 100;
  for (; token < 100 + PathChoice::kFirstTrial - 2; ++token) {
    Message message(channel, kMiB, token);
    channel.run();
  }
  ck_assert_uint_gt(time_without_sender(channel, token), 2'000'000);
  time_without_sender(channel, token + 1);  // by CMA, as the sender was absent
  const uint64_t next = time_without_sender(channel, token + 2);
  ck_assert(next > 200'000 && next < 1'000'000);
}

}  // namespace
}  // namespace erdma::transport::shm
