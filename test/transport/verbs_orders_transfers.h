#pragma once

#include <sys/mman.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "transport/link.h"

namespace erdma::test {

/// In a mapping of its own, as no two nodes' caches can watch the same.
struct Mapped {
  Mapped() { ::mprotect(x_pages + kPage, kBytes, PROT_READ | PROT_WRITE); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  ~Mapped() { ::munmap(x_pages, kBytes + 2 * kPage); }
  void fill(uint64_t number) const { std::memset(data(), int(number), kBytes); }
  bool holds(uint64_t number) const {
    const auto* const bytes = static_cast<const std::byte*>(data());
    return std::all_of(bytes, bytes + kBytes, [&](std::byte b) { return b == std::byte(number); });
  }
  void* data() const { return x_pages + kPage; }
  iovec all() const { return {data(), kBytes}; }
  static constexpr size_t kPage = 65536, kBytes = 5 * kPage;

 private:
  std::byte* const x_pages = static_cast<std::byte*>(
      ::mmap(nullptr, kBytes + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
};

/// The transfers of one endpoint, one at a time, by memory that another shares with it.
struct Moving {
  const Mapped here, there;
  transport::RemoteKey key;
  transport::Link* lender = nullptr;  ///< whose memory is shared
  bool under_way = false, reads = false, honest = true;
  uint64_t begun = 0, moved = 0;
  uint64_t written_before = UINT64_MAX;  ///< number of the packet that comes behind the bytes

  void give_back() {
    if (lender) (void)std::exchange(lender, nullptr)->revoke(key);
  }
  void on_done(int status, uint64_t next_packet) {
    honest = honest && under_way;
    under_way = false;
    if (status) return give_back();
    ++moved;
    if (reads)
      honest = honest && here.holds(begun), give_back();
    else
      written_before = next_packet;
  }
  void on_packet(uint64_t number) {
    if (number < written_before) return;
    written_before = UINT64_MAX;
    honest = honest && there.holds(begun);
    give_back();
  }
  void on_link_down() {
    written_before = UINT64_MAX;
    if (!under_way) give_back();
  }
};

}  // namespace erdma::test
