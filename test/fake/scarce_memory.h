#pragma once

#include <atomic>
#include <cstdlib>
#include <new>

#include "libcheck.h"

/// Memory that runs out, for the program of the one file that includes this: of the allocations
/// that count, chosen ones fail.
namespace erdma::fake {

constexpr long kNever = -1;
inline std::atomic<long> g_first = kNever;  ///< number of the first allocation that fails
inline std::atomic<long> g_many = 0;        ///< that fail
inline std::atomic<long> g_seen = 0;        ///< allocations that counted so far
/// Null: all that a thread allocates within counted() counts. Otherwise those of callers for which
/// this is true do.
inline bool (*g_concerns)(const void* caller) = nullptr;
/// What any thread allocates counts, outside counted() too.
inline std::atomic<bool> g_anywhere = false;
inline thread_local bool t_counted = false;

/// From here on; `many` allocations fail in a row.
inline void run_short(long first, long many = 1) noexcept {
  g_first = kNever;
  g_seen = 0;
  g_many = many;
  g_first = first;
}
/// There is memory again. True: some allocation failed.
inline bool replenish() noexcept {
  const long first = g_first.exchange(kNever);
  return first != kNever && g_seen > first;
}

template <typename Call>
auto counted(Call call) {
  t_counted = true;
  const auto result = call();
  t_counted = false;
  return result;
}

/// Each allocation of a call fails in turn: the call returns `error`. Returns what it does in the
/// end, with all memory that it asks for. `failures` counts the calls before; without it there must
/// be one, lest nothing was tried.
template <typename Call>
auto without_each_allocation(int error, Call call, int* failures = nullptr) {
  for (int allocation = 0;; ++allocation) {
    run_short(allocation);
    const auto result = counted(call);
    if (failures) *failures = allocation;
    if (!replenish()) {
      ck_assert(failures || allocation > 0);
      return result;
    }
    ck_assert_int_eq(int(result), error);
    ck_assert_int_lt(allocation, 100);
  }
}

/// For a breakpoint.
[[gnu::noinline]] inline void* none() noexcept {
  return nullptr;
}

inline bool fails_now(const void* caller) noexcept {
  const long first = g_first.load(std::memory_order_relaxed);
  if (first == kNever || !(t_counted || g_anywhere)) return false;
  if (g_concerns && !g_concerns(caller)) return false;
  const long number = g_seen.fetch_add(1);
  return number >= first && number < first + g_many;
}

inline void* allocate(std::size_t bytes, std::size_t alignment, const void* caller) noexcept {
  if (fails_now(caller)) return none();
  return alignment ? std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment)
                   : std::malloc(bytes ? bytes : 1);
}

inline void* allocate_or_throw(std::size_t bytes, std::size_t alignment, const void* caller) {
  void* const memory = allocate(bytes, alignment, caller);
  if (!memory) throw std::bad_alloc();
  return memory;
}

}  // namespace erdma::fake

// All of them, because AddressSanitizer replaces each one that is left, and none by way of another.
// Inlined on one side alone, malloc and free look mismatched to the compiler.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  return erdma::fake::allocate_or_throw(bytes, 0, __builtin_return_address(0));
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return erdma::fake::allocate_or_throw(bytes, std::size_t(alignment), __builtin_return_address(0));
}
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return erdma::fake::allocate(bytes, 0, __builtin_return_address(0));
}
[[gnu::noinline]] void* operator new[](std::size_t bytes) {
  return erdma::fake::allocate_or_throw(bytes, 0, __builtin_return_address(0));
}
[[gnu::noinline]] void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return erdma::fake::allocate_or_throw(bytes, std::size_t(alignment), __builtin_return_address(0));
}
[[gnu::noinline]] void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return erdma::fake::allocate(bytes, 0, __builtin_return_address(0));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
