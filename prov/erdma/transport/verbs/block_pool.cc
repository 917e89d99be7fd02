#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "transport/verbs/registration.h"
#include "util/log.h"
#include "util/process_epoch.h"

namespace erdma::transport::verbs {
namespace {

/// Idle slabs that are kept for the next burst.
constexpr size_t kIdleSlabs = 1;

size_t whole_pages(size_t bytes) noexcept {
  static const size_t mask = size_t(::sysconf(_SC_PAGESIZE)) - 1;
  return (bytes + mask) & ~mask;
}

}  // namespace

struct BlockPool::Impl {
  struct Slab {
    std::byte* memory = nullptr;
    MemoryRegion region;
    std::vector<uint32_t> free;
    bool full() const noexcept { return free.empty(); }
  };

  Impl(const Device& of, size_t bytes, size_t count, size_t limit)
      : device(of), block_bytes(bytes), blocks(count), slabs(limit) {}
  ~Impl() {
    for (Slab& slab : slabs) unmake(slab);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  size_t slab_bytes() const noexcept { return whole_pages(block_bytes * blocks); }

  bool make(Slab& slab) noexcept try {
    slab.free.reserve(blocks);
    void* memory =
        ::mmap(nullptr, slab_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return refuse("mmap", errno);
    (void)::madvise(memory, slab_bytes(), MADV_DONTFORK);
    slab.region.reset(ibv_reg_mr(device.pd(), memory, slab_bytes(),
                                 Device::kSinkAccess | IBV_ACCESS_REMOTE_READ));
    if (!slab.region) {
      const int error = errno;
      ::munmap(memory, slab_bytes());
      return refuse("registration", error);
    }
    slab.memory = static_cast<std::byte*>(memory);
    for (uint32_t i = uint32_t(blocks); i-- > 0;) slab.free.push_back(i);
    ++made;
    ++idle;
    return true;
  } catch (const std::bad_alloc&) {
    return refuse("memory", ENOMEM);
  }

  void unmake(Slab& slab) noexcept {
    if (!slab.memory) return;
    if (epoch != util::process_epoch()) {  // the parent's region; the memory is not mapped here
      (void)slab.region.release();
      return;
    }
    slab.region.reset();
    ::munmap(slab.memory, slab_bytes());
    slab.memory = nullptr;
    slab.free.clear();
    --made;
    --idle;
  }

  bool refuse(const char* what, int error) noexcept {
    if (!said)
      ERDMA_WARN(EP_DATA,
                 "%s: no more memory for packets (%s of %zu KiB: %s); go on with %zu KiB. "
                 "Raise the limit of locked memory (ulimit -l)\n",
                 device.name().c_str(), what, slab_bytes() >> 10, std::strerror(error),
                 made * slab_bytes() >> 10);
    said = true;
    return false;
  }

  /// The slab to take from; low ones first, so that high ones can go. Null: none.
  Slab* with_room() noexcept {
    if (slabs.empty()) return nullptr;
    if (slabs[lowest].memory && !slabs[lowest].full()) return &slabs[lowest];
    Slab* missing = nullptr;
    for (Slab& slab : slabs) {
      if (!slab.memory) {
        if (!missing) missing = &slab;
      } else if (!slab.full()) {
        lowest = uint32_t(&slab - slabs.data());
        return &slab;
      }
    }
    // While nothing is out, nothing will be released: memory that is there again is noticed here.
    if (!missing || (refused && in_use > 0)) return nullptr;
    if (!make(*missing)) {
      refused = true;
      return nullptr;
    }
    lowest = uint32_t(missing - slabs.data());
    return missing;
  }

  const Device& device;
  const size_t block_bytes;
  const size_t blocks;  ///< of a slab
  std::vector<Slab> slabs;
  uint32_t lowest = 0;  ///< likely to have room
  size_t made = 0, idle = 0, in_use = 0;
  bool said = false;
  bool refused = false;  ///< try again when something was released
  const uint32_t epoch = util::process_epoch();
};

BlockPool::BlockPool(const Device& device, size_t block_bytes, size_t blocks_per_slab,
                     size_t max_slabs)
    : x_impl(std::make_unique<Impl>(device, block_bytes, blocks_per_slab, max_slabs)) {}
BlockPool::~BlockPool() = default;

bool BlockPool::acquire(Block& block) noexcept {
  Impl::Slab* slab = x_impl->with_room();
  if (!slab) return false;
  if (slab->free.size() == x_impl->blocks) --x_impl->idle;
  const uint32_t index = slab->free.back();
  slab->free.pop_back();
  ++x_impl->in_use;
  block = {slab->memory + index * x_impl->block_bytes, slab->region->lkey, slab->region->rkey,
           uint32_t(slab - x_impl->slabs.data())};
  return true;
}

void BlockPool::release(const Block& block) noexcept {
  Impl::Slab& slab = x_impl->slabs[block.slab];
  slab.free.push_back(uint32_t(size_t(block.bytes - slab.memory) / x_impl->block_bytes));
  --x_impl->in_use;
  x_impl->refused = false;
  if (block.slab < x_impl->lowest) x_impl->lowest = block.slab;
  if (slab.free.size() < x_impl->blocks) return;
  if (++x_impl->idle > kIdleSlabs) x_impl->unmake(slab);
}

size_t BlockPool::block_bytes() const noexcept {
  return x_impl->block_bytes;
}
size_t BlockPool::in_use() const noexcept {
  return x_impl->in_use;
}

}  // namespace erdma::transport::verbs
