#include "transport/shm/ring.h"

#include "all_equal.h"
#include "libcheck.h"
#include "transport/ring_ends.h"

#undef fail  // check.h defines it; the standard library uses the name

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

using namespace erdma::test;

TEST_CASE(.timeout = 120);

/// Some payloads use the byte ring, others do not.
TEST(an_entry_that_stays_comes_again) {
  Ring ring(true);
  std::vector<std::byte> payload(5000);
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = byte_of(i);
  for (const size_t length : {size_t(5000), size_t(8), size_t(4000)}) {
    ck_assert(ring.push(length, payload.data(), length));
    for (int i = 0; i < 3; ++i) {
      RingEntry entry;
      ck_assert(ring.receiver.next(entry));
      ck_assert_uint_eq(entry.length, length);
      ck_assert_mem_eq(entry.payload, payload.data(), length);
      if (i < 2) ring.receiver.stay(entry);
    }
    if (ring.receiver.advance()) ring.receiver.publish();
  }
  ck_assert(!ring.receiver.ready());
}

TEST(a_new_ring_is_empty_whatever_its_first_sequence_number, std::size(kStarts)) {
  for (bool hot : {false, true}) {
    const Ring ring(hot, kStarts[_i]);
    ck_assert(!ring.receiver.ready());
  }
}

TEST(a_ring_takes_as_many_entries_as_it_has_slots, std::size(kStarts)) {
  for (bool hot : {false, true}) {
    Ring ring(hot, kStarts[_i]);
    uint64_t count = 0;
    while (count < 1000 && ring.push(count)) ++count;
    ck_assert_uint_eq(count, hot ? kHotSlots : kColdSlots);
    ck_assert(!ring.sender.room_for(1));
    for (uint64_t i = 0; i < count; ++i) take_one(ring, i, 0);
    ring.receiver.publish();
    ck_assert(!ring.receiver.ready());
    ck_assert(ring.push(count));
    ck_assert(ring.sender.room_for(uint32_t(count) - 1));
    take_one(ring, count, 0);
  }
}

TEST(the_following_header_is_seen_once_its_entry_is_whole, std::size(kStarts)) {
  for (bool hot : {false, true}) {
    Ring ring(hot, kStarts[_i]);
    RingEntry entry;
    ck_assert(ring.push(1));
    ck_assert(ring.receiver.next(entry));
    ck_assert_ptr_null(ring.receiver.following());
    ck_assert(ring.push(2));
    ck_assert_ptr_nonnull(ring.receiver.following());
    ring.receiver.advance();
    const uint32_t slot = slot_of(kStarts[_i] + 1, ring.memory.count() - 1);
    const std::byte* seen = ring.memory.slots[slot].header;
    ck_assert(ring.receiver.next(entry) && entry.header == seen);
    ck_assert_ptr_null(ring.receiver.following());
  }
}

TEST(a_full_byte_ring_refuses_and_goes_on_once_there_is_room) {
  Ring ring(true);
  const std::vector<std::byte> payload(kMaxEager, std::byte(1));
  uint64_t count = 0;
  while (count < kHotSlots && ring.push(count, payload.data(), kMaxEager)) ++count;
  ck_assert_uint_eq(count, (kPayloadEnd + kMostStride - kMaxEager) / kMostStride);
  ck_assert(ring.push(count));  // a short payload still fits
  take_one(ring, 0, kMaxEager);
  ring.receiver.publish();
  ck_assert(ring.push(count + 1, payload.data(), kMaxEager));
}

TEST(a_cold_ring_takes_no_long_payload) {
  Ring ring(false);
  const std::byte payload[kSlotPayload + 1] = {};
  ck_assert(!ring.push(0, payload, sizeof(payload)));
  ck_assert(ring.push(0, payload, kSlotPayload));
}

TEST(space_is_announced_every_quarter) {
  Ring ring(true);
  for (uint32_t i = 0; i < kHotSlots; ++i) ck_assert(ring.push(i));
  RingEntry entry;
  for (uint32_t i = 1; i < kHotSlots / 4; ++i) {
    ck_assert(ring.receiver.next(entry));
    ck_assert(!ring.receiver.advance());
  }
  ck_assert(ring.receiver.next(entry));
  ck_assert(ring.receiver.advance());
}

