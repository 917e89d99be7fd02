#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "transport/transport.h"

namespace erdma::protocol {

/// Which answers of peers to the revocation of a region are still waited for.
enum class Await : uint8_t {
  answers,
  busy_peers,  ///< of peers that said that their operations are under way
  nothing,
};

/// A memory region (fi_mr(3)) that peers may access by its key.
class Region {
 public:
  iovec iov[transport::kMaxIov]{};
  size_t iov_count = 0;
  uint64_t access = 0;  ///< FI_REMOTE_READ, FI_REMOTE_WRITE, ...
  bool device = false;  ///< device memory
  /// Number of peers' operations under way and of peers with direct access. The close of the region
  /// waits until it is 0. Atomic, because a closing endpoint decrements it without the lock.
  std::atomic<uint32_t> users{0};

  /// For direct access through a NIC. Null: not registered yet or, with `register_tried`, not
  /// possible. Device memory that a NIC can access is registered from the beginning.
  std::unique_ptr<transport::RegisteredRegion> registered;
  bool register_tried = false;
  bool used = false;  ///< a peer has used the region: the next use may register it

  /// An operation of a peer on the region is over. `how`: FI_REMOTE_READ, FI_REMOTE_WRITE, or both
  /// (an atomic operation that fetches and modifies).
  virtual void accessed(uint64_t how) noexcept = 0;
  /// Returns true if a counter needs every accessed(). Direct access would bypass it.
  virtual bool counts() const noexcept { return false; }

 protected:
  ~Region() = default;
};

/// The regions of one domain. fabric/ implements it. The caller holds the domain lock.
class Regions {
 public:
  /// Null: there is no region with this key, or it is closed.
  virtual Region* region(uint64_t key) noexcept = 0;

 protected:
  ~Regions() = default;
};

/// While it lives, the close of the region waits.
class RegionUse {
 public:
  RegionUse() noexcept = default;
  explicit RegionUse(Region& region) noexcept : x_region(&region) {
    region.users.fetch_add(1, std::memory_order_relaxed);
  }
  RegionUse(RegionUse&& other) noexcept : x_region(std::exchange(other.x_region, nullptr)) {}
  RegionUse& operator=(RegionUse&& other) noexcept {
    std::swap(x_region, other.x_region);
    return *this;
  }
  ~RegionUse() {
    if (x_region) x_region->users.fetch_sub(1, std::memory_order_release);
  }
  Region* get() const noexcept { return x_region; }

 private:
  Region* x_region = nullptr;
};

}  // namespace erdma::protocol
