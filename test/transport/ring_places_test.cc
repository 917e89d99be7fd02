#include "libcheck.h"
#include "transport/shm/ring.h"

/// Tests where payloads lie in the byte ring.
namespace erdma::transport::shm {
namespace {

TEST(a_payload_is_placed_aligned_and_whole) {
  uint32_t at = 0xFFFF0000;  // the 32-bit position wraps during the test
  for (uint64_t i = 0; i < 20'000; ++i) {
    const auto length = uint32_t(1 + i * 7919 % kMaxEager);
    const uint32_t place = place_payload(at, length);
    if (place % kLine || (place & (kByteRing - 1)) + length > kPayloadEnd ||
        place - at >= kMaxEager + kHotControl)
      ck_abort_msg("%u bytes after %u are placed at %u", length, at, place);
    at = after_payload(place, length);
  }
}

TEST(payloads_of_whole_pages_do_not_all_begin_at_one_offset) {
  for (uint32_t length = 4096; length <= kMaxEager; length += 4096) {
    uint32_t at = 0xFFFF0000;
    for (unsigned i = 0; i < 1000; ++i) {
      const uint32_t place = place_payload(at, length), next = after_payload(place, length);
      ck_assert_uint_eq(next, place + length + kLine);
      ck_assert_uint_eq(after_payload(place, length - 63), next);
      ck_assert_uint_eq(after_payload(place, length - 64), place + length - 64);
      at = next;
    }
  }
}

}  // namespace
}  // namespace erdma::transport::shm
