#pragma once

#include <vector>

#include "libcheck.h"
#include "softcuda/driver.h"

namespace erdma::test {

using hmem::cuda_api::kAccessReadWrite;
using hmem::cuda_api::kHandlePosixFd;
using hmem::cuda_api::kLocationDevice;
using hmem::cuda_api::kMemoryPinned;

/// The functions by which a test allocates memory of the simulated GPU.
enum class MadeBy {
  allocation,  ///< cuMemAlloc()
  mapping,     ///< cuMemCreate() and cuMemMap(); it may be exported
  private_mapping,
};
inline MadeBy g_made_by = MadeBy::allocation;

/// Fills device memory and waits until it has the bytes.
inline void fill_memory(DevicePointer to, char value, size_t length) {
  ck_assert_int_eq(cuMemsetD8_v2(to, static_cast<unsigned char>(value), length), 0);
  ck_assert_int_eq(cuStreamSynchronize(nullptr), 0);
}

/// An allocation of the simulated GPU, for tests that link libcuda.so.1. Its context becomes
/// current in the calling thread.
class DeviceMemory {
 public:
  explicit DeviceMemory(size_t length, int device = 0) : x_length(length) {
    Context context = nullptr;
    ck_assert_int_eq(cuInit(0), 0);
    ck_assert_int_eq(cuDevicePrimaryCtxRetain(&context, device), 0);
    ck_assert_int_eq(cuCtxSetCurrent(context), 0);
    if (g_made_by == MadeBy::allocation)
      ck_assert_int_eq(cuMemAlloc_v2(&x_pointer, length > 0 ? length : 1), 0);
    else
      map(device);
  }
  explicit DeviceMemory(const std::vector<char>& bytes) : DeviceMemory(bytes.size()) {
    if (x_length) ck_assert_int_eq(cuMemcpyHtoD_v2(x_pointer, bytes.data(), x_length), 0);
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() {
    if (x_mapped == 0) {
      cuMemFree_v2(x_pointer);
      return;
    }
    ck_assert_int_eq(cuMemUnmap(x_pointer, x_mapped), 0);
    ck_assert_int_eq(cuMemAddressFree(x_pointer, x_mapped), 0);
  }

  DevicePointer pointer() const { return x_pointer; }
  void* at(size_t offset) const { return reinterpret_cast<void*>(x_pointer + offset); }
  size_t length() const { return x_length; }
  /// Returns the bytes as the device sees them now, without pending operations of streams.
  std::vector<char> bytes() const {
    const char* seen = static_cast<const char*>(softcuda_alias(at(0), x_length));
    return seen ? std::vector<char>(seen, seen + x_length) : std::vector<char>();
  }

 private:
  void map(int device) {
    constexpr size_t kPiece = size_t(2) << 20;
    const int handles = g_made_by == MadeBy::mapping ? kHandlePosixFd : 0;
    const MemAllocationProperties wanted{
        kMemoryPinned, handles, {kLocationDevice, device}, nullptr, {}};
    const MemAccess access{{kLocationDevice, device}, kAccessReadWrite};
    PhysicalMemory made = 0;
    x_mapped = (x_length / kPiece + 1) * kPiece;
    ck_assert_int_eq(cuMemCreate(&made, x_mapped, &wanted, 0), 0);
    ck_assert_int_eq(cuMemAddressReserve(&x_pointer, x_mapped, 0, 0, 0), 0);
    ck_assert_int_eq(cuMemMap(x_pointer, x_mapped, 0, made, 0), 0);
    ck_assert_int_eq(cuMemRelease(made), 0);
    ck_assert_int_eq(cuMemSetAccess(x_pointer, x_mapped, &access, 1), 0);
  }

  const size_t x_length;
  size_t x_mapped = 0;  ///< bytes that map() has mapped
  DevicePointer x_pointer = 0;
};

}  // namespace erdma::test
