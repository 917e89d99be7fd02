#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fi_erdma/processes.h"

namespace fi_erdma {

/// A path of bytes with its counters. An empty counter name: this side does not count that
/// direction.
struct Path {
  const char* name;
  const char* sent;
  const char* received;
  const char* part = nullptr;  ///< help text for Prometheus, if part of other paths' bytes
};
std::span<const Path> paths();

/// Bytes of one path; empty if the page has no such counter.
struct Bytes {
  std::optional<uint64_t> sent, received;
};
/// The bytes of one endpoint.
Bytes bytes_of(const Block& block, const Path& path);
/// The bytes of all endpoints of a process, including closed ones.
Bytes bytes_of(const Snapshot& snapshot, const Path& path);

/// The bytes of all paths, of an endpoint or a peer, and of a process.
Bytes all_bytes_of(const Block& block);
Bytes all_bytes_of(const Snapshot& snapshot);

/// The growth of a counter; 0 if the counter began anew meanwhile.
uint64_t growth(std::optional<uint64_t> from, std::optional<uint64_t> to);

/// "1.91 GiB", "88 B".
std::string bytes_text(double bytes);
/// The same; "-" without a number.
std::string total_text(std::optional<uint64_t> bytes);
/// "1.91 GiB/s"; "-" without a number.
std::string rate_text(std::optional<double> bytes_per_second);

}  // namespace fi_erdma
