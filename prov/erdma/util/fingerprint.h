#pragma once

#include <cstdint>
#include <initializer_list>

namespace erdma::util {

/// A number that differs as soon as one of these does (FNV-1a). It guards layouts that a peer
/// shares: a static_assert compares it with the one that was computed when the version was counted.
constexpr uint64_t fingerprint(std::initializer_list<uint64_t> parts) noexcept {
  uint64_t hash = 14695981039346656037u;
  for (const uint64_t part : parts) hash = (hash ^ part) * 1099511628211u;
  return hash;
}

}  // namespace erdma::util
