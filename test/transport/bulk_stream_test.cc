#include "fake/bulk_channel.h"
#include "libcheck.h"

/// Tests when messages that follow each other are copied through the slots of a channel although
/// CMA is permitted.
namespace erdma::transport::shm {
namespace {

/// A channel with both ways permitted, and pairs of messages, of which the second waits behind the
/// first: it belongs to a stream.
struct Pairs {
  explicit Pairs(bool fast, size_t length_ = kMiB)
      : channel(Ways::chosen, true, plain()), length(length_) {
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

  /// From now on each call that reads takes so long.
  void slow_down(uint64_t nanoseconds) {
    channel.calls.read.meanwhile = [this, nanoseconds] {
      channel.clock.pass(nanoseconds);
      slow_down(nanoseconds);
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
  pairs.slow_down(_i ? 300'000 : 1'000);
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

/// The sender is inside calls that take as long there as here.
TEST(a_copy_waits_longer_for_the_sender_where_calls_are_slow) {
  Pairs pairs(false);
  pairs.slow_down(400'000);
  ck_assert_uint_eq(pairs.copied_of(PathChoice::kFirstCopy), 0);
  const uint64_t before = pairs.channel.in_counters.bounce_in_bytes;
  pairs.channel.sink.then = nullptr;
  Message first(pairs.channel, kMiB, 100), second(pairs.channel, kMiB, 101);
  while (pairs.channel.sink.done.count(100) == 0) {
    pairs.channel.in.poll(pairs.channel.sink);
    if (pairs.channel.sink.done.count(100) == 0) pairs.channel.out.poll();
  }
  pairs.channel.in.poll(pairs.channel.sink);
  pairs.channel.clock.pass(600'000);
  pairs.channel.in.poll(pairs.channel.sink);
  pairs.channel.run();
  ck_assert(first.arrived() && second.arrived());
  ck_assert_uint_eq(pairs.channel.in_counters.bounce_in_bytes - before, kMiB);
}

}  // namespace
}  // namespace erdma::transport::shm
