#pragma once

#include <atomic>

namespace erdma::util {

/// The words and orders of a lock that one side takes far more often than the other: no atomic
/// read-modify-write, and no fence, where the frequent side finds the gate open. Words and fences
/// are parameters, because test/util/bias_order_test.cc runs this in a model of weakly ordered
/// memory.
///
/// The frequent side stores `inside` and then loads `gate`; the rare side stores `gate`, executes a
/// fence on all threads, and then loads `inside`. So at least one of them sees the other.
template <typename Word, typename Barrier>
class BiasOrder {
 public:
  explicit BiasOrder(bool open) noexcept : x_inside(0), x_gate(open ? 0 : 1) {}

  // The frequent side: one thread at a time, whom the application orders.

  /// False: the gate is closed. The caller then calls leave(), and takes the mutex.
  bool enter() noexcept {
    x_inside.store(1, std::memory_order_relaxed);
    Barrier::here();
    return x_gate.load(std::memory_order_relaxed) == 0;
  }
  void leave() noexcept { x_inside.store(0, std::memory_order_release); }
  /// The caller holds the mutex, and is not inside.
  void open() noexcept { x_gate.store(0, std::memory_order_relaxed); }

  // The rare side. The caller holds the mutex.

  /// The gate stays closed until the frequent side opens it. False: Barrier::everywhere() failed.
  bool close() noexcept {
    if (x_gate.load(std::memory_order_relaxed) != 0) return true;
    x_gate.store(1, std::memory_order_relaxed);
    return Barrier::everywhere();
  }
  /// The caller, which has closed the gate, waits until this is false.
  bool occupied() const noexcept { return x_inside.load(std::memory_order_acquire) != 0; }

 private:
  Word x_inside, x_gate;
};

}  // namespace erdma::util
