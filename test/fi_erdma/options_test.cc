#include "fi_erdma/pair/options.h"

#include <utility>

#include "libcheck.h"

using fi_erdma::pair::parse_size;

namespace {

TEST(sizes_are_decimal_numbers_with_a_unit_up_to_a_tebibyte) {
  size_t size = 0;
  const std::pair<const char*, size_t> good[] = {
      {"0", 0},        {"8", 8},          {"010", 10},         {"64K", 65536},
      {"1M", 1 << 20}, {"2G", 2ul << 30}, {"1024G", 1ul << 40}};
  for (const auto& [text, bytes] : good) {
    ck_assert_msg(parse_size(text, size), "%s", text);
    ck_assert_uint_eq(size, bytes);
  }
  // The fourth would be 0, were it shifted.
  for (const char* const text : {"", "K", "1025G", "17179869184G", "18446744073709551616",
                                 "99999999999999999999K", "-1", "+1", " 1", "0x10", "1KB", "1.5"})
    ck_assert_msg(!parse_size(text, size), "%s", text);
}

}  // namespace
