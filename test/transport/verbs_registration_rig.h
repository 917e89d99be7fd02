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

// Memory whose pages are told apart, and regions that remember theirs: what a NIC would reach.
namespace erdma::test {

namespace verbs = transport::verbs;

inline size_t page_bytes() {
  return size_t(sysconf(_SC_PAGESIZE));
}

/// Addresses, and which pages are there: each page of memory that ever was has its own number.
/// Reserved without access, so that nobody else maps anything here; far from where the kernel puts
/// what asks for no address, as a test may leave them free for a moment.
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
  /// Both ranges apart. Does nothing to several mappings at once: kernels differ in what they do.
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
  std::vector<uint64_t> numbers;  ///< of its pages, where they are an arena's
};

/// What became of the regions of one cache. Outlives it.
struct RegionLog {
  std::mutex mutex;
  std::set<TestRegion*> alive;
  unsigned made = 0;
  size_t bytes = 0;
  size_t room = SIZE_MAX;  ///< bytes: ENOMEM beyond
  int refuse = 0;          ///< errno
  const Arena* arena = nullptr;
  std::atomic<void (*)()> meanwhile = nullptr;  ///< while one is made or destroyed

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

/// Of Rig: the cache for where memory can't be watched.
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
  /// Key of the region; given back at once.
  uint32_t key(size_t page, size_t count, int rights = 0) {
    verbs::Registration use;
    ck_assert_int_eq(acquire(page, count, use, rights), 0);
    cache->release(use);
    return use.lkey;
  }
  verbs::WatchedCache::Statistics statistics() {
    return static_cast<verbs::WatchedCache&>(*cache).statistics();
  }
  /// What the housekeeper does in its own time.
  void wait_for_regions(unsigned count) {
    while (log.count() != count) sched_yield();
  }

  Arena arena;
  RegionLog log;
  std::unique_ptr<verbs::RegistrationCache> cache;
};

}  // namespace erdma::test
