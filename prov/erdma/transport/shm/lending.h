#pragma once

#include <atomic>
#include <cstdint>

#include "transport/shm/layout.h"

/// Memory that a peer accesses by itself, with CMA. No device refuses what is over, so the owner
/// recalls what it lent in a word that the borrower looks at before each call, having said that it
/// is inside: either the borrower sees the recall, or the owner sees it inside (both sequentially
/// consistent). The words lie in the control words of the borrower's cold ring, in the memory of
/// the owner.
namespace erdma::transport::shm {

/// Of a borrower. Not thread-safe. Control is ColdControl, or its model (ordering_test.cc).
template <typename Control>
class BorrowingOf {
 public:
  BorrowingOf() noexcept = default;
  /// `heard`: recalls that this side has heard of over the link, perhaps before it knew the place.
  /// Not what the place counts: what was recalled by now, it may not have heard of.
  BorrowingOf(Control& control, uint64_t heard) noexcept : x_control(&control), x_heard(heard) {}

  /// False: something was recalled that this side has not heard of. True: leave() is to follow.
  bool enter() noexcept {
    x_control->inside.store(1, std::memory_order_seq_cst);
    if (x_control->recalls.load(std::memory_order_seq_cst) == x_heard) return true;
    leave();
    return false;
  }
  void leave() noexcept { x_control->inside.store(0, std::memory_order_release); }
  void recalled() noexcept { ++x_heard; }

 private:
  Control* x_control = nullptr;
  uint64_t x_heard = 0;
};
using Borrowing = BorrowingOf<ColdControl>;

/// Of the owner. What a borrower writes is believed only so far as it concerns itself.
template <typename Control>
class LendingOf {
 public:
  explicit LendingOf(Control& control) noexcept : x_control(control) {}

  void recall() noexcept { x_control.recalls.fetch_add(1, std::memory_order_seq_cst); }
  /// For good: nobody counts that far.
  void end() noexcept {
    if (!x_ended) x_control.recalls.fetch_add(kEnd, std::memory_order_seq_cst);
    x_ended = true;
  }
  bool inside() const noexcept { return x_control.inside.load(std::memory_order_seq_cst) != 0; }
  bool take_help() noexcept {
    return x_control.help.load(std::memory_order_relaxed) &&
           x_control.help.exchange(0, std::memory_order_acq_rel);
  }

 private:
  static constexpr uint64_t kEnd = uint64_t(1) << 32;
  Control& x_control;
  bool x_ended = false;
};
using Lending = LendingOf<ColdControl>;

/// What a peer needs to know of memory that was lent to it, in an Exposure of this size.
struct LentMemory {
  uint64_t address;  ///< in the owner's process
  uint64_t length;
  uint32_t index;  ///< of LentTable::lend()
  uint32_t generation;
};
static_assert(sizeof(LentMemory) == 24);

}  // namespace erdma::transport::shm
