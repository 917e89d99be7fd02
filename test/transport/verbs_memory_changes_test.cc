// Tests that registered memory is never found again after its pages have changed in any way.
#include <poll.h>
#include <sys/utsname.h>
#include <sys/wait.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <thread>

#include <rdma/fi_errno.h>

#include "transport/verbs_registration_rig.h"
#include "transport/verbs_stale_memory.h"
#include "util/event_fd.h"
#include "watched_memory.h"

namespace {

using namespace erdma::test;
using erdma::transport::verbs::MemoryMonitor;
using erdma::transport::verbs::Registration;
using erdma::transport::verbs::WatchedCache;

SUITE(.offered = can_watch_memory);
SET_UPS("stale memory", nullptr);

/// The monitor finds this out by trying. The test knows by the version what must come out.
TEST(the_trial_finds_out_whether_the_kernel_counts_changes) {
  utsname name{};
  unsigned major = 0, minor = 0;
  ck_assert_int_eq(uname(&name), 0);
  ck_assert_int_eq(std::sscanf(name.release, "%u.%u", &major, &minor), 2);
  ck_assert_int_eq(counts_changes(), major > 5 || (major == 5 && minor >= 15));
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

/// The kernel reports MADV_DONTNEED before it happens, so a region that is made in between has the
/// old pages.
TEST(a_region_of_emptied_memory_serves_one_use_until_that_is_over) {
  WatchedCache::Limits limits;
  limits.tick_ns = 1'000'000;
  Rig rig(limits);
  (void)rig.key(8, 4);
  rig.arena.empty(9, 1);
  const uint32_t first = rig.key(8, 4);
  uint32_t last = rig.key(8, 4);
  ck_assert_uint_ne(first, last);
  if (counts_changes()) ck_assert_uint_eq(rig.key(16, 4), rig.key(16, 4));
  // Some time later, the region is kept again.
  for (uint32_t next; (next = rig.key(8, 4)) != last; last = next) poll(nullptr, 0, 1);
}

std::atomic<std::byte*> g_scrap;

void free_scrap() {
  if (std::byte* scrap = g_scrap.exchange(nullptr)) munmap(scrap, Arena::bytes(1));
}

TEST(memory_freed_by_the_cache_itself_may_be_watched) {
  Rig rig;
  rig.log.meanwhile = free_scrap;
  for (size_t page : {1u, 2u}) {
    (void)rig.key(40, 1);
    g_scrap = rig.arena.at(page);
    (void)rig.key(page == 1 ? 50 : 51, 1);  // frees the scrap while it makes a region
    ck_assert_ptr_null(g_scrap.load());
    rig.arena.map(page, 1);
  }
  (void)rig.key(5, 1);
  g_scrap = rig.arena.at(3);
  // The housekeeper destroys the region, and frees the scrap meanwhile.
  rig.arena.unmap(5, 1);
  rig.wait_for_regions(counts_changes() ? 3 : 0);
  rig.log.meanwhile = nullptr;
}

// --- several domains

/// Two caches for the memory of one arena, as two domains of a process have.
struct TwoDomains {
  uint32_t second_key(size_t page, size_t count) {
    Registration use;
    ck_assert_int_eq(second->acquire(first.arena.at(page), Arena::bytes(count), 0, use), 0);
    second->release(use);
    return use.lkey;
  }

  Rig first;
  RegionLog log;
  std::unique_ptr<WatchedCache> second = make_cache(log);
};

TEST(memory_used_by_two_domains_stays_registered_with_both) {
  TwoDomains domains;
  const uint32_t first = domains.first.key(8, 4), second = domains.second_key(8, 4);
  ck_assert_uint_eq(domains.first.key(8, 4), first);
  ck_assert_uint_eq(domains.second_key(8, 4), second);
}

/// The first one looks, and so takes the event that the kernel reports once.
TEST(each_domain_is_told_of_a_change, std::size(kChanges)) {
  TwoDomains domains;
  const uint32_t first = domains.first.key(8, 4), second = domains.second_key(8, 4);
  kChanges[_i](domains.first);
  ck_assert_uint_ne(domains.first.key(8, 4), first);
  ck_assert_uint_ne(domains.second_key(8, 4), second);
}

TEST(unmapped_memory_is_deregistered_from_a_domain_that_does_nothing) {
  TwoDomains domains;
  (void)domains.first.key(0, 8);
  (void)domains.second_key(0, 8);
  domains.first.arena.unmap(0, 8);
  (void)domains.first.key(20, 1);
  domains.first.wait_for_regions(1);
  while (domains.log.count() > 0) sched_yield();
}

/// A process may have many domains, and each that is told wakes a thread.
TEST(a_domain_that_watches_nothing_is_not_woken, 3) {
  const erdma::util::EventFd idle_wake, wake;
  const char* why = nullptr;
  auto idle = MemoryMonitor::create(idle_wake, why), busy = MemoryMonitor::create(wake, why);
  ck_assert(idle && busy);
  Arena mapped(1);
  mapped.map(0, 1);
  const auto start = reinterpret_cast<uintptr_t>(mapped.at(0));
  const erdma::transport::verbs::MemoryRange range{start, start + Arena::bytes(1)};
  if (_i == 1) ck_assert_int_eq((*idle)->watch(range), 0);
  ck_assert_int_eq((*busy)->watch(range), 0);
  if (_i == 2) {
    // The other one asks, and so takes the event.
    std::thread unmaps([&] { mapped.unmap(0, 1); });
    erdma::transport::verbs::MemoryChanges changes;
    while (changes.count == 0) (void)(*busy)->look(changes);
    unmaps.join();
  } else {
    mapped.unmap(0, 1);
    pollfd rung{wake.fd(), POLLIN, 0};
    ck_assert_int_eq(poll(&rung, 1, -1), 1);
  }
  pollfd idle_rung{idle_wake.fd(), POLLIN, 0};
  ck_assert_int_eq(poll(&idle_rung, 1, 0), _i == 1);
}

/// The kernel does not count who watches.
TEST(memory_is_watched_for_a_domain_when_another_has_ended) {
  TwoDomains domains;
  (void)domains.second_key(8, 4);
  (void)domains.first.key(8, 4);
  domains.second.reset();
  const uint32_t kept = domains.first.key(8, 4);
  ck_assert_uint_eq(domains.first.key(8, 4), kept);
  domains.first.arena.unmap(8, 4);
  domains.first.wait_for_regions(0);
}

TEST(a_domain_opened_after_all_others_ended_watches_memory) {
  Arena arena(8);
  for (int i = 0; i < 2; ++i) {
    arena.map(0, 8);
    RegionLog log;
    log.arena = &arena;
    const auto cache = make_cache(log);
    Registration use;
    ck_assert_int_eq(cache->acquire(arena.at(0), Arena::bytes(8), 0, use), 0);
    cache->release(use);
    arena.unmap(0, 8);
    while (log.count() > 0) sched_yield();
  }
}

/// Domains come and go beside one that is used.
TEST(what_opens_and_ends_beside_a_domain_never_leaves_it_old_pages) {
  constexpr size_t kPages = 4;
  Rig rig({}, kPages);
  std::atomic<bool> stop = false;
  std::thread others([&] {
    while (!stop) {
      RegionLog log;
      const auto cache = make_cache(log);
      Registration use;
      if (cache->acquire(rig.arena.at(0), Arena::bytes(kPages), 0, use) == 0) cache->release(use);
    }
  });
  unsigned wrong = 0, found = 0;
  for (unsigned round = 0; found < 300; ++round) {
    if (round % 4 == 0) rig.arena.map(0, kPages);
    Registration use;
    if (rig.acquire(0, kPages, use)) continue;  // the other one is about to end
    ++found;
    for (size_t i = 0; i < kPages; ++i) wrong += region_of(use).numbers[i] != rig.arena.number(i);
    rig.cache->release(use);
  }
  stop = true;
  others.join();
  ck_assert_uint_eq(wrong, 0);
}

// --- fork

/// Runs `body` in a child and fails unless it returns 0.
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
  return;  // TSan supports no new threads in a child of a process with threads
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
  const char* why = nullptr;
  auto monitor = MemoryMonitor::create(wake, why);
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
  arena.unmap(0, 4);  // unmap() would wait for a reader for ever
  close(stay[1]);
  waitpid(child, nullptr, 0);
  for (const int fd : {ready[0], ready[1], stay[0]}) close(fd);
}

}  // namespace
