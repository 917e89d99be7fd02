#pragma once

#include <sys/uio.h>

#include <cstddef>

namespace erdma::hmem {

/// Tells memory of a device from memory of the host, and copies between the two: by CUDA (cuda.h),
/// or by a NIC for endpoints that may not call CUDA. Thread-safe.
class DeviceMemory {
 public:
  virtual bool is_device(const void* pointer) const noexcept = 0;
  /// Does any piece point to a device?
  bool any_device(const iovec* iov, size_t count) const noexcept;
  /// As the functions of copy.h, with host memory as source or target. They return a negative
  /// fi_errno if a copy fails. `offset` and `length` lie in the list.
  int gather(void* to, const iovec* iov, size_t count, size_t offset, size_t length) noexcept;
  int scatter(const iovec* iov, size_t count, size_t offset, const void* from,
              size_t length) noexcept;

 protected:
  ~DeviceMemory() = default;

 private:
  /// The copy is done when they return. 0, or a negative fi_errno that was logged.
  virtual int from_device(void* to, const void* from, size_t length) noexcept = 0;
  virtual int to_device(void* to, const void* from, size_t length) noexcept = 0;
};

}  // namespace erdma::hmem
