#include "fabric/mr.h"

#include <cstdint>
#include <set>
#include <vector>

#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>

#include "fabric/cntr.h"
#include "fake/captured_log.h"
#include "fake/live_bytes.h"
#include "fake/set_clock.h"
#include "libcheck.h"

using erdma::fabric::Counter;
using erdma::fabric::g_mr_ops;
using erdma::fabric::MemoryRegion;
using erdma::fabric::MemoryRegions;
using erdma::fabric::RegionUser;
using erdma::util::DomainLock;

namespace {

constexpr uint32_t kApi = FI_VERSION(1, 17);

struct Fixture {
  explicit Fixture(int mr_mode = FI_MR_PROV_KEY, uint32_t api = kApi,
                   const erdma::util::Clock* clock = nullptr)
      : regions(lock, mr_mode, api, &open, nullptr, clock) {}

  int reg(const fi_mr_attr& attr, fid_mr** mr, uint64_t flags = 0) {
    return regions.open(&attr, flags, mr);
  }

  DomainLock lock{erdma::util::LockKind::mutex};
  erdma::fabric::Children open;
  MemoryRegions regions;
};

char g_bytes[4096];
const iovec kIov[5] = {{g_bytes, 100}, {g_bytes + 100, 0}, {g_bytes + 200, 1}, {g_bytes, 4096}, {}};

fi_mr_attr attributes(size_t count = 1) {
  fi_mr_attr attr{};
  attr.mr_iov = kIov;
  attr.iov_count = count;
  attr.access = FI_SEND | FI_RECV;
  attr.requested_key = 42;
  return attr;
}

fi_mr_attr attributes_for(uint64_t access) {
  fi_mr_attr attr = attributes();
  attr.access = access;
  return attr;
}

}  // namespace

// The log is limited per place in the code, so each reason has its own place.
TEST(a_reason_that_is_repeated_hides_no_other) {
  Fixture f(FI_MR_PROV_KEY, FI_VERSION(1, 20));
  fid_mr* mr = nullptr;
  fi_mr_attr attr = attributes();
  attr.iface = FI_HMEM_CUDA;
  for (int i = 0; i < 100; ++i) ck_assert_int_eq(f.reg(attr, &mr), -FI_ENOSYS);
  ck_assert(erdma::test::contains(erdma::test::g_log.back().text, "memory of this interface"));
  ck_assert_int_eq(f.reg(attr, &mr, uint64_t(1) << 40), -FI_EOPNOTSUPP);  // FI_MR_DMABUF
  ck_assert(erdma::test::contains(erdma::test::g_log.back().text, "a dmabuf can be registered"));
}

TEST(region_keeps_what_it_was_registered_with) {
  Fixture f;
  fid_mr* mr = nullptr;
  fi_mr_attr attr = attributes(3);
  attr.context = &f;
  ck_assert_int_eq(f.reg(attr, &mr), 0);
  ck_assert_int_eq(f.open.count(), 1);
  ck_assert_uint_eq(mr->fid.fclass, FI_CLASS_MR);
  ck_assert_ptr_eq(mr->fid.context, &f);
  ck_assert_ptr_eq(fi_mr_desc(mr), &MemoryRegion::from(mr));
  const MemoryRegion& region = MemoryRegion::from(mr);
  ck_assert_uint_eq(region.access, FI_SEND | FI_RECV);
  ck_assert_uint_eq(region.iov_count, 3);
  ck_assert_ptr_eq(region.iov[2].iov_base, g_bytes + 200);
  ck_assert_ptr_eq(f.regions.find(fi_mr_key(mr)), &region);
  const uint64_t key = fi_mr_key(mr);
  ck_assert_int_eq(fi_close(&mr->fid), 0);
  ck_assert_int_eq(f.open.count(), 0);
  ck_assert_ptr_null(f.regions.find(key));
}

TEST(provider_keys_are_distinct_and_not_the_requested_ones) {
  Fixture f;
  std::set<uint64_t> keys;
  std::vector<fid_mr*> regions(1000);
  for (fid_mr*& mr : regions) {
    ck_assert_int_eq(f.reg(attributes(), &mr), 0);
    keys.insert(fi_mr_key(mr));
  }
  ck_assert_uint_eq(keys.size(), regions.size());
  ck_assert_uint_eq(keys.count(FI_KEY_NOTAVAIL), 0);
  ck_assert_uint_eq(keys.count(42), 0);
  for (fid_mr* mr : regions) fi_close(&mr->fid);
  ck_assert_int_eq(f.open.count(), 0);
}

