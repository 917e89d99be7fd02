#include "transport/verbs/block_pool.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>

#include "util/error_text.h"
#include "util/left_over.h"
#include "util/log.h"

namespace erdma::transport::verbs {
namespace {

/// Idle slabs that are kept for the next burst; more where each peer has its own.
constexpr size_t kIdleSlabs = 1;
constexpr size_t kIdleSlabsApart = 4;

size_t page_mask() noexcept {
  static const size_t mask = size_t(::sysconf(_SC_PAGESIZE)) - 1;
  return mask;
}

}  // namespace

BlockPool::BlockPool(const Device& device, OwnUse use, size_t block_bytes, size_t blocks_per_slab,
                     size_t max_slabs)
    : x_device(device),
      x_use(use),
      x_apart(use == OwnUse::read_buffers && device.transport_type() == TransportType::iwarp),
      x_block_bytes(block_bytes),
      x_blocks(blocks_in_region(device, block_bytes, blocks_per_slab)),
      x_slabs((max_slabs * blocks_per_slab + x_blocks - 1) / x_blocks) {}

BlockPool::~BlockPool() {
  util::expect_none_left("block", x_in_use);
}

size_t BlockPool::longest(const Device& device) noexcept {
  return device.limits().max_region & ~uint64_t(page_mask());
}

/// The number of blocks of a slab.
size_t BlockPool::blocks_in_region(const Device& device, size_t bytes, size_t most) noexcept {
  return std::clamp<size_t>(longest(device) / bytes, 1, most);
}

/// Rounded up to whole pages.
size_t BlockPool::slab_bytes() const noexcept {
  return (x_block_bytes * x_blocks + page_mask()) & ~page_mask();
}

bool BlockPool::make(Slab& slab) noexcept try {
  slab.free.reserve(x_blocks);
  if (const int error = slab.memory.make(x_device, slab_bytes(), x_use)) return refuse(error);
  for (uint32_t i = uint32_t(x_blocks); i-- > 0;) slab.free.push_back(i);
  ++x_made;
  ++x_idle;
  return true;
} catch (const std::bad_alloc&) {
  return refuse(ENOMEM);
}

void BlockPool::unmake(Slab& slab) noexcept {
  slab.memory.reset();
  slab.closed = false;
  slab.free.clear();
  --x_made;
  --x_idle;
}

bool BlockPool::refuse(int error) noexcept {
  if (!x_said && error == ENOSPC)
    tell_of_locked_memory(x_device, slab_bytes(), "packets", error);
  else if (!x_said && !x_device.gone())
    ERDMA_NOTICE(locked_memory, EP_DATA,
                 "%s: no more memory for packets (%zu KiB: %s); go on with %zu KiB. "
                 "Raise the limit of locked memory (ulimit -l)",
                 x_device.name().c_str(), slab_bytes() >> 10, util::ErrorText(error).c_str(),
                 x_made * slab_bytes() >> 10);
  x_said = true;
  return false;
}

/// The slab to take a block from. Low ones come first, so that high ones become idle. Null: none.
BlockPool::Slab* BlockPool::with_room(const void* peer) noexcept {
  if (x_slabs.empty()) return nullptr;
  if (usable(x_slabs[x_lowest], peer)) return &x_slabs[x_lowest];
  Slab* missing = nullptr;
  Slab* others = nullptr;
  for (Slab& slab : x_slabs) {
    if (usable(slab, peer)) {
      x_lowest = uint32_t(&slab - x_slabs.data());
      return &slab;
    }
    if (!slab.memory && !missing) missing = &slab;
    if (slab.memory && slab.free.size() == x_blocks) others = &slab;
  }
  // Free its memory as well: another peer knows its key, so this peer's bytes must not go there.
  if (others && (!missing || x_refused)) unmake(*(missing = others)), x_refused = false;
  if (!missing && x_apart) close_one();
  // If no block is in use, none will be released, so only another attempt here can find that memory
  // is available again.
  if (!missing || (x_refused && x_in_use > 0)) return nullptr;
  if (!make(*missing)) {
    x_refused = true;
    if (!others || others == missing) return nullptr;
    unmake(*(missing = others));
    if (!make(*missing)) return nullptr;
  }
  missing->peer = peer;
  x_lowest = uint32_t(missing - x_slabs.data());
  return missing;
}

bool BlockPool::usable(const Slab& slab, const void* peer) const noexcept {
  return slab.memory && !slab.free.empty() && (!x_apart || (slab.peer == peer && !slab.closed));
}

/// Peers that never pause would otherwise keep their slabs.
void BlockPool::close_one() noexcept {
  for (const Slab& slab : x_slabs)
    if (slab.closed) return;
  x_slabs[x_next_closed++ % x_slabs.size()].closed = true;
}

bool BlockPool::acquire(Block& block, const void* peer) noexcept {
  Slab* slab = with_room(peer);
  if (!slab) return false;
  if (slab->free.size() == x_blocks) --x_idle;
  const uint32_t index = slab->free.back();
  slab->free.pop_back();
  ++x_in_use;
  block = {slab->memory.bytes() + index * x_block_bytes, slab->memory.lkey(),
           uint32_t(slab - x_slabs.data())};
  return true;
}

void BlockPool::release(const Block& block) noexcept {
  Slab& slab = x_slabs[block.slab];
  slab.free.push_back(uint32_t(size_t(block.bytes - slab.memory.bytes()) / x_block_bytes));
  --x_in_use;
  x_refused = false;
  if (block.slab < x_lowest) x_lowest = block.slab;
  if (slab.free.size() < x_blocks) return;
  if (++x_idle > (slab.closed ? 0 : x_apart ? kIdleSlabsApart : kIdleSlabs)) unmake(slab);
}

}  // namespace erdma::transport::verbs
