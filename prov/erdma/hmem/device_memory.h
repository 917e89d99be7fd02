#pragma once

#include <sys/uio.h>

#include <cstddef>

namespace erdma::hmem {

/// Distinguishes device memory from host memory, and copies between the two: by CUDA (cuda.h), or
/// by a NIC for endpoints that may not call CUDA. Thread-safe.
class DeviceMemory {
 public:
  virtual bool is_device(const void* pointer) const noexcept = 0;
  /// True if any non-empty element of the list is device memory.
  bool any_device(const iovec* iov, size_t count) const noexcept;
  /// The functions of copy.h for lists that may contain device memory; `to` and `from` are host
  /// memory. They return 0, or a negative fi_errno if a copy fails. [offset, offset+length) must
  /// lie in the list.
  int gather(void* to, const iovec* iov, size_t count, size_t offset, size_t length) noexcept;
  int scatter(const iovec* iov, size_t count, size_t offset, const void* from,
              size_t length) noexcept;

 protected:
  ~DeviceMemory() = default;

 private:
  /// Both return when the copy is complete: 0, or a negative fi_errno after logging the failure.
  virtual int from_device(void* to, const void* from, size_t length) noexcept = 0;
  virtual int to_device(void* to, const void* from, size_t length) noexcept = 0;
};

/// DeviceMemory::scatter(), or that of copy.h if `devices` is null: then all of the list is host
/// memory.
int scatter(DeviceMemory* devices, const iovec* iov, size_t count, size_t offset, const void* from,
            size_t length) noexcept;

}  // namespace erdma::hmem