TEST(requested_key_is_kept_and_refused_while_in_use, 2) {
  Fixture f(0);
  const fi_mr_attr attr = attributes_for(_i ? FI_REMOTE_WRITE : FI_REMOTE_READ | FI_SEND);
  fid_mr* first = nullptr;
  fid_mr* second = nullptr;
  ck_assert_int_eq(f.reg(attr, &first), 0);
  ck_assert_uint_eq(fi_mr_key(first), 42);
  ck_assert_int_eq(f.reg(attr, &second), -FI_ENOKEY);
  ck_assert_ptr_null(second);
  ck_assert_int_eq(fi_close(&first->fid), 0);
  ck_assert_int_eq(f.reg(attr, &second), 0);
  ck_assert_int_eq(fi_close(&second->fid), 0);
}

/// Open MPI registers every device buffer with key 0, for messages.
TEST(local_regions_may_have_the_same_requested_key) {
  Fixture f(0);
  fid_mr* mr[3];
  for (fid_mr*& each : mr) {
    ck_assert_int_eq(f.reg(attributes(), &each), 0);
    ck_assert_uint_eq(fi_mr_key(each), 42);
  }
  ck_assert_ptr_null(f.regions.find(42));
  for (fid_mr* each : mr) ck_assert_int_eq(fi_close(&each->fid), 0);
  ck_assert_int_eq(f.open.count(), 0);
}

/// The local region comes first or second, and goes first or second.
TEST(local_region_leaves_its_requested_key_to_another_for_peers, 4) {
  Fixture f(0);
  const uint64_t access[] = {FI_SEND | FI_RECV, FI_REMOTE_READ | FI_REMOTE_WRITE};
  fid_mr* mr[2];
  for (const int i : {_i & 1, 1 - (_i & 1)}) {
    ck_assert_int_eq(f.reg(attributes_for(access[i]), &mr[i]), 0);
    ck_assert_uint_eq(fi_mr_key(mr[i]), 42);
  }
  ck_assert_ptr_eq(f.regions.find(42), &MemoryRegion::from(mr[1]));
  if (_i & 2) {
    ck_assert_int_eq(fi_close(&mr[0]->fid), 0);
    ck_assert_ptr_eq(f.regions.find(42), &MemoryRegion::from(mr[1]));
    ck_assert_int_eq(fi_close(&mr[1]->fid), 0);
    ck_assert_ptr_null(f.regions.find(42));
  } else {
    ck_assert_int_eq(fi_close(&mr[1]->fid), 0);
    ck_assert_ptr_null(f.regions.find(42));
    ck_assert_int_eq(fi_close(&mr[0]->fid), 0);
  }
  ck_assert_int_eq(f.open.count(), 0);
}

TEST(basic_mode_gives_provider_keys) {
  Fixture f(1 << 0);  // FI_MR_BASIC, whose name warns in libfabric 2
  fid_mr* mr[2];
  ck_assert_int_eq(f.reg(attributes(), &mr[0]), 0);
  ck_assert_int_eq(f.reg(attributes(), &mr[1]), 0);
  for (fid_mr* each : mr) fi_close(&each->fid);
}

struct Refusal {
  void (*spoil)(fi_mr_attr&, uint64_t& flags);
  int expected;
};
const Refusal kRefusals[] = {
    {[](fi_mr_attr& a, uint64_t&) { a.mr_iov = nullptr; }, -FI_EINVAL},
    {[](fi_mr_attr& a, uint64_t&) { a.iov_count = 0; }, -FI_EINVAL},
    {[](fi_mr_attr& a, uint64_t&) { a.iov_count = 5; }, -FI_EINVAL},
    {[](fi_mr_attr& a, uint64_t&) { a.iov_count = SIZE_MAX; }, -FI_EINVAL},
    {[](fi_mr_attr& a, uint64_t&) { a.access = uint64_t{1} << 63; }, -FI_EINVAL},
    {[](fi_mr_attr& a, uint64_t&) { a.offset = 1; }, -FI_EINVAL},
    {[](fi_mr_attr& a, uint64_t&) { a.iface = FI_HMEM_CUDA; }, -FI_ENOSYS},
    {[](fi_mr_attr& a, uint64_t&) { a.auth_key_size = 8; }, -FI_EOPNOTSUPP},
    {[](fi_mr_attr&, uint64_t& f) { f = FI_PEEK; }, -FI_EBADFLAGS},
    {[](fi_mr_attr& a, uint64_t&) {
       static const iovec null_base{nullptr, 1};
       a.mr_iov = &null_base;
     },
     -FI_EINVAL},
    {[](fi_mr_attr& a, uint64_t&) {
       static const iovec wraps{g_bytes, SIZE_MAX};
       a.mr_iov = &wraps;
     },
     -FI_EINVAL},
    {[](fi_mr_attr&, uint64_t& f) { f = uint64_t(1) << 40; }, -FI_EBADFLAGS},  // of API 1.20
};

