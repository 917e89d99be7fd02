#pragma once

#include <bit>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>

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
  ~SpareBuffers() { drop(0); }

  /// Returns memory of at least `bytes` bytes. Throws std::bad_alloc.
  Buffer take(size_t bytes) {
    if (keeps(bytes) && x_first[class_of(bytes)]) return Buffer(pop(class_of(bytes)));
    if (x_kept > 0) {
      if (auto* const memory = new (std::nothrow) std::byte[room(bytes)]) return Buffer(memory);
      drop(0);  // what is kept may be what lacks
    }
    return Buffer(new std::byte[room(bytes)]);
  }
  /// `bytes` as in take().
  void give_back(Buffer buffer, size_t bytes) noexcept {
    if (!keeps(bytes)) return;
    drop(kMostKept - rounded(bytes), class_of(bytes));
    if (x_kept + rounded(bytes) > kMostKept) return;
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
  std::byte* pop(size_t list) noexcept {
    std::byte* const memory = x_first[list];
    std::memcpy(&x_first[list], memory, sizeof(x_first[list]));
    x_kept -= kLeast << list;
    return memory;
  }
  /// Frees buffers until at most `most` bytes are kept, but none of the list `but`.
  void drop(size_t most, size_t but = kClasses) noexcept {
    for (size_t list = 0; list < kClasses; ++list)
      while (x_kept > most && list != but && x_first[list]) delete[] pop(list);
  }

  std::byte* x_first[kClasses] = {};
  size_t x_kept = 0;
};

}  // namespace erdma::protocol
