// Tests that registered memory is found again, within limits, and which memory can be registered.
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string>
#include <thread>

#include <rdma/fi_errno.h>

#include "fake/captured_log.h"
#include "fake/captured_stderr.h"
#include "fake/refused_call.h"
#include "transport/verbs/memory_map.h"
#include "transport/verbs/shared_memory.h"
#include "transport/verbs_registration_rig.h"
#include "util/notice.h"
#include "watched_memory.h"

namespace {

using namespace erdma::test;
using erdma::transport::verbs::MemoryRange;
using erdma::transport::verbs::MemoryRanges;
using erdma::transport::verbs::Registration;
using erdma::transport::verbs::WatchedCache;

TEST_CASE(.offered = can_watch_memory);

TEST(memory_is_registered_once_and_found_again) {
  Rig rig;
  const uint32_t first = rig.key(0, 4);
  ck_assert_uint_eq(rig.key(0, 4), first);
  ck_assert_uint_eq(rig.log.made, 1);
  ck_assert_uint_eq(rig.statistics().hits, 1);
}

TEST(bytes_are_registered_by_whole_pages) {
  Rig rig;
  Registration use;
  ck_assert_int_eq(rig.cache->acquire(rig.arena.at(1) + 7, page_bytes(), 0, use), 0);
  ck_assert_ptr_eq(reinterpret_cast<std::byte*>(region_of(use).range.start), rig.arena.at(1));
  ck_assert_uint_eq(region_of(use).range.bytes(), Arena::bytes(2));
  rig.cache->release(use);
}

TEST(what_lies_within_a_region_uses_it) {
  Rig rig;
  const uint32_t whole = rig.key(0, 8);
  ck_assert_uint_eq(rig.key(0, 1), whole);
  ck_assert_uint_eq(rig.key(3, 2), whole);
  ck_assert_uint_eq(rig.key(7, 1), whole);
  ck_assert_uint_ne(rig.key(7, 2), whole);
}

constexpr int kRights[] = {0, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ,
                           IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE};

/// Rights are compared exactly, because the key may be told to a peer.
TEST(a_region_with_other_rights_is_not_found) {
  Rig rig;
  uint32_t keys[std::size(kRights)];
  for (size_t i = 0; i < std::size(kRights); ++i) {
    Registration use;
    ck_assert_int_eq(rig.acquire(0, 8, use, kRights[i]), 0);
    ck_assert_int_eq(region_of(use).rights, kRights[i]);
    keys[i] = use.rkey;
    rig.cache->release(use);
  }
  ck_assert_uint_eq(rig.log.count(), std::size(kRights));
  for (size_t i = 0; i < std::size(kRights); ++i)
    ck_assert_uint_eq(rig.key(2, 3, kRights[i]), keys[i]);
  rig.arena.map(0, 8);
  for (size_t i = 0; i < std::size(kRights); ++i)
    ck_assert_uint_ne(rig.key(0, 8, kRights[i]), keys[i]);
  Registration use;
  ck_assert_int_eq(rig.acquire(0, 8, use, IBV_ACCESS_REMOTE_ATOMIC), -FI_EINVAL);
}

TEST(overlapping_ranges_have_regions_of_their_own) {
  Rig rig;
  const uint32_t low = rig.key(0, 4), high = rig.key(2, 4);
  ck_assert_uint_ne(low, high);
  ck_assert_uint_eq(rig.key(0, 4), low);
  ck_assert_uint_eq(rig.key(2, 4), high);
}

TEST(a_region_takes_the_place_of_what_it_contains) {
  Rig rig;
  (void)rig.key(1, 1);
  (void)rig.key(3, 2);
  (void)rig.key(7, 1);
  const uint32_t big = rig.key(0, 8);
  ck_assert_uint_eq(rig.key(1, 1), big);
  ck_assert_uint_eq(rig.key(3, 2), big);
  ck_assert_uint_eq(rig.key(7, 1), big);
  rig.wait_for_regions(1);
}

TEST(a_region_in_use_outlives_its_place) {
  Rig rig;
  Registration small;
  ck_assert_int_eq(rig.acquire(1, 1, small), 0);
  (void)rig.key(0, 8);
  rig.arena.map(0, 16);
  const uint32_t fresh = rig.key(1, 1);
  ck_assert_uint_ne(fresh, small.lkey);
  rig.wait_for_regions(2);  // the region in use and the fresh one
  ck_assert_uint_eq(region_of(small).lkey, small.lkey);
  rig.cache->release(small);
  rig.wait_for_regions(1);
  ck_assert_uint_eq(rig.key(1, 1), fresh);
}

struct Nonsense {
  uintptr_t address;
  size_t length;
};
constexpr Nonsense kNonsense[] = {{4096, 0}, {UINTPTR_MAX - 10, 5}, {UINTPTR_MAX - 8192, 8192}};

TEST(what_are_no_bytes_is_refused, std::size(kNonsense)) {
  Rig rig;
  Registration use;
  ck_assert_int_eq(rig.cache->acquire(reinterpret_cast<void*>(kNonsense[_i].address),
                                      kNonsense[_i].length, 0, use),
                   -FI_EINVAL);
}

/// The last page but one ends where the last begins, but no memory is mapped there.
TEST(the_last_bytes_of_all_are_no_memory) {
  Rig rig;
  Registration use;
  const uintptr_t last = UINTPTR_MAX & ~(page_bytes() - 1);
  ck_assert_int_eq(rig.cache->acquire(reinterpret_cast<void*>(last - 100), 100, 0, use),
                   -FI_EOPNOTSUPP);
  ck_assert_int_eq(rig.cache->acquire(reinterpret_cast<void*>(last - 100), 101, 0, use),
                   -FI_EINVAL);
}

// --- memory that is refused

void* shared_pages() {
  return mmap(nullptr, Arena::bytes(4), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}
void* pages_of_a_file() {
  const int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  void* memory = mmap(nullptr, Arena::bytes(4), PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
  close(fd);
  return memory;
}
void* private_pages_of_a_memory_file(int flags) {
  const int fd = memfd_create("test", MFD_CLOEXEC);
  ck_assert_int_eq(ftruncate(fd, off_t(Arena::bytes(4))), 0);
  void* memory = mmap(nullptr, Arena::bytes(4), PROT_READ | PROT_WRITE, flags, fd, 0);
  close(fd);
  return memory;
}
void* private_memory_file() {
  return private_pages_of_a_memory_file(MAP_PRIVATE);
}
void* shared_memory_file() {
  return private_pages_of_a_memory_file(MAP_SHARED);
}
void* read_only_pages() {
  return mmap(nullptr, Arena::bytes(4), PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}
void* half_mapped() {
  void* memory =
      mmap(nullptr, Arena::bytes(4), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  munmap(static_cast<std::byte*>(memory) + Arena::bytes(2), Arena::bytes(2));
  return memory;
}
using Pages = void* (*)();
constexpr Pages kUnsafe[] = {shared_pages,       pages_of_a_file, private_memory_file,
                             shared_memory_file, read_only_pages, half_mapped};

TEST(memory_that_may_change_unseen_is_refused, std::size(kUnsafe)) {
  RegionLog log;
  auto cache = make_cache(log);
  void* memory = kUnsafe[_i]();
  ck_assert_ptr_ne(memory, MAP_FAILED);
  Registration use;
  g_log.clear();
  ck_assert_int_eq(cache->acquire(memory, Arena::bytes(4), 0, use), -FI_EOPNOTSUPP);
  ck_assert_int_eq(cache->acquire(memory, Arena::bytes(4), 0, use), -FI_EOPNOTSUPP);
  ck_assert(contains(only_log_line(), "copied instead"));
  ck_assert_uint_eq(log.made, 0);
  munmap(memory, Arena::bytes(4));
}

// The destructor of the cache reports registrations that still have users.
TEST(pieces_before_one_that_is_refused_are_given_back) {
  Arena arena(6);
  arena.map(0, 4);
  RegionLog log;
  auto cache = make_cache(log);
  const iovec pieces[] = {{arena.at(0), Arena::bytes(1)},
                          {arena.at(2), Arena::bytes(1)},
                          {arena.at(5), Arena::bytes(1)}};  // nothing is mapped here
  Registration uses[3];
  ck_assert_int_eq(verbs::register_all(*cache, pieces, 3, 0, uses), -FI_EOPNOTSUPP);
  for (const Registration& use : uses) ck_assert_ptr_null(use.entry);
  ck_assert_int_eq(verbs::register_all(*cache, pieces, 2, 0, uses), 0);
  verbs::release_all(*cache, uses, 2);
}

TEST(a_buffer_over_several_mappings_is_registered) {
  Rig rig;
  ck_assert_int_eq(mprotect(rig.arena.at(4), Arena::bytes(1), PROT_NONE), 0);
  ck_assert_int_eq(madvise(rig.arena.at(9), Arena::bytes(1), MADV_DONTFORK), 0);
  ck_assert_int_eq(mprotect(rig.arena.at(4), Arena::bytes(1), PROT_READ | PROT_WRITE), 0);
  const uint32_t key = rig.key(2, 10);
  ck_assert_uint_eq(rig.key(2, 10), key);
  rig.arena.map(8, 1);
  ck_assert_uint_ne(rig.key(2, 10), key);
}

TEST(the_stack_can_be_registered) {
  RegionLog log;
  auto cache = make_cache(log);
  std::byte local[20000];
  Registration use;
  ck_assert_int_eq(cache->acquire(local, sizeof(local), 0, use), 0);
  cache->release(use);
}

// --- limits

TEST(the_least_recently_used_region_goes_first) {
  WatchedCache::Limits limits;
  limits.max_regions = 3;
  Rig rig(limits);
  const uint32_t a = rig.key(0, 1), b = rig.key(1, 1), c = rig.key(2, 1);
  ck_assert_uint_eq(rig.key(0, 1), a);
  (void)rig.key(3, 1);
  ck_assert_uint_eq(rig.log.count(), 3);
  ck_assert_uint_eq(rig.key(0, 1), a);
  ck_assert_uint_eq(rig.key(2, 1), c);
  ck_assert_uint_ne(rig.key(1, 1), b);
}

TEST(a_region_in_use_does_not_go) {
  WatchedCache::Limits limits;
  limits.max_bytes = Arena::bytes(4);
  Rig rig(limits);
  Registration use, more;
  ck_assert_int_eq(rig.acquire(0, 3, use), 0);
  (void)rig.key(8, 1);
  (void)rig.key(9, 1);
  ck_assert_uint_eq(rig.log.count(), 2);
  ck_assert_int_eq(rig.acquire(10, 2, more), -FI_ENOMEM);
  ck_assert_int_eq(rig.acquire(10, 5, more), -FI_EOPNOTSUPP);
  rig.cache->release(use);
  ck_assert_int_eq(rig.acquire(10, 2, more), 0);
  rig.cache->release(more);
}

/// They are regions that other processes of the host could use.
TEST(few_regions_stay_that_nobody_uses) {
  WatchedCache::Limits limits;
  limits.max_idle = 2;
  Rig rig(limits);
  Registration uses[4];
  for (size_t i = 0; i < 4; ++i) ck_assert_int_eq(rig.acquire(i, 1, uses[i]), 0);
  ck_assert_uint_eq(rig.log.count(), 4);
  for (const Registration& use : uses) rig.cache->release(use);
  rig.wait_for_regions(2);
  for (size_t i = 2; i < 4; ++i) ck_assert_uint_eq(rig.key(i, 1), uses[i].lkey);
}

/// Otherwise, with many domains, a buffer that is used again and again would never be found.
TEST(each_of_many_caches_keeps_a_few_regions_that_nobody_uses) {
  WatchedCache::Limits limits;
  limits.max_idle = 9;
  Rig rig(limits), other(limits), third(limits);
  uint32_t keys[8];
  for (size_t i = 0; i < 8; ++i) keys[i] = rig.key(i, 1);
  for (size_t i = 0; i < 8; ++i) ck_assert_uint_eq(rig.key(i, 1), keys[i]);
}

TEST(a_region_is_as_large_as_the_limits_permit, 2) {
  WatchedCache::Limits limits;
  (_i ? limits.max_bytes : limits.max_region_bytes) = Arena::bytes(4);
  Rig rig(limits);
  Registration use;
  g_log.clear();
  ck_assert_int_eq(rig.acquire(8, 5, use), -FI_EOPNOTSUPP);
  ck_assert(contains(only_log_line(), _i ? "limit of locked memory" : "registers at once"));
  ck_assert_int_eq(rig.acquire(0, 4, use), 0);
  rig.cache->release(use);
}

TEST(no_more_regions_go_than_one_needs) {
  Rig rig;
  rig.log.room = Arena::bytes(8);
  (void)rig.key(0, 4);
  const uint32_t second = rig.key(4, 4);
  (void)rig.key(10, 4);
  ck_assert_uint_eq(rig.key(4, 4), second);
}

TEST(a_device_without_room_takes_new_regions_for_old_ones) {
  Rig rig;
  rig.log.room = Arena::bytes(8);
  (void)rig.key(0, 4);
  (void)rig.key(4, 4);
  g_log.clear();
  (void)rig.key(10, 6);
  ck_assert(only_log_line().empty());
}

TEST(a_limit_of_locked_memory_is_told_once_with_the_remedy) {
  Rig rig;
  rig.log.room = Arena::bytes(8);
  (void)rig.key(0, 4);
  Registration use;
  g_log.clear();
  ck_assert_int_eq(rig.acquire(10, 9, use), -FI_ENOMEM);
  ck_assert_uint_eq(rig.log.count(), 0);
  (void)rig.key(0, 4);
  for (const size_t pages : {9u, 10u}) {
    ck_assert_int_eq(rig.acquire(10, pages, use), -FI_ENOMEM);
    ck_assert_uint_eq(rig.log.count(), 1);  // the adapter is not asked again
  }
  ck_assert(contains(only_log_line(), "ulimit -l"));
}

TEST(a_device_without_a_region_is_not_blamed_on_locked_memory) {
  Rig rig;
  rig.log.refuse = ENOSPC;
  Registration use;
  g_log.clear();
  for (int i = 0; i < 2; ++i) ck_assert_int_eq(rig.acquire(0, 4, use), -FI_ENOMEM);
  const std::string line = only_log_line();
  ck_assert(contains(line, "the NIC has no region left"));
  ck_assert(!contains(line, "ulimit"));
}

/// Of eight pages, four are in use and two are idle. A region of six more was refused.
struct RefusedRig : Rig {
  RefusedRig() {
    log.room = Arena::bytes(8);
    ck_assert_int_eq(acquire(0, 4, held), 0);
    (void)key(4, 2);
    ck_assert_int_eq(acquire(10, 6, use), -FI_ENOMEM);
  }
  Registration held, use;
};

TEST(a_size_that_is_refused_empties_the_cache_once) {
  RefusedRig rig;
  ck_assert_uint_eq(rig.log.count(), 1);  // the cache was emptied in vain
  const uint32_t kept = rig.key(4, 2);
  ck_assert_int_eq(rig.acquire(10, 6, rig.use), -FI_ENOMEM);
  ck_assert_uint_eq(rig.key(4, 2), kept);
  // A smaller size may still find room, and any size does once less is in use.
  (void)rig.key(10, 4);
  rig.cache->release(rig.held);
  (void)rig.key(10, 6);
}

/// The adapter lacked contiguous room before, and has some now.
TEST(a_size_that_was_refused_and_then_granted_may_empty_the_cache_again) {
  RefusedRig rig;
  rig.log.room = Arena::bytes(10);
  (void)rig.key(10, 6);
  (void)rig.key(20, 6);
  rig.cache->release(rig.held);
}

std::atomic<bool> g_destroying, g_go_on;
const std::thread::id g_tester = std::this_thread::get_id();

void destroy_slowly() {
  if (std::this_thread::get_id() == g_tester) return;
  g_destroying = true;
  g_destroying.notify_all();
  g_go_on.wait(false);
}

/// A region that the housekeeper is destroying has no user, but still occupies room.
TEST(a_size_refused_while_a_region_is_destroyed_may_empty_the_cache_again) {
  Rig rig;
  rig.log.room = Arena::bytes(12);
  Registration old, use;
  ck_assert_int_eq(rig.acquire(0, 4, old), 0);
  (void)rig.key(0, 6);  // takes the room of the idle regions
  rig.log.meanwhile = destroy_slowly;
  rig.cache->release(old);
  g_destroying.wait(false);
  ck_assert_int_eq(rig.acquire(10, 12, use), -FI_ENOMEM);
  g_go_on = true;
  g_go_on.notify_all();
  while (rig.statistics().regions) sched_yield();
  (void)rig.key(40, 4);
  (void)rig.key(10, 12);
}

/// The child's malloc() may return memory that the application had freed.
TEST(a_child_has_what_nobody_uses_where_registered_memory_is_kept_from_it, 2) {
  WatchedCache::Limits limits;
  limits.kept_from_children = _i;
  Rig rig(limits);
  (void)rig.key(0, 4);
  (void)rig.key(8, 4);
  Registration use;
  ck_assert_int_eq(rig.acquire(20, 4, use), 0);
  const pid_t child = fork();
  if (child == 0) {
    // A grandchild has no region to destroy.
    if (fork() == 0) _exit(0);
    wait(nullptr);
    _exit(rig.log.count() == (_i ? 1 : 3) ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  ck_assert_int_eq(status, 0);
  ck_assert_uint_eq(rig.log.count(), _i ? 1 : 3);
  ck_assert_uint_eq(rig.key(20, 4), use.lkey);
  rig.cache->release(use);
  (void)rig.key(0, 4);
}

TEST(an_error_that_room_does_not_mend_costs_nobody_his_region) {
  Rig rig;
  const uint32_t kept = rig.key(0, 4);
  rig.log.refuse = EFAULT;
  Registration use;
  ck_assert_int_eq(rig.acquire(10, 4, use), -FI_EOPNOTSUPP);
  rig.log.refuse = 0;
  ck_assert_uint_eq(rig.key(0, 4), kept);
}

// --- without a monitor

TEST(a_monitor_closed_by_the_application_is_missed) {
  Rig rig;
  (void)rig.key(0, 4);
  unsigned closed = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    if (std::filesystem::read_symlink(entry.path(), error) == "anon_inode:[userfaultfd]")
      closed += close(std::stoi(entry.path().filename())) == 0;
  }
  ck_assert_uint_eq(closed, 1);
  Registration use;
  ck_assert_int_eq(rig.acquire(0, 4, use), -FI_EOPNOTSUPP);
  rig.arena.unmap(0, 4);  // unmap() does not hang
}

/// Refuses userfaultfd as a sandbox does.
void forbid_userfaultfd() {
  erdma::fake::refuse_call(SYS_userfaultfd, EPERM);
  erdma::fake::refuse_call(SYS_ioctl, EPERM, 1, 0xaa00);  // USERFAULTFD_IOC_NEW
}

TEST_CASE();

/// Returns the reason for which memory cannot be watched.
std::string why_unwatched() {
  RegionLog log;
  const char* why = "";
  auto cache = WatchedCache::create(std::make_unique<TestRegions>(log), {}, why);
  ck_assert_int_eq(cache.error(), -FI_EOPNOTSUPP);
  return why;
}

/// The warning is for long transfers, so an application without them need not see it.
TEST(a_sandbox_without_userfaultfd_is_told_of) {
  forbid_userfaultfd();
  g_log.clear();
  ck_assert(contains(why_unwatched(), "seccomp"));
  ck_assert(only_log_line().empty());
}

TEST_CASE(.offered = can_watch_memory);

/// Kernels before 5.7 answer so.
TEST(a_kernel_whose_userfaultfd_tells_too_little_is_told_of) {
  erdma::fake::refuse_call(SYS_ioctl, EINVAL, 1, UFFDIO_API);
  ck_assert(contains(why_unwatched(), "lacks events"));
}

/// Memory that the application itself shares is no fault of the host, so the line is shown only on
/// request.
TEST(shared_memory_of_the_application_is_seen_only_by_who_asks, 2) {
  const erdma::test::CapturedStderr error_output;
  erdma::test::g_log_level = -1;
  if (_i) erdma::util::set_notice_level(erdma::util::NoticeLevel::info);
  RegionLog log;
  auto cache = make_cache(log);
  Registration use;
  void* memory = shared_pages();
  ck_assert_int_eq(cache->acquire(memory, Arena::bytes(4), 0, use), -FI_EOPNOTSUPP);
  ck_assert_int_eq(contains(error_output.only_write(), "is shared or of a file"), _i);
  munmap(memory, Arena::bytes(4));
}

/// Nothing shows that the second use has the pages of the first, so it finds no region of the
/// first.
TEST(shared_memory_is_registered_for_one_long_use_at_a_time) {
  const erdma::test::CapturedStderr error_output;
  erdma::test::g_log_level = -1;
  erdma::util::set_notice_level(erdma::util::NoticeLevel::info);
  RegionLog log;
  auto cache = make_cache(log);
  const size_t bytes = verbs::kLeastSingleUse;
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  Registration one, two;
  ck_assert_int_eq(cache->acquire(memory, bytes - page_bytes(), 0, one), -FI_EOPNOTSUPP);
  ck_assert(contains(error_output.only_write(), "is shared or of a file"));
  ck_assert_int_eq(cache->acquire(memory, bytes, 0, one), 0);
  ck_assert_int_eq(cache->acquire(memory, bytes, 0, two), 0);
  ck_assert_ptr_ne(one.entry, two.entry);
  ck_assert_uint_eq(cache->statistics().regions, 2);
  cache->release(one);
  cache->release(two);
  ck_assert_int_eq(cache->acquire(memory, bytes, 0, one), 0);
  ck_assert_uint_eq(cache->statistics().hits, 0);
  cache->release(one);
  munmap(memory, bytes);
}

TEST_CASE();

TEST(sets_of_addresses_are_sets, 4) {
  unsigned seed = unsigned(_i) + 1;
  MemoryRanges ranges;
  bool model[64] = {};
  for (int step = 0; step < 2000; ++step) {
    const size_t start = size_t(rand_r(&seed)) % 63,
                 end = start + 1 + size_t(rand_r(&seed)) % (64 - start);
    const bool add = rand_r(&seed) & 1;
    if (add)
      ranges.add({start, end});
    else
      ranges.subtract({start, end});
    std::fill(model + start, model + end, add);
    const size_t from = size_t(rand_r(&seed)) % 63,
                 to = from + 1 + size_t(rand_r(&seed)) % (64 - from);
    ck_assert_int_eq(ranges.contains({from, to}),
                     std::all_of(model + from, model + to, [](bool in) { return in; }));
  }
}

}  // namespace
