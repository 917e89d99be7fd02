#pragma once

#include <cstdlib>
#include <memory>
#include <string>

#include <rdma/fi_errno.h>

#include "fake/captured_log.h"
#include "hmem/cuda.h"
#include "libcheck.h"
#include "softcuda/device_memory.h"
#include "transport/simulated_device.h"
#include "transport/verbs/gpu_registrations.h"

namespace erdma::test {

inline constexpr int kReads = transport::verbs::peer_rights(true, false);
inline constexpr int kWrites = transport::verbs::peer_rights(false, true);

/// The cache of host memory, which counts its uses.
class HostCache final : public transport::verbs::RegistrationCache {
 public:
  explicit HostCache(int& uses) : x_uses(uses) {}
  int acquire(const void*, size_t, int,
              transport::verbs::Registration& registration) noexcept override {
    ++x_uses;
    registration = {7, 7, this};
    return 0;
  }
  void release(const transport::verbs::Registration&) noexcept override { --x_uses; }
  bool should_register(const iovec*, size_t) noexcept override { return false; }
  const char* registers_each_time() const noexcept override { return "a reason"; }

 private:
  int& x_uses;
};

struct Scene {
  /// Keeps registrations by address, so that nothing depends on the time.
  explicit Scene(size_t max_idle = 256) : Scene({.max_idle = max_idle, .keeps_all = true}) {}
  explicit Scene(const transport::verbs::GpuRegistrations::Config& config)
      : device(open_first_device()),
        registrations(*device, *hmem::Cuda::get(), std::make_unique<HostCache>(host_uses), config) {
    ck_assert_ptr_nonnull(device.get());
  }
  transport::verbs::Registration acquire(const DeviceMemory& memory, size_t offset = 0,
                                         int rights = kReads) {
    transport::verbs::Registration made;
    ck_assert_int_eq(
        registrations.acquire(memory.at(offset), memory.length() - offset, rights, made), 0);
    return made;
  }
  /// Registers the memory, releases the registration and returns its key.
  uint32_t key(const DeviceMemory& memory, int rights = kReads) {
    const transport::verbs::Registration made = acquire(memory, 0, rights);
    registrations.release(made);
    return made.rkey;
  }

  int host_uses = 0;
  std::unique_ptr<transport::verbs::Device> device;
  transport::verbs::GpuRegistrations registrations;
};

/// How the adapter can register GPU memory.
inline void ways(int peermem, int dmabuf) {
  setenv("SOFTERDMA_PEERMEM", peermem ? "1" : "0", 1);
  setenv("SOFTERDMA_DMABUF", dmabuf ? "1" : "0", 1);
}

/// Returns the warnings since the last call.
inline std::string warnings() {
  const std::lock_guard guard(g_log_mutex);
  std::string text;
  for (const auto& line : g_log)
    if (line.level == FI_LOG_WARN) text += line.text;
  g_log.clear();
  return text;
}

}  // namespace erdma::test
