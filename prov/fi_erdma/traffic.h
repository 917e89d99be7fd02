#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fi_erdma/processes.h"

namespace fi_erdma {

/// A way that bytes take, with the counters that belong to it. An empty name: nothing is counted
/// in that direction at this side.
struct Path {
  const char* name;
  const char* sent;
  const char* received;
  const char* part = nullptr;  ///< of the bytes of other paths: what Prometheus is told it is
};
std::span<const Path> paths();

/// Bytes of one path in a page; nothing where the page has no such counter.
struct Bytes {
  std::optional<uint64_t> sent, received;
};
/// Of one endpoint.
Bytes bytes_of(const Block& block, const Path& path);
/// Of all endpoints of a process, those that it closed too.
Bytes bytes_of(const Snapshot& snapshot, const Path& path);

/// The same by all paths: of an endpoint or a peer, and of a process.
Bytes all_bytes_of(const Block& block);
Bytes all_bytes_of(const Snapshot& snapshot);

/// How much a counter of bytes grew; 0 where it was replaced meanwhile.
uint64_t growth(std::optional<uint64_t> from, std::optional<uint64_t> to);

/// "1.91 GiB", "88 B".
std::string bytes_text(double bytes);
/// The same per second; "-" without a number.
std::string rate_text(std::optional<double> bytes_per_second);

}  // namespace fi_erdma
