#include "transport/shm/fragment_choice.h"

#include <cstdint>
#include <iterator>

#include "fake/set_clock.h"
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
  ck_assert_uint_eq(send(choice, kLength, {100, 1}, WayChoice::kFirstTrial - 1),
                    WayChoice::kFirstTrial - 1);
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
  send(choice, c.length, c.times, WayChoice::kFirstTrial + WayChoice::kTrials);
  constexpr unsigned kMessages = 16 * WayChoice::kLongestPause;
  const unsigned by_fragments = send(choice, c.length, c.times, kMessages);
  const unsigned slower = c.fragments ? kMessages - by_fragments : by_fragments;
  ck_assert_uint_ge(slower, 16 * WayChoice::kTrials);
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
  constexpr unsigned kMany = 4 * WayChoice::kLongestPause;
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

/// An endpoint with two links, whose messages take a time.
struct Timed {
  fake::SetClock clock;
  FragmentTimer timer{clock};
  const int links[2] = {};
  unsigned fragments = 0;
  bool sends_to_others = false;  ///< during each rendezvous
  bool waits = false;            ///< for room in the ring, during each message
  bool others_wait = false;      ///< messages of the other link
  FragmentTimer::Receiver receiver{0, false, 0};
  bool polls = true;    ///< the receiver
  bool drained = true;  ///< the ring, when the message begins
  ReadRates rates;      ///< of the receiver

  void written(const void* link) {
    if (timer.times(link)) timer.written(8192, receiver);
  }
  void revoked(const void* link, const RemoteKey& key) {
    if (timer.times(link)) timer.revoked(key, rates, receiver.take_rate);
  }
  void message(const WayTimes& times, bool alone = true, bool refused = false) {
    const void* const link = &links[0];
    if (timer.prefers_fragments(link, kLength, alone)) {
      ++fragments;
      if (timer.times(link) && drained) timer.watch(receiver.consumed);
      for (size_t sent = 0; sent + 8192 < kLength; sent += 8192) {
        clock.time += times.fragments / 9;
        if (polls) ++receiver.consumed;
        written(link);
        written(&links[1]);
        if (waits) timer.wait(link);
      }
    } else {
      RemoteKey key, other;
      key.put(uint64_t{4711});
      other.put(uint64_t{4712});
      timer.shared(link, kLength, key);
      if (sends_to_others) (void)timer.prefers_fragments(&links[1], kLength, true);
      revoked(&links[1], key);
      revoked(link, other);
      if (waits) timer.wait(link);
      if (others_wait) timer.wait(&links[1]);
      clock.time += times.rendezvous;
      if (refused) timer.forget(link);
      revoked(link, key);
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

/// The rates of a receiver that reads kLength in this time.
ReadRates rates_of(uint64_t nanoseconds) {
  util::RecentRates rates;
  rates.add(kLength, nanoseconds);
  ReadRates published;
  published.set(kLength, rates);
  return published;
}

struct ReceiverCase {
  WayTimes sender;  ///< as the sender sees them
  uint64_t takes;   ///< ns of the receiver for all fragments; 0 = unknown
  bool sends_too;
  bool polls, drained;
  uint64_t reads;  ///< ns; 0 = unknown
  bool fragments;
};
constexpr ReceiverCase kReceiverCases[] = {
    {{4'500, 6'000}, 0, false, true, true, 0, true},
    {{4'500, 6'000}, 2'000, false, true, true, 0, true},    // the slower copy counts
    {{4'500, 6'000}, 9'000, false, true, true, 0, false},   // likewise
    {{4'500, 6'000}, 4'000, true, true, true, 0, false},    // both ways: both copies count
    {{4'500, 6'000}, 4'000, false, false, true, 0, false},  // so they do if the receiver computes
    {{4'500, 12'000}, 4'000, false, false, true, 0, true},
    {{4'500, 6'000}, 4'000, false, false, false, 0, true},  // it is busy with earlier ones
    {{4'500, 6'000}, 0, false, true, true, 2'000, false},   // the receiver had other work, too
    {{4'500, 6'000}, 0, false, true, true, 5'000, true},
    {{9'000, 6'000}, 0, false, true, true, 20'000, false},  // the sender has moved a part
    // It reads more slowly than it takes what lies in the ring: the sender has just written it.
    {{9'000, 6'000}, 2'000, false, true, true, 5'000, true},
    {{9'000, 6'000}, 4'000, false, true, true, 4'500, false},
    {{9'000, 6'000}, 5'000, false, true, true, 2'000, false},
};

TEST(the_receivers_part_counts, std::size(kReceiverCases)) {
  const ReceiverCase& c = kReceiverCases[_i];
  Timed timed;
  timed.receiver.take_rate = c.takes ? uint32_t(kLength * 1000 / c.takes) : 0;
  timed.receiver.sends_too = c.sends_too;
  timed.polls = c.polls;
  timed.drained = c.drained;
  if (c.reads) timed.rates = rates_of(c.reads);
  const unsigned fragments = timed.last_by_fragments(c.sender);
  ck_assert(c.fragments ? fragments >= 57 : fragments <= 12);
}

/// What the receiver has published is right even if the message had to wait.
TEST(a_rendezvous_that_waits_is_judged_by_the_receivers_rate) {
  for (const bool alone : {true, false}) {
    Timed timed;
    timed.rates = rates_of(3'000);
    for (int i = 0; i < 20; ++i) timed.message({9'000, 60'000});  // the fragments are timed
    timed.waits = alone;
    for (int i = 0; i < 400; ++i) timed.message({9'000, 60'000}, alone);
    timed.waits = false;
    timed.fragments = 0;
    for (int i = 0; i < 60; ++i) timed.message({9'000, 60'000}, false);
    ck_assert_uint_le(timed.fragments, 12);
  }
}

/// A rendezvous with one peer is timed; messages to another one wait.
TEST(what_waits_for_another_peer_ends_no_measurement) {
  Timed timed;
  timed.others_wait = true;
  ck_assert_uint_le(timed.last_by_fragments({9'000, 6'000}), 3);
}

TEST(rates_of_each_class_are_kept_apart) {
  ReadRates rates = rates_of(8'192);
  ck_assert_uint_eq(rates.of(kLength), 8000);
  ck_assert_uint_eq(rates.of(kLength + 1), 0);
  util::RecentRates fast;
  fast.add(kLength, 1);
  rates.set(kLength + 1, fast);
  ck_assert_uint_eq(rates.of(kLength), 8000);
  ck_assert_uint_eq(ReadRates(rates.word()).of(2 * kLength), 0xffff);
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
  for (unsigned i = 0; i < 3 * WayChoice::kLongestPause; ++i) timed.message({9'000, 6'000}, false);
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
      timed.written(&timed.links[0]);
    }
    timed.timer.shared(&timed.links[0], 2 * kLength, key);
    timed.revoked(&timed.links[0], key);
  }
  ck_assert_uint_ge(timed.fragments, 950);
}

}  // namespace
}  // namespace erdma::transport::shm
