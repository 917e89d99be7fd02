#include <cerrno>
#include <cstdint>
#include <iterator>
#include <set>
#include <string>

#include "fake/captured_log.h"
#include "fake/captured_stderr.h"
#include "libcheck.h"
#include "transport/verbs_rig.h"

/// Lists all memory that a transport registers, of its own and of the application, with its access
/// rights and the peers that learn its key. A transport must not register any other memory.
namespace erdma::test {
namespace {

using verbs::OwnMemory;
using verbs::OwnUse;
using verbs::ReadBuffers;
using verbs::TransportType;

constexpr int kSink = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

enum class Told { nobody, every_peer, the_peer_that_is_read };

struct Listed {
  const char* name;
  size_t bytes;
  int rights;
  Told told;
};
/// find() takes the first entry with the rights and, unless it is 0, the size of a region.
constexpr size_t kBounce = 8 * 128 * 1024;
const Listed kListed[] = {
    {"the word that heartbeats read", 64, IBV_ACCESS_REMOTE_READ, Told::every_peer},
    {"where heartbeats and flushes go", 64, kSink, Told::every_peer},
    {"small receives",
     verbs::PacketReceiver::kSmallReceives* verbs::PacketReceiver::kSmallReceiveBytes,
     IBV_ACCESS_LOCAL_WRITE, Told::nobody},
    {"large receives", 0, IBV_ACCESS_LOCAL_WRITE, Told::nobody},
    {"writes that bounce", kBounce, 0, Told::nobody},
    {"packets, and short writes", 0, 0, Told::nobody},
    {"short reads", 16 * 64, kSink, Told::the_peer_that_is_read},
    {"reads of a few pages", 16 * 4096, kSink, Told::the_peer_that_is_read},
    {"reads that bounce", kBounce, kSink, Told::the_peer_that_is_read},
};

const Listed* find(const fake::Region& region) {
  for (const Listed& listed : kListed)
    if (listed.rights == region.access && (listed.bytes == 0 || listed.bytes == region.length))
      return &listed;
  return nullptr;
}

TEST(all_that_is_registered_is_listed_with_its_rights_and_who_knows_it) {
  Rig rig;
  Pair pair;
  ck_assert(rig.open(pair.a));
  ck_assert(rig.open(pair.b));
  use_all_memory(rig, pair);
  Pair quiet;  // a connection whose receives stay small
  ck_assert(rig.open(quiet.a));
  ck_assert(rig.open(quiet.b));
  ck_assert_int_eq(quiet.send(quiet.a_to_b(), 1, nullptr, 0), 0);
  std::set<const Listed*> found;
  for (const auto& region : rig.nic.regions) {
    const Listed* const listed = find(*region);
    ck_assert_msg(listed, "%zu bytes with rights 0x%x are not listed", region->length,
                  unsigned(region->access));
    found.insert(listed);
    if (listed->told == Told::the_peer_that_is_read)
      ck_assert_msg(region->read_by.size() == 1, "%s", listed->name);
    // If no peer is told the key, the region has no remote rights.
    if (listed->told == Told::nobody)
      ck_assert_int_eq(region->access & (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE), 0);
  }
  for (const Listed& listed : kListed) ck_assert_msg(found.count(&listed), "no %s", listed.name);
}

/// The application's memory, by its use. A transfer registers memory at both ends.
struct Application {
  const char* name;
  bool reads;
  bool share;  ///< only share(), without the transfer
  int shared, local;
};
const Application kApplication[] = {
    {"told to a peer that reads it", true, true, IBV_ACCESS_REMOTE_READ, 0},
    {"told to a peer that writes it", false, true, kSink, 0},
    {"filled by a READ", true, false, IBV_ACCESS_REMOTE_READ, kSink},
    {"what a WRITE takes", false, false, kSink, 0},
};

const fake::Region* region_at(const Rig& rig, const void* address) {
  const fake::Region* found = nullptr;
  for (const auto& region : rig.nic.regions)
    if (region->addr == address) {
      ck_assert_ptr_null(found);
      found = region.get();
    }
  return found;
}

TEST(memory_of_the_application_is_registered_with_the_rights_of_its_use, std::size(kApplication)) {
  const Application& use = kApplication[_i];
  Rig rig;
  Pair pair;
  ck_assert(rig.open(pair.a));
  ck_assert(rig.open(pair.b));
  ck_assert_int_eq(pair.send(pair.a_to_b(), 1, nullptr, 0), 0);
  ck_assert(pair.poll_until([&] { return pair.b.sink->packets.size() == 1; }));
  std::vector<std::byte> there(300'000), here(300'000);
  const iovec theirs{there.data(), there.size()}, mine{here.data(), here.size()};
  transport::RemoteKey remote_key;
  const auto access = use.reads ? transport::Access::remote_read : transport::Access::remote_write;
  transport::Link& owner = pair.b_to_a();
  ck_assert_int_eq(owner.share(&theirs, 1, there.size(), access, remote_key), 0);
  const fake::Region* const shared = region_at(rig, there.data());
  ck_assert_ptr_nonnull(shared);
  ck_assert_msg(shared->access == use.shared, "%s: 0x%x", use.name, unsigned(shared->access));
  if (!use.share) {
    transport::Link& link = pair.a_to_b();
    ck_assert_int_eq(use.reads ? link.get({remote_key, 0, here.size()}, &mine, 1, 7)
                               : link.put({remote_key, 0, here.size()}, &mine, 1, 7, false),
                     0);
    const fake::Region* const local = region_at(rig, here.data());
    ck_assert_ptr_nonnull(local);
    ck_assert_msg(local->access == use.local, "%s: 0x%x", use.name, unsigned(local->access));
    ck_assert(pair.poll_until([&] { return pair.a.sink->dones.size() == 1; }));
    ck_assert_int_eq(pair.a.sink->dones[0].status, 0);
    ck_assert_ptr_null(region_at(rig, here.data()));
  }
  owner.revoke(remote_key);
  ck_assert_ptr_null(region_at(rig, there.data()));
}

TEST(the_notice_names_what_the_memory_that_is_not_registered_is_for) {
  Rig rig;
  Side side;
  rig.nic.refuse_regions = ENOMEM;
  const CapturedStderr error_output;
  g_log_level = -1;
  ck_assert(!rig.open(side));
  const std::string line = error_output.only_write();
  ck_assert_msg(line.find("64 bytes for heartbeats cannot be registered") != std::string::npos,
                "%s", line.c_str());
}

TEST(only_the_heartbeat_word_is_in_a_hello) {
  Rig rig;
  Pair pair;
  ck_assert(rig.open(pair.a));
  verbs::Terms told;
  const verbs::ConnectorConfig& config = rig.fabric.find(pair.a.name)->config();
  ibv_qp_init_attr attr{};
  const auto connection = config.factory->prepare(attr);
  config.factory->fill_terms(pair.b.name, told);
  const fake::Region* region =
      rig.nic.region(told.heartbeat_rkey, true, told.heartbeat_address, 8, IBV_ACCESS_REMOTE_READ);
  ck_assert_ptr_nonnull(region);
  ck_assert_int_eq(region->access, IBV_ACCESS_REMOTE_READ);
  ck_assert_uint_eq(uint64_t(region->addr), told.heartbeat_address);
}

struct Use {
  OwnUse use;
  int iwarp, ib;
};
const Use kUses[] = {
    {OwnUse::heartbeat, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_READ},
    {OwnUse::receives, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_LOCAL_WRITE},
    {OwnUse::packets, 0, 0},
    {OwnUse::scratch, kSink, IBV_ACCESS_LOCAL_WRITE},
    {OwnUse::read_buffers, kSink, IBV_ACCESS_LOCAL_WRITE},
};

TEST(each_use_has_the_least_rights_and_remote_writes_are_for_iwarp, std::size(kUses)) {
  const Use& use = kUses[_i];
  ck_assert_int_eq(rights_of(use.use, TransportType::iwarp), use.iwarp);
  ck_assert_int_eq(rights_of(use.use, TransportType::ib), use.ib);
}

/// The kernel puts mappings side by side. From an address that peers may access, they must not be
/// able to derive another one.
TEST(memory_that_peers_have_rights_to_lies_where_nobody_can_derive) {
  Rig rig;
  constexpr size_t kCount = 32;
  OwnMemory all[2 * kCount];
  for (size_t i = 0; i < 2 * kCount; ++i)
    ck_assert_int_eq(
        all[i].make(*rig.device, 4096, i % 2 ? OwnUse::read_buffers : OwnUse::heartbeat), 0);
  std::set<uintptr_t> spots;
  for (const OwnMemory& memory : all) {
    std::memset(memory.bytes(), 1, memory.size());
    spots.insert(reinterpret_cast<uintptr_t>(memory.bytes()));
  }
  ck_assert_uint_eq(spots.size(), 2 * kCount);
  // There are 2^35 pages. That two of 64 are within 64 pages of each other has a probability of one
  // in several million.
  for (auto at = spots.begin(), next = std::next(at); next != spots.end(); ++at, ++next)
    ck_assert_uint_gt(*next - *at, 64 * 4096);
}

TEST(memory_that_cannot_be_registered_leaves_no_mapping) {
  Rig rig;
  OwnMemory memory;
  rig.nic.refuse_regions = EPERM;
  ck_assert_int_eq(memory.make(*rig.device, 4096, OwnUse::read_buffers), EPERM);
  ck_assert(!memory);
  rig.nic.refuse_regions = 0;
  ck_assert_int_eq(memory.make(*rig.device, 4096, OwnUse::read_buffers), 0);
  OwnMemory moved = std::move(memory);
  ck_assert(moved && !memory);
  moved.reset();
  ck_assert(!moved && rig.nic.regions.empty());
}

/// Rows: buffers of short reads, buffers of long ones.
TEST(buffers_of_reads_come_once_there_is_memory_for_them, 2) {
  constexpr int kReads = 100;
  Rig rig;
  AsksForRoom asks;
  rig.device->set_evictor(&asks);
  ReadBuffers buffers;
  const auto acquire = [&] {
    return _i ? buffers.acquire_long(*rig.device) : buffers.acquire_short(*rig.device);
  };
  rig.nic.refuse_regions = ENOSPC;
  for (int i = 0; i < kReads; ++i) ck_assert_uint_eq(acquire(), ReadBuffers::kNone);
  ck_assert_uint_eq(asks.count, 3);  // again after 16 reads, and after 32 more
  rig.nic.refuse_regions = 0;
  uint32_t slot = ReadBuffers::kNone;
  for (int i = 0; i < kReads && slot == ReadBuffers::kNone; ++i) slot = acquire();
  ck_assert_uint_ne(slot, ReadBuffers::kNone);
  buffers.release(slot);
  rig.device->set_evictor(nullptr);
}

TEST(short_reads_have_buffers_where_there_is_no_memory_for_those_of_long_ones) {
  fake::Nic::one().max_mr_size = 4096;
  Rig rig;
  ReadBuffers buffers;
  ck_assert(!buffers.has_long(*rig.device));
  const uint32_t slot = buffers.acquire_short(*rig.device);
  ck_assert_uint_ne(slot, ReadBuffers::kNone);
  buffers.release(slot);
}

}  // namespace

}  // namespace erdma::test
