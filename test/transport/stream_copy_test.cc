#include "transport/shm/stream_copy.h"

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <vector>

#include "libcheck.h"

namespace erdma::transport::shm {
namespace {

constexpr size_t kLengths[] = {0, 1, 15, 16, 63, 64, 255, 256, 257, 319, 4096, 32768, 32769};

TEST(stream_copy_is_exact_at_every_alignment, std::size(kLengths)) {
  const size_t length = kLengths[_i];
  std::vector<unsigned char> from(length + 128), to(length + 192);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i * 7 + 3);
  for (size_t source = 0; source < 64; source += 7) {
    for (size_t target = 64; target < 128; target += 3) {
      std::memset(to.data(), 0xEE, to.size());
      stream_copy(to.data() + target, from.data() + source, length);
      ck_assert_int_eq(std::memcmp(to.data() + target, from.data() + source, length), 0);
      ck_assert_int_eq(to[target - 1], 0xEE);
      ck_assert_int_eq(to[target + length], 0xEE);
    }
  }
}

}  // namespace

}  // namespace erdma::transport::shm
