#include <algorithm>
#include <vector>

#include "libcheck.h"
#include "transport/shm/ring.h"

/// Tests where payloads lie in the byte ring.
namespace erdma::transport::shm {
namespace {

TEST(a_payload_is_placed_aligned_and_whole) {
  uint32_t at = 0xFFFF0000;  // the 32-bit position wraps during the test
  for (uint64_t i = 0; i < 20'000; ++i) {
    const auto length = uint32_t(1 + i * 7919 % kMaxEager);
    const bool gap = i % 7 < 4;
    const uint32_t place = place_payload(at, length, gap), offset = place & (kByteRing - 1);
    const uint32_t left = (kByteRing - at) & (kByteRing - 1);  // up to the end of the ring
    const uint32_t behind = gap && left ? kPayloadGap : 0;
    if (place % kLine || offset + length > kPayloadEnd)
      ck_abort_msg("%u bytes after %u are placed at %u", length, at, place);
    if (behind + length + kHotControl <= left || left == 0)
      ck_assert_uint_eq(place, at + behind);
    else
      ck_assert_uint_eq(place, at + left);
    at = after_payload(place, length);
  }
}

TEST(payloads_of_whole_pages_do_not_all_begin_at_one_offset) {
  for (uint32_t length = 4096; length <= kMaxEager; length += 4096) {
    uint32_t at = 0xFFFF0000;
    for (unsigned i = 0; i < 1000; ++i) {
      const uint32_t place = place_payload(at, length, false), next = after_payload(place, length);
      ck_assert_uint_eq(next, place + length + kLine);
      ck_assert_uint_eq(after_payload(place, length - 63), next);
      ck_assert_uint_eq(after_payload(place, length - 64), place + length - 64);
      ck_assert_uint_ne(stride_of(length) % kShmPage, 0);
      at = next;
    }
  }
}

/// A core that polls one slot after another at the same distance fetches the next ones ahead, too,
/// unless they are far away.
TEST(the_slots_of_successive_entries_lie_far_apart) {
  for (const uint32_t start : {0u, 0xffffff80u}) {
    std::vector<bool> used(kHotSlots);
    for (uint32_t i = 0; i < kHotSlots; ++i) {
      const uint32_t slot = slot_of(start + i, kHotSlots - 1);
      const uint32_t next = slot_of(start + i + 1, kHotSlots - 1);
      ck_assert_uint_ge(std::max(slot, next) - std::min(slot, next), 11 * 1024 / kSlotBytes);
      ck_assert(!used[slot]);
      used[slot] = true;
    }
  }
}

}  // namespace
}  // namespace erdma::transport::shm
