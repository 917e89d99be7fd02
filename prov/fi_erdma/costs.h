#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fi_erdma/snapshot.h"

namespace fi_erdma {

/// Bytes that were copied from and to a peer because the kernel refuses CMA.
uint64_t refused_bytes(const Block& peer);

/// One line for each slower path of an endpoint with these peers: the bytes that were copied
/// because the kernel refuses CMA, because the NIC could not access the memory, or to stage GPU
/// memory. Each line has the code under which docs/troubleshooting.md has the remedy.
std::vector<std::string> costs_of(const Block& endpoint, const std::vector<const Block*>& peers);

}  // namespace fi_erdma