TEST(registration_refuses_bad_attributes, std::size(kRefusals)) {
  Fixture f;
  fi_mr_attr attr = attributes();
  uint64_t flags = 0;
  kRefusals[_i].spoil(attr, flags);
  fid_mr* mr = nullptr;
  ck_assert_int_eq(f.reg(attr, &mr, flags), kRefusals[_i].expected);
  ck_assert_ptr_null(mr);
  ck_assert_int_eq(f.open.count(), 0);
}

TEST(registration_looks_at_no_more_pieces_than_it_is_given) {
  Fixture f;
  fi_mr_attr attr = attributes(2);
  const iovec pieces[] = {{g_bytes, 1}, {g_bytes + 1, 1}, {nullptr, 1}};
  attr.mr_iov = pieces;
  fid_mr* mr = nullptr;
  ck_assert_int_eq(f.reg(attr, &mr), 0);
  fi_close(&mr->fid);
}

/// The last byte of the region is at the second highest address.
TEST(registration_takes_a_region_up_to_the_end_of_all_addresses) {
  Fixture f;
  fi_mr_attr attr = attributes();
  const iovec all{g_bytes, UINTPTR_MAX - reinterpret_cast<uintptr_t>(g_bytes)};
  attr.mr_iov = &all;
  fid_mr* mr = nullptr;
  ck_assert_int_eq(f.reg(attr, &mr), 0);
  fi_close(&mr->fid);
}

TEST(registration_refuses_null_pointers) {
  Fixture f;
  fid_mr* mr = nullptr;
  const fi_mr_attr attr = attributes();
  ck_assert_int_eq(f.regions.open(nullptr, 0, &mr), -FI_EINVAL);
  ck_assert_int_eq(f.regions.open(&attr, 0, nullptr), -FI_EINVAL);
}

TEST(registration_does_not_read_fields_that_an_old_application_lacks) {
  Fixture f(FI_MR_PROV_KEY, FI_VERSION(1, 4));
  fi_mr_attr attr = attributes();
  attr.iface = static_cast<fi_hmem_iface>(7);
  attr.auth_key_size = 99;
  fid_mr* mr = nullptr;
  ck_assert_int_eq(f.reg(attr, &mr), 0);
  fi_close(&mr->fid);
}

TEST(bind_takes_an_endpoint_and_refuses_what_it_does_not_know) {
  Fixture f;
  fid_mr* mr = nullptr;
  f.reg(attributes(), &mr);
  fid other{};
  other.fclass = FI_CLASS_EP;
  ck_assert_int_eq(fi_mr_bind(mr, &other, 0), 0);
  ck_assert_int_eq(fi_mr_bind(mr, &other, FI_REMOTE_WRITE), -FI_EBADFLAGS);
  other.fclass = FI_CLASS_CQ;
  ck_assert_int_eq(fi_mr_bind(mr, &other, FI_REMOTE_WRITE), -FI_EINVAL);
  ck_assert_int_eq(fi_mr_bind(mr, nullptr, 0), -FI_EINVAL);
  ck_assert_int_eq(fi_mr_enable(mr), 0);
  ck_assert_int_eq(fi_control(&mr->fid, FI_GETWAIT, nullptr), -FI_ENOSYS);
  fi_close(&mr->fid);
}

