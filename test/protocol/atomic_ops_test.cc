#include "protocol/atomic_ops.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <complex>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "libcheck.h"
#include "quiet_fork.h"
#include "stopped_at_page.h"
#include "util/process_epoch.h"

namespace {

using erdma::protocol::atomic_function;
using erdma::protocol::AtomicOp;
using erdma::protocol::Datatype;
using erdma::protocol::datatype_size;
using erdma::protocol::kAtomicOps;
using erdma::protocol::kDatatypes;

template <typename T>
const std::byte* bytes(const T& value) {
  return reinterpret_cast<const std::byte*>(&value);
}

/// Applies the operation to one element, and checks that the old value is fetched.
template <typename T>
T run(AtomicOp op, Datatype type, T target, T operand, T compare = T()) {
  ck_assert_uint_eq(datatype_size(unsigned(type)), sizeof(T));
  const auto function = atomic_function(unsigned(op), unsigned(type));
  ck_assert(function != nullptr);
  T changed = target, fetched{};
  function(reinterpret_cast<std::byte*>(&changed), bytes(operand), bytes(compare),
           reinterpret_cast<std::byte*>(&fetched), 1);
  ck_assert(fetched == target);
  T again = target;
  function(reinterpret_cast<std::byte*>(&again), bytes(operand), bytes(compare), nullptr, 1);
  ck_assert(again == changed);
  return changed;
}

struct IntegerCase {
  AtomicOp op;
  int target, operand, compare;
  int expected;
};
constexpr IntegerCase kIntegerCases[] = {
    {AtomicOp::min, 5, 3, 0, 3},
    {AtomicOp::min, 3, 5, 0, 3},
    {AtomicOp::max, 5, 3, 0, 5},
    {AtomicOp::max, 3, 5, 0, 5},
    {AtomicOp::sum, 5, 3, 0, 8},
    {AtomicOp::prod, 5, 3, 0, 15},
    {AtomicOp::logical_or, 0, 3, 0, 1},
    {AtomicOp::logical_or, 0, 0, 0, 0},
    {AtomicOp::logical_and, 4, 3, 0, 1},
    {AtomicOp::logical_and, 4, 0, 0, 0},
    {AtomicOp::logical_xor, 4, 3, 0, 0},
    {AtomicOp::logical_xor, 4, 0, 0, 1},
    {AtomicOp::bit_or, 5, 3, 0, 7},
    {AtomicOp::bit_and, 5, 3, 0, 1},
    {AtomicOp::bit_xor, 5, 3, 0, 6},
    {AtomicOp::read, 5, 3, 0, 5},
    {AtomicOp::write, 5, 3, 0, 3},
    {AtomicOp::swap_if_equal, 5, 3, 5, 3},
    {AtomicOp::swap_if_equal, 5, 3, 4, 5},
    {AtomicOp::swap_if_not_equal, 5, 3, 5, 5},
    {AtomicOp::swap_if_not_equal, 5, 3, 4, 3},
    {AtomicOp::swap_if_less_or_equal, 5, 3, 5, 3},
    {AtomicOp::swap_if_less_or_equal, 5, 3, 6, 5},
    {AtomicOp::swap_if_less, 5, 3, 4, 3},
    {AtomicOp::swap_if_less, 5, 3, 5, 5},
    {AtomicOp::swap_if_greater_or_equal, 5, 3, 5, 3},
    {AtomicOp::swap_if_greater_or_equal, 5, 3, 4, 5},
    {AtomicOp::swap_if_greater, 5, 3, 6, 3},
    {AtomicOp::swap_if_greater, 5, 3, 5, 5},
    {AtomicOp::masked_swap, 0b1010, 0b0101, 0b0011, 0b1001},
};

__extension__ using Int128 = __int128;
__extension__ using Uint128 = unsigned __int128;

template <typename T>
void expect(const IntegerCase& c, Datatype type) {
  ck_assert(run(c.op, type, T(c.target), T(c.operand), T(c.compare)) == T(c.expected));
}

TEST(operation_means_what_fi_atomic_says_for_every_integer, std::size(kIntegerCases)) {
  const IntegerCase& c = kIntegerCases[_i];
  expect<int8_t>(c, Datatype::int8);
  expect<uint8_t>(c, Datatype::uint8);
  expect<int16_t>(c, Datatype::int16);
  expect<uint16_t>(c, Datatype::uint16);
  expect<int32_t>(c, Datatype::int32);
  expect<uint32_t>(c, Datatype::uint32);
  expect<int64_t>(c, Datatype::int64);
  expect<uint64_t>(c, Datatype::uint64);
  expect<Int128>(c, Datatype::int128);
  expect<Uint128>(c, Datatype::uint128);
  const bool bits = c.op == AtomicOp::bit_or || c.op == AtomicOp::bit_and ||
                    c.op == AtomicOp::bit_xor || c.op == AtomicOp::masked_swap;
  if (bits) return;
  expect<float>(c, Datatype::float32);
  expect<double>(c, Datatype::float64);
  expect<long double>(c, Datatype::long_double);
}

TEST(signed_elements_compare_as_such_and_sums_wrap_around) {
  ck_assert_int_eq(run<int8_t>(AtomicOp::min, Datatype::int8, 1, -1), -1);
  ck_assert_uint_eq(run<uint8_t>(AtomicOp::min, Datatype::uint8, 1, uint8_t(-1)), 1);
  ck_assert_int_eq(run<int8_t>(AtomicOp::sum, Datatype::int8, 127, 1), -128);
  ck_assert_int_eq(run<int32_t>(AtomicOp::sum, Datatype::int32, INT32_MAX, 1), INT32_MIN);
  ck_assert_uint_eq(run<uint16_t>(AtomicOp::prod, Datatype::uint16, 65535, 65535), 1);
  ck_assert_int_eq(run<int64_t>(AtomicOp::prod, Datatype::int64, INT64_MAX, 2), -2);
}

TEST(complex_numbers_multiply_as_such) {
  using C = std::complex<double>;
  ck_assert(run(AtomicOp::prod, Datatype::complex64, C(1, 2), C(3, 4)) == C(-5, 10));
  using F = std::complex<float>;
  ck_assert(run(AtomicOp::sum, Datatype::complex32, F(1, 2), F(3, 4)) == F(4, 6));
  ck_assert(run(AtomicOp::swap_if_equal, Datatype::complex32, F(1, 2), F(3, 4), F(1, 2)) ==
            F(3, 4));
  using L = std::complex<long double>;
  ck_assert(run(AtomicOp::logical_and, Datatype::complex_long_double, L(0, 2), L(3, 0)) == L(1));
}

TEST(what_has_no_meaning_is_not_offered) {
  for (const auto type :
       {Datatype::complex32, Datatype::complex64, Datatype::complex_long_double}) {
    for (const auto op :
         {AtomicOp::min, AtomicOp::max, AtomicOp::swap_if_less, AtomicOp::swap_if_greater_or_equal})
      ck_assert(atomic_function(unsigned(op), unsigned(type)) == nullptr);
  }
  for (const auto type : {Datatype::float32, Datatype::long_double, Datatype::complex64})
    for (const auto op : {AtomicOp::bit_or, AtomicOp::masked_swap})
      ck_assert(atomic_function(unsigned(op), unsigned(type)) == nullptr);
  ck_assert(atomic_function(kAtomicOps, 0) == nullptr);
  ck_assert(atomic_function(0, kDatatypes) == nullptr);
  ck_assert(atomic_function(~0u, ~0u) == nullptr);
  ck_assert_uint_eq(datatype_size(kDatatypes), 0);
}

TEST(elements_need_not_be_aligned) {
  alignas(16) std::byte memory[64] = {};
  const uint64_t operand[2] = {5, 6};
  atomic_function(unsigned(AtomicOp::sum), unsigned(Datatype::uint64))(memory + 3, bytes(operand),
                                                                       nullptr, nullptr, 2);
  uint64_t result[2];
  std::memcpy(result, memory + 3, sizeof(result));
  ck_assert_uint_eq(result[0], 5);
  ck_assert_uint_eq(result[1], 6);
  ck_assert(memory[2] == std::byte(0) && memory[19] == std::byte(0));
}

// Several threads add up elements: some types are changed by one instruction, others are not.
template <typename T>
void add_up(Datatype type) {
  constexpr int kThreads = 4, kEach = 20000;
  alignas(16) T total{};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&] {
      const T one(1);
      for (int n = 0; n < kEach; ++n)
        atomic_function(unsigned(AtomicOp::sum), unsigned(type))(
            reinterpret_cast<std::byte*>(&total), bytes(one), nullptr, nullptr, 1);
    });
  for (std::thread& thread : threads) thread.join();
  ck_assert(total == T(kThreads * kEach));
}

