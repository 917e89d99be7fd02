#pragma once

#include <cstdint>
#include <string>

namespace erdma::fabric {

/// How an endpoint's data travels, as far as that is known when the endpoint is enabled.
struct EndpointFacts {
  std::string name;    ///< address of the endpoint
  std::string device;  ///< of the domain
  uint64_t speed = 0;  ///< bit/s; 0 = unknown
  bool nic = false;    ///< false: single-host operation
  /// Why memory of the application is not registered with the NIC; null: it is registered.
  const char* no_zero_copy = nullptr;
  bool each_time = false;  ///< it is registered per use, and only for long messages
  bool apart = false;      ///< forked children do not inherit registered memory
  bool shm = false;
  const char* no_shm = "";  ///< why `shm` is false
  bool cma = true;          ///< FI_ERDMA_CMA is not off
  enum class Gpu : uint8_t { unasked, direct, registered, ipc, staged };
  Gpu gpu = Gpu::unasked;
  const char* no_direct = "";  ///< why GPU memory is staged
};

/// The facts as texts.
struct FactTexts {
  std::string other_hosts, this_host, gpu_memory;
};
FactTexts describe(const EndpointFacts& facts);

/// One line for the log.
std::string summarize(const EndpointFacts& facts);

}  // namespace erdma::fabric
