#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "transport/transport.h"

namespace erdma::protocol {

/// Memory that peers may access by its key.
class Region {
 public:
  iovec iov[transport::kMaxIov]{};
  size_t iov_count = 0;
  uint64_t access = 0;  ///< FI_REMOTE_READ, FI_REMOTE_WRITE, ...
  bool device = false;  ///< it is not host memory
  /// Operations of peers under way, and peers with direct access; its owner waits for them. Atomic,
  /// as an endpoint that closes lets go without the lock.
  std::atomic<uint32_t> users{0};

  /// For direct access through a NIC. Null: not yet, or `register_tried` and it can't be had.
  /// Device memory that a NIC can access is open from the beginning.
  std::unique_ptr<transport::RegisteredRegion> registered;
  bool register_tried = false;
  bool used = false;  ///< by a peer: worth the device's resources, and perhaps shared

  /// An operation of a peer is over: FI_REMOTE_READ, FI_REMOTE_WRITE, or both (an atomic operation
  /// that fetches and modifies).
  virtual void accessed(uint64_t how) noexcept = 0;
  /// Somebody waits for each accessed(): direct access would go unnoticed.
  virtual bool counts() const noexcept { return false; }

 protected:
  ~Region() = default;
};

/// The regions of one domain; implemented by fabric/. The caller holds the domain lock.
class Regions {
 public:
  /// Null: no such key, or the region is closed.
  virtual Region* region(uint64_t key) noexcept = 0;

 protected:
  ~Regions() = default;
};

/// Keeps a region from being given back to the application.
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
