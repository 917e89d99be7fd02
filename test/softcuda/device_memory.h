#pragma once

#include <vector>

#include "libcheck.h"
#include "softcuda/driver.h"

namespace erdma::test {

/// An allocation of the simulated GPU, for tests that link libcuda.so.1. Its context is the calling
/// thread's from then on.
class DeviceMemory {
 public:
  explicit DeviceMemory(size_t length) : x_length(length) {
    Context context = nullptr;
    ck_assert_int_eq(cuInit(0), 0);
    ck_assert_int_eq(cuDevicePrimaryCtxRetain(&context, 0), 0);
    ck_assert_int_eq(cuCtxSetCurrent(context), 0);
    ck_assert_int_eq(cuMemAlloc_v2(&x_pointer, length > 0 ? length : 1), 0);
  }
  explicit DeviceMemory(const std::vector<char>& bytes) : DeviceMemory(bytes.size()) {
    if (x_length) ck_assert_int_eq(cuMemcpyHtoD_v2(x_pointer, bytes.data(), x_length), 0);
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() { cuMemFree_v2(x_pointer); }

  DevicePointer pointer() const { return x_pointer; }
  void* at(size_t offset) const { return reinterpret_cast<void*>(x_pointer + offset); }
  size_t length() const { return x_length; }
  /// As the device sees them now, whatever is pending in streams.
  std::vector<char> bytes() const {
    const char* seen = static_cast<const char*>(softcuda_alias(at(0), x_length));
    return seen ? std::vector<char>(seen, seen + x_length) : std::vector<char>();
  }

 private:
  const size_t x_length;
  DevicePointer x_pointer = 0;
};

}  // namespace erdma::test
