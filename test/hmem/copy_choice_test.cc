#include "hmem/copy_choice.h"

#include <algorithm>

#include "libcheck.h"

namespace {

using erdma::hmem::CopyChoice;
using erdma::hmem::CopyMethod;

constexpr CopyChoice::Offer kAll{true, true};

/// Nanoseconds that a copy of 64 bytes takes by each method.
struct Costs {
  uint64_t by[4];  ///< in the order of CopyMethod
  uint64_t of(CopyMethod method) const { return by[size_t(method)]; }
};
constexpr Costs kNear{2, 3, 4, 9}, kFar{15, 16, 9, 6}, kStringsFast{4, 4, 2, 1};
constexpr CopyMethod kMethods[] = {CopyMethod::loop, CopyMethod::library, CopyMethod::string,
                                   CopyMethod::stream};

struct Copies {
  int by[4] = {};
  int timed = 0;
  int count(CopyMethod method) const { return by[size_t(method)]; }
};

/// Lets payloads be copied on a machine with these costs.
Copies copy(CopyChoice& choice, const Costs& costs, int count, size_t length = 4096,
            CopyChoice::Offer offer = kAll) {
  Copies copies;
  for (int i = 0; i < count; ++i) {
    const CopyChoice::Choice chosen = choice.choose(length, offer);
    ++copies.by[size_t(chosen.method)];
    if (!chosen.timed) continue;
    ++copies.timed;
    choice.record(length, chosen.method, length / 64 * costs.of(chosen.method));
  }
  return copies;
}

TEST(begins_with_the_loop) {
  CopyChoice choice;
  const CopyChoice::Choice first = choice.choose(4096, kAll);
  ck_assert(first.method == CopyMethod::loop && !first.timed);
}

TEST(finds_the_fastest_of_four_in_few_copies) {
  for (const Costs& costs : {kNear, kFar, Costs{15, 15, 6, 9}, Costs{4, 2, 3, 9}}) {
    CopyChoice choice;
    copy(choice, costs, 128);
    const Copies after = copy(choice, costs, 1000);
    for (const CopyMethod method : kMethods)
      if (costs.of(method) == std::ranges::min(costs.by))
        ck_assert_int_gt(after.count(method), 950);
  }
}

TEST(never_streams_while_another_method_is_fast) {
  for (const Costs& costs : {kStringsFast, Costs{15, 3, 15, 1}, Costs{3, 15, 15, 1}}) {
    CopyChoice choice;
    ck_assert_int_eq(copy(choice, costs, 10000).count(CopyMethod::stream), 0);
  }
}

/// A line takes 8 ns at the limit, and 16 where payloads are short.
TEST(short_payloads_may_be_slower_before_they_are_streamed) {
  for (const size_t length : {size_t{2048}, size_t{2049}}) {
    for (const uint64_t loop : {7, 9, 15, 17}) {
      CopyChoice choice;
      const bool slow = loop > (length == 2048 ? 16 : 8);
      const int streamed =
          copy(choice, {{loop, 100, 100, 4}}, 10000, length).count(CopyMethod::stream);
      ck_assert(slow ? streamed > 9800 : streamed == 0);
    }
  }
}

TEST(streaming_that_becomes_possible_late_is_known_in_few_copies) {
  constexpr Costs kFast{2, 100, 100, 9}, kSlowLater{15, 100, 100, 6};
  CopyChoice choice;
  copy(choice, kFast, 10000);
  int others = 0;
  while (copy(choice, kSlowLater, 1).count(CopyMethod::stream) == 0 && others < 10000) ++others;
  ck_assert_int_lt(others, 10000);
  ck_assert_int_gt(copy(choice, kSlowLater, 1000).count(CopyMethod::stream), 900);
}

/// The receiver must read what was streamed from memory, which no time of the sender includes.
constexpr Costs kNearMeasured{6, 100, 100, 4}, kFarMeasured{30, 100, 100, 4};

TEST(stops_streaming_once_another_method_is_fast) {
  CopyChoice choice;
  copy(choice, kFarMeasured, 20000);
  ck_assert_int_gt(copy(choice, kFarMeasured, 1000).count(CopyMethod::stream), 900);
  copy(choice, kNearMeasured, 6000);
  ck_assert_int_eq(copy(choice, kNearMeasured, 10000).count(CopyMethod::stream), 0);
  copy(choice, kFarMeasured, 6000);
  ck_assert_int_gt(copy(choice, kFarMeasured, 1000).count(CopyMethod::stream), 900);
}

/// The loop is now a little faster than the limit, now a little slower.
TEST(a_rate_near_the_limit_does_not_lead_to_and_fro) {
  CopyChoice choice;
  int timed = 0, streamed = 0;
  for (int i = 0; i < 40000; ++i) {
    const CopyChoice::Choice chosen = choice.choose(4096, {false, true});
    streamed += chosen.method == CopyMethod::stream;
    if (!chosen.timed) continue;
    const uint64_t by_loop = timed++ % 16 < 8 ? 4096 / 8 - 10 : 4096 / 8 + 10;
    choice.record(4096, chosen.method, chosen.method == CopyMethod::stream ? 300 : by_loop);
  }
  ck_assert_int_gt(streamed, 30000);
  ck_assert_int_le(timed, 200);
}

TEST(uses_only_what_is_offered) {
  for (const CopyChoice::Offer offer :
       {CopyChoice::Offer{false, false}, {true, false}, {false, true}}) {
    CopyChoice choice;
    const Copies copies = copy(choice, kFar, 10000, 4096, offer);
    ck_assert_int_gt(copies.count(CopyMethod::library), 0);
    ck_assert_int_eq(copies.count(CopyMethod::string) > 0, offer.string);
    ck_assert_int_eq(copies.count(CopyMethod::stream) > 0, offer.stream);
  }
}

TEST(times_ever_fewer_copies) {
  CopyChoice choice;
  ck_assert_int_gt(copy(choice, kNear, 128).timed, 5);
  copy(choice, kNear, 10000);
  ck_assert_int_le(copy(choice, kNear, 10240).timed, 20);
}

TEST(tries_what_is_far_slower_in_one_copy_of_a_thousand) {
  CopyChoice choice;
  copy(choice, kNear, 10000);
  ck_assert_int_ge(copy(choice, kNear, 10240).count(CopyMethod::loop), 10230);
}

TEST(follows_cores_that_move) {
  CopyChoice choice;
  copy(choice, kNear, 20000);
  copy(choice, kFar, 6000);
  ck_assert_int_gt(copy(choice, kFar, 1000).count(CopyMethod::stream), 900);
  copy(choice, kNear, 6000);
  ck_assert_int_gt(copy(choice, kNear, 1000).count(CopyMethod::loop), 900);
}

TEST(a_single_slow_copy_changes_nothing) {
  CopyChoice choice;
  copy(choice, kNear, 10000);
  for (int i = 0; i < 20; ++i) {
    CopyChoice::Choice chosen;
    do chosen = choice.choose(4096, kAll);
    while (!chosen.timed || chosen.method != CopyMethod::loop);
    choice.record(4096, chosen.method, 1'000'000);
    ck_assert_int_eq(copy(choice, kNear, 3000).count(CopyMethod::loop) > 2990, 1);
  }
}

TEST(each_class_of_length_has_its_own_choice) {
  CopyChoice choice;
  copy(choice, kNear, 1000, 4096);
  copy(choice, kStringsFast, 1000, 4097);
  ck_assert_int_gt(copy(choice, kNear, 1000, 4096).count(CopyMethod::loop), 900);
  ck_assert_int_gt(copy(choice, kStringsFast, 1000, 8192).count(CopyMethod::string), 900);
}

TEST(short_payloads_are_copied_by_the_loop_and_not_timed) {
  CopyChoice choice;
  const Copies copies = copy(choice, kStringsFast, 1000, CopyChoice::kLeast - 1);
  ck_assert_int_eq(copies.count(CopyMethod::loop), 1000);
  ck_assert_int_eq(copies.timed, 0);
}

}  // namespace
