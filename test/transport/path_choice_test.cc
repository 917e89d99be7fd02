#include "transport/shm/path_choice.h"

#include <cstdint>
#include <iterator>

#include "libcheck.h"
#include "transport/shm/ring.h"

namespace erdma::transport::shm {
namespace {

constexpr size_t kSmallLength = 256 * 1024;
constexpr size_t kLargeLength = 64 * 1024 * 1024;
constexpr PathChoice::Open kBoth{true, true};
constexpr PathChoice::Open kBacked{true, true, true};
constexpr PathChoice::Open kCopyOnly{false, true};
constexpr PathChoice::Open kCmaOnly{true, false};

/// The duration of a transfer by each Path.
struct Times {
  uint64_t nanoseconds[kPaths];
};

/// Transfers after which each path has been tried.
constexpr unsigned kLearned = (kPaths - 1) * (PathChoice::kFirstTrial + PathChoice::kTrials) + 1;

/// Runs transfers and returns the path of the last one.
Path settle(PathChoice& choice, size_t length, PathChoice::Open open, const Times& times,
            unsigned transfers) {
  Path last = Path::cma;
  for (unsigned i = 0; i < transfers; ++i) {
    last = choice.choose(length, open);
    choice.record(length, last, times.nanoseconds[size_t(last)]);
  }
  return last;
}

struct SettleCase {
  size_t length;
  PathChoice::Open open;
  Times times;
  Path expect;
};
constexpr SettleCase kSettleCases[] = {
    {8 * 1024, kBoth, {{300, 100, 200, 1}}, Path::cma},
    {8 * 1024, kCopyOnly, {{300, 100, 200, 1}}, Path::copy},
    {8 * 1024, kCopyOnly, {{300, 200, 100, 1}}, Path::copy},  // so few bytes are not measured
    {8 * 1024, kBacked, {{300, 100, 200, 1}}, Path::cma},
    {8 * 1024 + 1, kBacked, {{300, 100, 200, 1}}, Path::copy},
    {128 * 1024, kBoth, {{300, 100, 200, 1}}, Path::cma},
    {128 * 1024, kCopyOnly, {{300, 200, 100, 1}}, Path::copy_streaming_in},
    {128 * 1024 + 1, kBoth, {{300, 100, 200, 1}}, Path::copy},
    {kSmallLength, kBoth, {{100, 200, 300, 1}}, Path::cma},
    {kSmallLength, kBoth, {{300, 100, 200, 1}}, Path::copy},
    {kSmallLength, kBoth, {{150, 100, 300, 1}}, Path::copy},
    {kSmallLength, kBoth, {{130, 100, 300, 1}}, Path::cma},  // not much faster
    {kSmallLength, kCopyOnly, {{1, 130, 100, 1}}, Path::copy_streaming_in},
    {kSmallLength, kBoth, {{300, 200, 100, 1}}, Path::copy_streaming_in},
    {kSmallLength, kCopyOnly, {{1, 100, 200, 1}}, Path::copy},
    {kSmallLength, kCopyOnly, {{1, 200, 100, 1}}, Path::copy_streaming_in},
    {kSmallLength, kCmaOnly, {{300, 1, 1, 1}}, Path::cma},
    {kLargeLength, kBoth, {{100, 200, 300, 400}}, Path::cma},
    {kLargeLength, kBoth, {{400, 300, 200, 100}}, Path::copy_streaming_both},
    {kLargeLength, kCopyOnly, {{1, 100, 200, 300}}, Path::copy},
};

TEST(choice_settles_on_the_fastest_path_that_is_open, std::size(kSettleCases)) {
  const SettleCase& c = kSettleCases[_i];
  PathChoice choice(StreamingPolicy::calibrate);
  ck_assert_int_eq(int(settle(choice, c.length, c.open, c.times, kLearned)), int(c.expect));
}

TEST(first_transfers_use_cma_and_each_other_path_is_tried_alike) {
  PathChoice choice(StreamingPolicy::calibrate);
  unsigned tried[kPaths] = {};
  for (unsigned i = 0; i + 1 < kLearned; ++i) {
    const Path path = choice.choose(kLargeLength, kBoth);
    if (i + 1 < PathChoice::kFirstTrial) ck_assert_int_eq(int(path), int(Path::cma));
    ++tried[size_t(path)];
    ck_assert_int_eq(choice.tries(kLargeLength), path != Path::cma);
    choice.record(kLargeLength, path, 100);
  }
  for (size_t path = size_t(Path::copy); path < kPaths; ++path)
    ck_assert_uint_eq(tried[path], PathChoice::kTrials);
}

/// Transfers until the path is none that was used before.
unsigned until_another(PathChoice& choice, PathChoice::Open open, const Times& times, Path used) {
  unsigned transfers = 1;
  for (Path next; (next = choice.choose(kSmallLength, open)) == used; ++transfers)
    choice.record(kSmallLength, next, times.nanoseconds[size_t(next)]);
  return transfers;
}

/// Where calls are fast, copies are tried later, but taken all the same if they are faster.
TEST(where_calls_are_fast_copies_are_tried_rarely, 2) {
  PathChoice::Open open = kBoth;
  open.rarely = _i;
  const unsigned each = _i ? PathChoice::kRarely : 1;
  PathChoice choice(StreamingPolicy::never);
  const Times slow{{100, 300, 300, 300}}, fast{{300, 100, 100, 100}};
  ck_assert_uint_eq(until_another(choice, open, slow, Path::cma), each * PathChoice::kFirstTrial);
  settle(choice, kSmallLength, open, slow, PathChoice::kTrials - 1);
  ck_assert_uint_eq(until_another(choice, open, fast, Path::cma), each * PathChoice::kFirstRetry);
  const Path last = settle(choice, kSmallLength, open, fast, 2 * PathChoice::kTrials);
  ck_assert_int_eq(int(last), int(Path::copy));
}

/// Rows: then CMA proves slower, or faster by a sixth.
TEST(copies_that_are_likely_to_be_faster_begin_soon, 2) {
  PathChoice::Open open = kBoth;
  open.likely = true;
  PathChoice choice(StreamingPolicy::calibrate);
  const Times first{{900, 0, 0, 0}}, times{{_i ? 100u : 120u, _i ? 120u : 100u, 200, 200}};
  ck_assert_uint_eq(until_another(choice, open, first, Path::cma), PathChoice::kFirstCopy + 1);
  // CMA is tried before any other path.
  const unsigned copies = until_another(choice, open, times, Path::copy);
  ck_assert_uint_eq(copies + 1, PathChoice::kFirstTrial);
  const Path last = settle(choice, kSmallLength, open, times, PathChoice::kTrials);
  ck_assert_int_eq(int(last), int(_i ? Path::cma : Path::copy));
  // A copy need not be much faster either.
  const Times later{{120, 100, 200, 200}};
  const Path in_the_end = settle(choice, kSmallLength, open, later, 6 * PathChoice::kRetryEvery);
  ck_assert_int_eq(int(in_the_end), int(Path::copy));
}

/// A copy through all slots is slow until these and the buffers are where copies leave them. Rows:
/// then it is faster than CMA by a sixth, or not.
TEST(where_calls_are_slow_the_end_of_a_longer_trial_counts, 2) {
  PathChoice::Open open = kBoth;
  open.long_trials = true;
  PathChoice choice(StreamingPolicy::never);
  const Times warm{{120, _i ? 120u : 100u, 0, 0}};
  ck_assert_uint_eq(until_another(choice, open, warm, Path::cma), PathChoice::kFirstTrial);
  choice.record(kSmallLength, Path::copy, 900);
  for (unsigned i = 1; i < PathChoice::kLongTrials; ++i) {
    ck_assert_int_eq(int(choice.choose(kSmallLength, open)), int(Path::copy));
    choice.record(kSmallLength, Path::copy, i < 4 ? 900 : warm.nanoseconds[size_t(Path::copy)]);
  }
  ck_assert_int_eq(int(choice.choose(kSmallLength, open)), int(_i ? Path::cma : Path::copy));
}

/// Only a copy through all slots needs that. Rows: streaming stores are tried, or CMA once more.
TEST(other_trials_stay_short_where_calls_are_slow, 2) {
  PathChoice::Open open = kBoth;
  open.long_trials = true;
  PathChoice choice(_i ? StreamingPolicy::never : StreamingPolicy::calibrate);
  const Times times{{_i ? 300u : 100u, _i ? 100u : 300u, 300, 300}};
  settle(choice, kSmallLength, open, times, PathChoice::kFirstTrial + PathChoice::kLongTrials);
  const Path usual = _i ? Path::copy : Path::cma;
  (void)until_another(choice, open, times, usual);
  for (unsigned i = 1; i < PathChoice::kTrials; ++i)
    ck_assert_int_ne(int(choice.choose(kSmallLength, open)), int(usual));
  ck_assert_int_eq(int(choice.choose(kSmallLength, open)), int(usual));
}

TEST(a_trial_that_tells_nothing_is_made_once_more) {
  PathChoice::Open open = kBoth;
  open.long_trials = true;
  PathChoice choice(StreamingPolicy::never);
  choice.repeat_trial(kSmallLength);  // no trial: without effect
  (void)until_another(choice, open, {{100, 300, 0, 0}}, Path::cma);
  for (int i = 0; i < 5; ++i) choice.repeat_trial(kSmallLength);
  for (unsigned i = 1; i < PathChoice::kLongTrials + 5; ++i)
    ck_assert_int_eq(int(choice.choose(kSmallLength, open)), int(Path::copy));
  ck_assert_int_eq(int(choice.choose(kSmallLength, open)), int(Path::cma));
}

/// Of a path that has begun nothing is known yet, and it is not left for one that was tried.
TEST(copies_that_are_likely_to_be_faster_are_not_left_before_they_are_timed) {
  PathChoice::Open open = kBoth;
  open.likely = true;
  PathChoice choice(StreamingPolicy::never);
  settle(choice, kSmallLength, open, {{100, 900, 0, 0}}, PathChoice::kFirstCopy);
  for (unsigned i = 0; i < PathChoice::kTrials; ++i)
    ck_assert_int_eq(int(choice.choose(kSmallLength, open)), int(Path::copy));
  for (unsigned i = 0; i < PathChoice::kTrials; ++i)
    ck_assert_int_eq(int(settle(choice, kSmallLength, open, {{100, 900, 0, 0}}, 1)),
                     int(Path::copy));
  ck_assert_int_eq(int(choice.choose(kSmallLength, open)), int(Path::cma));
}

TEST(first_transfers_are_copied_where_cma_is_refused) {
  PathChoice choice(StreamingPolicy::calibrate);
  for (unsigned i = 0; i + 1 < PathChoice::kFirstTrial; ++i)
    ck_assert_int_eq(int(settle(choice, kLargeLength, kCopyOnly, {{1, 9, 1, 1}}, 1)),
                     int(Path::copy));
}

TEST(choice_follows_when_another_path_becomes_faster) {
  PathChoice choice(StreamingPolicy::calibrate);
  ck_assert_int_eq(int(settle(choice, kSmallLength, kBoth, {{100, 200, 300, 0}}, kLearned)),
                   int(Path::cma));
  // Each of the two other paths is tried in turn, and is chosen if its trials were faster.
  ck_assert_int_eq(
      int(settle(choice, kSmallLength, kBoth, {{100, 200, 10, 0}}, 6 * PathChoice::kRetryEvery)),
      int(Path::copy_streaming_in));
}

TEST(choice_returns_to_cma_that_became_clearly_faster) {
  PathChoice choice(StreamingPolicy::calibrate);
  settle(choice, kSmallLength, kBoth, {{300, 100, 200, 0}}, kLearned);
  ck_assert_int_eq(
      int(settle(choice, kSmallLength, kBoth, {{85, 100, 200, 0}}, 6 * PathChoice::kRetryEvery)),
      int(Path::cma));
}

TEST(choice_leaves_a_path_that_became_slower_at_once) {
  PathChoice choice(StreamingPolicy::calibrate);
  settle(choice, kSmallLength, kBoth, {{100, 20, 30, 0}}, kLearned);
  ck_assert_int_eq(int(settle(choice, kSmallLength, kBoth, {{100, 900, 900, 0}}, 12)),
                   int(Path::cma));
}

TEST(choice_is_not_misled_by_one_wrong_rate) {
  PathChoice choice(StreamingPolicy::calibrate);
  settle(choice, kSmallLength, kBoth, {{100, 200, 300, 0}}, kLearned);
  choice.record(kSmallLength, Path::cma, 1'000'000);
  ck_assert_int_eq(int(choice.choose(kSmallLength, kBoth)), int(Path::cma));
  choice.record(kSmallLength, Path::copy, 1);
  ck_assert_int_eq(int(choice.choose(kSmallLength, kBoth)), int(Path::cma));
}

TEST(choice_does_not_alternate_between_paths_that_are_alike) {
  PathChoice choice(StreamingPolicy::calibrate);
  const Times either[] = {{{1000, 1040, 3000, 0}}, {{1040, 1000, 3000, 0}}};
  constexpr unsigned kBothTried = 2 * (PathChoice::kFirstTrial + PathChoice::kTrials - 1) + 1;
  const Path path = settle(choice, kSmallLength, kBoth, either[0], kBothTried);
  for (unsigned i = 1; i + 1 < PathChoice::kFirstRetry; ++i)
    ck_assert_int_eq(int(settle(choice, kSmallLength, kBoth, either[i % 2], 1)), int(path));
}

/// CMA is the fastest path, but is slow the first time after a transfer by another path.
unsigned transfers_by_cma(PathChoice& choice, unsigned transfers) {
  Path before = Path::copy;
  unsigned by_cma = 0;
  for (unsigned i = 0; i < transfers; ++i) {
    const Path path = choice.choose(kSmallLength, kBoth);
    const uint64_t cma = before == Path::cma ? 100 : 400;
    choice.record(kSmallLength, path, path == Path::cma ? cma : path == Path::copy ? 200 : 300);
    before = path;
    by_cma += path == Path::cma;
  }
  return by_cma;
}

TEST(choice_is_not_misled_by_the_price_of_a_change) {
  PathChoice choice(StreamingPolicy::calibrate);
  ck_assert_uint_gt(transfers_by_cma(choice, 1000), 950);
}

TEST(choice_finds_back_in_spite_of_the_price_of_a_change) {
  PathChoice choice(StreamingPolicy::calibrate);
  ck_assert_int_eq(int(settle(choice, kSmallLength, kBoth, {{500, 200, 300, 0}}, kLearned)),
                   int(Path::copy));
  transfers_by_cma(choice, 4 * PathChoice::kRetryEvery);
  ck_assert_uint_gt(transfers_by_cma(choice, 1000), 950);
}

TEST(choice_keeps_size_classes_apart) {
  PathChoice choice(StreamingPolicy::calibrate);
  settle(choice, kSmallLength, kBoth, {{100, 200, 300, 0}}, kLearned);
  ck_assert_int_eq(int(settle(choice, 2 * kSmallLength, kBoth, {{300, 100, 200, 0}}, kLearned)),
                   int(Path::copy));
  ck_assert_int_eq(int(settle(choice, kLargeLength, kBoth, {{300, 200, 100, 200}}, kLearned)),
                   int(Path::copy_streaming_in));
  ck_assert_int_eq(int(choice.choose(kSmallLength, kBoth)), int(Path::cma));
}

TEST(choice_obeys_a_fixed_streaming_policy) {
  PathChoice never(StreamingPolicy::never);
  PathChoice always(StreamingPolicy::always);
  for (unsigned i = 0; i < 600; ++i) {
    ck_assert_int_eq(int(never.choose(kLargeLength, kCopyOnly)), int(Path::copy));
    ck_assert_int_eq(int(always.choose(kLargeLength, kCopyOnly)), int(Path::copy_streaming_both));
    ck_assert_int_eq(int(always.choose(kSmallLength, kCopyOnly)), int(Path::copy_streaming_in));
    never.record(kLargeLength, Path::copy, 1000);
    always.record(kSmallLength, Path::copy_streaming_in, 1000);
  }
}

TEST(choice_obeys_a_fixed_path) {
  PathChoice cma(StreamingPolicy::calibrate, PathPolicy::cma);
  PathChoice copy(StreamingPolicy::calibrate, PathPolicy::copy);
  for (unsigned i = 0; i < 600; ++i) {
    ck_assert_int_eq(int(cma.choose(kSmallLength, kBoth)), int(Path::cma));
    ck_assert(copies(copy.choose(kSmallLength, kBoth)));
    cma.record(kSmallLength, Path::cma, 1000);
  }
  ck_assert(copies(cma.choose(kSmallLength, kCopyOnly)));
  ck_assert_int_eq(int(copy.choose(kSmallLength, kCmaOnly)), int(Path::cma));
  copy.sender_absent();
  ck_assert_int_eq(int(copy.choose(kSmallLength, kBoth)), int(Path::cma));
}

/// The rest of a message that has tried a path.
TEST(nothing_is_tried_where_that_is_not_permitted) {
  constexpr PathChoice::Open kRest{true, true, false, false};
  PathChoice choice(StreamingPolicy::never);
  unsigned tried = 0, copied = 0;
  for (unsigned i = 0; i < kLearned; ++i) {
    copied += copies(choice.choose(kSmallLength, kRest));
    ck_assert(!choice.tries(kSmallLength));
    tried += copies(choice.choose(kSmallLength, kBoth));
  }
  ck_assert_uint_eq(copied, 0);
  ck_assert_uint_ge(tried, PathChoice::kTrials);
}

/// A path that is prescribed, or the only one, is not on trial, even if it was before.
TEST(nothing_is_tried_where_there_is_no_choice) {
  PathChoice choice(StreamingPolicy::never), copy(StreamingPolicy::never, PathPolicy::copy);
  while (!choice.tries(kSmallLength)) choice.choose(kSmallLength, kBoth);
  ck_assert_int_eq(int(choice.choose(kSmallLength, kCopyOnly)), int(Path::copy));
  ck_assert(!choice.tries(kSmallLength));
  for (unsigned i = 0; i < 2 * PathChoice::kFirstTrial; ++i) {
    ck_assert_int_eq(int(copy.choose(kSmallLength, kBoth)), int(Path::copy));
    ck_assert(!copy.tries(kSmallLength));
  }
}

TEST(choice_asks_an_absent_sender_ever_more_rarely) {
  PathChoice choice(StreamingPolicy::calibrate);
  const Times times{{100, 1, 1, 1}};
  ck_assert_int_eq(int(settle(choice, kSmallLength, kBoth, times, kLearned)), int(Path::copy));
  for (unsigned rest = 1; rest <= 2 * PathChoice::kMostPatience; rest *= 2) {
    choice.sender_absent();
    const unsigned expected = rest < PathChoice::kMostPatience ? rest : PathChoice::kMostPatience;
    for (unsigned i = 0; i < expected; ++i)
      ck_assert_int_eq(int(choice.choose(kSmallLength, kBoth)), int(Path::cma));
    ck_assert_int_eq(int(choice.choose(kSmallLength, kBoth)), int(Path::copy));
  }
  // After the sender has come once, its absences are counted anew.
  choice.record(kSmallLength, Path::copy, 1);
  choice.sender_absent();
  ck_assert_int_eq(int(choice.choose(kSmallLength, kBoth)), int(Path::cma));
  ck_assert_int_eq(int(choice.choose(kSmallLength, kBoth)), int(Path::copy));
}

TEST(choice_copies_from_an_absent_sender_where_cma_is_refused) {
  PathChoice choice(StreamingPolicy::calibrate);
  choice.sender_absent();
  ck_assert(copies(choice.choose(kSmallLength, kCopyOnly)));
}

TEST(choice_expects_no_help_after_transfers_without_any) {
  PathChoice choice(StreamingPolicy::calibrate);
  ck_assert(choice.expects_help(kSmallLength));
  for (unsigned rest = 1; rest <= 2 * PathChoice::kMostAlone; rest *= 2) {
    choice.helped(kSmallLength, false);
    const unsigned expected = rest < PathChoice::kMostAlone ? rest : PathChoice::kMostAlone;
    for (unsigned i = 0; i < expected; ++i) ck_assert(!choice.expects_help(kSmallLength));
    ck_assert(choice.expects_help(kSmallLength));
    ck_assert(choice.expects_help(PathChoice::kLarge));  // each length class is counted by itself
  }
  choice.helped(kSmallLength, true);
  ck_assert(choice.expects_help(kSmallLength));
  choice.helped(kSmallLength, false);
  ck_assert(!choice.expects_help(kSmallLength));
  ck_assert(choice.expects_help(kSmallLength));
}

TEST(the_policy_decides_about_streaming_whatever_was_measured) {
  using hmem::CopyMethod;
  constexpr size_t kLeast = hmem::CopyChoice::kLeast;
  hmem::CopyChoice slow;  // by any method but streaming
  for (int i = 0; i < 1000; ++i) {
    const auto choice = choose_copy(&slow, StreamingPolicy::calibrate, kLeast);
    if (choice.timed)
      slow.record(kLeast, choice.method, choice.method == CopyMethod::stream ? 100 : 1000);
  }
  ck_assert(choose_copy(&slow, StreamingPolicy::calibrate, kLeast).method == CopyMethod::stream);
  hmem::CopyChoice never, always;
  for (int i = 0; i < 1000; ++i) {
    const auto choice = choose_copy(&never, StreamingPolicy::never, kLeast);
    ck_assert(choice.method != CopyMethod::stream);
    if (choice.timed) never.record(kLeast, choice.method, 1000);
    ck_assert(choose_copy(&always, StreamingPolicy::always, kLeast).method == CopyMethod::stream);
  }
  ck_assert(choose_copy(&always, StreamingPolicy::always, kLeast - 1).method == CopyMethod::loop);
}

}  // namespace

}  // namespace erdma::transport::shm
