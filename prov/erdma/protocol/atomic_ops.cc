#include "protocol/atomic_ops.h"

#include <array>
#include <atomic>
#include <complex>
#include <cstring>
#include <mutex>
#include <tuple>
#include <type_traits>
#include <utility>

#include "util/lock.h"

namespace erdma::protocol {
namespace {

__extension__ using Int128 = __int128;
__extension__ using Uint128 = unsigned __int128;

/// In the order of Datatype.
using Types = std::tuple<int8_t, uint8_t, int16_t, uint16_t, int32_t, uint32_t, int64_t, uint64_t,
                         float, double, std::complex<float>, std::complex<double>, long double,
                         std::complex<long double>, Int128, Uint128>;
static_assert(std::tuple_size_v<Types> == kDatatypes);

template <typename T>
constexpr bool kComplex =
    std::is_same_v<T, std::complex<float>> || std::is_same_v<T, std::complex<double>> ||
    std::is_same_v<T, std::complex<long double>>;
template <typename T>
constexpr bool kInteger =
    std::is_integral_v<T> || std::is_same_v<T, Int128> || std::is_same_v<T, Uint128>;

template <AtomicOp Op, typename T>
constexpr bool offered() {
  switch (Op) {
    case AtomicOp::bit_or:
    case AtomicOp::bit_and:
    case AtomicOp::bit_xor:
    case AtomicOp::masked_swap:
      return kInteger<T>;
    case AtomicOp::min:
    case AtomicOp::max:
    case AtomicOp::swap_if_less_or_equal:
    case AtomicOp::swap_if_less:
    case AtomicOp::swap_if_greater_or_equal:
    case AtomicOp::swap_if_greater:
      return !kComplex<T>;
    default:
      return true;
  }
}

// Signed integers wrap around, too.
template <typename T>
T sum(T a, T b) noexcept {
  if constexpr (kInteger<T>) {
    T result;
    (void)__builtin_add_overflow(a, b, &result);
    return result;
  } else {
    return a + b;
  }
}

template <typename T>
T product(T a, T b) noexcept {
  if constexpr (kInteger<T>) {
    T result;
    (void)__builtin_mul_overflow(a, b, &result);
    return result;
  } else {
    return a * b;
  }
}

template <typename T>
bool truth(T value) noexcept {
  return value != T(0);
}

template <AtomicOp Op, typename T>
bool swaps(T old, T compare) noexcept {
  if constexpr (Op == AtomicOp::swap_if_equal) return compare == old;
  if constexpr (Op == AtomicOp::swap_if_not_equal) return compare != old;
  if constexpr (Op == AtomicOp::swap_if_less_or_equal) return compare <= old;
  if constexpr (Op == AtomicOp::swap_if_less) return compare < old;
  if constexpr (Op == AtomicOp::swap_if_greater_or_equal) return compare >= old;
  if constexpr (Op == AtomicOp::swap_if_greater) return compare > old;
  return true;
}

/// Returns the new value of an element.
template <AtomicOp Op, typename T>
T apply(T old, T operand, T compare) noexcept {
  if constexpr (Op == AtomicOp::min) return operand < old ? operand : old;
  if constexpr (Op == AtomicOp::max) return operand > old ? operand : old;
  if constexpr (Op == AtomicOp::sum) return sum(old, operand);
  if constexpr (Op == AtomicOp::prod) return product(old, operand);
  if constexpr (Op == AtomicOp::logical_or) return T(truth(old) || truth(operand));
  if constexpr (Op == AtomicOp::logical_and) return T(truth(old) && truth(operand));
  if constexpr (Op == AtomicOp::logical_xor) return T(truth(old) != truth(operand));
  if constexpr (Op == AtomicOp::bit_or) return T(old | operand);
  if constexpr (Op == AtomicOp::bit_and) return T(old & operand);
  if constexpr (Op == AtomicOp::bit_xor) return T(old ^ operand);
  if constexpr (Op == AtomicOp::read) return old;
  if constexpr (Op == AtomicOp::write) return operand;
  if constexpr (Op == AtomicOp::masked_swap) return T((operand & compare) | (old & ~compare));
  if constexpr (compares(Op)) return swaps<Op>(old, compare) ? operand : old;
}

template <typename To, typename From>
To bits_as(const From& from) noexcept {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(static_cast<void*>(&to), &from, sizeof(to));
  return to;
}

template <typename T>
T load(const std::byte* from) noexcept {
  T value{};
  if (from) std::memcpy(static_cast<void*>(&value), from, sizeof(value));
  return value;
}

/// Serialises changes of elements that the processor cannot change in one step. The whole process
/// shares one lock, because several domains may register the same memory.
util::EpochLock g_wide;

template <size_t Bytes>
using Word = std::conditional_t<
    Bytes == 1, uint8_t,
    std::conditional_t<Bytes == 2, uint16_t, std::conditional_t<Bytes == 4, uint32_t, uint64_t>>>;

/// Returns whether the operation leaves an element as it was. The caller compares the old value
/// with the new one in the other cases.
template <AtomicOp Op, typename T>
bool keeps(T old, T compare) noexcept {
  if constexpr (Op == AtomicOp::read) return true;
  if constexpr (Op != AtomicOp::masked_swap && compares(Op)) return !swaps<Op>(old, compare);
  return false;
}

/// Returns the old value. An unchanged value is not stored, for two reasons: the memory may be
/// read-only, and under the lock such a store could undo a store of the application, which does
/// not take the lock.
template <AtomicOp Op, typename T>
T change(std::byte* target, T operand, T compare) noexcept {
  if constexpr (sizeof(T) <= sizeof(uint64_t)) {
    using Bits = Word<sizeof(T)>;
    if (reinterpret_cast<uintptr_t>(target) % sizeof(T) == 0) {
      std::atomic_ref<Bits> element(*reinterpret_cast<Bits*>(target));
      Bits old = element.load(std::memory_order_acquire);
      while (!keeps<Op, T>(bits_as<T>(old), compare)) {
        const auto changed = bits_as<Bits>(apply<Op, T>(bits_as<T>(old), operand, compare));
        if (changed == old || element.compare_exchange_weak(old, changed, std::memory_order_acq_rel,
                                                            std::memory_order_acquire))
          break;
      }
      return bits_as<T>(old);
    }
  }
  const std::lock_guard guard(g_wide);
  const T old = load<T>(target);
  if (keeps<Op, T>(old, compare)) return old;
  const T changed = apply<Op, T>(old, operand, compare);
  if (std::memcmp(static_cast<const void*>(&old), static_cast<const void*>(&changed),
                  sizeof(old)) == 0)
    return old;
  std::memcpy(target, static_cast<const void*>(&changed), sizeof(changed));
  return old;
}

template <AtomicOp Op, typename T>
void run(std::byte* target, const std::byte* operand, const std::byte* compare, std::byte* result,
         size_t count) noexcept {
  for (size_t i = 0; i < count; ++i) {
    const size_t at = i * sizeof(T);
    const T old = change<Op, T>(target + at, load<T>(operand ? operand + at : nullptr),
                                load<T>(compare ? compare + at : nullptr));
    if (result) std::memcpy(result + at, static_cast<const void*>(&old), sizeof(old));
  }
}

template <size_t Index>
constexpr AtomicFunction entry() {
  constexpr auto kOp = AtomicOp(Index / kDatatypes);
  using T = std::tuple_element_t<Index % kDatatypes, Types>;
  if constexpr (offered<kOp, T>())
    return run<kOp, T>;
  else
    return nullptr;
}

template <size_t... Index>
constexpr auto make_table(std::index_sequence<Index...>) {
  return std::array<AtomicFunction, sizeof...(Index)>{entry<Index>()...};
}

constexpr auto kTable = make_table(std::make_index_sequence<kAtomicOps * kDatatypes>());

template <size_t... Index>
constexpr auto make_sizes(std::index_sequence<Index...>) {
  return std::array<size_t, kDatatypes>{sizeof(std::tuple_element_t<Index, Types>)...};
}

constexpr auto kSizes = make_sizes(std::make_index_sequence<kDatatypes>());

}  // namespace

AtomicFunction atomic_function(unsigned op, unsigned datatype) noexcept {
  return op < kAtomicOps && datatype < kDatatypes ? kTable[op * kDatatypes + datatype] : nullptr;
}

size_t datatype_size(unsigned datatype) noexcept {
  return datatype < kDatatypes ? kSizes[datatype] : 0;
}

}  // namespace erdma::protocol
