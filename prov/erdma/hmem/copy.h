#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace erdma::hmem {

/// Copies `length` bytes, at least Size and at most twice Size, as two copies that may overlap.
template <size_t Size>
inline void copy_ends(std::byte* to, const std::byte* from, size_t length) noexcept {
  std::byte first[Size], last[Size];
  std::memcpy(first, from, Size);
  std::memcpy(last, from + length - Size, Size);
  std::memcpy(to, first, Size);
  std::memcpy(to + length - Size, last, Size);
}

/// Sum of the iov lengths; SIZE_MAX on overflow.
size_t total_length(const iovec* iov, size_t count) noexcept;

/// As memcpy(), without a call for lengths that messages often have.
inline void copy_short(void* to, const void* from, size_t length) noexcept {
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  if (length == 8) {
    std::memcpy(to, from, 8);
  } else if (length > 32) {
    std::memcpy(to, from, length);
  } else if (length >= 16) {
    copy_ends<16>(target, source, length);
  } else if (length > 8) {
    copy_ends<8>(target, source, length);
  } else if (length >= 4) {
    copy_ends<4>(target, source, length);
  } else {
    for (size_t i = 0; i < length; ++i) target[i] = source[i];
  }
}

/// Calls visit(pointer, bytes before it, bytes) for each part of [offset, offset+length) in order.
/// Returns the sum of the bytes.
template <typename Visit>
size_t for_each_part(const iovec* iov, size_t count, size_t offset, size_t length,
                     Visit visit) noexcept {
  size_t done = 0;
  for (size_t i = 0; i < count && done < length; ++i) {
    if (offset >= iov[i].iov_len) {
      offset -= iov[i].iov_len;
      continue;
    }
    const size_t bytes = std::min(iov[i].iov_len - offset, length - done);
    visit(static_cast<std::byte*>(iov[i].iov_base) + offset, done, bytes);
    done += bytes;
    offset = 0;
  }
  return done;
}

/// Copies up to `length` bytes of the iov list, from `offset` on, to `to`. Returns bytes copied.
size_t gather(void* to, const iovec* iov, size_t count, size_t offset, size_t length) noexcept;

/// Copies up to `length` bytes at `from` into the iov list from `offset` on. Returns bytes copied:
/// less than `length` when the list is shorter.
size_t scatter(const iovec* iov, size_t count, size_t offset, const void* from,
               size_t length) noexcept;

/// Writes to `out` (room for `count`) the part of the list that covers [offset, offset+length).
/// Returns the number of elements.
size_t slice(const iovec* iov, size_t count, size_t offset, size_t length, iovec* out) noexcept;

}  // namespace erdma::hmem
