#pragma once

#include <sys/syscall.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <thread>

#include <rdma/fi_errno.h>

#include "transport/verbs_registration_rig.h"
#include "watched_memory.h"

// Tests for each kind of cache that no user gets a registration of pages that have changed in any
// way.
namespace erdma::test {

TEST_CASE(.name = "stale memory");

inline void unmap_it(Rig& rig) {
  munmap(rig.arena.at(8), Arena::bytes(4));
  rig.arena.map(8, 4);
}
inline void map_over_it(Rig& rig) {
  rig.arena.map(8, 4);
}
inline void map_over_its_end(Rig& rig) {
  rig.arena.map(11, 1);
}
inline void move_it(Rig& rig) {
  rig.arena.move(8, 32, 4);
  rig.arena.map(8, 4);
}
inline void move_onto_it(Rig& rig) {
  rig.arena.move(32, 8, 4);
}
inline void move_it_but_leave_the_mapping(Rig& rig) {
  void* moved = mremap(rig.arena.at(8), Arena::bytes(4), Arena::bytes(4),
                       MREMAP_MAYMOVE | MREMAP_DONTUNMAP, nullptr);
  ck_assert_msg(moved != MAP_FAILED, "%s", strerror(errno));
  munmap(moved, Arena::bytes(4));
  rig.arena.renew(8, 4);
}
inline void shrink_it(Rig& rig) {
  ck_assert_ptr_eq(mremap(rig.arena.at(8), Arena::bytes(4), Arena::bytes(3), 0), rig.arena.at(8));
  rig.arena.map(11, 1);
}
inline void empty_it(Rig& rig) {
  rig.arena.empty(8, 4);
}
inline void empty_a_part(Rig& rig) {
  rig.arena.empty(9, 1);
}
inline void free_a_part(Rig& rig) {
  ck_assert_int_eq(madvise(rig.arena.at(10), Arena::bytes(1), MADV_FREE), 0);
  rig.arena.renew(10, 1);  // the kernel may free the page at any time
}
inline void unmap_in_another_thread(Rig& rig) {
  std::thread(unmap_it, std::ref(rig)).join();
}
/// A library with system calls of its own unmaps so. No hook in libc sees it.
inline void unmap_past_libc(Rig& rig) {
  ck_assert_int_eq(syscall(SYS_munmap, rig.arena.at(8), Arena::bytes(4)), 0);
  rig.arena.map(8, 4);
}

using Change = void (*)(Rig&);
inline constexpr Change kChanges[] = {unmap_it,
                                      map_over_it,
                                      map_over_its_end,
                                      move_it,
                                      move_onto_it,
                                      move_it_but_leave_the_mapping,
                                      shrink_it,
                                      empty_it,
                                      empty_a_part,
                                      free_a_part,
                                      unmap_in_another_thread,
                                      unmap_past_libc};

TEST(memory_with_other_pages_is_registered_anew, std::size(kChanges)) {
  Rig rig;
  const uint32_t other = rig.key(40, 2), old = rig.key(8, 4);
  kChanges[_i](rig);
  verbs::Registration use;
  ck_assert_int_eq(rig.acquire(8, 4, use), 0);
  ck_assert_uint_ne(use.lkey, old);
  for (size_t i = 0; i < 4; ++i)
    ck_assert_uint_eq(region_of(use).numbers[i], rig.arena.number(8 + i));
  rig.cache->release(use);
  if (!g_single_uses && counts_changes()) ck_assert_uint_eq(rig.key(40, 2), other);
}

TEST(the_heap_may_shrink) {
  RegionLog log;
  auto cache = make_any_cache(log);
  const size_t bytes = Arena::bytes(4);
  auto* const start = reinterpret_cast<std::byte*>(
      (reinterpret_cast<uintptr_t>(sbrk(intptr_t(2 * bytes))) + page_bytes() - 1) &
      ~(page_bytes() - 1));
  verbs::Registration use;
  ck_assert_int_eq(cache->acquire(start, bytes, 0, use), 0);
  const uint32_t old = use.lkey;
  cache->release(use);
  ck_assert_int_eq(brk(start), 0);
  ck_assert_int_eq(brk(start + bytes), 0);
  ck_assert_int_eq(cache->acquire(start, bytes, 0, use), 0);
  ck_assert_uint_ne(use.lkey, old);
  cache->release(use);
}

// --- many threads

/// The kernel frees addresses before munmap() returns, so the next owner may have them before the
/// event arrives.
TEST(the_next_owner_of_an_address_never_gets_the_last_owners_pages) {
  constexpr size_t kSlots = 4;
  constexpr unsigned kThreads = 4, kRounds = 400;
  Arena arena(kSlots);
  RegionLog log;
  log.arena = &arena;
  auto cache = make_any_cache(log);
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
        verbs::Registration use;
        if (cache->acquire(page, page_bytes(), 0, use)) continue;  // too busy to find out
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

/// Makes random changes and registrations, and compares the regions with the real pages.
class Model {
 public:
  explicit Model(unsigned seed) : x_rig(limits(), kPages), x_seed(seed) {}
  ~Model() {
    for (verbs::Registration& use : x_uses) x_rig.cache->release(use);
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
  static verbs::WatchedCache::Limits limits() {
    verbs::WatchedCache::Limits limits;
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
    verbs::Registration use;
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
  std::vector<verbs::Registration> x_uses;
  unsigned x_seed;
};

TEST(no_random_changes_make_a_region_stale, 8) {
  Model model(unsigned(_i) + 1);
  for (int i = 0; i < 1500; ++i) model.step();
}

}  // namespace erdma::test
