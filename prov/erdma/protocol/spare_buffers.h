#pragma once

#include <bit>
#include <cstddef>
#include <cstring>
#include <memory>

namespace erdma::protocol {

/// Memory for payloads, some of which is kept for the next use. The C library returns memory of
/// this size to the kernel, and then each page of the next payload costs a page fault, which takes
/// longer than the copy.
class SpareBuffers {
 public:
  using Buffer = std::unique_ptr<std::byte[]>;

  SpareBuffers() noexcept = default;
  SpareBuffers(const SpareBuffers&) = delete;
  SpareBuffers& operator=(const SpareBuffers&) = delete;
  ~SpareBuffers() {
    for (std::byte*& first : x_first)
      while (first) delete[] pop(first);
  }

  /// Returns memory of at least `bytes` bytes. Throws std::bad_alloc.
  Buffer take(size_t bytes) {
    std::byte** const first = keeps(bytes) ? &x_first[class_of(bytes)] : nullptr;
    if (!first || !*first) return Buffer(new std::byte[room(bytes)]);
    x_kept -= rounded(bytes);
    return Buffer(pop(*first));
  }
  /// `bytes` as in take().
  void give_back(Buffer buffer, size_t bytes) noexcept {
    if (!keeps(bytes) || x_kept + rounded(bytes) > kMostKept) return;
    std::byte*& first = x_first[class_of(bytes)];
    std::byte* const memory = buffer.release();
    std::memcpy(memory, &first, sizeof(first));
    first = memory;
    x_kept += rounded(bytes);
  }

  /// Bytes of the memory that take() returns.
  static constexpr size_t room(size_t bytes) noexcept {
    return keeps(bytes) ? rounded(bytes) : bytes;
  }
  size_t kept() const noexcept { return x_kept; }  ///< bytes

  static constexpr size_t kLeast = 4096, kMost = size_t{1} << 20;  ///< sizes that are kept
  static constexpr size_t kMostKept = size_t{4} << 20;             ///< bytes in all

 private:
  static constexpr size_t kClasses = std::bit_width(kMost / kLeast);
  static constexpr bool keeps(size_t bytes) noexcept { return bytes >= kLeast && bytes <= kMost; }
  static constexpr size_t rounded(size_t bytes) noexcept { return std::bit_ceil(bytes); }
  static constexpr size_t class_of(size_t bytes) noexcept {
    return size_t(std::bit_width(rounded(bytes) / kLeast)) - 1;
  }
  /// Each buffer of a list begins with the address of the next one.
  static std::byte* pop(std::byte*& first) noexcept {
    std::byte* const memory = first;
    std::memcpy(&first, memory, sizeof(first));
    return memory;
  }

  std::byte* x_first[kClasses] = {};
  size_t x_kept = 0;
};

}  // namespace erdma::protocol
