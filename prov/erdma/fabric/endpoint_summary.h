#pragma once

#include <cstdint>
#include <string>

namespace erdma::fabric {

/// How an endpoint's bytes travel, as far as it is known when it is enabled.
struct EndpointFacts {
  std::string name;    ///< its address
  std::string device;  ///< the domain's
  uint64_t speed = 0;  ///< bit/s; 0 = unknown
  bool nic = false;    ///< else single-host operation
  /// Why memory of the application is not registered with the NIC; null: it is.
  const char* no_zero_copy = nullptr;
  bool each_time = false;  ///< it is, for one use at a time and if that is long
  bool apart = false;      ///< children of a fork do not get what is registered
  bool shm = false;
  const char* no_shm = "";  ///< why not
  bool cma = true;          ///< not switched off
  enum class Gpu : uint8_t { unasked, direct, registered, ipc, staged };
  Gpu gpu = Gpu::unasked;
  const char* no_direct = "";  ///< why it is staged
};

/// The same in words.
struct FactTexts {
  std::string other_hosts, this_host, gpu_memory;
};
FactTexts describe(const EndpointFacts& facts);

/// One line for the log.
std::string summarize(const EndpointFacts& facts);

}  // namespace erdma::fabric
