#pragma once

#include <algorithm>
#include <cstddef>

namespace erdma::transport::shm {

/// The links that the last large messages took, or the rings that the last long payloads took: an
/// estimate of how many rings share the cache.
class RecentLinks {
 public:
  static constexpr size_t kLast = 16;  ///< messages that are remembered

  void add(const void* link) noexcept { x_last[x_next++ % kLast] = link; }
  /// The number of links that the last messages took and that one to `next` takes.
  size_t links_with(const void* next) const noexcept {
    size_t distinct = 1;
    for (size_t i = 0; i < kLast; ++i)
      distinct +=
          x_last[i] && x_last[i] != next && std::find(x_last, x_last + i, x_last[i]) == x_last + i;
    return distinct;
  }

 private:
  const void* x_last[kLast] = {};
  size_t x_next = 0;
};

}  // namespace erdma::transport::shm
