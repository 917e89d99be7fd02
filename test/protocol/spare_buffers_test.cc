#include "protocol/spare_buffers.h"

#include <vector>

#include "libcheck.h"

namespace {

using erdma::protocol::SpareBuffers;

TEST(a_buffer_comes_again_for_payloads_of_its_size) {
  SpareBuffers spare;
  auto buffer = spare.take(65536);
  std::byte* const memory = buffer.get();
  spare.give_back(std::move(buffer), 65536);
  auto smaller = spare.take(32768);
  ck_assert(smaller.get() != memory);
  auto again = spare.take(33000);
  ck_assert(again.get() == memory);
  again[65535] = std::byte(1);
}

/// AddressSanitizer checks that each byte of each buffer can be written after others were returned.
TEST(buffers_hold_what_was_asked_for) {
  SpareBuffers spare;
  for (int round = 0; round < 3; ++round) {
    std::vector<std::pair<SpareBuffers::Buffer, size_t>> all;
    for (size_t bytes = 1; bytes < 2 * SpareBuffers::kMost; bytes = bytes * 5 / 2 + 1) {
      all.emplace_back(spare.take(bytes), bytes);
      for (size_t i = 0; i < bytes; ++i) all.back().first[i] = std::byte(round);
    }
    for (const size_t bytes : {SpareBuffers::kLeast, SpareBuffers::kMost}) {
      all.emplace_back(spare.take(bytes), bytes);
      all.back().first[bytes - 1] = std::byte(round);
    }
    for (auto& [buffer, bytes] : all) spare.give_back(std::move(buffer), bytes);
  }
}

TEST(no_more_than_a_limit_is_kept) {
  SpareBuffers spare;
  std::vector<SpareBuffers::Buffer> all;
  constexpr size_t kFit = SpareBuffers::kMostKept / SpareBuffers::kMost;
  for (size_t i = 0; i < kFit + 3; ++i) all.push_back(spare.take(SpareBuffers::kMost));
  for (auto& buffer : all) spare.give_back(std::move(buffer), SpareBuffers::kMost);
  ck_assert_uint_eq(spare.kept(), SpareBuffers::kMostKept);
  for (size_t i = 0; i < kFit; ++i) all[i] = spare.take(SpareBuffers::kMost);
  ck_assert_uint_eq(spare.kept(), 0);
}

/// Sizes that were used once do not keep out those which are used now.
TEST(other_sizes_give_way) {
  SpareBuffers spare;
  std::vector<SpareBuffers::Buffer> all;
  constexpr size_t kFit = SpareBuffers::kMostKept / SpareBuffers::kLeast;
  for (size_t i = 0; i < kFit; ++i) all.push_back(spare.take(SpareBuffers::kLeast));
  auto larger = spare.take(65536);
  for (auto& buffer : all) spare.give_back(std::move(buffer), SpareBuffers::kLeast);
  std::byte* const memory = larger.get();
  spare.give_back(std::move(larger), 65536);
  ck_assert_uint_eq(spare.kept(), SpareBuffers::kMostKept);
  ck_assert(spare.take(65536).get() == memory);
}

}  // namespace