/// Operations that leave elements of value 2 unchanged.
struct Unchanging {
  AtomicOp op;
  uint8_t operand, compare;
};
constexpr Unchanging kUnchanging[] = {
    {AtomicOp::read, 0, 0},
    {AtomicOp::swap_if_equal, 5, 3},
    {AtomicOp::swap_if_not_equal, 5, 2},
    {AtomicOp::swap_if_less_or_equal, 5, 3},
    {AtomicOp::swap_if_less, 5, 2},
    {AtomicOp::swap_if_greater_or_equal, 5, 1},
    {AtomicOp::swap_if_greater, 5, 2},
    {AtomicOp::masked_swap, 5, 0},
    {AtomicOp::bit_or, 2, 0},
};

/// A store would undo a concurrent store of the owner, and would end a process whose memory is
/// read-only.
TEST(what_changes_nothing_stores_nothing, std::size(kUnchanging)) {
  const Unchanging& c = kUnchanging[_i];
  const auto page = size_t(sysconf(_SC_PAGESIZE));
  auto* const memory = static_cast<std::byte*>(
      mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ck_assert(memory != MAP_FAILED);
  constexpr size_t kCount = 3;
  for (unsigned type = 0; type < kDatatypes; ++type) {
    const auto function = atomic_function(unsigned(c.op), type);
    const size_t size = datatype_size(type);
    for (size_t offset = 0; function && offset <= 1; ++offset) {
      std::byte operands[32 * kCount]{}, compares[32 * kCount]{}, fetched[32 * kCount]{};
      ck_assert_int_eq(mprotect(memory, page, PROT_READ | PROT_WRITE), 0);
      std::memset(memory, 0, page);
      for (size_t i = 0; i < kCount; ++i) {
        memory[offset + i * size] = std::byte(2);
        operands[i * size] = std::byte(c.operand);
        compares[i * size] = std::byte(c.compare);
      }
      ck_assert_int_eq(mprotect(memory, page, PROT_READ), 0);
      function(memory + offset, operands, compares, fetched, kCount);
      for (size_t i = 0; i < kCount; ++i)  // the padding of a long double need not be fetched
        ck_assert(std::memcmp(memory + offset + i * size, fetched + i * size,
                              std::min<size_t>(size, 10)) == 0);
      function(memory + offset, operands, compares, nullptr, kCount);
    }
  }
  munmap(memory, page);
}

TEST(no_sum_is_lost_between_threads) {
  add_up<uint64_t>(Datatype::uint64);
  add_up<double>(Datatype::float64);
  add_up<Int128>(Datatype::int128);
  add_up<std::complex<double>>(Datatype::complex64);
}

TEST(no_sum_is_lost_between_processes_that_share_the_memory) {
  constexpr int kEach = 50000;
  auto* total = static_cast<uint64_t*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const auto add = [&] {
    const uint64_t one = 1;
    for (int n = 0; n < kEach; ++n)
      atomic_function(unsigned(AtomicOp::sum), unsigned(Datatype::uint64))(
          reinterpret_cast<std::byte*>(total), bytes(one), nullptr, nullptr, 1);
  };
  const pid_t child = fork();
  if (child == 0) {
    add();
    _exit(0);
  }
  add();
  int status = 0;
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert_int_eq(status, 0);
  ck_assert_uint_eq(*total, 2 * kEach);
  munmap(total, 4096);
}

/// A thread of the parent is in the middle of a change while the parent forks.
TEST(a_forked_child_waits_for_no_change_of_its_parent) {
  erdma::util::register_fork_handler();
  const auto page = size_t(getpagesize());
  auto* const there = static_cast<std::byte*>(
      mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  const auto add = atomic_function(unsigned(AtomicOp::sum), unsigned(Datatype::int128));
  Int128 here = 5;
  const Int128 one = 1;
  bool added = false;
  {
    const erdma::test::StoppedAtPage change(there,
                                            [&] { add(there, bytes(one), nullptr, nullptr, 1); });
    added = erdma::test::holds_in_child([&] {
      add(reinterpret_cast<std::byte*>(&here), bytes(one), nullptr, nullptr, 1);
      return here == 6;
    });
  }
  ck_assert(added);
  munmap(there, page);
}

}  // namespace
