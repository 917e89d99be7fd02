#include <cstdio>
#include <ctime>
#include <random>

#include "fi_erdma/pages.h"
#include "fi_erdma/snapshot.h"
#include "fi_erdma/spoiler.h"
#include "libcheck.h"

/// Whatever a page holds, read_page() neither touches what lies outside of it nor takes long: built
/// for AddressSanitizer, the copy on the heap shows the first. ERDMA_FUZZ_STEPS, ERDMA_FUZZ_SEED.
using namespace erdma::test;

namespace {

/// As large as it says and no larger, so that a sanitizer sees each byte beyond.
void read_alone(Copy& copy) {
  const std::unique_ptr<std::byte[]> alone(new std::byte[copy.size]);
  std::memcpy(alone.get(), copy.data(), copy.size);
  const auto result = fi_erdma::read_page({alone.get(), copy.size});
  ck_assert(result.snapshot.has_value() == result.fault.empty());
  if (!result.snapshot) return;
  for (const auto& kind : result.snapshot->kinds)
    for (const auto& block : kind.blocks)
      for (const std::string& text : block.texts.values())
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
