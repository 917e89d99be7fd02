#include "transport/shm/eager_streaming.h"

#include <cstdlib>

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
    const EagerStreaming::Way way = streaming.choose(kLength);
    if (way.stream) ++streamed;
    if (way.measure) streaming.record(kLength, copy_time);
  }
  return streamed;
}

START_TEST(near_cores_never_stream) {
  EagerStreaming streaming;
  ck_assert_int_eq(run(streaming, kNear, 1000), 0);
}
END_TEST

START_TEST(far_cores_stream_nearly_always) {
  EagerStreaming streaming;
  run(streaming, kFar, 64);
  ck_assert_int_gt(run(streaming, kFar, 640), 600);
}
END_TEST

START_TEST(a_single_slow_copy_changes_nothing) {
  EagerStreaming streaming;
  for (int i = 0; i < 20; ++i) {
    while (!streaming.choose(kLength).measure) {
    }
    streaming.record(kLength, 1'000'000);
    ck_assert_int_eq(run(streaming, kNear, 100), 0);
  }
}
END_TEST

START_TEST(processes_that_come_near_again_stop_streaming) {
  EagerStreaming streaming;
  run(streaming, kFar, 1000);
  run(streaming, kNear, 100);
  ck_assert_int_eq(run(streaming, kNear, 1000), 0);
}
END_TEST

START_TEST(policy_overrides_what_was_measured) {
  EagerStreaming always(StreamingPolicy::always), never(StreamingPolicy::never);
  ck_assert_int_eq(run(always, kNear, 100), 100);
  ck_assert_int_eq(run(never, kFar, 1000), 0);
}
END_TEST

START_TEST(short_payloads_are_neither_streamed_nor_measured) {
  EagerStreaming streaming(StreamingPolicy::always);
  const EagerStreaming::Way way = streaming.choose(EagerStreaming::kLeast - 1);
  ck_assert(!way.stream && !way.measure);
}
END_TEST

Suite* streaming_suite() {
  Suite* suite = suite_create("eager streaming");
  TCase* tc = tcase_create("choice");
  tcase_add_test(tc, near_cores_never_stream);
  tcase_add_test(tc, far_cores_stream_nearly_always);
  tcase_add_test(tc, a_single_slow_copy_changes_nothing);
  tcase_add_test(tc, processes_that_come_near_again_stop_streaming);
  tcase_add_test(tc, policy_overrides_what_was_measured);
  tcase_add_test(tc, short_payloads_are_neither_streamed_nor_measured);
  suite_add_tcase(suite, tc);
  return suite;
}

}  // namespace

int main() {
  SRunner* runner = srunner_create(streaming_suite());
  srunner_run_all(runner, CK_NORMAL);
  const int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
