#include "transport/shm/fragment_choice.h"

#include <cstdint>
#include <iterator>

#include "fake/set_clock.h"
#include "libcheck.h"
#include "transport/shm/fragment_timer.h"
#include "transport/shm/turns.h"

namespace erdma::transport::shm {
namespace {

constexpr size_t kLength = size_t{64} * 1024;
constexpr FragmentChoice::Kind kKind{kLength, false};

struct WayTimes {
  uint64_t fragments, rendezvous;  ///< ns
};

/// Sends messages and returns how many went in fragments.
unsigned send(FragmentChoice& choice, FragmentChoice::Kind kind, const WayTimes& times,
              unsigned messages) {
  unsigned by_fragments = 0;
  for (unsigned i = 0; i < messages; ++i) {
    const FragmentChoice::Way way = choice.choose(kind);
    by_fragments += way.packets;
    if (way.timed)
      choice.record(kind, way.packets, way.packets ? times.fragments : times.rendezvous);
  }
  return by_fragments;
}
unsigned send(FragmentChoice& choice, size_t length, const WayTimes& times, unsigned messages) {
  return send(choice, {length, length <= FragmentChoice::kLongestOnlyInTurns}, times, messages);
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
    {16 * 1024 + 1, {200, 100}, false},
    {FragmentChoice::kLongestOnlyInTurns + 1, {200, 100}, false},
    {128 * 1024, {200, 100}, false},
    {256 * 1024, {200, 100}, false},
    {64 * 1024 + 1, {100, 200}, true},
};

/// Once both ways are timed, the slower one is only tried now and then, ever more rarely.
TEST(the_faster_way_is_taken, std::size(kWayCases)) {
  const WayCase& c = kWayCases[_i];
  FragmentChoice choice;
  send(choice, c.length, c.times, 4 * WayChoice::kFirstPause);
  constexpr unsigned kMessages = 16 * WayChoice::kLongestPause;
  const unsigned by_fragments = send(choice, c.length, c.times, kMessages);
  const unsigned slower = c.fragments ? kMessages - by_fragments : by_fragments;
  ck_assert_uint_ge(slower, 15 * WayChoice::kTrials);
  ck_assert_uint_le(slower, kMessages / 100);
}

TEST(each_class_is_judged_alone) {
  constexpr FragmentChoice::Kind kKinds[] = {
      {16 * 1024, true},  {32 * 1024, true},  {64 * 1024, true},      {64 * 1024 + 1, true},
      {256 * 1024, true}, {64 * 1024, false}, {64 * 1024 + 1, false}, {128 * 1024 + 1, false},
  };
  for (const FragmentChoice::Kind& one : kKinds) {
    FragmentChoice choice;
    send(choice, one, {200, 100}, 1000);
    for (const FragmentChoice::Kind& kind : kKinds)
      ck_assert_int_eq(choice.choose(kind).packets, &kind != &one);
  }
}

/// Messages of two kinds may alternate, for example those that the sender has just written, which
/// a rendezvous moves slowly, and others. The sum of their times decides.
TEST(two_kinds_of_messages_are_judged_together) {
  FragmentChoice choice;
  unsigned by_fragments = 0;
  for (unsigned i = 0; i < 2000; ++i)
    by_fragments += send(choice, kLength, {200, i % 2 ? 100u : 400u}, 1);
  ck_assert_uint_ge(by_fragments, 1800);
}

/// The first rendezvous of a channel take long, because its memory is set up.
TEST(a_slow_start_of_the_other_way_does_not_count) {
  FragmentChoice choice;
  unsigned rendezvous = 0;
  for (unsigned i = 0; i < WayChoice::kFirstTrial + WayChoice::kFirstTrials; ++i) {
    const bool slow = rendezvous < 4;
    rendezvous += 1 - send(choice, kLength, {200, slow ? 10'000u : 100u}, 1);
  }
  ck_assert(!choice.choose({kLength, false}).packets);
}

struct BeginCase {
  FragmentChoice::Kind kind;
  bool packets;
};
constexpr BeginCase kBegins[] = {
    {{16 * 1024, true}, true},   {{32 * 1024, true}, true},   {{32 * 1024 + 1, true}, false},
    {{64 * 1024, true}, false},  {{100 * 1024, true}, false}, {{40 * 1024, false}, true},
    {{100 * 1024, false}, true},
};

/// Where calls are fast, long messages in turns begin with a rendezvous, and leave it if that is
/// slower.
TEST(where_calls_are_fast_long_messages_in_turns_begin_with_them, std::size(kBegins)) {
  const FragmentChoice::Kind kind = kBegins[_i].kind;
  FragmentChoice choice;
  choice.begin_with_rendezvous();
  for (unsigned i = 1; i < WayChoice::kFirstTrial; ++i) {
    const FragmentChoice::Way way = choice.choose(kind);
    ck_assert_int_eq(way.packets, kBegins[_i].packets);
    if (way.timed) choice.record(kind, way.packets, way.packets ? 1000 : 2000);
  }
  unsigned rendezvous = 0;
  for (unsigned i = 0; i < 10 * WayChoice::kLongestPause; ++i) {
    const FragmentChoice::Way way = choice.choose(kind);
    rendezvous += !way.packets;
    if (way.timed) choice.record(kind, way.packets, way.packets ? 1000 : 2000);
  }
  ck_assert_uint_le(rendezvous, 20 * WayChoice::kTrials);
}

/// The bytes of the first message that tries the other way are not where that way leaves them.
TEST(the_first_message_of_a_trial_is_not_timed) {
  FragmentChoice choice;
  FragmentChoice::Way way{};
  do way = choice.choose({kLength, true});
  while (way.packets);
  ck_assert(!way.timed);
  for (unsigned i = 1; i < WayChoice::kFirstTrials; ++i) {
    way = choice.choose({kLength, true});
    ck_assert(way.timed && !way.packets);
  }
}

/// Timing costs as much as the choice can gain. The rates that a trial is compared with are recent.
TEST(the_usual_way_is_timed_mostly_before_a_trial) {
  FragmentChoice choice;
  send(choice, kLength, {100, 200}, 8 * WayChoice::kLongestPause);
  while (choice.choose({kLength, false}).packets) continue;
  for (unsigned i = 1; i < WayChoice::kTrials; ++i) (void)choice.choose({kLength, false});
  unsigned early = 0, late = 0;
  for (unsigned i = 1; i < WayChoice::kLongestPause; ++i) {
    const FragmentChoice::Way way = choice.choose({kLength, false});
    ck_assert(way.packets);
    (i + WayChoice::kBeforeTrial < WayChoice::kLongestPause ? early : late) += way.timed;
  }
  ck_assert_uint_ge(late, WayChoice::kBeforeTrial / WayChoice::kTimedEvery);
  ck_assert_uint_eq(
      early, (WayChoice::kLongestPause - WayChoice::kBeforeTrial) / WayChoice::kRarelyTimedEvery);
}

/// A way that has just become the faster one may soon be the slower one again.
TEST(the_other_way_is_tried_again_soon_after_a_change) {
  FragmentChoice choice;
  constexpr unsigned kMany = 4 * WayChoice::kLongestPause;
  send(choice, kLength, {100, 200}, kMany);
  unsigned until_change = 0;
  while (choice.choose({kLength, false}).packets) ++until_change;
  send(choice, kLength, {100, 50}, WayChoice::kTimed);
  ck_assert_uint_le(until_change, WayChoice::kLongestPause);
  ck_assert_uint_eq(send(choice, kLength, {100, 50}, WayChoice::kFirstPause - 1), 0);
  ck_assert_uint_eq(send(choice, kLength, {100, 50}, WayChoice::kTrials), WayChoice::kTrials);
}

TEST(sides_that_answer_each_other_take_turns) {
  struct Step {
    uint32_t taken, pushed, entries;
    bool fin_follows, in_turns;
  };
  // Each begins at the largest number, so that the counts wrap around.
  constexpr Step kSteps[] = {
      {1, 0, 4, false, true},    // something has come
      {1, 4, 4, false, false},   // nothing since
      {2, 8, 4, true, true},     // a rendezvous
      {3, 9, 4, false, false},   // only its fin has come
      {4, 13, 4, true, true},    //
      {6, 14, 4, false, true},   // an answer besides the fin
      {7, 40, 4, false, false},  // much was sent since
      {8, 52, 4, false, true},
  };
  Turns turns;
  turns.answered(UINT32_MAX, UINT32_MAX - 4, 4);
  for (const Step& step : kSteps) {
    ck_assert_int_eq(turns.answered(step.taken - 1, step.pushed - 1, step.entries), step.in_turns);
    if (step.fin_follows) turns.expect_fin();
  }
}

constexpr size_t kLong = size_t{64} * 1024;
constexpr unsigned kPerWindow = Turns::kWindow / kLong;

/// In bursts: one side sends so many messages, then the other.
struct BurstCase {
  unsigned first, second;
  bool both_ways;
};
constexpr BurstCase kBursts[] = {
    {1, 1, true},   {1, 3, true},   {20, 20, true}, {64, 64, true}, {128, 128, true}, {4, 3, true},
    {64, 40, true}, {64, 8, false}, {64, 1, false}, {64, 0, false}, {8, 1, false},    {1, 0, false},
};

/// Both sides see it in the same way.
TEST(a_peer_that_sends_about_as_much_is_told_from_one_that_listens, 2 * std::size(kBursts)) {
  const BurstCase& c = kBursts[_i / 2];
  Turns turns;
  const auto move = [&](bool sends) { sends ? turns.sends(kLong) : turns.takes(kLong); };
  for (unsigned moved = 0; moved < 20 * kPerWindow; moved += c.first + c.second) {
    for (unsigned i = 0; i < c.first; ++i) {
      if (moved > 4 * kPerWindow) ck_assert_int_eq(turns.both_ways(), c.both_ways);
      move(_i % 2);
    }
    for (unsigned i = 0; i < c.second; ++i) move(!(_i % 2));
  }
}

/// One side may be ahead for a while. However much has moved before, it is forgotten.
TEST(a_side_that_falls_silent_sends_no_longer_both_ways, 4) {
  Turns turns;
  const auto move = [&](bool sends) { sends ? turns.sends(kLong) : turns.takes(kLong); };
  for (unsigned i = 0; i < 4 * kPerWindow; ++i) move(i % 2);
  for (unsigned i = 0; _i / 2 && i < 5000 * kPerWindow; ++i) move(i % 2);
  for (unsigned i = 0; i < Turns::kPatience / 2 * kPerWindow; ++i) {
    ck_assert(turns.both_ways());
    move(_i % 2);
  }
  for (unsigned i = 0; i < 4 * kPerWindow; ++i) move(_i % 2);
  ck_assert(!turns.both_ways());
}

TEST(a_way_that_became_slower_is_left) {
  FragmentChoice choice;
  constexpr unsigned kMany = 4 * WayChoice::kLongestPause;
  send(choice, kLength, {200, 100}, kMany);
  send(choice, kLength, {200, 400}, kMany);
  ck_assert_uint_ge(send(choice, kLength, {200, 400}, 100), 100 - WayChoice::kTrials);
  send(choice, kLength, {200, 100}, kMany);
  ck_assert_uint_le(send(choice, kLength, {200, 100}, 100), WayChoice::kTrials);
}

/// One rate that is too low, for example of a message whose receiver came late, decides nothing.
TEST(one_slow_message_decides_nothing) {
  FragmentChoice choice;
  send(choice, kLength, {100, 200}, 200);
  choice.record(kKind, true, 100'000);
  ck_assert_uint_ge(send(choice, kLength, {100, 200}, 60), 60 - WayChoice::kTrials);
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
  bool polls = true;     ///< the receiver
  bool drained = true;   ///< the ring, when the message begins
  uint32_t reading = 0;  ///< ns of the receiver; 0 = unknown

  void written(const void* link) {
    if (timer.times(link)) timer.written(8192, receiver);
  }
  void revoked(const void* link, const RemoteKey& key) {
    if (timer.times(link)) timer.revoked(key, reading, receiver.take_rate);
  }
  void message(const WayTimes& times, bool alone = true, bool refused = false) {
    const void* const link = &links[0];
    if (timer.prefers_packets(link, kKind, alone)) {
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
      if (sends_to_others) (void)timer.prefers_packets(&links[1], kKind, true);
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
  ck_assert_uint_le(slow.last_by_fragments({9'000, 6'000}), WayChoice::kTrials);
  ck_assert_uint_ge(fast.last_by_fragments({9'000, 12'000}), 60 - WayChoice::kTrials);
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
  timed.reading = uint32_t(c.reads);
  const unsigned fragments = timed.last_by_fragments(c.sender);
  ck_assert(c.fragments ? fragments >= 60 - WayChoice::kTrials : fragments <= 12);
}

/// What the receiver has published is right even if the message had to wait.
TEST(a_rendezvous_that_waits_is_judged_by_the_time_of_the_receiver) {
  for (const bool alone : {true, false}) {
    Timed timed;
    timed.reading = 3'000;
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
  ck_assert_uint_le(timed.last_by_fragments({9'000, 6'000}), WayChoice::kTrials);
}

TEST(messages_to_other_peers_end_no_measurement) {
  Timed timed;
  timed.sends_to_others = true;
  ck_assert_uint_le(timed.last_by_fragments({9'000, 6'000}), 12);
}

/// What a message in one packet takes; ns, but for `take_rate`.
struct ShortTimes {
  uint64_t writing;
  uint32_t take_rate;  ///< bytes per us; 0 = unknown
  uint64_t rendezvous;
  uint32_t reading;  ///< the part of the receiver
};

/// Sends 1000 such messages in turns, and returns how many went in packets.
unsigned short_messages(const ShortTimes& times) {
  constexpr FragmentChoice::Kind kShort{12'000, true};
  fake::SetClock clock;
  FragmentTimer timer(clock);
  const int link = 0;
  RemoteKey key;
  key.put(uint64_t{4711});
  unsigned packets = 0;
  for (int i = 0; i < 1000; ++i) {
    timer.begins(&link);
    const bool in_packets = timer.prefers_packets(&link, kShort, true);
    packets += in_packets;
    if (!in_packets) timer.shared(&link, kShort.length, key);
    clock.time += in_packets ? times.writing : times.rendezvous;
    if (!timer.times(&link)) continue;
    if (in_packets)
      timer.written(kShort.length, {times.take_rate, false, 0});
    else
      timer.revoked(key, times.reading, 0);
    ck_assert(!timer.times(&link));
  }
  return packets;
}

/// No copy overlaps with the other. The receiver takes the packet in 1 us.
TEST(both_copies_of_a_single_packet_count) {
  ck_assert_uint_lt(short_messages({1000, 12'000, 1000, 1000}), 100);
  ck_assert_uint_gt(short_messages({1000, 12'000, 3000, 3000}), 900);
}

/// A receiver that does not poll, for example because it shares its core, reads late. The sender of
/// a short message would wait for it, which it does not with packets.
TEST(a_short_rendezvous_that_ends_late_counts_in_full) {
  ck_assert_uint_lt(short_messages({2000, 0, 4000, 1000}), 100);
  ck_assert_uint_gt(short_messages({2000, 0, 20'000, 1000}), 900);
}

TEST(packets_that_did_not_leave_are_not_timed) {
  Timed timed;
  const void* const link = &timed.links[0];
  while (!timed.timer.times(link)) (void)timed.timer.prefers_packets(link, kKind, true);
  timed.timer.begins(&timed.links[1]);
  ck_assert(timed.timer.times(link));
  timed.timer.begins(link);
  ck_assert(!timed.timer.times(link));
}

/// A rendezvous whose receive is missing keeps others from being timed for a while only.
TEST(a_rendezvous_that_does_not_end_is_timed_no_longer) {
  Timed timed;
  const void *const stuck = &timed.links[0], *const other = &timed.links[1];
  RemoteKey key;
  key.put(uint64_t{4711});
  while (!timed.timer.times_read(stuck, kLength))
    (void)timed.timer.prefers_packets(stuck, kKind, true);
  timed.timer.shared(stuck, kLength, key);
  for (unsigned i = 0; i < WayChoice::kFirstPause; ++i)
    (void)timed.timer.prefers_packets(other, kKind, true);
  ck_assert(timed.timer.times(stuck));
  timed.timer.begins(stuck);
  ck_assert(timed.timer.times(stuck));
  timed.clock.time += 20'000'000;
  for (unsigned i = 0; i < WayChoice::kFirstPause && !timed.timer.times(other); ++i)
    (void)timed.timer.prefers_packets(other, kKind, true);
  ck_assert(timed.timer.times(other));
  timed.timer.revoked(key, 1000, 0);
  ck_assert(timed.timer.times(other));
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
  ck_assert_uint_ge(timed.fragments, 60 - WayChoice::kTrials);
}

/// A message whose memory could not be shared is not mistaken for the next.
TEST(what_is_shared_for_another_message_is_not_timed) {
  Timed timed;
  RemoteKey key;
  key.put(uint64_t{4711});
  for (int i = 0; i < 1000; ++i) {
    const bool fragments = timed.timer.prefers_packets(&timed.links[0], kKind, true);
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
