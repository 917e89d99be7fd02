#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

namespace erdma::transport::verbs {

/// The GPU memory that a NIC can't register: all memory of some GPUs, and other allocations. An
/// allocation is forgotten, and tried again, once four others with the same remainder of their ids
/// are refused. Not thread-safe, except for any_gpu().
class GpuRefusals {
 public:
  /// True if `gpu` of contains() matters. Otherwise the driver need not be asked for it.
  bool any_gpu() const noexcept { return x_gpus.load(std::memory_order_relaxed) != 0; }
  /// `gpu`: CUDA's number of the GPU; -1: unknown. `id`: that of the allocation, never 0.
  bool contains(int gpu, uint64_t id) const noexcept {
    return (x_gpus.load(std::memory_order_relaxed) & bit(gpu)) != 0 ||
           x_sets[id % x_sets.size()].contains(id);
  }
  void add_gpu(int gpu, uint64_t id) noexcept {
    if (!bit(gpu)) return add(id);
    x_gpus.store(x_gpus.load(std::memory_order_relaxed) | bit(gpu), std::memory_order_relaxed);
  }
  void remove_gpu(int gpu) noexcept {
    x_gpus.store(x_gpus.load(std::memory_order_relaxed) & ~bit(gpu), std::memory_order_relaxed);
  }
  void add(uint64_t id) noexcept {
    Set& set = x_sets[id % x_sets.size()];
    // Two threads may have tried the same allocation.
    if (!set.contains(id)) set.ids[set.next++ % set.ids.size()] = id;
  }

 private:
  struct Set {
    bool contains(uint64_t id) const noexcept {
      return std::find(ids.begin(), ids.end(), id) != ids.end();
    }

    std::array<uint64_t, 4> ids{};  ///< 0: none
    uint32_t next = 0;              ///< of the places, modulo their number; that of the oldest
  };

  static uint64_t bit(int gpu) noexcept { return gpu >= 0 && gpu < 64 ? uint64_t(1) << gpu : 0; }

  std::atomic<uint64_t> x_gpus{0};  ///< a bit for each
  std::array<Set, 256> x_sets{};    ///< each id is in that of its remainder
};

}  // namespace erdma::transport::verbs
