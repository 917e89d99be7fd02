#pragma once

#include <atomic>

/// All memory orders by which processes hand each other words and bytes of shared memory stand here
/// and in region_gate.h. Their order is all that makes them right, and x86 keeps more of it than
/// other processors: so the words and the fences are parameters, and
/// test/transport/ordering_test.cc runs these functions in a model of weakly ordered memory.
/// Elsewhere a word is only loaded or stored relaxed, by its one writer or as a hint.
namespace erdma::transport::shm {

/// What was stored before, anywhere, is seen by every process that sees this value.
template <typename Word, typename Value>
void store_release(Word& word, Value value) noexcept {
  word.store(value, std::memory_order_release);
}
template <typename Word>
auto load_acquire(const Word& word) noexcept {
  return word.load(std::memory_order_acquire);
}

/// As store_release(), for a word that several processes set bits of.
template <typename Word, typename Value>
void or_release(Word& word, Value bits) noexcept {
  word.fetch_or(bits, std::memory_order_release);
}

// By processes that both change a word: each sees what the other stored before its change.
template <typename Word, typename Value>
auto exchange_acq_rel(Word& word, Value value) noexcept {
  return word.exchange(value, std::memory_order_acq_rel);
}
/// False: the word was not `seen`, which is then what it is.
template <typename Word, typename Value>
bool compare_exchange_acq_rel(Word& word, Value& seen, Value value) noexcept {
  return word.compare_exchange_strong(seen, value, std::memory_order_acq_rel,
                                      std::memory_order_acquire);
}

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
  return waiting.load(std::memory_order_relaxed) && exchange_acq_rel(waiting, 0u);
}

}  // namespace erdma::transport::shm
