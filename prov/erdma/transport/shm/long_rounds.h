#pragma once

#include "transport/shm/recent_links.h"

namespace erdma::transport::shm {

/// Decides which rings of an endpoint cycle through their whole byte ring: few, so that those in
/// use fit into the cache that the cores share, and so that busy peers take little memory.
class LongRounds {
 public:
  static constexpr unsigned kMost = 4;  ///< rings that have been permitted to
  static constexpr size_t kFew = 2;     ///< rings that do so at a time

  /// A long payload goes through the ring.
  void use(const void* ring) noexcept { x_recent.add(ring); }
  bool few(const void* ring) const noexcept { return x_recent.links_with(ring) <= kFew; }
  /// True: the ring may do so, until it ends and gives the permission back.
  bool take(const void* ring) noexcept {
    if (x_taken == kMost || !few(ring)) return false;
    ++x_taken;
    return true;
  }
  void give_back() noexcept { --x_taken; }

 private:
  RecentLinks x_recent;
  unsigned x_taken = 0;
};

}  // namespace erdma::transport::shm
