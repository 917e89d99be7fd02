#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/verbs/own_memory.h"

namespace erdma::transport::verbs {

/// Memory of the transport's own, registered once, handed out in blocks of one size.
/// Grows by slabs; idle ones go back, but for a few. Not thread-safe.
/// Slabs of sinks have one peer at a time, where a peer learns their keys (see ReadBuffers): an
/// idle one that another peer had is registered anew.
class BlockPool {
 public:
  struct Block {
    std::byte* bytes = nullptr;
    uint32_t lkey = 0;
    uint32_t slab = 0;
  };
  BlockPool(const Device& device, OwnUse use, size_t block_bytes, size_t blocks_per_slab,
            size_t max_slabs);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  /// False: at its limit, or registration failed (logged once, with the remedy: memlock).
  /// `peer` says whose the bytes are: of sinks.
  [[nodiscard]] bool acquire(Block& block, const void* peer = nullptr) noexcept;
  void release(const Block& block) noexcept;
  size_t block_bytes() const noexcept { return x_block_bytes; }
  size_t in_use() const noexcept { return x_in_use; }

 private:
  struct Slab {
    OwnMemory memory;
    const void* peer = nullptr;
    bool closed = false;  ///< for another peer, as soon as nothing of it is in use
    std::vector<uint32_t> free;
  };

  size_t slab_bytes() const noexcept;
  bool make(Slab& slab) noexcept;
  void unmake(Slab& slab) noexcept;
  bool refuse(int error) noexcept;
  Slab* with_room(const void* peer) noexcept;
  bool usable(const Slab& slab, const void* peer) const noexcept;
  void close_one() noexcept;

  const Device& x_device;
  const OwnUse x_use;
  const bool x_apart;  ///< a slab has one peer at a time
  const size_t x_block_bytes;
  const size_t x_blocks;  ///< of a slab
  std::vector<Slab> x_slabs;
  uint32_t x_lowest = 0;  ///< likely to have room
  size_t x_next_closed = 0;
  size_t x_made = 0, x_idle = 0, x_in_use = 0;
  bool x_said = false;
  bool x_refused = false;  ///< try again when something was released
};

}  // namespace erdma::transport::verbs
