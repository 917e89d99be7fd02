#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <random>

#include "fi_erdma/pages.h"

namespace erdma::test {

inline uint64_t number_from(const char* variable, uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text ? std::strtoull(text, nullptr, 0) : otherwise;
}

/// Changes copies of a page at random places.
class Spoiler {
 public:
  explicit Spoiler(uint64_t seed) : x_random(seed) {}

  uint64_t below(uint64_t limit) { return x_random() % limit; }
  uint64_t odd_number(size_t size) {
    const uint64_t some[] = {0,    1,         7,          8,         63,         64,
                             size, size - 1,  size - 8,   size + 1,  4096,       UINT16_MAX,
                             1000, INT32_MAX, UINT32_MAX, INT64_MAX, UINT64_MAX, x_random()};
    return some[below(std::size(some))];
  }

  /// Mostly the tables, because the contents of blocks are only values.
  void spoil(Copy& copy) {
    const size_t tables =
        copy.header().fields_offset + copy.header().fields * sizeof(erdma::stat_layout::Field);
    for (uint64_t i = below(6); i > 0; --i) {
      const size_t width = size_t(1) << below(4);
      const size_t limit = below(4) ? std::min(tables, copy.size) : copy.size;
      const size_t at = below(limit / width) * width;
      const uint64_t value = odd_number(copy.size);
      std::memcpy(copy.data() + at, &value, width);
    }
    if (below(8) == 0) copy.size = below(copy.size + 1);
    if (below(2) == 0) copy.header().bytes = copy.size;
  }

 private:
  std::mt19937_64 x_random;
};

}  // namespace erdma::test
