#pragma once

#include <sys/uio.h>

#include <cstddef>

namespace erdma::hmem {

/// Sum of the iov lengths; SIZE_MAX on overflow.
size_t total_length(const iovec* iov, size_t count) noexcept;

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
