#include "util/stat_sequence.h"

#include "fake/weak_memory.h"
#include "libcheck.h"

/// The writer and the reader of a block of statistics, in a model of C++'s memory order.
namespace erdma::stat_layout {
namespace {

using fake::weak::Atomic;
using fake::weak::Model;
using fake::weak::NoOrder;
using fake::weak::Order;

constexpr auto kPlain = std::memory_order_relaxed;

/// The writer changes both words of a block. Afterwards they are equal again.
template <typename Writer, typename Reader>
struct Change {
  static constexpr size_t kThreads = 2;
  Atomic<uint32_t> sequence{2};
  Atomic<int> one{1}, other{1};
  int read_one = 0, read_other = 0;
  bool whole = false;

  void thread(size_t index) {
    if (index == 0) {
      begin_change<Writer>(sequence);
      one.store(2, kPlain);
      other.store(2, kPlain);
      end_change(sequence);
    } else {
      const uint32_t before = begin_reading(sequence);
      if (before % 2 != 0) return;
      read_one = one.load(kPlain);
      read_other = other.load(kPlain);
      whole = unchanged<Reader>(sequence, before);
    }
  }
  bool wrong() const { return whole && read_one != read_other; }
};

TEST(block_that_did_not_change_is_of_one_moment) {
  uint64_t runs = 0;
  ck_assert_uint_eq((Model::wrong_runs<Change<Order, Order>>(&runs)), 0);
  ck_assert_uint_gt(runs, 100);
}

TEST(each_fence_of_a_change_is_needed) {
  ck_assert_uint_gt((Model::wrong_runs<Change<NoOrder, Order>>()), 0);
  ck_assert_uint_gt((Model::wrong_runs<Change<Order, NoOrder>>()), 0);
}

/// A block that is given back and taken again: the second change begins inside the first.
TEST(change_inside_a_change_ends_with_an_even_number) {
  std::atomic<uint32_t> sequence{2};
  begin_change(sequence);
  begin_change(sequence);
  ck_assert_uint_eq(begin_reading(sequence), 3);
  end_change(sequence);
  ck_assert_uint_eq(begin_reading(sequence), 4);
  ck_assert(unchanged(sequence, 4u));
  begin_change(sequence);
  ck_assert(!unchanged(sequence, 4u));
}

}  // namespace
}  // namespace erdma::stat_layout
