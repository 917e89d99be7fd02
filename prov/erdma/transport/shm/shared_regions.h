#pragma once

#include <sys/uio.h>

#include <cstdint>

#include "transport/shm/bulk_shared.h"
#include "transport/shm/region_gate.h"
#include "util/pool.h"

namespace erdma::transport::shm {

/// The regions shared with one peer with whose accesses this side may help; a limited number. Not
/// thread-safe.
class SharedRegions {
 public:
  /// True if the remote key in a Ticket belongs to such a table.
  static bool names(uint64_t id) noexcept { return id >> 16 & kRegionIndex; }

  SharedRegions() noexcept = default;
  ~SharedRegions() { x_pool.clear(); }  // sharing ends with the link

  SharedRegion share(const iovec& memory, bool for_reads, bool for_writes) noexcept {
    SharedRegion result;
    result.address = reinterpret_cast<uintptr_t>(memory.iov_base);
    result.length = memory.iov_len;
    result.head.index = kUnhelped;
    SharedMemory* region = x_pool.in_use() < kMaxSharedRegions ? x_pool.acquire() : nullptr;
    if (!region) return result;
    const util::PoolHandle handle = x_pool.handle(*region);
    result.head.index = handle.index | kRegionIndex;
    result.head.generation = handle.generation;
    region->count = 1;
    region->length = memory.iov_len;
    region->iov[0] = memory;
    region->for_reads = for_reads;
    region->for_writes = for_writes;
    return result;
  }
  const SharedMemory* find(uint64_t id) noexcept {
    return x_pool.find({uint32_t(id >> 16) & ~kRegionIndex, uint16_t(id)});
  }
  /// Returns the region's id; 0 = it is not in the table.
  uint64_t revoke(const SharedRegion& region) noexcept {
    const KeyHead& head = region.head;
    if (head.index == kUnhelped) return 0;
    SharedMemory* const found = x_pool.find({head.index & ~kRegionIndex, head.generation});
    if (!found) return 0;
    x_pool.release(*found);
    return uint64_t(head.index) << 16 | head.generation;
  }

 private:
  static constexpr uint32_t kRegionIndex = uint32_t(1) << 31;
  util::Pool<SharedMemory, 8> x_pool{kMaxSharedRegions};
};

}  // namespace erdma::transport::shm
