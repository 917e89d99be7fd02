#include <rdma/fi_errno.h>

#include "fake/bulk_channel.h"
#include "libcheck.h"

/// Copies through the slots where CMA is permitted.
namespace erdma::transport::shm {
namespace {

TEST(copy_by_choice_is_read_where_the_sender_stops_coming, 8) {
  Channel channel(Ways::chosen);
  Message message(channel, kMiB + 12345);
  for (int i = 0; i < _i; ++i) {
    channel.in.poll(channel.sink);
    channel.out.poll();
  }
  for (int i = 0; i < kManyPolls && channel.in.active(); ++i) {
    ck_assert(channel.in.ready());  // nobody would wake a receiver that sleeps now
    channel.in.poll(channel.sink);
  }
  assert_done_once(channel.sink, 7, 0);
  ck_assert(message.arrived());
  ck_assert_uint_gt(channel.in_counters.cma_read_bytes, 0);
  ck_assert_uint_eq(channel.in_counters.cma_read_bytes + channel.in_counters.bounce_in_bytes,
                    message.length);
  // The next one does not wait for that sender; one after it does again, and is copied.
  const uint64_t bounced = channel.in_counters.bounce_in_bytes;
  Message next(channel, 64 * kKiB, 8);
  channel.run();
  ck_assert_uint_eq(channel.in_counters.bounce_in_bytes, bounced);
  Message later(channel, 64 * kKiB, 9);
  channel.run();
  ck_assert_uint_eq(channel.in_counters.bounce_in_bytes, bounced + later.length);
  ck_assert(next.arrived() && later.arrived());
}

TEST(copy_by_choice_needs_a_sender_that_is_attached) {
  Channel channel(Ways::chosen, false);
  Message message(channel, kMiB);
  channel.in.poll(channel.sink);
  ck_assert_uint_gt(channel.in_counters.cma_read_bytes, 0);
  channel.run();
  assert_done_once(channel.sink, 7, 0);
  ck_assert_int_eq(channel.memory.calls, 0);
}

TEST(copy_is_not_chosen_where_its_memory_is_one_too_many) {
  Channel channel(Ways::chosen);
  channel.memory.affordable = false;
  Message message(channel, kMiB);
  channel.run();
  assert_done_once(channel.sink, 7, 0);
  ck_assert_int_eq(channel.memory.calls, 0);
  ck_assert_uint_eq(channel.in_counters.bounce_in_bytes, 0);
}

TEST(copy_is_chosen_no_more_once_its_memory_was_refused) {
  Channel channel(Ways::chosen);
  channel.memory.status = -FI_ENOMEM;
  Message first(channel, kMiB, 1), second(channel, kMiB, 2);
  channel.run();
  assert_done_once(channel.sink, 1, 0);
  assert_done_once(channel.sink, 2, 0);
  ck_assert(first.arrived() && second.arrived());
  ck_assert_int_eq(channel.memory.calls, 1);
  ck_assert_uint_eq(channel.in_counters.bounce_in_bytes, 0);
}

TEST(paths_are_measured_on_what_is_sent) {
  Options options;
  options.streaming = StreamingPolicy::never;
  Channel channel(Ways::chosen, true, options);
  for (uint64_t token = 0; token < 2 * PathChoice::kTrials; ++token) {
    Message message(channel, 64 * kKiB, token);
    channel.run();
    ck_assert(message.arrived());
  }
  ck_assert_uint_eq(channel.in_counters.bounce_in_bytes, PathChoice::kTrials * 64 * kKiB);
}

TEST(rates_without_the_sender_are_no_rates_of_cma) {
  Options options;
  options.streaming = StreamingPolicy::never;
  Channel channel(Ways::chosen, false, options);
  uint64_t token = 0;
  for (; token < 2 * PathChoice::kTrials; ++token) {
    Message alone(channel, 64 * kKiB, token);
    channel.run();
  }
  channel.out.attach(channel.shared);
  channel.out.poll();
  for (const unsigned end = unsigned(token) + PathChoice::kTrials; token < end; ++token) {
    Message message(channel, 64 * kKiB, token);
    channel.run();
  }
  ck_assert_uint_eq(channel.in_counters.bounce_in_bytes, 0);  // CMA's trials come yet
  Message message(channel, 64 * kKiB, token);
  channel.run();
  ck_assert_uint_eq(channel.in_counters.bounce_in_bytes, 64 * kKiB);
}

}  // namespace

}  // namespace erdma::transport::shm
