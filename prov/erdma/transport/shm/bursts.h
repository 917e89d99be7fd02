#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace erdma::transport::shm {

/// Tells whether messages leave for several peers between two polls, as in an all-to-all. Then the
/// time that each takes from its sender and its receiver counts, and not how soon it arrives.
class Bursts {
 public:
  /// Call for each message of medium length; `polls`: the number of the last poll. True: it belongs
  /// to a burst, as does the next message after one.
  bool add(const void* link, uint32_t polls) noexcept {
    if (polls != x_polls) {
      x_follows = x_count == kLeast;
      x_count = 0;
      x_polls = polls;
    }
    if (x_count < kLeast && std::find(x_links, x_links + x_count, link) == x_links + x_count)
      x_links[x_count++] = link;
    return x_follows || x_count == kLeast;
  }

  /// Peers. Two also get messages without a poll between them where a process sends to one what it
  /// has just received from the other.
  static constexpr size_t kLeast = 3;

 private:
  const void* x_links[kLeast] = {};
  size_t x_count = 0;
  uint32_t x_polls = 0;
  bool x_follows = false;
};

}  // namespace erdma::transport::shm
