#include <unistd.h>

#include <cerrno>
#include <memory>
#include <new>
#include <vector>

#include "transport/verbs/registration.h"
#include "util/error_text.h"
#include "util/left_over.h"
#include "util/log.h"

namespace erdma::transport::verbs {
namespace {

/// Idle slabs that are kept for the next burst; of several peers where each has its own.
constexpr size_t kIdleSlabs = 1;
constexpr size_t kIdleSlabsApart = 4;

size_t whole_pages(size_t bytes) noexcept {
  static const size_t mask = size_t(::sysconf(_SC_PAGESIZE)) - 1;
  return (bytes + mask) & ~mask;
}

}  // namespace

struct BlockPool::Impl {
  struct Slab {
    OwnMemory memory;
    const void* peer = nullptr;
    bool closed = false;  ///< for another peer, as soon as nothing of it is in use
    std::vector<uint32_t> free;
    bool full() const noexcept { return free.empty(); }
  };

  Impl(const Device& of, OwnUse for_what, size_t bytes, size_t count, size_t limit)
      : device(of),
        use(for_what),
        apart(for_what == OwnUse::read_buffers && of.transport_type() == TransportType::iwarp),
        block_bytes(bytes),
        blocks(count),
        slabs(limit) {}
  ~Impl() { util::expect_none_left("block", in_use); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  size_t slab_bytes() const noexcept { return whole_pages(block_bytes * blocks); }

  bool make(Slab& slab) noexcept try {
    slab.free.reserve(blocks);
    if (const int error = slab.memory.make(device, slab_bytes(), use)) return refuse(error);
    for (uint32_t i = uint32_t(blocks); i-- > 0;) slab.free.push_back(i);
    ++made;
    ++idle;
    return true;
  } catch (const std::bad_alloc&) {
    return refuse(ENOMEM);
  }

  void unmake(Slab& slab) noexcept {
    slab.memory.reset();
    slab.closed = false;
    slab.free.clear();
    --made;
    --idle;
  }

  bool refuse(int error) noexcept {
    if (!said)
      ERDMA_NOTICE(locked_memory, EP_DATA,
                   "%s: no more memory for packets (%zu KiB: %s); go on with %zu KiB. "
                   "Raise the limit of locked memory (ulimit -l)\n",
                   device.name().c_str(), slab_bytes() >> 10, util::ErrorText(error).c_str(),
                   made * slab_bytes() >> 10);
    said = true;
    return false;
  }

  /// The slab to take from; low ones first, so that high ones can go. Null: none.
  Slab* with_room(const void* peer) noexcept {
    if (slabs.empty()) return nullptr;
    if (usable(slabs[lowest], peer)) return &slabs[lowest];
    Slab* missing = nullptr;
    Slab* others = nullptr;
    for (Slab& slab : slabs) {
      if (usable(slab, peer)) {
        lowest = uint32_t(&slab - slabs.data());
        return &slab;
      }
      if (!slab.memory && !missing) missing = &slab;
      if (slab.memory && slab.free.size() == blocks) others = &slab;
    }
    // Its memory goes, too, as what another peer knows of is not where this one's bytes go.
    if (others && (!missing || refused)) unmake(*(missing = others)), refused = false;
    if (!missing && apart) close_one();
    // While nothing is out, nothing will be released: memory that is there again is noticed here.
    if (!missing || (refused && in_use > 0)) return nullptr;
    if (!make(*missing)) {
      refused = true;
      return nullptr;
    }
    missing->peer = peer;
    lowest = uint32_t(missing - slabs.data());
    return missing;
  }

  bool usable(const Slab& slab, const void* peer) const noexcept {
    return slab.memory && !slab.full() && (!apart || (slab.peer == peer && !slab.closed));
  }

  /// Peers that never pause would keep what they have.
  void close_one() noexcept {
    for (const Slab& slab : slabs)
      if (slab.closed) return;
    slabs[next_closed++ % slabs.size()].closed = true;
  }

  const Device& device;
  const OwnUse use;
  const bool apart;  ///< a slab has one peer at a time
  const size_t block_bytes;
  const size_t blocks;  ///< of a slab
  std::vector<Slab> slabs;
  uint32_t lowest = 0;  ///< likely to have room
  size_t next_closed = 0;
  size_t made = 0, idle = 0, in_use = 0;
  bool said = false;
  bool refused = false;  ///< try again when something was released
};

BlockPool::BlockPool(const Device& device, OwnUse use, size_t block_bytes, size_t blocks_per_slab,
                     size_t max_slabs)
    : x_impl(std::make_unique<Impl>(device, use, block_bytes, blocks_per_slab, max_slabs)) {}
BlockPool::~BlockPool() = default;

bool BlockPool::acquire(Block& block, const void* peer) noexcept {
  Impl::Slab* slab = x_impl->with_room(peer);
  if (!slab) return false;
  if (slab->free.size() == x_impl->blocks) --x_impl->idle;
  const uint32_t index = slab->free.back();
  slab->free.pop_back();
  ++x_impl->in_use;
  block = {slab->memory.bytes() + index * x_impl->block_bytes, slab->memory.lkey(),
           uint32_t(slab - x_impl->slabs.data())};
  return true;
}

void BlockPool::release(const Block& block) noexcept {
  Impl::Slab& slab = x_impl->slabs[block.slab];
  slab.free.push_back(uint32_t(size_t(block.bytes - slab.memory.bytes()) / x_impl->block_bytes));
  --x_impl->in_use;
  x_impl->refused = false;
  if (block.slab < x_impl->lowest) x_impl->lowest = block.slab;
  if (slab.free.size() < x_impl->blocks) return;
  if (++x_impl->idle > (slab.closed ? 0 : x_impl->apart ? kIdleSlabsApart : kIdleSlabs))
    x_impl->unmake(slab);
}

size_t BlockPool::block_bytes() const noexcept {
  return x_impl->block_bytes;
}
size_t BlockPool::in_use() const noexcept {
  return x_impl->in_use;
}

}  // namespace erdma::transport::verbs
