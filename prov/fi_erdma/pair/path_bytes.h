#pragma once

#include <cstdint>
#include <string>

#include "fi_erdma/json.h"
#include "fi_erdma/pair/sides.h"

namespace fi_erdma::pair {

/// Bytes by path, from the page of a process.
struct PathBytes {
  bool told = false;  ///< whether the provider has such a page
  uint64_t rings = 0, cma_read = 0, cma_write = 0, copied = 0, refusals = 0;
  uint64_t nic_packets = 0, nic_read = 0, nic_write = 0, nic_copied = 0;
  uint64_t byte_ring = 0, nic_fetched = 0;  ///< parts of rings and nic_packets

  uint64_t cma() const noexcept { return cma_read + cma_write; }
  uint64_t shm() const noexcept { return rings + cma() + copied; }
  uint64_t nic() const noexcept { return nic_packets + nic_read + nic_write; }
  /// "rings", "cma", "copy", "nic", or any other word for all of shared memory.
  uint64_t by(const std::string& path) const;
  PathBytes& operator+=(const PathBytes& other) noexcept;
  void print(const char* whose) const;
  /// The paths that moved bytes: "shm ring, CMA reads". Empty if `told` is false.
  std::string ways() const;
  /// Null if `told` is false.
  Json to_json() const;
};

/// The present counters of all endpoints of this process, including those that it closed while
/// another was open.
PathBytes bytes_told();

/// The bytes of both sides, exchanged over the channel. Neither side may have operations in flight.
PathBytes bytes_of_both(Channel& channel, const Channel::Drive& drive);

}  // namespace fi_erdma::pair
