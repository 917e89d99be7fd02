#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace erdma::transport::verbs {

/// The GPU memory that a NIC can't register: all memory of some GPUs, and the latest other
/// allocations. Not thread-safe, except for any_gpu().
class GpuRefusals {
 public:
  /// True if `gpu` of contains() matters. Otherwise the driver need not be asked for it.
  bool any_gpu() const noexcept { return x_gpus.load(std::memory_order_relaxed) != 0; }
  /// `gpu`: CUDA's number of the GPU; -1: unknown. `id`: that of the allocation.
  bool contains(int gpu, uint64_t id) const noexcept {
    const auto* const end = x_ids.data() + std::min(x_count, x_ids.size());
    return (x_gpus.load(std::memory_order_relaxed) & bit(gpu)) != 0 ||
           std::find<const uint64_t*>(x_ids.data(), end, id) != end;
  }
  void add_gpu(int gpu, uint64_t id) noexcept {
    if (!bit(gpu)) return add(id);
    x_gpus.store(x_gpus.load(std::memory_order_relaxed) | bit(gpu), std::memory_order_relaxed);
  }
  void add(uint64_t id) noexcept { x_ids[x_count++ % x_ids.size()] = id; }

 private:
  static uint64_t bit(int gpu) noexcept { return gpu >= 0 && gpu < 64 ? uint64_t(1) << gpu : 0; }

  std::atomic<uint64_t> x_gpus{0};  ///< a bit for each
  std::array<uint64_t, 64> x_ids{};
  size_t x_count = 0;  ///< of all that were added, also of those that are forgotten
};

}  // namespace erdma::transport::verbs
