#pragma once

#include <cstdint>
#include <string>

#include "fi_erdma/json.h"
#include "fi_erdma/pair/sides.h"

namespace fi_erdma::pair {

/// Bytes by path, as the page of a process counts them.
struct PathBytes {
  bool told = false;  ///< by a provider that has such a page
  uint64_t rings = 0, cma_read = 0, cma_write = 0, copied = 0, refusals = 0;
  uint64_t nic_packets = 0, nic_read = 0, nic_write = 0, nic_copied = 0;

  uint64_t cma() const noexcept { return cma_read + cma_write; }
  uint64_t shm() const noexcept { return rings + cma() + copied; }
  uint64_t nic() const noexcept { return nic_packets + nic_read + nic_write; }
  /// "rings", "cma", "copy", "nic", or any other word for all of shared memory.
  uint64_t by(const std::string& path) const;
  PathBytes& operator+=(const PathBytes& other) noexcept;
  void print(const char* whose) const;
  /// "shm ring, CMA reads": which ways bytes went; empty where nothing is told.
  std::string ways() const;
  /// Null where nothing is told.
  Json to_json() const;
};

/// What this process counts now, by all its endpoints, also those that it closed while another is
/// open.
PathBytes bytes_told();

/// Of both sides, once each has nothing under way. Uses the channel.
PathBytes bytes_of_both(Channel& channel, const Channel::Drive& drive);

}  // namespace fi_erdma::pair
