#pragma once

#include <algorithm>
#include <cstddef>

namespace erdma::transport::shm {

/// The links that the last large messages took, or the rings that the last payloads took: an
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

/// The rings that the last payloads of an endpoint took. Short ones are apart: a few messages of
/// hardly any bytes shall not hide where the others go.
struct RecentRings {
  RecentLinks of_short, of_others;
};

}  // namespace erdma::transport::shm
