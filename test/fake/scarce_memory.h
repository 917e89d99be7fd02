#pragma once

#include <atomic>
#include <cstdlib>
#include <new>

#include "libcheck.h"

/// Lets chosen allocations fail in a program. One file of the program may include this header.
namespace erdma::fake {

constexpr long kNever = -1;
inline std::atomic<long> g_first = kNever;  ///< number of the first allocation that fails
inline std::atomic<long> g_many = 0;        ///< number of allocations that fail
inline std::atomic<long> g_seen = 0;        ///< number of counted allocations so far
/// Selects the callers whose allocations count. Null: all allocations within counted() count.
inline bool (*g_concerns)(const void* caller) = nullptr;
/// True: allocations of any thread count, also outside counted().
inline std::atomic<bool> g_anywhere = false;
inline thread_local bool t_counted = false;

/// Lets `many` allocations fail, beginning with number `first` from now.
inline void run_short(long first, long many = 1) noexcept {
  g_first = kNever;
  g_seen = 0;
  g_many = many;
  g_first = first;
}
/// Ends the failures. Returns true if an allocation failed.
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

/// Lets each allocation of a call fail in turn, which must make it return `error`. Returns the
/// result of the call without a failure. `failures` counts the failed calls. Without it, at least
/// one call must fail.
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

/// A place for a breakpoint.
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

// All operators are replaced, as AddressSanitizer would replace each of the others and would not
// call these. If only one of malloc and free is inlined, the compiler warns of a mismatch.
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