struct FakeUser final : RegionUser {
  int progress() noexcept override {
    ++driven;
    if (region && driven == drives_needed) region->users = 0;
    if (clock) clock->time += 100 * erdma::util::kMillisecond;
    if (region && drives_for_each && driven % drives_for_each == 0 && region->users > unending)
      --region->users;
    return size_t(driven) <= steps.size() ? steps[size_t(driven) - 1] : 0;
  }
  bool arm() noexcept override { return true; }
  void disarm() noexcept override {}
  int wait_fds(int*, int) const noexcept override { return 0; }
  void abandon(const erdma::protocol::Region& which, bool by_force) noexcept override {
    if (!by_force) return;
    ++abandoned;
    if (&which == region) region->users = 0;
  }
  void revoke(uint64_t) noexcept override { ++revoked; }
  void stop_waiting(uint64_t, erdma::protocol::Await await) noexcept override {
    using erdma::protocol::Await;
    if (await == Await::answers) return;
    ++(await == Await::nothing ? stopped_all : stopped);
    if (region && gives_up) region->users = 0;
  }
  void watch_counter(Counter& cntr) override { watched.insert(&cntr); }
  void unwatch_counter(Counter& cntr) noexcept override { watched.erase(&cntr); }

  erdma::protocol::Region* region = nullptr;
  int drives_needed = 0;
  int drives_for_each = 0;                 ///< an operation ends after so many drives; 0: none does
  uint32_t unending = 0;                   ///< number of operations that do not end
  erdma::fake::SetClock* clock = nullptr;  ///< a drive takes a tenth of a second
  int driven = 0;
  std::vector<int> steps;  ///< of its first drives; later ones find nothing
  int abandoned = 0;
  int revoked = 0, stopped = 0, stopped_all = 0;
  bool gives_up = false;  ///< once stop_waiting() is called
  std::set<Counter*> watched;
};

TEST(bound_counter_is_watched_by_every_user_until_the_last_region_closes) {
  Fixture f;
  FakeUser early, late;
  f.regions.add(early);
  auto made = erdma::fabric::make_cntr({f.lock, kApi, false, nullptr}, nullptr, nullptr);
  ck_assert(made);
  Counter* const cntr = *made;
  fid_mr* mr[2];
  for (fid_mr*& each : mr) {
    ck_assert_int_eq(f.reg(attributes(), &each), 0);
    ck_assert_int_eq(fi_mr_bind(each, &cntr->fid, 0), -FI_EINVAL);
    ck_assert_int_eq(fi_mr_bind(each, &cntr->fid, FI_WRITE), -FI_EBADFLAGS);
    ck_assert_int_eq(fi_mr_bind(each, &cntr->fid, FI_REMOTE_WRITE), 0);
    ck_assert_int_eq(fi_mr_bind(each, &cntr->fid, FI_REMOTE_WRITE), -FI_EINVAL);
  }
  f.regions.add(late);
  ck_assert_uint_eq(early.watched.count(cntr), 1);
  ck_assert_uint_eq(late.watched.count(cntr), 1);
  MemoryRegion::from(mr[0]).accessed(FI_REMOTE_READ);
  ck_assert_uint_eq(fi_cntr_read(cntr), 0);
  MemoryRegion::from(mr[0]).accessed(FI_REMOTE_WRITE);
  ck_assert_uint_eq(fi_cntr_read(cntr), 1);
  fi_close(&mr[0]->fid);
  ck_assert_uint_eq(early.watched.count(cntr), 1);
  f.regions.remove(late);
  fi_close(&mr[1]->fid);
  ck_assert(early.watched.empty());
  ck_assert_int_eq(fi_close(&cntr->fid), 0);
}

/// fi_cntr(3): no memory region may be associated with a counter that is closed. fi_mr(3):
/// FI_RMA_EVENT says at the registration that a counter will be bound.
TEST(user_that_left_is_told_nothing) {
  Fixture f;
  FakeUser left, stays;
  f.regions.add(left);
  f.regions.add(stays);
  f.regions.remove(left);
  fid_mr* mr = nullptr;
  ck_assert_int_eq(f.reg(attributes(), &mr), 0);
  f.regions.region(fi_mr_key(mr))->used = true;
  ck_assert_int_eq(fi_close(&mr->fid), 0);
  ck_assert_int_eq(left.revoked, 0);
  ck_assert_int_eq(stays.revoked, 1);
}

/// An fi_enable that failed is repeated.
TEST(user_that_is_added_again_is_told_once) {
  Fixture f;
  FakeUser user;
  f.regions.add(user);
  f.regions.add(user);
  fid_mr* mr = nullptr;
  ck_assert_int_eq(f.reg(attributes(), &mr), 0);
  f.regions.region(fi_mr_key(mr))->used = true;
  ck_assert_int_eq(fi_close(&mr->fid), 0);
  ck_assert_int_eq(user.revoked, 1);
}