// Long payloads use up the byte ring long before the slots.
TEST(space_for_bytes_is_announced_every_sixteenth, std::size(kStarts)) {
  constexpr uint32_t kLength = 8192;
  constexpr uint32_t kEvery = kPublishBytes / kLength;
  const std::vector<std::byte> payload(kLength, std::byte(1));
  Ring ring(true, kStarts[_i]);
  for (uint64_t i = 0; i < 4 * kEvery; ++i) ck_assert(ring.push(i, payload.data(), kLength));
  RingEntry entry;
  for (uint32_t i = 1; i <= 3 * kEvery; ++i) {
    ck_assert(ring.receiver.next(entry));
    const bool now = ring.receiver.advance();
    ck_assert_int_eq(now, i % kEvery == 0);
    if (now) ring.receiver.publish();
  }
}

TEST(a_waiting_sender_is_reported_once) {
  Ring ring(true);
  ck_assert(!ring.receiver.publish());
  ring.sender.set_waiting(true);
  ck_assert(ring.receiver.publish());
  ck_assert(ring.receiver.take_waiting());
  ck_assert(!ring.receiver.take_waiting());
}

TEST(an_impossible_length_is_noticed) {
  for (bool hot : {false, true}) {
    Ring ring(hot);
    const uint64_t length = hot ? kMaxEager + 1 : kSlotPayload + 1;
    ring.memory.slots[0].stamp.store(length << 32 | 1);
    RingEntry entry;
    ck_assert(ring.receiver.next(entry));
    ck_assert(entry.kind == kBroken);
  }
}

TEST(random_bytes_in_a_ring_lead_nowhere_outside_it, 4) {
  uint64_t state = uint64_t(_i) + 1;
  auto random = [&state] {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
  };
  Ring ring(true);
  unsigned sum = 0;
  for (uint32_t round = 0; round < 20'000; ++round) {
    // The stamp is valid so that the receiver reads the slot. The other fields are random.
    const uint64_t flags = random() & (kBehindGap | kRestart);
    const uint64_t word = random() % 4 ? random() % (kMaxEager + 2) | flags : random();
    ring.memory.slots[slot_of(round, kHotSlots - 1)].stamp.store(word << 32 | (round + 1));
    ring.memory.consumed->store(random());
    RingEntry entry;
    if (!ring.receiver.next(entry)) ck_abort();
    if (entry.kind != kBroken && entry.length)
      sum += unsigned(entry.payload[0]) + unsigned(entry.payload[entry.length - 1]);
    ring.receiver.advance();
    const std::vector<std::byte> payload(random() % kMaxEager);
    RingSender liar(ring.memory, uint32_t(random()));
    const iovec iov{const_cast<std::byte*>(payload.data()), payload.size()};
    const Header header{};
    (void)liar.push(Kind::packet, &header, &iov, 1, payload.size());
    ring.memory.slots[slot_of(round + 1, kHotSlots - 1)].stamp.store(0);
  }
  ck_assert_uint_ge(sum, 0);
}

void stress(bool hot, uint32_t start, uint64_t messages) {
  Ring ring(hot, start);
  std::thread sender([&] {
    std::vector<std::byte> payload(kMaxEager);
    for (uint64_t i = 0; i < messages; ++i) {
      const size_t length = length_of(i, hot);
      std::fill_n(payload.begin(), length, byte_of(i));
      while (!ring.push(i, payload.data(), length)) std::this_thread::yield();
    }
  });
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < messages; ++i) {
    RingEntry entry;
    while (!ring.receiver.next(entry)) {
      if (ring.receiver.unpublished()) ring.receiver.publish();
      std::this_thread::yield();
    }
    wrong += entry.kind != Kind::packet || number_of(entry) != i ||
             entry.length != length_of(i, hot) ||
             !erdma::test::all_equal(entry.payload, entry.length, byte_of(i));
    if (ring.receiver.advance()) ring.receiver.publish();
  }
  sender.join();
  ck_assert_uint_eq(wrong, 0);
}

