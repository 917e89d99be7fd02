#pragma once

#include <sys/uio.h>

#include <cstdint>

#include "transport/shm/bulk_shared.h"
#include "transport/shm/region_gate.h"
#include "util/pool.h"

namespace erdma::transport::shm {

/// What is shared with one peer, as far as it may be helped to access it: a few of everything. Not
/// thread-safe.
class SharedRegions {
 public:
  /// Of a Ticket's remote key: is it of such a table?
  static bool names(uint64_t id) noexcept { return id >> 16 & kRegionIndex; }

  SharedRegions() noexcept = default;
  ~SharedRegions() { x_pool.clear(); }  // sharing ends with the link

  SharedRegion share(const iovec& memory, bool for_reads, bool for_writes) noexcept {
    SharedRegion result{reinterpret_cast<uintptr_t>(memory.iov_base), memory.iov_len, kUnhelped, 0};
    SharedMemory* region = x_pool.in_use() < kMaxSharedRegions ? x_pool.acquire() : nullptr;
    if (!region) return result;
    const util::PoolHandle handle = x_pool.handle(*region);
    result.index = handle.index | kRegionIndex;
    result.generation = handle.generation;
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
  /// Its id; 0 = it is not in the table.
  uint64_t revoke(const SharedRegion& region) noexcept {
    const uint64_t id = uint64_t(region.index) << 16 | uint16_t(region.generation);
    SharedMemory* const found = region.index == kUnhelped
                                    ? nullptr
                                    : x_pool.find({region.index & ~kRegionIndex, uint16_t(id)});
    if (!found) return 0;
    x_pool.release(*found);
    return id;
  }

 private:
  static constexpr uint32_t kRegionIndex = uint32_t(1) << 31;
  util::Pool<SharedMemory, 8> x_pool{kMaxSharedRegions};
};

}  // namespace erdma::transport::shm
