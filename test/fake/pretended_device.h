#pragma once

#include <cstring>

#include "hmem/device_memory.h"

namespace erdma::fake {

/// Host memory that stands for device memory.
class PretendedDevice final : public hmem::DeviceMemory {
 public:
  bool is_device(const void*) const noexcept override { return true; }

  int status = 0;       ///< result of copies to the device; bytes move only if 0
  size_t to_count = 0;  ///< number of these copies

 private:
  int from_device(void* to, const void* from, size_t length) noexcept override {
    return std::memcpy(to, from, length), 0;
  }
  int to_device(void* to, const void* from, size_t length) noexcept override {
    ++to_count;
    if (!status) std::memcpy(to, from, length);
    return status;
  }
};

}  // namespace erdma::fake
