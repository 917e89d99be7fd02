#pragma once

#include <sys/uio.h>

#include <cstdint>

#include "transport/shm/bulk_shared.h"
#include "transport/shm/lending.h"
#include "util/pool.h"

namespace erdma::transport::shm {

/// What is lent to one peer, as far as it may be helped to access it: a few of everything. Not
/// thread-safe.
class LentTable {
 public:
  /// Of a Ticket's exposure: is it of such a table?
  static bool names(uint64_t id) noexcept { return id >> 16 & kLentIndex; }

  LentTable() noexcept = default;
  ~LentTable() { x_pool.clear(); }  // lending ends with the link

  LentMemory lend(const iovec& memory, bool for_reads, bool for_writes) noexcept {
    LentMemory result{reinterpret_cast<uintptr_t>(memory.iov_base), memory.iov_len, kUnhelped, 0};
    RemoteMemory* lent = x_pool.in_use() < kMaxLent ? x_pool.acquire() : nullptr;
    if (!lent) return result;
    const util::PoolHandle handle = x_pool.handle(*lent);
    result.index = handle.index | kLentIndex;
    result.generation = handle.generation;
    lent->count = 1;
    lent->length = memory.iov_len;
    lent->iov[0] = memory;
    lent->for_reads = for_reads;
    lent->for_writes = for_writes;
    return result;
  }
  const RemoteMemory* find(uint64_t id) noexcept {
    return x_pool.find({uint32_t(id >> 16) & ~kLentIndex, uint16_t(id)});
  }
  /// Its id; 0 = it is not in the table.
  uint64_t take_back(const LentMemory& lent) noexcept {
    const uint64_t id = uint64_t(lent.index) << 16 | uint16_t(lent.generation);
    RemoteMemory* const found =
        lent.index == kUnhelped ? nullptr : x_pool.find({lent.index & ~kLentIndex, uint16_t(id)});
    if (!found) return 0;
    x_pool.release(*found);
    return id;
  }

 private:
  static constexpr uint32_t kLentIndex = uint32_t(1) << 31;
  util::Pool<RemoteMemory, 8> x_pool{kMaxLent};
};

}  // namespace erdma::transport::shm
