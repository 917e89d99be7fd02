#pragma once

#include <unistd.h>

#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "libcheck.h"
#include "util/stat_page.h"

/// A page such as a provider of another version might show.
namespace erdma::test {

struct ShownProcess {
  stat_layout::BlockHead head;
  uint64_t pid, rank;
  char command[16];
};
struct ShownEndpoint {
  stat_layout::BlockHead head;
  uint64_t bytes;
  char address[48];
};
static_assert(sizeof(ShownEndpoint) == 64);

inline constexpr util::StatKind kShownKinds[] = {{"process", 64, 1}, {"endpoint", 64, 100}};
inline constexpr util::StatField kShownFields[] = {
    {"pid", 0, stat_layout::Type::number, stat_layout::Meaning::fact, "", 8, 8},
    {"rank", 0, stat_layout::Type::number, stat_layout::Meaning::fact, "", 16, 8},
    {"command", 0, stat_layout::Type::text, stat_layout::Meaning::fact, "", 24, 16},
    {"ring_tx_bytes", 1, stat_layout::Type::number, stat_layout::Meaning::counter, "bytes", 8, 8},
    {"address", 1, stat_layout::Type::text, stat_layout::Meaning::fact, "", 16, 48},
};

inline std::unique_ptr<util::StatPage> make_page() {
  auto page = util::StatPage::create(kShownKinds, kShownFields);
  ck_assert_msg(bool(page), "%s", std::strerror(-page.error()));
  return std::move(*page);
}

inline ShownProcess& show_process(util::StatPage& page, uint64_t rank,
                                  std::string_view command = "a.out") {
  auto* const process = reinterpret_cast<ShownProcess*>(page.take(0));
  ck_assert_ptr_nonnull(process);
  process->pid = 4711;
  process->rank = rank;
  util::put_text(process->command, command);
  util::StatPage::end_change(reinterpret_cast<std::byte*>(process));
  return *process;
}

inline ShownEndpoint& show_endpoint(util::StatPage& page, std::string_view address) {
  auto* const endpoint = reinterpret_cast<ShownEndpoint*>(page.take(1));
  ck_assert_ptr_nonnull(endpoint);
  util::put_text(endpoint->address, address);
  util::StatPage::end_change(reinterpret_cast<std::byte*>(endpoint));
  return *endpoint;
}

inline std::byte* block_of(auto& shown) {
  return reinterpret_cast<std::byte*>(&shown);
}

/// A copy that a test can spoil; aligned as a mapping is.
struct Copy {
  explicit Copy(const util::StatPage& page) : size(page.bytes().size()) {
    words.resize(size / sizeof(uint64_t));
    ck_assert_int_eq(pread(page.fd(), words.data(), size, 0), ssize_t(size));
  }
  std::byte* data() { return reinterpret_cast<std::byte*>(words.data()); }
  std::span<const std::byte> bytes() { return {data(), size}; }
  stat_layout::Header& header() { return *reinterpret_cast<stat_layout::Header*>(data()); }
  stat_layout::Kind& kind(size_t i) {
    return reinterpret_cast<stat_layout::Kind*>(data() + header().kinds_offset)[i];
  }
  stat_layout::Field& field(size_t i) {
    return reinterpret_cast<stat_layout::Field*>(data() + header().fields_offset)[i];
  }

  std::vector<uint64_t> words;
  size_t size;
};

}  // namespace erdma::test
