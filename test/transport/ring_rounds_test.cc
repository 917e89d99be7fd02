// Where payloads lie in the byte ring.
#include "all_equal.h"
#include "libcheck.h"
#include "transport/ring_ends.h"

#undef fail  // check.h defines it; the standard library uses the name

#include <random>
#include <utility>

namespace {

using namespace erdma::test;

TEST_CASE(.timeout = 120);

/// Takes the next entry and returns the position of its payload in the byte ring.
uint32_t take_placed(Ring& ring) {
  RingEntry entry;
  ck_assert(ring.receiver.next(entry));
  const auto place = uint32_t(entry.payload - ring.memory.bytes);
  ring.receiver.advance();
  ring.receiver.publish();
  return place;
}

/// The bytes of a cycle of payloads that goes on as long as the next one fits in front of `end`.
constexpr uint32_t cycle_up_to(uint32_t end, uint32_t length) {
  const uint32_t stride = stride_of(length);
  return (end + stride - length) / stride * stride;
}

/// Sends payloads to a receiver that keeps up, each `length` long: they cycle through `bytes`.
void cycles(Ring& ring, uint32_t length, uint32_t bytes, uint32_t rounds = 5) {
  const std::vector<std::byte> payload(length, std::byte(1));
  const uint32_t stride = stride_of(length), round = (bytes + stride - 1) / stride;
  for (uint32_t i = 0; i < rounds * round; ++i) {
    ck_assert(ring.push(0, payload.data(), payload.size()));
    ck_assert_uint_eq(take_placed(ring), i % round * stride);
  }
}

TEST(short_payloads_go_round_in_a_small_part, 3) {
  constexpr uint32_t kLengths[] = {kSlotPayload + 1, 512, kLeastWholeRound - 1};
  Ring ring(true);
  cycles(ring, kLengths[_i], kFirstRound);
}

/// The first cycles, each of a ring that is new.
void first_cycles(Ring& ring, uint32_t length) {
  for (uint32_t bytes = kFirstRound; bytes < kByteRing; bytes *= 2)
    cycles(ring, length, bytes, kRoundsEach);
}

/// They leave the rest of the byte ring without memory.
TEST(short_payloads_of_a_conversation_do_not_make_a_ring_warm) {
  Ring ring(true);
  const std::vector<std::byte> payload(kMaxEager);
  uint64_t number = 0;
  const auto send = [&](size_t length) {
    ck_assert(ring.push(number, payload.data(), length));
    take_one(ring, number++, length);
    ring.receiver.publish();
  };
  for (uint32_t i = 0; i <= kWarm / kSlotPayload; ++i) send(kSlotPayload + 1);
  ck_assert(!ring.sender.warm());
  for (size_t i = 0; i < kWarm / kMaxEager; ++i) send(kMaxEager);
  ck_assert(ring.sender.warm());
}

TEST(long_payloads_go_round_in_ever_more_of_the_byte_ring, 2) {
  Ring ring(true);
  const uint32_t length = _i ? kMaxEager : kLeastWholeRound;
  first_cycles(ring, length);
  cycles(ring, length, cycle_up_to(kPayloadEnd, length));
}

/// A ring of which only the first part has memory, until the sender asks.
struct Backed : Ring, RingBacking {
  explicit Backed(bool all_can) : Ring(true), has_rest(all_can) { sender.limit_to_backed(*this); }
  bool back_rest() noexcept override { return ++asked, has_rest; }
  bool has_rest;
  unsigned asked = 0;
};

/// The rest costs memory and a system call, so it is asked for once the first part was used often.
TEST(payloads_get_more_memory_once_they_went_round_in_the_first_part, 4) {
  const uint32_t length = _i / 2 ? kMaxEager : kLeastWholeRound, stride = stride_of(length);
  const std::vector<std::byte> payload(length);
  Backed ring(_i % 2);
  for (uint32_t bytes = kFirstRound; bytes < kBackedBytes; bytes *= 2)
    cycles(ring, length, bytes, kRoundsEach);
  const uint32_t first = cycle_up_to(kBackedBytes, length);
  cycles(ring, length, first, kRoundsEach);
  ck_assert_uint_eq(ring.asked, 0);
  if (!ring.has_rest) {
    cycles(ring, length, first, 2 * kRoundsEach);
  } else {
    const uint32_t whole = cycle_up_to(kPayloadEnd, length);
    for (uint32_t i = 0, at = first; at < whole; ++i, at += stride) {
      ck_assert(ring.push(i, payload.data(), length));
      ck_assert_uint_eq(take_placed(ring), at);
    }
    cycles(ring, length, whole);
  }
  ck_assert_uint_eq(ring.asked, 1);
}

/// Whatever is sent and taken; the receiver may lag behind.
TEST(no_payload_lies_where_there_is_no_memory, 20) {
  std::minstd_rand random(unsigned(_i) + 1);
  Backed ring(_i % 2);
  std::vector<std::byte> payload(kMaxEager);
  std::vector<size_t> sent;
  size_t taken = 0, refused = 0;
  for (int i = 0; i < 4000; ++i) {
    const size_t length = kSlotPayload + 1 + random() % (kMaxEager - kSlotPayload);
    const bool had_rest = ring.asked && ring.has_rest;
    std::fill_n(payload.begin(), length, byte_of(sent.size()));
    if (random() % 8 && ring.push(sent.size(), payload.data(), length)) {
      sent.push_back(length);
    } else if (taken < sent.size()) {
      ++refused;
      const size_t until = _i % 4 / 2 ? sent.size() : taken + 1 + random() % (sent.size() - taken);
      for (; taken < until; ++taken) {
        RingEntry entry;
        ck_assert(ring.receiver.next(entry));
        ck_assert_uint_eq(entry.length, sent[taken]);
        ck_assert(erdma::test::all_equal(entry.payload, entry.length, byte_of(taken)));
        const size_t at = size_t(entry.payload - ring.hot_memory->bytes);
        if (!had_rest) ck_assert_uint_le(at + entry.length, kBackedBytes);
        ring.receiver.advance();
      }
      ring.receiver.publish();
    }
  }
  ck_assert_uint_gt(refused, 0);
  ck_assert_uint_eq(ring.asked, 1);
}

/// The bytes that a restart left unused are room once the receiver has taken what lies before it.
/// Rows: it has; the last payload is left.
TEST(a_ring_that_is_full_behind_a_restart_has_no_room, 2) {
  constexpr uint32_t kLength = 8192, kRounds = kFirstRound / kLength * kRoundsEach;
  const std::vector<std::byte> payload(kLength);
  Ring ring(true);
  for (uint32_t i = 0; i < kRounds; ++i) {
    ck_assert(ring.push(i, payload.data(), kLength));
    if (!_i || i + 1 < kRounds) (void)take_placed(ring);
  }
  unsigned held = _i ? 1 : 0;
  while (ring.push(held, payload.data(), kLength)) ++held;
  if (_i)
    ck_assert_uint_le(held, kFirstRound / kLength + 1);
  else
    ck_assert_uint_ge(held, kPayloadEnd / stride_of(kLength) - 2);
  ck_assert(!ring.sender.room_for_bytes(kLength) && !ring.sender.half_is_free());
  for (; held > 0; --held) (void)take_placed(ring);
  ck_assert(ring.sender.room_for_bytes(kByteRing - kMostStride) && ring.sender.half_is_free());
}

/// Positions are counted in 32 bits. Rows: the receiver keeps up or lags behind; the whole ring
/// gets memory or not. Short payloads restart often, and so get far with few bytes.
TEST(both_sides_agree_beyond_four_gigabytes, 4) {
  constexpr uint64_t kLong = 1500, kShort = uint64_t{64} * 2025, kAll = kLong + kShort + 4 * kLong;
  Backed ring(_i / 2 == 0);
  std::vector<std::byte> payload(kMaxEager);
  for (uint64_t sent = 0, taken = 0; taken < kAll;) {
    const bool is_short = sent >= kLong && sent < kLong + kShort;
    const size_t length = is_short ? kLeastWholeRound - 1 : kMaxEager;
    std::memcpy(payload.data(), &sent, sizeof sent);
    if (sent < kAll && ring.push(sent, payload.data(), length)) {
      ++sent;
      if (_i % 2 && !is_short && sent < kAll) continue;
    }
    ck_assert_uint_lt(taken, sent);
    RingEntry entry;
    for (; ring.receiver.next(entry); ++taken) {
      ck_assert_uint_eq(number_of(entry), taken);
      ck_assert_mem_eq(entry.payload, &taken, sizeof taken);
      ring.receiver.advance();
    }
    ring.receiver.publish();
    const uint32_t end = ring.asked && ring.has_rest ? kByteRing : kBackedBytes;
    ck_assert(ring.sender.room_for_bytes(end - kMostStride));
  }
}

TEST(half_a_ring_is_half_of_what_has_memory) {
  Backed ring(false);
  const Header header{};
  std::vector<std::byte> payload(kMaxEager);
  const iovec iov{payload.data(), payload.size()};
  uint32_t sequence = 0, pushed = 0;
  while (ring.sender.push_retractable(&header, &iov, 1, payload.size(), sequence)) ++pushed;
  ck_assert_uint_eq(pushed, kBackedBytes / 2 / kMostStride);
  ck_assert(ring.push(1, payload.data(), payload.size()));
}

/// Of two payloads in the ring, one is over a payload's bytes and none over two's, also around the
/// end of a round.
TEST(bytes_that_a_round_left_unused_are_not_held) {
  const std::vector<std::byte> payload(kMaxEager);
  Ring ring(true);
  uint32_t before = 0, restarts = 0;
  ck_assert(ring.push(0, payload.data(), kMaxEager));
  for (uint32_t i = 1; i < 2 * kByteRing / kMaxEager; ++i) {
    ck_assert(ring.push(i, payload.data(), kMaxEager));
    ck_assert(ring.sender.holds_over(1, kMostStride));
    ck_assert(!ring.sender.holds_over(1, 2 * kMostStride));
    ck_assert(!ring.sender.holds_over(2, 0));
    const uint32_t at = take_placed(ring);
    restarts += at < std::exchange(before, at);
    ck_assert(!ring.sender.holds_over(0, kMostStride));
    // No gap lies in front of the first payload of the ring.
    ck_assert(ring.sender.room_for_bytes(kByteRing - 2 * kMostStride));
    ck_assert(!ring.sender.room_for_bytes(kByteRing - 2 * kMostStride + kPayloadGap + 1));
  }
  ck_assert_uint_gt(restarts, 5);
}

/// A payload on a new page takes several times as long, so its time tells nothing.
TEST(a_sender_knows_when_it_reaches_new_pages, 2) {
  const std::vector<std::byte> payload(kMaxEager, std::byte(1));
  const uint32_t length = _i ? kMaxEager : kLeastWholeRound, stride = stride_of(length);
  Ring ring(true);
  uint32_t written = 0;
  for (uint32_t i = 0; i < 8 * (kByteRing / length); ++i) {
    const bool expected = ring.sender.reaches_new_pages(length);
    ck_assert(ring.push(i, payload.data(), length));
    const uint32_t at = take_placed(ring);
    if (at >= written) ck_assert(expected);
    if (at > 0 && at + length <= written) ck_assert(!expected);
    written = std::max(written, at + stride);
  }
  ck_assert_uint_eq(written, cycle_up_to(kPayloadEnd, length));
}

/// The next payload goes behind the end of the round.
TEST(a_sender_does_not_wait_at_the_end_of_a_short_round) {
  const std::vector<std::byte> payload(kMaxEager, std::byte(1));
  Ring ring(true);
  for (uint32_t i = 0; i < kPayloadEnd / kMostStride; ++i)
    ck_assert(ring.push(i, payload.data(), payload.size()));
  for (uint32_t i = 0; i < kPayloadEnd / kMostStride; ++i)
    ck_assert_uint_eq(take_placed(ring), i * kMostStride);
}

/// Then the byte ring has its memory there, too.
TEST(a_sender_that_passed_the_end_of_a_round_goes_on_to_the_end_of_the_ring) {
  const std::vector<std::byte> payload(kMaxEager, std::byte(1));
  Ring ring(true);
  constexpr uint32_t kPassing = kFirstRound / kMaxEager + 1;
  for (uint32_t i = 0; i < kPassing; ++i) ck_assert(ring.push(i, payload.data(), payload.size()));
  for (uint32_t i = 0; i < kPassing; ++i) ck_assert_uint_eq(take_placed(ring), i * kMostStride);
  ck_assert(ring.push(kPassing, payload.data(), payload.size()));
  ck_assert_uint_eq(take_placed(ring), kPassing * kMostStride);
}

/// A ring whose endpoint has others.
struct OneOfMany : Ring {
  explicit OneOfMany(RecentRings& rings) : Ring(true) {
    sender = RingSender(memory, 0, nullptr, StreamingPolicy::calibrate, nullptr, &rings);
  }
};

TEST(long_payloads_to_many_peers_go_round_in_a_part_where_the_receiver_keeps_up, 2) {
  RecentRings rings;
  OneOfMany ring(rings);
  const uint32_t length = _i ? kMaxEager : kLeastWholeRound;
  const std::vector<std::byte> payload(length, std::byte(1));
  const uint32_t stride = stride_of(length), round = (kShortRound + stride - 1) / stride;
  const char others[kFewRings] = {};
  cycles(ring, length, kFirstRound, kRoundsEach);
  cycles(ring, length, 2 * kFirstRound, kRoundsEach);
  for (uint32_t i = 0; i < 9 * round; ++i) {
    for (const char& other : others) rings.of_others.add(&other);
    ck_assert(ring.push(i, payload.data(), payload.size()));
    ck_assert_uint_eq(take_placed(ring), i % round * stride);
  }
}

/// Rings of many peers fit into the first caches.
TEST(short_payloads_to_many_peers_go_round_in_few_pages) {
  RecentRings rings;
  OneOfMany ring(rings);
  constexpr uint32_t kLength = 128, kStride = stride_of(kLength),
                     kRound = (kRoundOfMany + kStride - 1) / kStride;
  const std::vector<std::byte> payload(kLength, std::byte(1));
  const char others[kFewRings] = {};
  for (uint32_t i = 0; i < 3 * kRound; ++i) {
    for (const char& other : others) rings.of_short.add(&other);
    ck_assert(ring.push(i, payload.data(), kLength));
    ck_assert_uint_eq(take_placed(ring), i % kRound * kStride);
  }
}

/// Else they would keep the long ones in the small part.
TEST(short_payloads_behind_a_longer_one_go_on_to_the_end_of_the_ring, 2) {
  const std::vector<std::byte> payload(kMaxEager, std::byte(1));
  const uint32_t length = _i ? kMaxEager : kLeastWholeRound;
  Ring ring(true);
  ck_assert(ring.push(0, payload.data(), length));
  ck_assert_uint_eq(take_placed(ring), 0);
  for (uint32_t at = stride_of(length); at + kLeastWholeRound <= kPayloadEnd;) {
    ck_assert(ring.push(1, payload.data(), kLeastWholeRound - 1));
    ck_assert_uint_eq(take_placed(ring), at);
    at += kMostShortStride;
  }
  cycles(ring, kLeastWholeRound - 1, kFirstRound);
}

/// They fill all slots before they fill what has memory, however far the receiver lags behind.
TEST(streams_of_short_payloads_get_no_more_memory, 2) {
  const uint32_t length = _i ? kLeastWholeRound - 1 : kSlotPayload + 1;
  const std::vector<std::byte> payload(length, std::byte(1));
  Backed ring(true);
  uint64_t pushed = 0, taken = 0;
  while (pushed < uint64_t{20} * kBackedBytes / stride_of(length)) {
    while (ring.push(pushed, payload.data(), length)) ++pushed;
    ck_assert_uint_eq(pushed - taken, kHotSlots);
    for (const uint64_t until = pushed - kHotSlots / 2; taken < until; ++taken)
      take_one(ring, taken, length);
    ring.receiver.publish();
  }
  ck_assert_uint_eq(ring.asked, 0);
}

/// What starts over leaves all of the byte ring as room, so it does not while anything is there.
/// The sequence numbers may have come round to 0.
TEST(short_payloads_start_over_in_an_empty_ring_only, 4) {
  constexpr uint32_t kRound = (kFirstRound + kMostShortStride - 1) / kMostShortStride;
  const uint32_t left = _i % 2;  // in the ring
  const std::vector<std::byte> payload(kLeastWholeRound - 1, std::byte(1));
  Ring ring(true, _i / 2 ? -kRound : 0);
  for (uint32_t i = 0; i < kRound; ++i) ck_assert(ring.push(i, payload.data(), payload.size()));
  for (uint32_t i = left; i < kRound; ++i) (void)take_placed(ring);
  ck_assert(ring.push(0, payload.data(), payload.size()));
  if (!left) ck_assert(ring.sender.room_for_bytes(kByteRing - kLeastWholeRound - kMostStride));
  for (uint32_t i = 0; i < left; ++i) (void)take_placed(ring);
  ck_assert_uint_eq(take_placed(ring), left ? kRound * kMostShortStride : 0);
}

/// Nothing was taken, and the sender must know that without asking.
TEST(a_sender_whose_numbers_come_round_does_not_take_its_ring_for_empty) {
  constexpr uint32_t kRound = (kFirstRound + kMostShortStride - 1) / kMostShortStride;
  const std::vector<std::byte> payload(kLeastWholeRound - 1, std::byte(1));
  Ring ring(true, -kRound);
  for (uint32_t i = 0; i <= kRound; ++i) ck_assert(ring.push(i, payload.data(), payload.size()));
  for (uint32_t i = 0; i <= kRound; ++i) ck_assert_uint_eq(take_placed(ring), i * kMostShortStride);
}

/// The receiver lags behind.
TEST(short_payloads_fill_all_slots) {
  constexpr uint32_t kLength = kLeastWholeRound - 1;
  const std::vector<std::byte> payload(kLength, std::byte(1));
  Ring ring(true);
  for (uint32_t i = 0; i < kHotSlots; ++i) ck_assert(ring.push(i, payload.data(), kLength));
  for (uint32_t i = 0; i < kHotSlots; ++i)
    ck_assert_uint_eq(take_placed(ring), i * kMostShortStride);
}

/// Rows: streamed always; where that was learnt to be fastest; not at all.
TEST(payloads_that_are_streamed_leave_no_gap, 3) {
  constexpr uint32_t kLength = 4000;
  erdma::hmem::CopyChoice copy;
  for (int i = 0; _i == 1 && i < 8; ++i) {
    copy.record(kLength, erdma::hmem::CopyMethod::loop, kLength);
    copy.record(kLength, erdma::hmem::CopyMethod::stream, kLength / 8);
  }
  ck_assert(copy.streams(kLength) == (_i == 1));
  Ring ring(true);
  ring.sender =
      RingSender(ring.memory, 0, &copy, _i ? StreamingPolicy::calibrate : StreamingPolicy::always);
  const std::vector<std::byte> payload(kLength, std::byte(1));
  uint32_t at = 0;
  for (const uint32_t length : {kLength, kLength, kLeastWholeRound - 1, kLength}) {
    if (at > 0) at += _i == 2 || length < kLeastWholeRound ? kPayloadGap : 0;
    ck_assert(ring.push(0, payload.data(), length));
    ck_assert_uint_eq(take_placed(ring), at);
    at = after_payload(at, length);
  }
  const Header header{};
  const iovec parts[] = {{const_cast<std::byte*>(payload.data()), 2000},
                         {const_cast<std::byte*>(payload.data()), 2000}};
  ck_assert(ring.sender.push(Kind::packet, &header, parts, 2, kLength));  // never streamed
  ck_assert_uint_eq(take_placed(ring), at + kPayloadGap);
}

TEST(few_rings_go_round_in_the_whole_byte_ring) {
  RecentRings rings;
  OneOfMany ring(rings);
  const char other = 0;
  rings.of_others.add(&other);
  first_cycles(ring, kMaxEager);
  cycles(ring, kMaxEager, cycle_up_to(kPayloadEnd, kMaxEager));
}

TEST(only_payloads_that_were_sent_count_as_uses_of_a_ring, 2) {
  RecentRings rings;
  OneOfMany ring(rings);
  RecentLinks& counted = _i ? rings.of_others : rings.of_short;
  RecentLinks& not_counted = _i ? rings.of_short : rings.of_others;
  const size_t length = _i ? kMaxEager : kLeastWholeRound - 1;
  const char other = 0;
  const std::vector<std::byte> payload(kMaxEager, std::byte(1));
  ck_assert(ring.push(0, payload.data(), kSlotPayload));
  ck_assert_uint_eq(counted.links_with(&other), 1);
  ck_assert(ring.push(0, payload.data(), length));
  ck_assert_uint_eq(counted.links_with(&other), 2);
  ck_assert_uint_eq(not_counted.links_with(&other), 1);
  for (uint32_t more = kMaxEager; more > kSlotPayload; more /= 2)
    while (ring.push(0, payload.data(), more)) continue;
  ck_assert(ring.sender.room_for(1));
  for (size_t i = 0; i < RecentLinks::kLast; ++i) counted.add(&other);
  ck_assert(!ring.push(0, payload.data(), length));
  ck_assert_uint_eq(counted.links_with(&other), 1);
}

CoreSharing::Usage g_usage;

/// If the receiver uses the sender's core, too.
TEST(payloads_stay_at_the_beginning_on_a_shared_core, 2) {
  g_usage = {pthread_self(), 0, 0, 0};
  CoreSharing core([]() noexcept { return g_usage; });
  core.judge(1'000'000);
  g_usage.forced = 10;
  core.judge(1'000'000'000);
  ck_assert(core.shared());
  const std::vector<std::byte> payload(_i ? kMaxEager : kSlotPayload + 1, std::byte(1));
  Ring ring(true);
  ring.sender = RingSender(ring.memory, 0, nullptr, StreamingPolicy::calibrate, &core);
  for (uint64_t i = 0; i < 100; ++i) {
    ck_assert(ring.push(i, payload.data(), payload.size()));
    ck_assert_uint_eq(take_placed(ring), 0);
  }
  // One core has all lines, so nothing is fetched ahead of its writer.
  for (uint64_t i = 0; i < 2; ++i) ck_assert(ring.push(i, payload.data(), payload.size()));
  ck_assert_uint_eq(take_placed(ring), 0);
  ck_assert_uint_eq(take_placed(ring), after_payload(0, uint32_t(payload.size())));
}

/// How many of 16 payloads are shorter than kLeastWholeRound.
constexpr unsigned kShortOnes[] = {0, 15, 16};

/// Both sides agree also when payloads start over, and where the endpoint uses many rings at times.
TEST(both_sides_agree_where_a_payload_lies, std::size(kStarts) * std::size(kShortOnes)) {
  RecentRings rings;
  Ring ring(true, kStarts[_i / std::size(kShortOnes)]);
  ring.sender = RingSender(ring.memory, kStarts[_i / std::size(kShortOnes)], nullptr,
                           StreamingPolicy::calibrate, nullptr, &rings);
  const unsigned short_ones = kShortOnes[_i % std::size(kShortOnes)];
  const auto length_at = [short_ones](uint64_t number) {
    const size_t length = length_of(number, true);
    return number % 16 < short_ones ? length % kLeastWholeRound : length;
  };
  const char others[kFewRings] = {};
  std::vector<std::byte> payload(kMaxEager);
  const uint32_t most = short_ones == 16 ? 5 : 70;  // at a time
  uint64_t pushed = 0, taken = 0, over = 0;
  uint32_t random = 1;
  const auto draw = [&random] { return (random = random * 1664525 + 1013904223) >> 16; };
  const std::byte* last = nullptr;
  while (taken < 40'000) {
    const bool many = draw() % 2;
    for (uint32_t burst = draw() % most; burst > 0; --burst) {
      const size_t length = length_at(pushed);
      std::fill_n(payload.begin(), length, byte_of(pushed));
      for (size_t i = 0; many && i < kFewRings; ++i)
        rings.of_short.add(&others[i]), rings.of_others.add(&others[i]);
      if (!ring.push(pushed, payload.data(), length)) break;
      ++pushed;
    }
    for (uint32_t burst = draw() % (2 * most); burst > 0 && taken < pushed; --burst, ++taken) {
      RingEntry entry;
      ck_assert(ring.receiver.next(entry));
      ck_assert_uint_eq(number_of(entry), taken);
      ck_assert_uint_eq(entry.length, length_at(taken));
      ck_assert(erdma::test::all_equal(entry.payload, entry.length, byte_of(taken)));
      if (entry.length > kSlotPayload) over += entry.payload < std::exchange(last, entry.payload);
      if (ring.receiver.advance()) ring.receiver.publish();
    }
    if (draw() % 2 && ring.receiver.unpublished()) ring.receiver.publish();
  }
  ck_assert_uint_gt(over, 5);
}

}  // namespace
