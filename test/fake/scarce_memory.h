#pragma once

#include <cstdlib>
#include <new>

#include "libcheck.h"

/// Memory that runs out, for the program of the one file that includes this: at a chosen allocation
/// of this thread.
namespace erdma::fake {

constexpr int kNever = -1;                ///< or the one that was to fail has
inline thread_local int t_left = kNever;  ///< allocations until the one that fails

inline void* allocate(std::size_t bytes, std::size_t alignment) noexcept {
  const bool fails = t_left == 0;
  if (t_left != kNever) --t_left;
  if (fails) return nullptr;
  return alignment ? std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment)
                   : std::malloc(bytes ? bytes : 1);
}

inline void* allocate_or_throw(std::size_t bytes, std::size_t alignment) {
  void* const memory = allocate(bytes, alignment);
  if (!memory) throw std::bad_alloc();
  return memory;
}

/// Each allocation of a call fails in turn: the call returns `error`. Returns what it does in the
/// end, with all memory that it asks for; `failures` counts the calls before.
template <typename Call>
auto without_each_allocation(int error, Call call, int* failures = nullptr) {
  for (int allocation = 0;; ++allocation) {
    t_left = allocation;
    const auto result = call();
    const bool failed = t_left == kNever;
    t_left = kNever;
    if (failures) *failures = allocation;
    if (!failed) return result;
    ck_assert_int_eq(int(result), error);
    ck_assert_int_lt(allocation, 100);
  }
}

}  // namespace erdma::fake

// All of them, because AddressSanitizer replaces each one that is left, and none by way of another.
// Inlined on one side alone, malloc and free look mismatched to the compiler.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  return erdma::fake::allocate_or_throw(bytes, 0);
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return erdma::fake::allocate_or_throw(bytes, std::size_t(alignment));
}
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return erdma::fake::allocate(bytes, 0);
}
[[gnu::noinline]] void* operator new[](std::size_t bytes) {
  return erdma::fake::allocate_or_throw(bytes, 0);
}
[[gnu::noinline]] void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return erdma::fake::allocate_or_throw(bytes, std::size_t(alignment));
}
[[gnu::noinline]] void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return erdma::fake::allocate(bytes, 0);
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
