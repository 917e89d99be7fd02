// Registered memory is never found again when its pages have changed, whoever changed them and how.
#include <poll.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <thread>

#include <rdma/fi_errno.h>

#include "transport/verbs_registration_rig.h"
#include "util/event_fd.h"
#include "watched_memory.h"

namespace {

using namespace erdma::test;
using erdma::transport::verbs::MemoryMonitor;
using erdma::transport::verbs::Registration;
using erdma::transport::verbs::WatchedCache;

void unmap_it(Rig& rig) {
  munmap(rig.arena.at(8), Arena::bytes(4));
  rig.arena.map(8, 4);
}
void map_over_it(Rig& rig) {
  rig.arena.map(8, 4);
}
void map_over_its_end(Rig& rig) {
  rig.arena.map(11, 1);
}
void move_it(Rig& rig) {
  rig.arena.move(8, 32, 4);
  rig.arena.map(8, 4);
}
void move_onto_it(Rig& rig) {
  rig.arena.move(32, 8, 4);
}
void move_it_but_leave_the_mapping(Rig& rig) {
  void* moved = mremap(rig.arena.at(8), Arena::bytes(4), Arena::bytes(4),
                       MREMAP_MAYMOVE | MREMAP_DONTUNMAP, nullptr);
  ck_assert_msg(moved != MAP_FAILED, "%s", strerror(errno));
  munmap(moved, Arena::bytes(4));
  rig.arena.renew(8, 4);
}
void shrink_it(Rig& rig) {
  ck_assert_ptr_eq(mremap(rig.arena.at(8), Arena::bytes(4), Arena::bytes(3), 0), rig.arena.at(8));
  rig.arena.map(11, 1);
}
void empty_it(Rig& rig) {
  rig.arena.empty(8, 4);
}
void empty_a_part(Rig& rig) {
  rig.arena.empty(9, 1);
}
void free_a_part(Rig& rig) {
  ck_assert_int_eq(madvise(rig.arena.at(10), Arena::bytes(1), MADV_FREE), 0);
  rig.arena.renew(10, 1);  // whenever the kernel likes
}
void unmap_in_another_thread(Rig& rig) {
  std::thread(unmap_it, std::ref(rig)).join();
}

using Change = void (*)(Rig&);
constexpr Change kChanges[] = {unmap_it,
                               map_over_it,
                               map_over_its_end,
                               move_it,
                               move_onto_it,
                               move_it_but_leave_the_mapping,
                               shrink_it,
                               empty_it,
                               empty_a_part,
                               free_a_part,
                               unmap_in_another_thread};

TEST(memory_with_other_pages_is_registered_anew, std::size(kChanges)) {
  Rig rig;
  const uint32_t other = rig.key(40, 2), old = rig.key(8, 4);
  kChanges[_i](rig);
  Registration use;
  ck_assert_int_eq(rig.acquire(8, 4, use), 0);
  ck_assert_uint_ne(use.lkey, old);
  for (size_t i = 0; i < 4; ++i)
    ck_assert_uint_eq(region_of(use).numbers[i], rig.arena.number(8 + i));
  rig.cache->release(use);
  ck_assert_uint_eq(rig.key(40, 2), other);
}

TEST(the_heap_may_shrink) {
  RegionLog log;
  auto cache = make_cache(log);
  const size_t bytes = Arena::bytes(4);
  auto* const start = reinterpret_cast<std::byte*>(
      (reinterpret_cast<uintptr_t>(sbrk(intptr_t(2 * bytes))) + page_bytes() - 1) &
      ~(page_bytes() - 1));
  Registration use;
  ck_assert_int_eq(cache->acquire(start, bytes, 0, use), 0);
  const uint32_t old = use.lkey;
  cache->release(use);
  ck_assert_int_eq(brk(start), 0);
  ck_assert_int_eq(brk(start + bytes), 0);
  ck_assert_int_eq(cache->acquire(start, bytes, 0, use), 0);
  ck_assert_uint_ne(use.lkey, old);
  cache->release(use);
}

TEST(unmapped_memory_is_deregistered_without_another_call) {
  Rig rig;
  (void)rig.key(0, 8);
  rig.arena.unmap(0, 8);
  rig.wait_for_regions(0);
}

TEST(a_mapping_that_is_used_in_part_can_still_be_moved_whole) {
  Rig rig;
  (void)rig.key(20, 2);
  Arena elsewhere(rig.arena.pages());
  const size_t bytes = Arena::bytes(rig.arena.pages());
  ck_assert_ptr_eq(
      mremap(rig.arena.at(0), bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere.at(0)),
      elsewhere.at(0));
}

/// The kernel tells of MADV_DONTNEED before it has happened: a region that is made in between has
/// the old pages.
TEST(a_region_of_emptied_memory_serves_one_use_until_that_is_over) {
  WatchedCache::Limits limits;
  limits.tick_ns = 1'000'000;
  Rig rig(limits);
  (void)rig.key(8, 4);
  rig.arena.empty(9, 1);
  const uint32_t first = rig.key(8, 4);
  uint32_t last = rig.key(8, 4);
  ck_assert_uint_ne(first, last);
  ck_assert_uint_eq(rig.key(16, 4), rig.key(16, 4));
  // In time it is kept again.
  for (uint32_t next; (next = rig.key(8, 4)) != last; last = next) poll(nullptr, 0, 1);
}

std::atomic<std::byte*> g_scrap;

void free_scrap() {
  if (std::byte* scrap = g_scrap.exchange(nullptr)) munmap(scrap, Arena::bytes(1));
}

TEST(memory_freed_by_the_cache_itself_may_be_watched) {
  Rig rig;
  rig.log.meanwhile = free_scrap;
  for (size_t page : {1, 2}) {
    (void)rig.key(40, 1);
    g_scrap = rig.arena.at(page);
    (void)rig.key(page == 1 ? 50 : 51, 1);  // frees it while making this one
    ck_assert_ptr_null(g_scrap.load());
    rig.arena.map(page, 1);
  }
  (void)rig.key(5, 1);
  g_scrap = rig.arena.at(3);
  rig.arena.unmap(5, 1);  // the housekeeper destroys the region, and frees it then
  rig.wait_for_regions(3);
  rig.log.meanwhile = nullptr;
}

// --- fork

/// Runs `body` in a child, which must return 0.
template <typename Body>
void in_child(Body body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = -1;
  waitpid(child, &status, 0);
  ck_assert_int_eq(status, 0);
}

TEST(a_child_has_its_memory_and_leaves_the_regions_alone) {
  Rig rig;
  std::memset(rig.arena.at(0), 7, Arena::bytes(4));
  Registration use;
  ck_assert_int_eq(rig.acquire(0, 4, use), 0);
  in_child([&] {
    Registration none;
    const bool same = rig.arena.at(1)[5] == std::byte(7);
    if (!same || rig.acquire(0, 4, none) != -FI_EOPNOTSUPP) return 1;
    munmap(rig.arena.at(0), Arena::bytes(2));
    rig.cache->release(use);
    rig.cache.reset();
    return rig.log.count() == 1 ? 0 : 2;
  });
  rig.cache->release(use);
  ck_assert_uint_eq(rig.key(0, 4), use.lkey);
}

TEST(a_child_may_open_a_cache_of_its_own) {
#ifdef __SANITIZE_THREAD__
  return;  // it knows no threads that a child of a process with threads starts
#endif
  Rig rig;
  const uint32_t kept = rig.key(0, 4);
  in_child([] {
    Rig mine;
    const uint32_t key = mine.key(0, 4);
    mine.arena.map(0, 4);
    return mine.key(0, 4) == key;
  });
  ck_assert_uint_eq(rig.key(0, 4), kept);
}

TEST(a_child_that_lives_on_holds_up_nobody) {
  Arena arena(4);
  arena.map(0, 4);
  const erdma::util::EventFd wake;
  auto monitor = MemoryMonitor::create(wake);
  ck_assert(bool(monitor));
  const auto start = reinterpret_cast<uintptr_t>(arena.at(0));
  ck_assert_int_eq((*monitor)->watch({start, start + Arena::bytes(4)}), 0);
  int ready[2], stay[2];
  ck_assert(!pipe(ready) && !pipe(stay));
  const pid_t child = fork();
  if (child == 0) {
    close(stay[1]);
    char byte = 0;
    (void)!write(ready[1], &byte, 1);
    _exit(int(read(stay[0], &byte, 1)));
  }
  char byte;
  ck_assert_int_eq(read(ready[0], &byte, 1), 1);
  (*monitor).reset();
  arena.unmap(0, 4);  // would wait for a reader for ever
  close(stay[1]);
  waitpid(child, nullptr, 0);
  for (const int fd : {ready[0], ready[1], stay[0]}) close(fd);
}

// --- many threads

/// The kernel frees addresses before munmap() returns: the next owner may be there while the event
/// is not yet.
TEST(the_next_owner_of_an_address_never_gets_the_last_owners_pages) {
  constexpr size_t kSlots = 4;
  constexpr unsigned kThreads = 4, kRounds = 400;
  Arena arena(kSlots);
  RegionLog log;
  log.arena = &arena;
  auto cache = make_cache(log);
  munmap(arena.at(0), Arena::bytes(kSlots));
  std::atomic<unsigned> wrong = 0, found = 0;
  const auto run = [&](unsigned seed) {
    for (unsigned rounds = 0; rounds < kRounds; ++seed) {
      const size_t slot = seed % kSlots;
      std::byte* const page = arena.at(slot);
      if (mmap(page, page_bytes(), PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != page) {
        sched_yield();
        continue;
      }
      arena.renew(slot, 1);
      ++rounds;
      for (int twice = 0; twice < 2; ++twice) {
        Registration use;
        if (cache->acquire(page, page_bytes(), 0, use)) continue;  // too busy to tell
        ++found;
        if (region_of(use).numbers[0] != arena.number(slot)) ++wrong;
        cache->release(use);
      }
      munmap(page, page_bytes());
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kThreads; ++i) threads.emplace_back(run, i);
  for (std::thread& thread : threads) thread.join();
  ck_assert_uint_eq(wrong, 0);
  ck_assert_uint_gt(found, 0);
}

// --- random

/// Everything at once, against what the pages really are.
class Model {
 public:
  explicit Model(unsigned seed) : x_rig(limits(), kPages), x_seed(seed) {}
  ~Model() {
    for (Registration& use : x_uses) x_rig.cache->release(use);
  }

  void step() {
    Arena& arena = x_rig.arena;
    const size_t page = pick(kPages), count = 1 + pick(std::min<size_t>(kPages - page, 12));
    switch (pick(10)) {
      case 0:
        return arena.map(page, count);
      case 1:
        return arena.unmap(page, count);
      case 2:
        return arena.empty(page, count);
      case 3:
        if (page >= count) arena.move(page, pick(page - count + 1), count);
        return;
      case 4:
        if (!x_uses.empty()) give_back(pick(x_uses.size()));
        return;
      default:
        return use(page, count);
    }
  }

 private:
  static constexpr size_t kPages = 48;
  static constexpr int kRights[] = {0, IBV_ACCESS_REMOTE_READ};
  static WatchedCache::Limits limits() {
    WatchedCache::Limits limits;
    limits.max_regions = 12;
    limits.tick_ns = 1'000'000;
    return limits;
  }
  size_t pick(size_t below) { return size_t(rand_r(&x_seed)) % below; }
  void give_back(size_t index) {
    x_rig.cache->release(x_uses[index]);
    x_uses[index] = x_uses.back();
    x_uses.pop_back();
  }
  void use(size_t page, size_t count) {
    Registration use;
    const int rc = x_rig.acquire(page, count, use, kRights[pick(std::size(kRights))]);
    const bool mapped = x_rig.arena.mapped(page, count);
    if (rc) {
      ck_assert(!mapped || rc == -FI_ENOMEM);
      return;
    }
    ck_assert(mapped);
    const TestRegion& region = region_of(use);
    const size_t skip = page - x_rig.arena.page_of(region.range.start);
    for (size_t i = 0; i < count; ++i)
      ck_assert_uint_eq(region.numbers.at(skip + i), x_rig.arena.number(page + i));
    x_uses.push_back(use);
    if (x_uses.size() > 6) give_back(pick(x_uses.size()));
  }

  Rig x_rig;
  std::vector<Registration> x_uses;
  unsigned x_seed;
};

SUITE(.offered = can_watch_memory);

TEST(no_random_changes_make_a_region_stale, 8) {
  Model model(unsigned(_i) + 1);
  for (int i = 0; i < 1500; ++i) model.step();
}

}  // namespace
