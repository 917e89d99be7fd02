#pragma once

#include <cstdint>
#include <initializer_list>

namespace erdma::util {

/// An FNV-1a hash of `parts`. It guards layouts that peers share: a static_assert compares the hash
/// of the layout with the one recorded for the current version, so that a change of the layout
/// without a new version does not compile.
constexpr uint64_t fingerprint(std::initializer_list<uint64_t> parts) noexcept {
  uint64_t hash = 14695981039346656037u;
  for (const uint64_t part : parts) hash = (hash ^ part) * 1099511628211u;
  return hash;
}

}  // namespace erdma::util