TEST(a_packet_is_delivered_or_taken_back, std::size(kStarts)) {
  Ring ring(true, kStarts[_i]);
  Header header{};
  const iovec nothing{nullptr, 0};
  uint32_t first = 0, second = 0;
  RingEntry entry;
  ck_assert(ring.sender.push_retractable(&header, &nothing, 1, 0, first));
  ck_assert(ring.sender.push_retractable(&header, &nothing, 1, 0, second));
  ck_assert(ring.receiver.next(entry) && entry.kind == Kind::retractable);
  ck_assert(ring.receiver.take());
  ck_assert(!ring.sender.retract(first));
  ring.receiver.advance();
  ck_assert(ring.sender.retract(second));
  ck_assert(ring.receiver.next(entry) && entry.kind == Kind::retracted);
  ck_assert(!ring.receiver.take());
  ring.sender.retracted(second, _i % 2);
  ck_assert(ring.receiver.next(entry));
  ck_assert(entry.kind == (_i % 2 ? Kind::skipped : Kind::retractable));
  ck_assert(ring.receiver.take() == !(_i % 2));
  ring.receiver.advance();
  ck_assert(!ring.receiver.next(entry));
}

TEST(what_may_be_skipped_fills_half_a_ring, 2) {
  Ring ring(true);
  const Header header{};
  std::vector<std::byte> payload(_i ? kMaxEager : 0);
  const iovec iov{payload.data(), payload.size()};
  uint32_t sequence = 0, pushed = 0;
  while (ring.sender.push_retractable(&header, &iov, 1, payload.size(), sequence)) ++pushed;
  ck_assert_uint_eq(pushed, _i ? kByteRing / 2 / kMostStride : kHotSlots / 2 + 1);
  ck_assert(ring.push(1, payload.data(), payload.size()));
}

/// Each packet is executed once, by the sender or the receiver, in order. `executed` is not atomic:
/// only the ring orders the accesses of the two threads.
TEST(two_threads_execute_each_packet_once_in_order, 4) {
  const uint32_t packets = _i % 2 ? 30'000 : 300'000;
  Ring ring(true, kStarts[_i / 2]);
  uint32_t executed = 0, spared = 0, oldest = 1;
  std::atomic<uint32_t> answered{0};
  std::thread receiver([&] {
    RingEntry entry;
    for (uint32_t entries = 0; entries < packets;) {
      if (!ring.receiver.next(entry)) continue;
      const bool offered = entry.kind == Kind::retractable;
      if (entry.kind == Kind::retracted || (offered && !ring.receiver.take())) {
        ring.receiver.stay(entry);
        continue;
      }
      if (offered) {
        ck_assert_uint_eq(number_of(entry), ++executed);
        ck_assert(erdma::test::all_equal(entry.payload, entry.length, byte_of(executed)));
        answered.store(executed, std::memory_order_release);
      }
      ++entries;
      if (ring.receiver.advance()) ring.receiver.publish();
    }
    ring.receiver.publish();
  });
  Header header{};
  std::vector<std::byte> payload(kMaxEager);
  std::vector<uint32_t> names(packets + 1);
  for (uint64_t number = 1; number <= packets; ++number) {
    std::memcpy(header.bytes, &number, sizeof(number));
    const iovec iov{payload.data(), _i % 2 ? length_of(number, true) : 0};
    std::fill_n(payload.data(), iov.iov_len, byte_of(number));
    while (!ring.sender.push_retractable(&header, &iov, 1, iov.iov_len, names[number])) continue;
    if (number % 7) continue;
    for (; oldest <= number; ++oldest) {
      if (!ring.sender.retract(names[oldest])) {  // the receiver has taken and answers it
        while (answered.load(std::memory_order_acquire) < oldest) continue;
        continue;
      }
      const bool gives_back = oldest % 5 == 0;
      if (!gives_back) ck_assert_uint_eq(oldest, ++executed);
      spared += !gives_back;
      ring.sender.retracted(names[oldest], !gives_back);
      if (gives_back) break;
    }
  }
  receiver.join();
  ck_assert_uint_eq(executed, packets);
  ck_assert_uint_gt(spared, 0);
}

