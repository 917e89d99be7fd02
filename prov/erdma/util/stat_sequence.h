#pragma once

#include <atomic>

/// A sequence lock: a reader of statistics has read a consistent block if the sequence is even, and
/// the same before and after. The words and the fences are template parameters, so that
/// test/util/stat_sequence_test.cc can run these functions in a model of weakly ordered memory: x86
/// would hide a missing fence.
namespace erdma::stat_layout {

struct HardwareOrder {
  static void fence(std::memory_order order) noexcept { std::atomic_thread_fence(order); }
};

/// A reader that sees any change made after this call also sees the odd number.
template <typename Order = HardwareOrder, typename Word>
void begin_change(Word&& sequence) noexcept {
  sequence.store(sequence.load(std::memory_order_relaxed) | 1u, std::memory_order_relaxed);
  Order::fence(std::memory_order_release);
}
template <typename Word>
void end_change(Word&& sequence) noexcept {
  sequence.store((sequence.load(std::memory_order_relaxed) | 1u) + 1u, std::memory_order_release);
}

/// To be called before reading the block. An odd result: the block is being changed.
template <typename Word>
auto begin_reading(const Word& sequence) noexcept {
  return sequence.load(std::memory_order_acquire);
}
/// To be called after reading the block. True: the block did not change meanwhile.
template <typename Order = HardwareOrder, typename Word, typename Value>
bool unchanged(const Word& sequence, Value before) noexcept {
  Order::fence(std::memory_order_acquire);
  return sequence.load(std::memory_order_relaxed) == before;
}

}  // namespace erdma::stat_layout
