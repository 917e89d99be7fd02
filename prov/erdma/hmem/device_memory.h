#pragma once

#include <sys/uio.h>

#include <cstddef>

namespace erdma::hmem {

/// Tells memory of a device from the host's, and copies between the two: by CUDA (cuda.h), or for
/// who may not call it by a NIC. Thread-safe.
class DeviceMemory {
 public:
  virtual bool is_device(const void* pointer) const noexcept = 0;
  /// Does any piece point to a device?
  bool any_device(const iovec* iov, size_t count) const noexcept;
  /// As the functions of copy.h, with host memory at the other end, but a negative fi_errno if a
  /// copy fails. `offset` and `length` lie in the list.
  int gather(void* to, const iovec* iov, size_t count, size_t offset, size_t length) noexcept;
  int scatter(const iovec* iov, size_t count, size_t offset, const void* from,
              size_t length) noexcept;

 protected:
  ~DeviceMemory() = default;

 private:
  /// Done when they return. 0 or a negative fi_errno, logged.
  virtual int from_device(void* to, const void* from, size_t length) noexcept = 0;
  virtual int to_device(void* to, const void* from, size_t length) noexcept = 0;
};

}  // namespace erdma::hmem
