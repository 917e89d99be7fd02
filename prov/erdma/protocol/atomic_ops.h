#pragma once

#include <cstddef>
#include <cstdint>

/// The arithmetic of fi_atomic(3). Packets carry datatypes and operations as the numbers of
/// libfabric's ABI; fabric/endpoint_atomic.cc asserts that the enumerations below have the same.
namespace erdma::protocol {

enum class Datatype : uint8_t {
  int8,
  uint8,
  int16,
  uint16,
  int32,
  uint32,
  int64,
  uint64,
  float32,
  float64,
  complex32,
  complex64,
  long_double,
  complex_long_double,
  int128,
  uint128,
};
inline constexpr size_t kDatatypes = 16;

enum class AtomicOp : uint8_t {
  min,
  max,
  sum,
  prod,
  logical_or,
  logical_and,
  bit_or,
  bit_and,
  logical_xor,
  bit_xor,
  read,
  write,
  swap_if_equal,
  swap_if_not_equal,
  swap_if_less_or_equal,
  swap_if_less,
  swap_if_greater_or_equal,
  swap_if_greater,
  masked_swap,
};
inline constexpr size_t kAtomicOps = 19;

/// Returns whether `op` takes a value to compare with, or a mask.
constexpr bool compares(AtomicOp op) noexcept {
  return op >= AtomicOp::swap_if_equal;
}

/// Applies one operation to `count` elements at `target`. The change of an element is atomic among
/// all changes that this process makes through these functions; of elements of up to eight aligned
/// bytes, also among all processes that share the memory. A pointer that the operation does not use
/// (operand of a read, compare, result) may be null. No pointer needs to be aligned.
using AtomicFunction = void (*)(std::byte* target, const std::byte* operand,
                                const std::byte* compare, std::byte* result, size_t count) noexcept;

/// Returns null if libfabric has no such operation on such elements. Takes any numbers: a peer may
/// have sent them.
AtomicFunction atomic_function(unsigned op, unsigned datatype) noexcept;

/// Returns the bytes of an element, 0 for an unknown datatype.
size_t datatype_size(unsigned datatype) noexcept;

}  // namespace erdma::protocol
