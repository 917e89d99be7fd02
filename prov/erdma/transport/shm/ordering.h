#pragma once

#include <atomic>

/// Steps of two processes that each tell the other something and then look at what the other told.
/// Their order is all that makes them right, and x86 keeps more of it than other processors: so the
/// words and the fences are parameters, and test/transport/ordering_test.cc runs these functions in
/// a model of weakly ordered memory.
namespace erdma::transport::shm {

struct HardwareOrder {
  static void fence(std::memory_order order) noexcept { std::atomic_thread_fence(order); }
};

/// By the owner of memory that a peer may be reading. After return the memory may change: the fence
/// keeps those stores, which may be anybody's and plain, behind this one. A sequentially consistent
/// store alone does not on aarch64, where only what was before it stays before it.
template <typename Order = HardwareOrder, typename Word, typename Value>
void tell_before_reuse(Word& word, Value value) noexcept {
  word.store(value, std::memory_order_relaxed);
  Order::fence(std::memory_order_release);
}

/// By who has read the last byte: if one of them was of the new use, the word says so. The fence
/// keeps the reads before the look, which an acquiring load would not.
template <typename Order = HardwareOrder, typename Word>
auto look_after_reading(const Word& word) noexcept {
  Order::fence(std::memory_order_acquire);
  return word.load(std::memory_order_relaxed);
}

/// By who has published what a sleeper may be waiting for. The sleeper sets `waiting`, fences, and
/// looks for the last time; this side publishes, fences, and looks at `waiting`: one of the two
/// sees the other. True = it is to be woken, by this caller alone.
template <typename Order = HardwareOrder, typename Word>
bool take_sleeper(Word& waiting) noexcept {
  Order::fence(std::memory_order_seq_cst);
  return waiting.load(std::memory_order_relaxed) && waiting.exchange(0, std::memory_order_acq_rel);
}

}  // namespace erdma::transport::shm
