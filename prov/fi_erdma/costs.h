#pragma once

#include <string>
#include <vector>

#include "fi_erdma/snapshot.h"

namespace fi_erdma {

/// What slower ways cost an endpoint so far, a line for each with the code under which
/// docs/troubleshooting.md has the remedy: bytes that were copied as the kernel refuses CMA, or on
/// their way by the NIC, or staged for GPU memory.
std::vector<std::string> costs_of(const Snapshot& snapshot, const Block& endpoint);

}  // namespace fi_erdma
