#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "fi_erdma/pair/endpoint.h"

namespace fi_erdma::pair {

/// Fills memory with bytes that depend on their position and on the seed.
void fill(std::span<std::byte> data, uint64_t seed) noexcept;
/// Position of the first byte that differs from what fill() writes; -1 if there is none.
ptrdiff_t first_wrong(std::span<const std::byte> data, uint64_t seed) noexcept;

/// Host or GPU memory. It is registered with the endpoint's domain if the provider needs that or if
/// peers get access.
class Buffer {
 public:
  /// access: rights of peers (FI_REMOTE_READ ...), or 0. iface: FI_HMEM_SYSTEM or FI_HMEM_CUDA.
  Buffer(Endpoint& endpoint, size_t size, uint64_t access, fi_hmem_iface iface = FI_HMEM_SYSTEM);
  ~Buffer();
  Buffer(const Buffer&) = delete;

  void* at(size_t offset = 0) const noexcept { return x_data + offset; }
  size_t size() const noexcept { return x_size; }
  void* desc() const noexcept { return x_desc; }
  uint64_t key() const noexcept { return x_region ? fi_mr_key(x_region.get()) : 0; }
  /// The remote address that peers use for the byte at the offset.
  uint64_t remote(size_t offset = 0) const noexcept { return x_base + offset; }

  void fill(size_t offset, size_t length, uint64_t seed);
  ptrdiff_t first_wrong(size_t offset, size_t length, uint64_t seed) const;
  /// Inverts one byte.
  void spoil(size_t offset);

 private:
  void register_it(Endpoint& endpoint, uint64_t access);

  const fi_hmem_iface x_iface;
  const size_t x_size;
  std::vector<std::byte> x_host;
  std::byte* x_data = nullptr;
  Fid<fid_mr> x_region;
  void* x_desc = nullptr;
  uint64_t x_base = 0;
};

}  // namespace fi_erdma::pair
