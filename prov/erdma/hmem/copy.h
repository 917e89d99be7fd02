#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace erdma::hmem {

/// Copies `length` bytes, from Size to twice Size, by two copies of Size bytes that may overlap.
template <size_t Size>
inline void copy_ends(std::byte* to, const std::byte* from, size_t length) noexcept {
  std::byte first[Size], last[Size];
  std::memcpy(first, from, Size);
  std::memcpy(last, from + length - Size, Size);
  std::memcpy(to, first, Size);
  std::memcpy(to + length - Size, last, Size);
}

/// A memcpy() for payloads, whose lines another core wrote or will read. Above 4 KiB
/// and up to 1 MiB it uses the method that is measured to be fastest in this thread (CopyChoice).
void copy_payload(void* to, const void* from, size_t length) noexcept;
/// A memcpy() by vectors. On x86 the C library copies from 2 or 4 KiB on by `rep movsb`.
void copy_loop(void* to, const void* from, size_t length) noexcept;
/// A memcpy() by `rep movsb`, if string_copies_possible(). AMD's processors up to Zen 4 execute it
/// at a fifth of the speed of a loop where another core has the lines; Zen 5 twice as fast as one.
void copy_string(void* to, const void* from, size_t length) noexcept;
bool string_copies_possible() noexcept;

inline constexpr size_t kCacheLine = 64;
/// Copies whole lines to an aligned address by copy_lines(to, from, lines), and the rest by memcpy.
/// `length` ≥ kCacheLine.
template <typename CopyLines>
void copy_by_lines(void* to, const void* from, size_t length, CopyLines copy_lines) noexcept {
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  const size_t head = -reinterpret_cast<uintptr_t>(target) % kCacheLine;
  std::memcpy(target, source, head);
  const size_t lines = (length - head) / kCacheLine;
  copy_lines(target + head, source + head, lines);
  const size_t done = head + lines * kCacheLine;
  std::memcpy(target + done, source + done, length - done);
}

/// The sum of the iov lengths in bytes; SIZE_MAX on overflow.
size_t total_length(const iovec* iov, size_t count) noexcept;

/// A memcpy() that needs no function call for short lengths, which most messages have.
inline void copy_short(void* to, const void* from, size_t length) noexcept {
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  if (length == 8) {
    std::memcpy(to, from, 8);
  } else if (length > 32) {
    copy_payload(to, from, length);
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

/// Calls visit(pointer, done, bytes) in order for each part of the iov list in
/// [offset, offset+length); `done`: bytes of the parts before it. Returns the sum of the bytes.
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

/// Copies up to `length` bytes of the iov list, starting at byte `offset`, to `to`. Returns the
/// number of bytes copied.
size_t gather(void* to, const iovec* iov, size_t count, size_t offset, size_t length) noexcept;

/// Copies up to `length` bytes from `from` into the iov list, starting at byte `offset`. Returns
/// the number of bytes copied, which is less than `length` if the list is shorter.
size_t scatter(const iovec* iov, size_t count, size_t offset, const void* from,
               size_t length) noexcept;

/// Writes the part of the list that covers [offset, offset+length) to `out`, which has room for
/// `count` elements. Returns the number of elements written.
size_t slice(const iovec* iov, size_t count, size_t offset, size_t length, iovec* out) noexcept;

}  // namespace erdma::hmem
