#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

#include "transport/verbs/own_memory.h"
#include "util/intrusive_list.h"

namespace erdma::transport::verbs {

/// Registered memory for the receives of one endpoint. Several connections share a region, because
/// an adapter has few regions for all processes of its host. A new region has as many parts as
/// there are already, so that an endpoint with few peers registers little. Thread-safe.
class ReceiveRegions {
  struct Region;

 public:
  static constexpr size_t kMostBytes = 1 << 20;  ///< of a region that has several parts

  /// Memory of one connection. It goes back when this object is destroyed or reset.
  class Part {
   public:
    Part() noexcept = default;
    Part(Part&& other) noexcept { swap(other); }
    Part& operator=(Part&& other) noexcept {
      swap(other);
      return *this;
    }
    ~Part() { reset(); }
    void reset() noexcept;

    explicit operator bool() const noexcept { return x_region != nullptr; }
    std::byte* bytes() const noexcept;
    uint32_t lkey() const noexcept;

   private:
    friend ReceiveRegions;
    void swap(Part& other) noexcept {
      std::swap(x_owner, other.x_owner);
      std::swap(x_region, other.x_region);
      std::swap(x_index, other.x_index);
    }
    ReceiveRegions* x_owner = nullptr;
    Region* x_region = nullptr;
    unsigned x_index = 0;
  };

  explicit ReceiveRegions(const Device& device) noexcept : x_device(device) {}
  ReceiveRegions(const ReceiveRegions&) = delete;
  ReceiveRegions& operator=(const ReceiveRegions&) = delete;
  ~ReceiveRegions();

  /// 0, or -FI_ENOMEM and others; logged with the remedy. `part` holds nothing before.
  [[nodiscard]] int take(size_t bytes, Part& part) noexcept;

 private:
  static constexpr unsigned kMostParts = 64;

  struct Region : util::ListHook<Region> {
    bool full() const noexcept {
      return used == (parts < kMostParts ? (1ull << parts) - 1 : ~0ull);
    }
    OwnMemory memory;
    size_t part_bytes = 0;
    unsigned parts = 0;
    uint64_t used = 0;  ///< a bit for each part
  };
  // Call the first two with x_mutex held.
  Region* find(size_t bytes, unsigned& parts) noexcept;
  void hand_out(Region& region, Part& part) noexcept;
  int make(size_t bytes, unsigned parts, Region*& region) const noexcept;
  void give_back(Region& region, unsigned index) noexcept;

  const Device& x_device;
  const uint32_t x_epoch = util::process_epoch();
  std::mutex x_mutex;  ///< guards the list and what is used; not held during calls of the device
  util::IntrusiveList<Region> x_regions;
};

}  // namespace erdma::transport::verbs
