#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <random>

#include "fi_erdma/pages.h"
#include "fi_erdma/snapshot.h"
#include "libcheck.h"

/// Whatever a page holds, read_page() neither touches what lies outside of it nor takes long: built
/// for AddressSanitizer, the copy on the heap shows the first. ERDMA_FUZZ_STEPS, ERDMA_FUZZ_SEED.
using namespace erdma::test;

namespace {

uint64_t number_from(const char* variable, uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text ? std::strtoull(text, nullptr, 0) : otherwise;
}

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

  /// Mostly the tables, as what stands in blocks is no more than values.
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

/// As large as it says and no larger, so that a sanitizer sees each byte beyond.
void read_alone(Copy& copy) {
  const std::unique_ptr<std::byte[]> alone(new std::byte[copy.size]);
  std::memcpy(alone.get(), copy.data(), copy.size);
  const auto result = fi_erdma::read_page({alone.get(), copy.size});
  ck_assert(result.snapshot.has_value() == result.fault.empty());
  if (!result.snapshot) return;
  for (const auto& kind : result.snapshot->kinds)
    for (const auto& block : kind.blocks)
      for (const auto& [name, text] : block.texts)
        for (const char c : text) ck_assert(c >= 0x20 && c <= 0x7e);
}

TEST_CASE(.name = "fuzz", .timeout = 300);

TEST(any_page_is_read_or_refused) {
  const auto page = make_page();
  show_process(*page, 1);
  for (int i = 0; i < 5; ++i) show_endpoint(*page, "10.0.0.1:1");
  const Copy sound(*page);
  const uint64_t seed = number_from("ERDMA_FUZZ_SEED", uint64_t(time(nullptr)));
  const uint64_t steps = number_from("ERDMA_FUZZ_STEPS", 20000);
  std::printf("ERDMA_FUZZ_SEED=%llu\n", (unsigned long long)seed);
  Spoiler spoiler(seed);
  for (uint64_t i = 0; i < steps; ++i) {
    Copy copy = sound;
    spoiler.spoil(copy);
    read_alone(copy);
  }
}

TEST(a_page_of_noise_is_refused) {
  std::mt19937_64 random(number_from("ERDMA_FUZZ_SEED", uint64_t(time(nullptr))));
  const auto page = make_page();
  Copy copy(*page);
  for (int i = 0; i < 50; ++i) {
    for (uint64_t& word : copy.words) word = random();
    ck_assert(!fi_erdma::read_page(copy.bytes()).snapshot);
  }
}

}  // namespace
