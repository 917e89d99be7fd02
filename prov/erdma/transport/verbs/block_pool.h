#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/verbs/own_memory.h"

namespace erdma::transport::verbs {

/// Memory of the transport itself, registered once and handed out in blocks of one size. It grows
/// by slabs; idle slabs are freed, except for a few. Not thread-safe. Where a peer learns the keys
/// of sinks (see ReadBuffers), a slab of sinks has one peer at a time: an idle slab is registered
/// anew before another peer gets it.
class BlockPool {
 public:
  struct Block {
    std::byte* bytes = nullptr;
    uint32_t lkey = 0;
    uint32_t slab = 0;
  };
  /// `blocks_per_slab` at most: a slab is one region of the device. `max_slabs` of that many.
  BlockPool(const Device& device, OwnUse use, size_t block_bytes, size_t blocks_per_slab,
            size_t max_slabs);
  ~BlockPool();
  /// The longest block, in bytes: a slab is one region of the device, and whole pages.
  static size_t longest(const Device& device) noexcept;
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  /// False: the pool is at its limit, or registration failed (logged once, with the remedy:
  /// memlock). `peer`: for sinks, the peer whose bytes they receive.
  [[nodiscard]] bool acquire(Block& block, const void* peer = nullptr) noexcept;
  void release(const Block& block) noexcept;
  size_t block_bytes() const noexcept { return x_block_bytes; }
  size_t in_use() const noexcept { return x_in_use; }

 private:
  struct Slab {
    OwnMemory memory;
    const void* peer = nullptr;
    bool closed = false;  ///< another peer gets it as soon as no block of it is in use
    std::vector<uint32_t> free;
  };

  static size_t blocks_in_region(const Device& device, size_t bytes, size_t most) noexcept;
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
  const size_t x_blocks;  ///< per slab
  std::vector<Slab> x_slabs;
  uint32_t x_lowest = 0;  ///< the first slab that may have room
  size_t x_next_closed = 0;
  size_t x_made = 0, x_idle = 0, x_in_use = 0;
  bool x_said = false;
  bool x_refused = false;  ///< try again after the next release
};

}  // namespace erdma::transport::verbs
