#pragma once

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "libcheck.h"
#include "transport/verbs/memory_map.h"
#include "transport/verbs/registration_cache.h"
#include "transport/verbs/shared_memory.h"
#include "transport/verbs/single_uses.h"

// Memory whose pages are numbered, and regions that remember the numbers of their pages, as a NIC
// would reach them.
namespace erdma::test {

namespace verbs = transport::verbs;

inline size_t page_bytes() {
  return size_t(sysconf(_SC_PAGESIZE));
}

/// A range of addresses with numbered pages; a number is never used again. The range is reserved
/// without access, so that no other code maps memory in it. It is far from addresses that the
/// kernel chooses, as a test may unmap parts of it for a moment.
class Arena {
 public:
  explicit Arena(size_t pages) : x_pages(pages), x_numbers(new std::atomic<uint64_t>[pages]()) {
    static std::atomic<uintptr_t> next = uintptr_t{1} << 45;
    void* const wanted = reinterpret_cast<void*>(next.fetch_add(uintptr_t{1} << 30));
    void* const memory =
        mmap(wanted, bytes(pages), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ck_assert_ptr_ne(memory, MAP_FAILED);
    x_base = static_cast<std::byte*>(memory);
  }
  ~Arena() { munmap(x_base, bytes(x_pages)); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  static size_t bytes(size_t pages) { return pages * page_bytes(); }
  size_t pages() const { return x_pages; }
  std::byte* at(size_t page) const { return x_base + bytes(page); }

  void map(size_t page, size_t count) {
    ck_assert_ptr_eq(mmap(at(page), bytes(count), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
                     at(page));
    renew(page, count);
  }
  void unmap(size_t page, size_t count) {
    ck_assert_ptr_eq(mmap(at(page), bytes(count), PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0),
                     at(page));
    for (size_t i = page; i < page + count; ++i) x_numbers[i] = 0;
  }
  void empty(size_t page, size_t count) {
    ck_assert_int_eq(madvise(at(page), bytes(count), MADV_DONTNEED), 0);
    for (size_t i = page; i < page + count; ++i)
      if (x_numbers[i]) renew(i, 1);
  }
  /// Moves pages to a range that does not overlap with them. Does nothing if they belong to several
  /// mappings, as kernels differ in that case.
  void move(size_t from, size_t to, size_t count) {
    verbs::Mapping mapping;
    const auto start = reinterpret_cast<uintptr_t>(at(from));
    if (!find_mapping(start, mapping) || mapping.range.end < start + bytes(count)) return;
    ck_assert_ptr_eq(
        mremap(at(from), bytes(count), bytes(count), MREMAP_MAYMOVE | MREMAP_FIXED, at(to)),
        at(to));
    for (size_t i = 0; i < count; ++i) x_numbers[to + i] = x_numbers[from + i].load();
    unmap(from, count);
  }
  void renew(size_t page, size_t count) {
    static std::atomic<uint64_t> last = 0;
    for (size_t i = page; i < page + count; ++i) x_numbers[i] = ++last;
  }
  bool mapped(size_t page, size_t count) const {
    for (size_t i = page; i < page + count; ++i)
      if (!x_numbers[i]) return false;
    return true;
  }
  uint64_t number(size_t page) const { return x_numbers[page]; }
  size_t page_of(uintptr_t address) const {
    return (address - reinterpret_cast<uintptr_t>(x_base)) / page_bytes();
  }

 private:
  size_t x_pages;
  std::unique_ptr<std::atomic<uint64_t>[]> x_numbers;
  std::byte* x_base = nullptr;
};

struct TestRegion : ibv_mr {
  verbs::MemoryRange range;
  int rights = 0;
  std::vector<uint64_t> numbers;  ///< numbers of its pages, if they are in an arena
};

/// The history of the regions of one cache. It outlives the cache.
struct RegionLog {
  std::mutex mutex;
  std::set<TestRegion*> alive;
  unsigned asked = 0, made = 0;
  size_t bytes = 0;
  size_t room = SIZE_MAX;  ///< bytes that can be registered; above, ENOMEM
  int refuse = 0;          ///< errno of each registration, or 0
  const Arena* arena = nullptr;
  std::atomic<void (*)()> meanwhile = nullptr;  ///< called while a region is made or destroyed

  unsigned count() {
    std::lock_guard guard(mutex);
    return unsigned(alive.size());
  }
};

class TestRegions final : public verbs::RegionMaker {
 public:
  explicit TestRegions(RegionLog& log) : x_log(log) {}
  ibv_mr* make(const verbs::MemoryRange& range, int rights) noexcept override {
    if (auto* meanwhile = x_log.meanwhile.load()) meanwhile();
    std::lock_guard guard(x_log.mutex);
    ++x_log.asked;
    errno = x_log.refuse ? x_log.refuse : ENOMEM;
    if (x_log.refuse || x_log.bytes + range.bytes() > x_log.room) return nullptr;
    if (!has_pages(range)) return errno = EFAULT, nullptr;
    auto* region = new TestRegion{};
    region->lkey = region->rkey = ++x_log.made;
    region->range = range;
    region->rights = rights;
    for (uintptr_t at = range.start; x_log.arena && at < range.end; at += page_bytes())
      region->numbers.push_back(x_log.arena->number(x_log.arena->page_of(at)));
    x_log.alive.insert(region);
    x_log.bytes += range.bytes();
    return region;
  }
  void destroy(ibv_mr* region) noexcept override {
    if (auto* meanwhile = x_log.meanwhile.load()) meanwhile();
    auto* mine = static_cast<TestRegion*>(region);
    std::lock_guard guard(x_log.mutex);
    ck_assert_uint_eq(x_log.alive.erase(mine), 1);
    x_log.bytes -= mine->range.bytes();
    delete mine;
  }

 private:
  bool has_pages(const verbs::MemoryRange& range) const {
    for (uintptr_t at = range.start; x_log.arena && at < range.end; at += page_bytes())
      if (!x_log.arena->number(x_log.arena->page_of(at))) return false;
    return true;
  }

  RegionLog& x_log;
};

inline std::unique_ptr<verbs::WatchedCache> make_cache(RegionLog& log,
                                                       verbs::WatchedCache::Limits limits = {}) {
  const char* why = nullptr;
  auto cache = verbs::WatchedCache::create(std::make_unique<TestRegions>(log), limits, why);
  ck_assert_msg(bool(cache), "userfaultfd is needed: %d, %s", cache.error(), why);
  return std::move(*cache);
}

/// True: Rig uses the cache for memory that cannot be watched.
inline bool g_single_uses = false;

inline std::unique_ptr<verbs::RegistrationCache> make_any_cache(
    RegionLog& log, const verbs::WatchedCache::Limits& limits = {}) {
  if (!g_single_uses) return make_cache(log, limits);
  verbs::SingleUses::Limits single;
  single.max_regions = limits.max_regions;
  single.least_bytes = 1;
  return std::make_unique<verbs::SingleUses>(std::make_unique<TestRegions>(log), single,
                                             "a reason");
}

inline const TestRegion& region_of(const verbs::Registration& use) {
  return *static_cast<const TestRegion*>(
      static_cast<const verbs::CachedRegion*>(use.entry)->region);
}

/// Pages of one arena that are used through one cache.
struct Rig {
  explicit Rig(verbs::WatchedCache::Limits limits = {}, size_t pages = 64) : arena(pages) {
    arena.map(0, pages);
    log.arena = &arena;
    cache = make_any_cache(log, limits);
  }
  int acquire(size_t page, size_t count, verbs::Registration& use, int rights = 0) {
    return cache->acquire(arena.at(page), Arena::bytes(count), rights, use);
  }
  /// Registers memory, releases it and returns its key.
  uint32_t key(size_t page, size_t count, int rights = 0) {
    verbs::Registration use;
    ck_assert_int_eq(acquire(page, count, use, rights), 0);
    cache->release(use);
    return use.lkey;
  }
  verbs::WatchedCache::Statistics statistics() {
    return static_cast<verbs::WatchedCache&>(*cache).statistics();
  }
  /// Waits for the housekeeper, which destroys regions in its own time.
  void wait_for_regions(unsigned count) {
    while (log.count() != count) sched_yield();
  }

  Arena arena;
  RegionLog log;
  std::unique_ptr<verbs::RegistrationCache> cache;
};

}  // namespace erdma::test
