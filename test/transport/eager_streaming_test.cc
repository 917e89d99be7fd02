#include "transport/shm/eager_streaming.h"

#include "libcheck.h"

namespace {

using erdma::transport::shm::EagerStreaming;
using erdma::transport::shm::StreamingPolicy;

constexpr size_t kLength = 4096;
constexpr uint64_t kNear = kLength / 64 * 3;  // ns for an ordinary copy
constexpr uint64_t kFar = kLength / 64 * 15;

/// Lets `count` payloads pass between cores this far apart; returns how many were streamed.
int run(EagerStreaming& streaming, uint64_t copy_time, int count) {
  int streamed = 0;
  for (int i = 0; i < count; ++i) {
    const EagerStreaming::Choice way = streaming.choose(kLength);
    if (way.stream) ++streamed;
    if (way.measure) streaming.record(kLength, copy_time);
  }
  return streamed;
}

TEST(near_cores_never_stream) {
  EagerStreaming streaming;
  ck_assert_int_eq(run(streaming, kNear, 1000), 0);
}

TEST(far_cores_stream_nearly_always) {
  EagerStreaming streaming;
  run(streaming, kFar, 64);
  ck_assert_int_gt(run(streaming, kFar, 640), 600);
}

TEST(one_copy_in_a_few_is_measured_and_fewer_between_far_cores) {
  EagerStreaming streaming;
  for (unsigned i = 1; i <= 2 * EagerStreaming::kMeasureNear; ++i)
    ck_assert_int_eq(streaming.choose(kLength).measure, i % EagerStreaming::kMeasureNear == 0);
  for (unsigned i = 0; i < EagerStreaming::kVotes; ++i) streaming.record(kLength, kFar);
  for (unsigned i = 1; i <= 2 * EagerStreaming::kMeasureFar; ++i)
    ck_assert_int_eq(streaming.choose(kLength).measure, i % EagerStreaming::kMeasureFar == 0);
}

TEST(a_copy_that_takes_just_the_time_of_near_cores_is_not_slow) {
  constexpr uint64_t kJustNear = kLength / 64 * EagerStreaming::kSlowLine;
  EagerStreaming streaming;
  for (unsigned i = 0; i < EagerStreaming::kVotes; ++i) streaming.record(kLength, kJustNear);
  ck_assert(!streaming.choose(kLength).stream);
  for (unsigned i = 0; i < EagerStreaming::kVotes; ++i) streaming.record(kLength, kJustNear + 1);
  ck_assert(streaming.choose(kLength).stream);
}

TEST(a_single_slow_copy_changes_nothing) {
  EagerStreaming streaming;
  for (int i = 0; i < 20; ++i) {
    while (!streaming.choose(kLength).measure) {
    }
    streaming.record(kLength, 1'000'000);
    ck_assert_int_eq(run(streaming, kNear, 100), 0);
  }
}

TEST(processes_that_come_near_again_stop_streaming) {
  EagerStreaming streaming;
  run(streaming, kFar, 1000);
  run(streaming, kNear, 100);
  ck_assert_int_eq(run(streaming, kNear, 1000), 0);
}

TEST(policy_overrides_what_was_measured) {
  EagerStreaming always(StreamingPolicy::always), never(StreamingPolicy::never);
  ck_assert_int_eq(run(always, kNear, 100), 100);
  ck_assert_int_eq(run(never, kFar, 1000), 0);
}

TEST(short_payloads_are_neither_streamed_nor_measured) {
  EagerStreaming streaming(StreamingPolicy::always);
  const EagerStreaming::Choice way = streaming.choose(EagerStreaming::kLeast - 1);
  ck_assert(!way.stream && !way.measure);
}

}  // namespace
