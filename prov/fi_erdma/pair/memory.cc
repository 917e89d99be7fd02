#include "fi_erdma/pair/memory.h"

#include <algorithm>
#include <cstring>

#include "fi_erdma/pair/cuda.h"

namespace fi_erdma::pair {
namespace {

constexpr uint64_t mix(uint64_t z) noexcept {  // splitmix64
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}
/// The 8 bytes from position 8 * index on.
constexpr uint64_t expected(size_t index, uint64_t seed) noexcept {
  return mix((index + 1) * 0x9e3779b97f4a7c15u + seed);
}

}  // namespace

void fill(std::span<std::byte> data, uint64_t seed) noexcept {
  for (size_t i = 0; i < data.size(); i += 8) {
    const uint64_t word = expected(i / 8, seed);
    std::memcpy(&data[i], &word, std::min<size_t>(8, data.size() - i));
  }
}

ptrdiff_t first_wrong(std::span<const std::byte> data, uint64_t seed) noexcept {
  for (size_t i = 0; i < data.size(); i += 8) {
    const uint64_t word = expected(i / 8, seed);
    const size_t length = std::min<size_t>(8, data.size() - i);
    if (std::memcmp(&data[i], &word, length) == 0) continue;
    const auto* bytes = reinterpret_cast<const std::byte*>(&word);
    return ptrdiff_t(i) + std::mismatch(bytes, bytes + length, &data[i]).first - bytes;
  }
  return -1;
}

Buffer::Buffer(Endpoint& endpoint, size_t size, uint64_t access, fi_hmem_iface iface)
    : x_iface(iface), x_size(size) {
  if (iface == FI_HMEM_CUDA) {
    x_data = static_cast<std::byte*>(cuda::allocate(size));
  } else {
    x_host.resize(size);
    x_data = x_host.data();
  }
  if (access || endpoint.needs_registration()) register_it(endpoint, access);
}

Buffer::~Buffer() {
  x_region.reset();
  if (x_iface == FI_HMEM_CUDA) cuda::free(x_data);
}

void Buffer::register_it(Endpoint& endpoint, uint64_t access) {
  static uint64_t next_key = 1;  // for providers that let the application choose keys
  const iovec piece{x_data, x_size};
  fi_mr_attr attr{};
  attr.mr_iov = &piece;
  attr.iov_count = 1;
  attr.access = access | FI_SEND | FI_RECV | FI_READ | FI_WRITE;
  attr.requested_key = next_key++;
  attr.iface = x_iface;
  fid_mr* region = nullptr;
  const int rc = fi_mr_regattr(endpoint.domain(), &attr, 0, &region);
  if (rc == -FI_EOPNOTSUPP) not_supported("fi_mr_regattr: this memory can't be registered");
  must(rc, "fi_mr_regattr");
  x_region.reset(region);
  x_desc = fi_mr_desc(region);
  const bool virtual_address = (endpoint.info().domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
  x_base = virtual_address ? uint64_t(reinterpret_cast<uintptr_t>(x_data)) : 0;
}

void Buffer::fill(size_t offset, size_t length, uint64_t seed) {
  if (x_iface != FI_HMEM_CUDA) return pair::fill({x_data + offset, length}, seed);
  std::vector<std::byte> bytes(length);
  pair::fill(bytes, seed);
  cuda::copy_in(x_data + offset, bytes.data(), length);
}

ptrdiff_t Buffer::first_wrong(size_t offset, size_t length, uint64_t seed) const {
  if (x_iface != FI_HMEM_CUDA) return pair::first_wrong({x_data + offset, length}, seed);
  std::vector<std::byte> bytes(length);
  cuda::copy_out(bytes.data(), x_data + offset, length);
  return pair::first_wrong(bytes, seed);
}

void Buffer::spoil(size_t offset) {
  std::byte byte{};
  const bool device = x_iface == FI_HMEM_CUDA;
  if (device) cuda::copy_out(&byte, x_data + offset, 1);
  std::byte& there = device ? byte : x_data[offset];
  there = ~there;
  if (device) cuda::copy_in(x_data + offset, &byte, 1);
}

}  // namespace fi_erdma::pair
