#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sides.h"

namespace erdma::programs {

/// Bytes by path, as a provider counts them.
struct PathBytes {
  bool told = false;  ///< by a provider that has such counters
  uint64_t rings = 0, cma_read = 0, cma_write = 0, copied = 0, refusals = 0;
  uint64_t nic_packets = 0, nic_read = 0, nic_write = 0;

  uint64_t cma() const noexcept { return cma_read + cma_write; }
  uint64_t shm() const noexcept { return rings + cma() + copied; }
  uint64_t nic() const noexcept { return nic_packets + nic_read + nic_write; }
  PathBytes& operator+=(const PathBytes& other) noexcept;
  void print(const char* whose) const;
};

/// Adds what a line of the provider's log says; false: it says nothing of paths.
bool add_line(PathBytes& bytes, const char* line) noexcept;

/// Reads what the provider logs at level info, which is where erdma tells its counters when an
/// endpoint is closed, through libfabric's own interface (fi_import_log), so that it works whatever
/// FI_LOG_LEVEL is. What FI_LOG_LEVEL asks for goes to stderr as ever. Before any other call to
/// libfabric, once per process.
void listen_to_log();
/// What was told up to now by this process.
PathBytes bytes_told();

/// Of the endpoints of both sides; each must be closed before. Uses the channel.
PathBytes bytes_of_both(Channel& channel);

/// Bytes that a NIC sent, by its own counter (hw_counters in sysfs), of whichever process; nothing
/// where the device has none.
std::optional<uint64_t> nic_sent(const std::string& device);

}  // namespace erdma::programs
