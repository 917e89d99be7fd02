#include "transport/shm/rma_timer.h"

#include <cstdint>
#include <iterator>

#include "fake/set_clock.h"
#include "libcheck.h"

namespace erdma::transport::shm {
namespace {

struct RmaTimes {
  uint64_t packet, call;  ///< ns
};

/// An endpoint with two links, whose operations take a time.
struct TimedRma {
  fake::SetClock clock;
  RmaTimer timer{clock};
  const int links[2] = {};
  uint64_t packets = 0;
  bool overlaps = false;
  bool retracts = false;

  void operate(size_t length, const RmaTimes& times) {
    const void* const link = &links[0];
    if (timer.prefers_packet(link, length, !overlaps)) {
      timer.sent(link, ++packets);
      timer.accessed(&links[1], length);
      timer.ended(&links[1], packets, true);
      timer.ended(link, packets + 1, true);
      clock.time += times.packet;
      timer.ended(link, packets, !retracts);
    } else {
      timer.accessed(&links[1], length);
      clock.time += times.call;
      timer.accessed(link, length);
    }
    clock.time += 1'000'000;
  }
  /// Returns how many of the last 60 operations of many went by packets.
  uint64_t last_by_packets(size_t length, const RmaTimes& times) {
    for (int i = 0; i < 1000; ++i) operate(length, times);
    const uint64_t before = packets;
    for (int i = 0; i < 60; ++i) operate(length, times);
    return packets - before;
  }
};

constexpr size_t kRmaLengths[] = {89, 256, 257, 1024, 1025, 4096, 4097, 16384};

TEST(the_faster_way_is_taken_for_each_length, std::size(kRmaLengths)) {
  TimedRma fast, slow;
  ck_assert_uint_ge(fast.last_by_packets(kRmaLengths[_i], {500, 900}), 60 - WayChoice::kTrials);
  ck_assert_uint_le(slow.last_by_packets(kRmaLengths[_i], {2'700, 900}), WayChoice::kTrials);
}

TEST(each_class_of_lengths_is_judged_alone) {
  TimedRma timed;
  ck_assert_uint_le(timed.last_by_packets(4096, {1'200, 600}), WayChoice::kTrials);
  ck_assert_uint_ge(timed.last_by_packets(1024, {300, 600}), 60 - WayChoice::kTrials);
  ck_assert_uint_ge(timed.last_by_packets(4097, {300, 600}), 60 - WayChoice::kTrials);
}

/// The time of an operation that waits for others tells nothing.
TEST(operations_that_overlap_are_not_timed) {
  TimedRma timed;
  timed.overlaps = true;
  ck_assert_uint_ge(timed.last_by_packets(4096, {2'700, 900}), 60 - WayChoice::kTrials);
}

/// The peer does not look at packets: that is not what a packet takes.
TEST(packets_that_are_taken_back_are_not_timed) {
  TimedRma timed;
  timed.retracts = true;
  ck_assert_uint_ge(timed.last_by_packets(4096, {2'700, 900}), 60 - WayChoice::kTrials);
}

/// An operation for which a packet was chosen may be executed by a call all the same.
TEST(a_call_in_place_of_a_packet_is_not_timed) {
  TimedRma timed;
  for (int i = 0; i < 1000; ++i) {
    const bool by_packet = timed.timer.prefers_packet(&timed.links[0], 4096, true);
    timed.clock.time += by_packet ? 10'000 : 900;
    timed.timer.accessed(&timed.links[0], 4096);
    timed.packets += by_packet;
  }
  ck_assert_uint_ge(timed.packets, 950);
}

}  // namespace
}  // namespace erdma::transport::shm