TEST(two_threads_agree_about_every_byte_across_the_wrap_of_sequence_numbers, std::size(kStarts)) {
  stress(true, kStarts[_i], 5'000);
  stress(false, kStarts[_i], 20'000);
}

TEST(room_for_bytes_is_what_lies_behind_the_last_payload) {
  const std::vector<std::byte> payload(kMaxEager, std::byte(1));
  Ring ring(true);
  for (uint32_t sent = 1; sent < 8; ++sent) {
    ck_assert(ring.push(0, payload.data(), kMaxEager));
    const uint32_t room = kByteRing - (sent + 1) * kMostStride + kPayloadGap;
    ck_assert(ring.sender.room_for_bytes(room));
    ck_assert(!ring.sender.room_for_bytes(room + 1));
  }
}

TEST(a_receiver_that_consumes_nothing_for_long_is_noticed) {
  const std::vector<std::byte> payload(kMaxEager, std::byte(1));
  Ring ring(true);
  const auto fill = [&] {
    while (ring.push(0, payload.data(), kMaxEager)) continue;
    ck_assert(!ring.sender.room_for_bytes(kMaxEager));
  };
  fill();
  for (int round = 0; round < 2; ++round) {
    unsigned calls = 0;
    for (; ring.sender.moves(); ++calls) ck_assert(!ring.sender.room_for_bytes(kMaxEager));
    ck_assert_uint_ge(calls, RingSender::kPatience - 1);
    ck_assert_uint_le(calls, RingSender::kPatience);
    take_one(ring, 0, kMaxEager);
    ring.receiver.publish();
    fill();
  }
}

TEST(payloads_that_are_longer_than_a_slot_are_counted) {
  const std::vector<std::byte> payload(kMaxEager, std::byte(1));
  uint64_t counted = 0;
  Ring ring(true);
  ring.sender =
      RingSender(ring.memory, 0, nullptr, StreamingPolicy::calibrate, nullptr, nullptr, &counted);
  uint64_t longer = 0;
  for (const uint32_t length : {0u, 1u, kSlotPayload, kSlotPayload + 1, kMaxEager}) {
    ck_assert(ring.push(0, payload.data(), length));
    if (length > kSlotPayload) longer += length;
    ck_assert_uint_eq(counted, longer);
  }
  while (ring.push(0, payload.data(), kMaxEager)) longer += kMaxEager;
  ck_assert_uint_eq(counted, longer);  // a payload without room is not counted
}

/// The sender does not write to a single cache line that the receiver has not given back.
TEST(the_byte_ring_is_never_filled_beyond_what_was_consumed) {
  constexpr size_t kWhole = kPayloadEnd / kMostStride,
                   kFirst = kPayloadEnd + kLine - kWhole * kMostStride;
  static_assert(kFirst % kLine == 0 && kFirst + kLine <= kMaxEager && kWhole < kHotSlots);
  const std::vector<std::byte> first(kFirst, std::byte(1)), long_one(kMaxEager, std::byte(2)),
      late(kFirst + kLine, std::byte(3));
  Ring ring(true);
  ck_assert(ring.push(0, first.data(), first.size()));
  // Up to the last byte.
  for (uint64_t i = 1; i <= kWhole; ++i) ck_assert(ring.push(i, long_one.data(), long_one.size()));
  take_one(ring, 0, first.size());
  ring.receiver.publish();
  // Only the start of the byte ring is free, with the size of the first payload.
  for (size_t length = kFirst + 1; length <= late.size(); ++length)
    ck_assert(!ring.push(kWhole + 1, late.data(), length));
  ck_assert(ring.push(kWhole + 1, late.data(), kFirst));
  for (uint64_t i = 1; i <= kWhole; ++i) {
    RingEntry entry;
    ck_assert(ring.receiver.next(entry));
    ck_assert_uint_eq(entry.length, long_one.size());
    ck_assert_mem_eq(entry.payload, long_one.data(), long_one.size());
    ring.receiver.advance();
  }
}

}  // namespace
