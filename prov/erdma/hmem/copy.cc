#include "hmem/copy.h"

#include <cstdint>

namespace erdma::hmem {

size_t total_length(const iovec* iov, size_t count) noexcept {
  size_t total = 0;
  for (size_t i = 0; i < count; ++i)
    if (__builtin_add_overflow(total, iov[i].iov_len, &total)) return SIZE_MAX;
  return total;
}

size_t gather(void* to, const iovec* iov, size_t count, size_t offset, size_t length) noexcept {
  return for_each_part(iov, count, offset, length,
                       [to](std::byte* part, size_t done, size_t bytes) {
                         std::memcpy(static_cast<std::byte*>(to) + done, part, bytes);
                       });
}

size_t scatter(const iovec* iov, size_t count, size_t offset, const void* from,
               size_t length) noexcept {
  return for_each_part(iov, count, offset, length,
                       [from](std::byte* part, size_t done, size_t bytes) {
                         std::memcpy(part, static_cast<const std::byte*>(from) + done, bytes);
                       });
}

size_t slice(const iovec* iov, size_t count, size_t offset, size_t length, iovec* out) noexcept {
  size_t used = 0;
  for_each_part(iov, count, offset, length, [&](std::byte* part, size_t, size_t bytes) {
    out[used++] = {part, bytes};
  });
  return used;
}

}  // namespace erdma::hmem