TEST(regions_that_were_closed_leave_no_memory) {
  Fixture f;
  size_t before = 0;
  for (int i = 0; i < 1000; ++i) {
    if (i == 10) before = erdma::fake::live_bytes();  // the tables have their size
    fid_mr* mr = nullptr;
    ck_assert_int_eq(f.reg(attributes(), &mr), 0);
    ck_assert_int_eq(fi_close(&mr->fid), 0);
  }
  ck_assert_uint_lt(erdma::fake::live_bytes(), before + 10'000);
}

TEST(counter_of_a_region_is_not_closed_before_the_region, 2) {
  Fixture f;
  auto made = erdma::fabric::make_cntr({f.lock, kApi, false, nullptr}, nullptr, nullptr);
  ck_assert(made);
  fid_mr* mr = nullptr;
  ck_assert_int_eq(f.reg(attributes(), &mr, FI_RMA_EVENT), 0);
  const uint64_t bound = _i ? FI_REMOTE_READ | FI_REMOTE_WRITE : FI_REMOTE_WRITE;
  ck_assert_int_eq(fi_mr_bind(mr, &(*made)->fid, bound), 0);
  ck_assert_int_eq(fi_close(&(*made)->fid), -FI_EBUSY);
  MemoryRegion::from(mr).accessed(FI_REMOTE_WRITE);
  ck_assert_uint_eq(fi_cntr_read(*made), 1);
  ck_assert_int_eq(fi_close(&mr->fid), 0);
  ck_assert_int_eq(fi_close(&(*made)->fid), 0);
}

/// An operation is one event for a counter of one kind of access or of both.
TEST(operation_that_reads_and_modifies_counts_once_in_a_counter, 3) {
  constexpr uint64_t kBound[] = {FI_REMOTE_READ, FI_REMOTE_WRITE, FI_REMOTE_READ | FI_REMOTE_WRITE};
  Fixture f;
  auto made = erdma::fabric::make_cntr({f.lock, kApi, false, nullptr}, nullptr, nullptr);
  ck_assert(made);
  fid_mr* mr = nullptr;
  ck_assert_int_eq(f.reg(attributes(), &mr), 0);
  ck_assert_int_eq(fi_mr_bind(mr, &(*made)->fid, kBound[_i]), 0);
  MemoryRegion::from(mr).accessed(FI_REMOTE_READ | FI_REMOTE_WRITE);
  ck_assert_uint_eq(fi_cntr_read(*made), 1);
  fi_close(&mr->fid);
  ck_assert_int_eq(fi_close(&(*made)->fid), 0);
}

/// A user that has just received a message leaves out the next poll. Requests of peers may lie
/// behind that message.
TEST(closing_goes_on_behind_a_poll_that_was_left_out) {
  Fixture f;
  FakeUser user;
  f.regions.add(user);
  fid_mr* mr = nullptr;
  fi_mr_attr attr = attributes();
  attr.access = FI_REMOTE_WRITE;
  ck_assert_int_eq(f.reg(attr, &mr), 0);
  user.steps = {1, 0, 3, 0, 1};
  ck_assert_int_eq(fi_close(&mr->fid), 0);
  ck_assert_int_eq(user.driven, 7);
}

TEST(closing_waits_for_operations_of_peers) {
  Fixture f;
  FakeUser user;
  f.regions.add(user);
  fid_mr* mr = nullptr;
  f.reg(attributes(), &mr);
  const uint64_t key = fi_mr_key(mr);
  user.region = f.regions.region(key);
  user.region->users = 1;
  user.drives_needed = 3;
  ck_assert_int_eq(fi_close(&mr->fid), 0);
  ck_assert_int_eq(user.driven, 3);
  ck_assert_int_eq(user.abandoned, 0);
  ck_assert_ptr_null(f.regions.region(key));
}

TEST(closing_ends_the_connections_of_peers_that_do_not_go_on) {
  Fixture f;
  FakeUser user;
  f.regions.add(user);
  fid_mr* mr = nullptr;
  f.reg(attributes(), &mr);
  user.region = f.regions.region(fi_mr_key(mr));
  user.region->users = 1;
  ck_assert_int_eq(fi_close(&mr->fid), 0);
  ck_assert_int_eq(user.abandoned, 1);
  ck_assert_int_eq(f.open.count(), 0);
}

struct ClosingCase {
  uint32_t users, unending;
  int drives;  ///< at least, and up to 8 more where connections end
};
/// An operation ends each half second. All do within 15 s; the last one does not, and has a second
/// from the end of the others on; there are so many that the wait is cut off after 30 s and a
/// second.
constexpr ClosingCase kClosings[] = {{30, 0, 150}, {30, 1, 155}, {1000, 0, 310}};
TEST(closing_waits_as_long_as_operations_of_peers_end, std::size(kClosings)) {
  const bool all_end = _i == 0;
  erdma::fake::SetClock clock;
  Fixture f(FI_MR_PROV_KEY, kApi, &clock);
  FakeUser user;
  f.regions.add(user);
  fid_mr* mr = nullptr;
  f.reg(attributes(), &mr);
  user.region = f.regions.region(fi_mr_key(mr));
  user.region->users = kClosings[_i].users;
  user.drives_for_each = 5;
  user.unending = kClosings[_i].unending;
  user.clock = &clock;
  ck_assert_int_eq(fi_close(&mr->fid), 0);
  ck_assert_int_eq(user.abandoned, all_end ? 0 : 1);
  ck_assert_int_ge(user.driven, kClosings[_i].drives);
  ck_assert_int_le(user.driven, kClosings[_i].drives + (all_end ? 0 : 8));
}

struct FakeOpen final : erdma::transport::RegisteredRegion {
  explicit FakeOpen(bool& open_) : open(open_) { open = true; }
  ~FakeOpen() override { open = false; }
  void describe(erdma::transport::RemoteKey&) const noexcept override {}
  bool& open;
};

TEST(closing_takes_direct_access_back_and_waits_a_little_for_answers, 2) {
  const bool registered = _i;
  Fixture f;
  FakeUser user;
  f.regions.add(user);
  fid_mr* mr = nullptr;
  f.reg(attributes(), &mr);
  user.region = f.regions.region(fi_mr_key(mr));
  bool open = false;
  if (registered) user.region->registered = std::make_unique<FakeOpen>(open);
  user.region->users = 1;
  user.gives_up = true;
  ck_assert_int_eq(fi_close(&mr->fid), 0);
  ck_assert_int_eq(user.revoked, registered);
  ck_assert_int_eq(user.stopped, 1);
  ck_assert_int_eq(user.stopped_all, 0);
  ck_assert_int_eq(user.abandoned, 0);
  ck_assert(!open);
}

TEST(region_that_peers_never_let_go_of_stays_until_they_do) {
  Fixture f;
  FakeUser user;
  f.regions.add(user);
  fid_mr* mr = nullptr;
  f.reg(attributes(), &mr);
  bool open = false;
  const uint64_t key = fi_mr_key(mr);
  auto* const region = f.regions.region(key);
  region->registered = std::make_unique<FakeOpen>(open);
  region->users = 1;
  ck_assert_int_eq(fi_close(&mr->fid), -FI_EBUSY);
  ck_assert_int_gt(user.stopped_all, 0);
  ck_assert(!open);
  ck_assert_ptr_null(f.regions.region(key));
  ck_assert_int_eq(f.open.count(), 1);
  region->users = 0;
  ck_assert_int_eq(fi_close(&mr->fid), 0);
  ck_assert_int_eq(f.open.count(), 0);
}

TEST(keys_of_the_application_open_nothing_to_peers) {
  Fixture f(0);
  fid_mr* mr = nullptr;
  ck_assert_int_eq(f.reg(attributes_for(FI_REMOTE_READ | FI_REMOTE_WRITE), &mr), 0);
  ck_assert_ptr_nonnull(f.regions.find(42));
  ck_assert_ptr_null(f.regions.region(42));
  fi_close(&mr->fid);
}

TEST(entry_points_refuse_what_is_not_a_domain) {
  fid other{};
  other.fclass = FI_CLASS_FABRIC;
  fid_mr* mr = nullptr;
  const fi_mr_attr attr = attributes();
  ck_assert_int_eq(g_mr_ops.reg(&other, g_bytes, 1, 0, 0, 0, 0, &mr, nullptr), -FI_EINVAL);
  ck_assert_int_eq(g_mr_ops.regv(&other, kIov, 1, 0, 0, 0, 0, &mr, nullptr), -FI_EINVAL);
  ck_assert_int_eq(g_mr_ops.regattr(&other, &attr, 0, &mr), -FI_EINVAL);
  ck_assert_int_eq(g_mr_ops.regattr(nullptr, &attr, 0, &mr), -FI_EINVAL);
}
