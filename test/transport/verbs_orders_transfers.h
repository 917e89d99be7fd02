#pragma once

#include <sys/mman.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "all_equal.h"
#include "softcuda/device_memory.h"
#include "transport/link.h"

namespace erdma::test {

/// Memory in a mapping of its own, as the caches of two nodes cannot watch the same one.
struct Mapped {
  Mapped() { ::mprotect(x_pages + kPage, kBytes, PROT_READ | PROT_WRITE); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  ~Mapped() { ::munmap(x_pages, kBytes + 2 * kPage); }
  void* data() const { return x_pages + kPage; }
  static constexpr size_t kPage = 65536, kBytes = 5 * kPage;

 private:
  std::byte* const x_pages = static_cast<std::byte*>(
      ::mmap(nullptr, kBytes + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
};

/// How one endpoint accesses the memory of another.
enum class Way : uint8_t {
  shared,  ///< memory shared by share() for this transfer alone
  region,  ///< a whole registered region
  direct,  ///< a short part of a registered region
  fast,    ///< a short part of a registered region, by FastAccess
};
inline constexpr size_t kWays = 4;

/// The transfers of one endpoint, one at a time, with memory of another endpoint.
struct Moving {
  const Mapped host_here, host_there;
  const DeviceMemory *gpu_here = nullptr, *gpu_there = nullptr;
  Way way = Way::shared;
  iovec here{}, there{};
  transport::RemoteKey key;
  transport::Link* owner = nullptr;  ///< owner of the shared memory
  std::unique_ptr<transport::RegisteredRegion> region;
  bool under_way = false, reads = false, until_placed = false, honest = true;
  bool seen = false;  ///< the bytes were there when a later packet arrived
  uint64_t begun = 0, moved[kWays] = {}, moved_by_gpu = 0;
  uint64_t written_before = UINT64_MAX;  ///< number of the next packet after the bytes

  static bool of_gpu(const iovec& memory) {
    return softcuda_alias(memory.iov_base, memory.iov_len) != nullptr;
  }
  bool is_shared() const { return owner || region; }
  /// Prepares a transfer. `of_gpu_here` and `of_gpu_there` choose GPU memory at either end.
  void draw(Way by, bool to_read, bool placed, size_t length, bool of_gpu_here, bool of_gpu_there) {
    way = by;
    reads = to_read;
    until_placed = placed;
    seen = false;
    here = {of_gpu_here ? gpu_here->at(0) : host_here.data(), length};
    there = {of_gpu_there ? gpu_there->at(0) : host_there.data(), length};
    fill(reads ? there : here, begun + 1);
    fill(reads ? here : there, 0);
  }
  void give_back() {
    region.reset();
    if (owner) (void)std::exchange(owner, nullptr)->revoke(key);
  }
  void on_done(int status, uint64_t next_packet) {
    honest = honest && under_way;
    under_way = false;
    if (status) {
      written_before = UINT64_MAX;
      return give_back();
    }
    ++moved[size_t(way)];
    moved_by_gpu += of_gpu(here) || of_gpu(there);
    if (reads || until_placed) {
      written_before = UINT64_MAX;
      honest = honest && holds(reads ? here : there, begun);
      return give_back();
    }
    if (seen) return give_back();
    written_before = std::min(written_before, next_packet);
  }
  void on_packet(uint64_t number) {
    if (number < written_before) return;
    written_before = UINT64_MAX;
    seen = true;
    honest = honest && holds(there, begun);
    if (!under_way) give_back();
  }
  void on_link_down() {
    written_before = UINT64_MAX;
    if (!under_way) give_back();
  }

 private:
  /// Returns the address at which the processor sees the memory.
  static std::byte* bytes_of(const iovec& memory) {
    void* const alias = softcuda_alias(memory.iov_base, memory.iov_len);
    return static_cast<std::byte*>(alias ? alias : memory.iov_base);
  }
  static void fill(const iovec& memory, uint64_t number) {
    std::memset(bytes_of(memory), int(number), memory.iov_len);
  }
  static bool holds(const iovec& memory, uint64_t number) {
    return all_equal(bytes_of(memory), memory.iov_len, std::byte(number));
  }
};

}  // namespace erdma::test
