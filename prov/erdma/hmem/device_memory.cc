#include "hmem/device_memory.h"

#include <algorithm>
#include <cstring>

#include "hmem/copy.h"

namespace erdma::hmem {

bool DeviceMemory::any_device(const iovec* iov, size_t count) const noexcept {
  return std::any_of(iov, iov + count, [this](const iovec& part) {
    return part.iov_len > 0 && is_device(part.iov_base);
  });
}

int DeviceMemory::gather(void* to, const iovec* iov, size_t count, size_t offset,
                         size_t length) noexcept {
  int rc = 0;
  for_each_part(iov, count, offset, length, [&](std::byte* part, size_t done, size_t bytes) {
    auto* target = static_cast<std::byte*>(to) + done;
    if (rc) return;
    if (is_device(part))
      rc = from_device(target, part, bytes);
    else
      std::memcpy(target, part, bytes);
  });
  return rc;
}

int DeviceMemory::scatter(const iovec* iov, size_t count, size_t offset, const void* from,
                          size_t length) noexcept {
  int rc = 0;
  for_each_part(iov, count, offset, length, [&](std::byte* part, size_t done, size_t bytes) {
    const auto* source = static_cast<const std::byte*>(from) + done;
    if (rc) return;
    if (is_device(part))
      rc = to_device(part, source, bytes);
    else
      std::memcpy(part, source, bytes);
  });
  return rc;
}

int scatter(DeviceMemory* devices, const iovec* iov, size_t count, size_t offset, const void* from,
            size_t length) noexcept {
  if (devices) return devices->scatter(iov, count, offset, from, length);
  scatter(iov, count, offset, from, length);
  return 0;
}

}  // namespace erdma::hmem
