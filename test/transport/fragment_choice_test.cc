#include "transport/shm/fragment_choice.h"

#include <cstdint>
#include <iterator>

#include "libcheck.h"
#include "transport/shm/fragment_timer.h"

namespace erdma::transport::shm {
namespace {

constexpr size_t kLength = size_t{64} * 1024;

struct WayTimes {
  uint64_t fragments, rendezvous;  ///< ns
};

/// Sends messages and returns how many went in fragments.
unsigned send(FragmentChoice& choice, size_t length, const WayTimes& times, unsigned messages) {
  unsigned by_fragments = 0;
  for (unsigned i = 0; i < messages; ++i) {
    const FragmentChoice::Way way = choice.choose(length);
    by_fragments += way.fragments;
    if (way.timed)
      choice.record(length, way.fragments, way.fragments ? times.fragments : times.rendezvous);
  }
  return by_fragments;
}

TEST(first_messages_go_in_fragments) {
  FragmentChoice choice;
  ck_assert_uint_eq(send(choice, kLength, {100, 1}, FragmentChoice::kFirstTrial - 1),
                    FragmentChoice::kFirstTrial - 1);
}

struct WayCase {
  size_t length;
  WayTimes times;
  bool fragments;
};
constexpr WayCase kWayCases[] = {
    {kLength, {100, 200}, true},
    {kLength, {200, 100}, false},
    {kLength, {105, 100}, true},     // not clearly
    {40'032, {5'004, 4'448}, true},  // 9 bytes per nanosecond are not clearly more than 8
    {FragmentChoice::kShortest + 1, {200, 100}, false},
    {128 * 1024, {200, 100}, false},
    {64 * 1024 + 1, {100, 200}, true},
};

/// Once both ways are timed, the slower one is only tried now and then, ever more rarely.
TEST(the_faster_way_is_taken, std::size(kWayCases)) {
  const WayCase& c = kWayCases[_i];
  FragmentChoice choice;
  send(choice, c.length, c.times, FragmentChoice::kFirstTrial + FragmentChoice::kTrials);
  constexpr unsigned kMessages = 16 * FragmentChoice::kLongestPause;
  const unsigned by_fragments = send(choice, c.length, c.times, kMessages);
  const unsigned slower = c.fragments ? kMessages - by_fragments : by_fragments;
  ck_assert_uint_ge(slower, 16 * FragmentChoice::kTrials);
  ck_assert_uint_le(slower, kMessages / 100);
}

TEST(each_class_of_lengths_is_judged_alone) {
  FragmentChoice choice;
  send(choice, kLength, {200, 100}, 1000);
  ck_assert(!choice.choose(kLength).fragments);
  ck_assert(choice.choose(kLength + 1).fragments);
}

TEST(a_way_that_became_slower_is_left) {
  FragmentChoice choice;
  constexpr unsigned kMany = 4 * FragmentChoice::kLongestPause;
  send(choice, kLength, {200, 100}, kMany);
  send(choice, kLength, {200, 400}, kMany);
  ck_assert_uint_ge(send(choice, kLength, {200, 400}, 100), 97);
  send(choice, kLength, {200, 100}, kMany);
  ck_assert_uint_le(send(choice, kLength, {200, 100}, 100), 3);
}

/// One rate that is too low, for example of a message whose receiver came late, decides nothing.
TEST(one_slow_message_decides_nothing) {
  FragmentChoice choice;
  send(choice, kLength, {100, 200}, 200);
  choice.record(kLength, true, 100'000);
  ck_assert_uint_ge(send(choice, kLength, {100, 200}, 60), 57);
}

class SetClock final : public util::Clock {
 public:
  uint64_t now() const noexcept override { return time; }
  uint64_t time = 1;
};

/// An endpoint with two links, whose messages take a time.
struct Timed {
  SetClock clock;
  FragmentTimer timer{clock};
  const int links[2] = {};
  unsigned fragments = 0;
  bool sends_to_others = false;  ///< during each rendezvous

  void message(const WayTimes& times, bool alone = true, bool refused = false) {
    const void* const link = &links[0];
    if (timer.prefers_fragments(link, kLength, alone)) {
      ++fragments;
      for (size_t sent = 0; sent + 8192 < kLength; sent += 8192) {
        clock.time += times.fragments / 9;
        timer.written(link, 8192);
        timer.written(&links[1], 8192);
      }
    } else {
      RemoteKey key, other;
      key.put(uint64_t{4711});
      other.put(uint64_t{4712});
      timer.shared(link, kLength, key);
      if (sends_to_others) (void)timer.prefers_fragments(&links[1], kLength, true);
      timer.revoked(&links[1], key);
      timer.revoked(link, other);
      clock.time += times.rendezvous;
      if (refused) timer.forget(link);
      timer.revoked(link, key);
    }
    clock.time += 1'000'000;
  }
  unsigned last_by_fragments(const WayTimes& times) {
    for (int i = 0; i < 1000; ++i) message(times);
    fragments = 0;
    for (int i = 0; i < 60; ++i) message(times);
    return fragments;
  }
};

TEST(messages_are_timed_until_they_are_there) {
  Timed slow, fast;
  ck_assert_uint_le(slow.last_by_fragments({9'000, 6'000}), 3);
  ck_assert_uint_ge(fast.last_by_fragments({9'000, 12'000}), 57);
}

TEST(messages_to_other_peers_end_no_measurement) {
  Timed timed;
  timed.sends_to_others = true;
  ck_assert_uint_le(timed.last_by_fragments({9'000, 6'000}), 12);
}

/// What a message waits for besides its receiver does not count.
TEST(messages_that_wait_are_not_timed) {
  for (const bool alone : {true, false}) {
    Timed timed;
    for (int i = 0; i < 1000; ++i) timed.message({9'000, 6'000}, alone, alone);
    ck_assert_uint_ge(timed.fragments, 950);
  }
}

/// Overlapping rendezvous are not timed, so a rendezvous that was faster is no longer known to be.
TEST(a_rendezvous_that_cannot_be_timed_is_given_up) {
  Timed timed;
  ck_assert_uint_le(timed.last_by_fragments({9'000, 6'000}), 12);
  for (unsigned i = 0; i < 3 * FragmentChoice::kLongestPause; ++i)
    timed.message({9'000, 6'000}, false);
  timed.fragments = 0;
  for (unsigned i = 0; i < 60; ++i) timed.message({9'000, 6'000}, false);
  ck_assert_uint_ge(timed.fragments, 57);
}

/// A message whose memory could not be shared is not mistaken for the next.
TEST(what_is_shared_for_another_message_is_not_timed) {
  Timed timed;
  RemoteKey key;
  key.put(uint64_t{4711});
  for (int i = 0; i < 1000; ++i) {
    const bool fragments = timed.timer.prefers_fragments(&timed.links[0], kLength, true);
    timed.fragments += fragments;
    for (int written = 0; fragments && written < 4; ++written) {
      timed.clock.time += 1000;
      timed.timer.written(&timed.links[0], 8192);
    }
    timed.timer.shared(&timed.links[0], 2 * kLength, key);
    timed.timer.revoked(&timed.links[0], key);
  }
  ck_assert_uint_ge(timed.fragments, 950);
}

}  // namespace
}  // namespace erdma::transport::shm
