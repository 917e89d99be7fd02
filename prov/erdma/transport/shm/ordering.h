#pragma once

#include <atomic>

/// All memory orders by which processes exchange words and bytes of shared memory are in this file
/// and in region_gate.h. Nothing but the order makes these exchanges correct, and x86 orders more
/// than other processors do. So the words and the fences are parameters, and
/// test/transport/ordering_test.cc runs these functions in a model of weakly ordered memory. All
/// other code only loads or stores words relaxed: by the one writer, or as a hint.
namespace erdma::transport::shm {

/// Every process that sees this value also sees all that was stored before it.
template <typename Word, typename Value>
void store_release(Word& word, Value value) noexcept {
  word.store(value, std::memory_order_release);
}
template <typename Word>
auto load_acquire(const Word& word) noexcept {
  return word.load(std::memory_order_acquire);
}

/// Like store_release(), for a word in which several processes set bits.
template <typename Word, typename Value>
void or_release(Word& word, Value bits) noexcept {
  word.fetch_or(bits, std::memory_order_release);
}

// For a word that several processes change: each sees what the others stored before their change.
template <typename Word, typename Value>
auto exchange_acq_rel(Word& word, Value value) noexcept {
  return word.exchange(value, std::memory_order_acq_rel);
}
/// False: the word differed from `seen`, which then holds its value.
template <typename Word, typename Value>
bool compare_exchange_acq_rel(Word& word, Value& seen, Value value) noexcept {
  return word.compare_exchange_strong(seen, value, std::memory_order_acq_rel,
                                      std::memory_order_acquire);
}

struct HardwareOrder {
  static void fence(std::memory_order order) noexcept { std::atomic_thread_fence(order); }
};

/// The owner of memory that a peer may be reading stores `value`; after the return the memory may
/// change. The fence keeps the later stores, which may be plain and in any code, behind this one. A
/// sequentially consistent store alone does not do that on aarch64: it orders only what precedes
/// it.
template <typename Order = HardwareOrder, typename Word, typename Value>
void tell_before_reuse(Word& word, Value value) noexcept {
  word.store(value, std::memory_order_relaxed);
  Order::fence(std::memory_order_release);
}

/// A reader calls this after its last byte: if one of the bytes belonged to a later use, the word
/// says so. The fence keeps the reads before the load of the word, which an acquire load would not
/// do.
template <typename Order = HardwareOrder, typename Word>
auto look_after_reading(const Word& word) noexcept {
  Order::fence(std::memory_order_acquire);
  return word.load(std::memory_order_relaxed);
}

/// A side that has published what a sleeper may be waiting for calls this. The sleeper sets
/// `waiting`, fences and looks for the last time; this side publishes, fences and looks at
/// `waiting`: at least one of them sees the other. True = this caller, and no other, must wake the
/// sleeper.
template <typename Order = HardwareOrder, typename Word>
bool take_sleeper(Word& waiting) noexcept {
  Order::fence(std::memory_order_seq_cst);
  return waiting.load(std::memory_order_relaxed) && exchange_acq_rel(waiting, 0u);
}

/// The same where several processes may wake one sleeper. Each that sees the sleeper rings until
/// one of them has rung, because any of them may be stopped before it rings. `armed`: 0, or the
/// number of the sleep: a process that clears the word late must not clear that of a later sleep.
/// Returns false if ring() did; then it has not rung.
template <typename Order = HardwareOrder, typename Word, typename Ring>
bool wake_sleeper(Word& armed, Ring&& ring) noexcept {
  Order::fence(std::memory_order_seq_cst);
  auto sleep = armed.load(std::memory_order_relaxed);
  if (sleep == 0) return true;
  if (!ring()) return false;
  (void)compare_exchange_acq_rel(armed, sleep, 0u);
  return true;
}

}  // namespace erdma::transport::shm
