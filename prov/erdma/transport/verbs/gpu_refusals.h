#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace erdma::transport::verbs {

/// The GPU memory that a NIC can't register: all memory of some GPUs, and other allocations. An
/// allocation is forgotten, and tried again, once another one with the same remainder of its id is
/// refused. Not thread-safe, except for any_gpu().
class GpuRefusals {
 public:
  /// True if `gpu` of contains() matters. Otherwise the driver need not be asked for it.
  bool any_gpu() const noexcept { return x_gpus.load(std::memory_order_relaxed) != 0; }
  /// `gpu`: CUDA's number of the GPU; -1: unknown. `id`: that of the allocation, never 0.
  bool contains(int gpu, uint64_t id) const noexcept {
    return (x_gpus.load(std::memory_order_relaxed) & bit(gpu)) != 0 ||
           x_ids[id % x_ids.size()] == id;
  }
  void add_gpu(int gpu, uint64_t id) noexcept {
    if (!bit(gpu)) return add(id);
    x_gpus.store(x_gpus.load(std::memory_order_relaxed) | bit(gpu), std::memory_order_relaxed);
  }
  void remove_gpu(int gpu) noexcept {
    x_gpus.store(x_gpus.load(std::memory_order_relaxed) & ~bit(gpu), std::memory_order_relaxed);
  }
  void add(uint64_t id) noexcept { x_ids[id % x_ids.size()] = id; }

 private:
  static uint64_t bit(int gpu) noexcept { return gpu >= 0 && gpu < 64 ? uint64_t(1) << gpu : 0; }

  std::atomic<uint64_t> x_gpus{0};     ///< a bit for each
  std::array<uint64_t, 1024> x_ids{};  ///< each at its remainder; 0: none
};

}  // namespace erdma::transport::verbs
