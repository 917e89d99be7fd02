#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <set>
#include <thread>
#include <vector>

#include "goes_to_children.h"
#include "libcheck.h"
#include "transport/verbs/queue_pairs.h"
#include "transport/verbs/registration.h"
#include "transport/verbs_rig.h"

/// Reaches each limit of the device and of its peers, and expects a refusal of one more.
namespace erdma::test {
namespace {

using transport::Link;
using transport::RemoteKey;
using transport::SendHint;

TEST(completions_are_told_as_errors_of_their_kind) {
  using verbs::completion_error;
  const struct {
    ibv_wc_status status;
    int error;
  } rows[] = {
      {IBV_WC_RETRY_EXC_ERR, -FI_ETIMEDOUT},
      {IBV_WC_RNR_RETRY_EXC_ERR, -FI_ETIMEDOUT},
      {IBV_WC_RESP_TIMEOUT_ERR, -FI_ETIMEDOUT},
      {IBV_WC_LOC_PROT_ERR, -FI_EIO},
      {IBV_WC_LOC_ACCESS_ERR, -FI_EIO},
      {IBV_WC_LOC_QP_OP_ERR, -FI_EIO},
      {IBV_WC_LOC_LEN_ERR, -FI_EIO},
      {IBV_WC_WR_FLUSH_ERR, -FI_ECONNRESET},
      {IBV_WC_REM_ACCESS_ERR, -FI_ECONNRESET},
      {IBV_WC_REM_INV_REQ_ERR, -FI_ECONNRESET},
      {IBV_WC_GENERAL_ERR, -FI_ECONNRESET},
  };
  for (const auto& row : rows) ck_assert_int_eq(completion_error(row.status), row.error);
}

TEST(a_device_that_tells_no_longest_region_has_that_of_its_driver) {
  Rig rig;
  const uint64_t longest = rig.device->limits().max_region;
  ck_assert_uint_eq(longest, (uint64_t(1) << 32) - (uint64_t(1) << 21));
  for (const uint64_t told : {uint64_t(0), uint64_t(1) << 30}) {
    rig.nic.max_mr_size = told;
    auto opened = verbs::Device::open(rig.device->name(), rig.device->address());
    ck_assert_int_eq(opened.error(), 0);
    ck_assert_uint_eq((*opened)->limits().max_region, told ? told : longest);
  }
}

TEST(completion_queues_have_the_room_that_they_say) {
  Rig rig;
  const uint32_t most = rig.device->limits().max_cqe;
  verbs::CompletionQueues queues(*rig.device);
  ck_assert_int_eq(queues.open(), 0);
  verbs::CqShare share;
  ck_assert_int_eq(queues.reserve(most + 1, share), -FI_ENOMEM);
  ck_assert_uint_eq(queues.count(), 0);
  ck_assert_int_eq(queues.reserve(most, share), 0);
  ck_assert_int_eq(share.cq->cqe, int(most));
  // The device has less room than it said, so smaller queues are tried, down to the requested size.
  rig.nic.max_cqe = 64;
  ck_assert_int_eq(queues.reserve(65, share), -FI_ENOMEM);
  ck_assert_int_eq(queues.reserve(64, share), 0);
  ck_assert_int_eq(share.cq->cqe, 64);
  while (queues.count() < 24)  // the maximum of queues
    ck_assert_int_eq(queues.reserve(64, share), 0);
  ck_assert_int_eq(queues.reserve(64, share), -FI_ENOMEM);
  queues.release(share);
  ck_assert_int_eq(queues.reserve(64, share), 0);
  rig.nic.max_cqe = 1 << 20;
}

TEST(completion_queues_take_the_interrupts_in_turn) {
  Rig rig;
  rig.nic.context.num_comp_vectors = 3;
  verbs::CompletionQueues first(*rig.device), second(*rig.device);
  ck_assert_int_eq(first.open(), 0);
  ck_assert_int_eq(second.open(), 0);
  std::set<int> vectors;
  for (verbs::CompletionQueues* queues : {&first, &second, &first}) {
    verbs::CqShare share;
    ck_assert_int_eq(queues->reserve(rig.device->limits().max_cqe, share), 0);
    vectors.insert(static_cast<fake::Cq*>(share.cq)->vector);
  }
  ck_assert(vectors == (std::set<int>{0, 1, 2}));
  // A device without a choice of interrupts has only the first one.
  rig.nic.context.num_comp_vectors = 0;
  verbs::CqShare share;
  ck_assert_int_eq(second.reserve(rig.device->limits().max_cqe, share), 0);
  ck_assert_int_eq(static_cast<fake::Cq*>(share.cq)->vector, 0);
}

/// Opens the adapter as one whose queue pairs are connected by GIDs.
std::unique_ptr<verbs::Device> open_with_gid(fake::Nic& nic, int place) {
  const uint8_t ip[] = {10, 0, 0, 1};
  nic.device.transport_type = IBV_TRANSPORT_IB;
  std::memcpy(nic.gid_ip, ip, sizeof(ip));
  nic.gid_at = place;
  auto opened = verbs::Device::open("fake0", address_of("10.0.0.1", 0));
  ck_assert(opened);
  return std::move(*opened);
}

TEST(a_peer_describes_a_queue_pair_that_can_be) {
  Rig rig;
  const auto device = open_with_gid(rig.nic, 1);
  verbs::DeviceQueuePairs queue_pairs(*device, 1'000'000'000);
  ibv_qp_init_attr attr{};
  ibv_qp* const queue_pair = queue_pairs.create(1, attr);
  ck_assert_ptr_nonnull(queue_pair);
  const verbs::Path own = queue_pairs.describe(*queue_pair);
  const struct {
    uint32_t number, psn;
    uint8_t mtu;
    int result;
  } rows[] = {
      {1, 0, IBV_MTU_256, 0},
      {0xffffff, 0xffffff, IBV_MTU_4096, 0},
      {1, 0, 0, -FI_EINVAL},
      {1, 0, IBV_MTU_4096 + 1, -FI_EINVAL},
      {0x1000000, 0, IBV_MTU_256, -FI_EINVAL},
      {1, 0x1000000, IBV_MTU_256, -FI_EINVAL},
  };
  for (const auto& row : rows) {
    verbs::Path peer = own;
    std::memcpy(peer.data() + 16, &row.number, 4);
    std::memcpy(peer.data() + 20, &row.psn, 4);
    std::memcpy(peer.data() + 24, &row.mtu, 1);
    ck_assert_int_eq(queue_pairs.join(*queue_pair, own, peer), row.result);
  }
  ibv_destroy_qp(queue_pair);
}

/// The kernel gives an address that an interface gets again any free place in the table.
TEST(a_queue_pair_has_the_place_that_its_gid_has_now) {
  Rig rig;
  const auto device = open_with_gid(rig.nic, 3);
  verbs::DeviceQueuePairs queue_pairs(*device, 1'000'000'000);
  ibv_qp_init_attr attr{};
  ibv_qp* const queue_pair = queue_pairs.create(1, attr);
  ck_assert_ptr_nonnull(queue_pair);
  verbs::Path path = queue_pairs.describe(*queue_pair);
  path[24] = std::byte{IBV_MTU_1024};
  for (const int place : {3, 5, 5, 0, -1, 3}) {
    rig.nic.gid_at = place;
    ck_assert_int_eq(queue_pairs.join(*queue_pair, path, path), place < 0 ? -FI_EHOSTUNREACH : 0);
    if (place >= 0) ck_assert_uint_eq(rig.nic.source_gid, unsigned(place));
  }
  ibv_destroy_qp(queue_pair);
}

TEST(terms_are_agreed_on_from_the_least_on) {
  Rig rig;
  Side side;
  ck_assert(rig.open(side, {}, &rig.clock));
  const verbs::ConnectorConfig& config = rig.fabric.find(side.name)->config();
  constexpr uint16_t kCredits = verbs::Credits::kMinWindow;
  constexpr uint32_t kLeast = verbs::kMinReceiveBytes;
  const struct {
    uint16_t credits;
    uint32_t bytes;
    uint64_t heartbeat;
    int result;
  } rows[] = {{kCredits, kLeast, 1, 0},
              {kCredits - 1, kLeast, 1, -FI_ECONNRESET},
              {kCredits, kLeast - 1, 1, -FI_ECONNRESET},
              {kCredits, kLeast, 0, -FI_ECONNRESET}};
  for (const auto& row : rows) {
    verbs::Mail mail;
    ibv_qp_init_attr attr{};
    mail.type = verbs::Mail::Type::dispose;
    mail.connection = config.factory->prepare(attr);
    ibv_qp* const queue_pair = ibv_create_qp(rig.device->pd(), &attr);
    ck_assert_int_eq(config.factory->adopt(*mail.connection, queue_pair), 0);
    const verbs::Terms offered{side.name, 1, row.credits, row.bytes, row.heartbeat};
    ck_assert_int_eq(config.factory->agree(*mail.connection, offered, true), row.result);
    config.mail->post(std::move(mail));
    side.poll();
  }
}

TEST(what_the_fast_path_has_no_place_for_goes_another_way) {
  Two two;
  two.meet();
  std::vector<std::byte> there(300), here(300);
  auto open = two.pair.b_to_a().optional().registrar->open({there.data(), there.size()}, nullptr,
                                                           true, true);
  ck_assert(open);
  RemoteKey key;
  (*open)->describe(key);
  transport::FastAccess& fast = *two.pair.a_to_b().optional().fast;
  transport::DeviceAddress first;
  ck_assert(fast.unpack(key, first));
  two.rig.nic.refuse_regions = ENOMEM;  // the buffers for reads
  ck_assert_int_eq(fast.get(first, here.data(), 8, 1), -FI_EAGAIN);
  two.rig.nic.refuse_regions = 0;
  const iovec local{here.data(), 8};
  ck_assert_int_eq(two.pair.a_to_b().get({key, 0, 8}, &local, 1, 2), 0);
  const size_t most = two.rig.nic.max_inline;
  ck_assert_int_eq(fast.put(first, here.data(), most + 1, 3), -FI_EAGAIN);
  ck_assert_int_eq(fast.put(first, here.data(), most, 4), 0);
  ck_assert(two.until([&] { return two.a().sink->dones.size() == 2; }));
  for (const auto& done : two.a().sink->dones) {
    ck_assert_int_eq(done.status, 0);
    ck_assert_uint_eq(done.token % 2, 0);
  }
}

TEST(a_region_is_registered_up_to_what_the_device_takes) {
  constexpr size_t kMost = 65536;
  fake::Nic::one().max_mr_size = kMost;
  Two two;
  two.meet();
  transport::RegionRegistrar& registrar = *two.pair.a_to_b().optional().registrar;
  std::vector<std::byte> bytes(kMost + 1);
  ck_assert_int_eq(registrar.open({bytes.data(), kMost + 1}, nullptr, true, true).error(),
                   -FI_EOPNOTSUPP);
  ck_assert_int_eq(registrar.open({bytes.data(), kMost}, nullptr, true, true).error(), 0);
  two.rig.nic.refuse_regions = ENOMEM;
  ck_assert_int_eq(registrar.open({bytes.data(), 100}, nullptr, true, true).error(), -FI_ENOMEM);
  two.rig.nic.refuse_regions = 0;
  ck_assert_int_eq(registrar.open({bytes.data(), 100}, nullptr, true, true).error(), 0);
}

/// Has some registrations that nobody uses.
struct IdleEvictor final : verbs::RegionEvictor {
  bool evict_after(int) noexcept override { return left > 0 && left-- > 0; }
  int left = 0;
};

/// As where the table of a region's pages needs more contiguous memory than there is.
TEST(a_length_that_is_refused_for_regions_ends_idle_registrations_once) {
  Rig rig;
  IdleEvictor evictor;
  rig.device->set_evictor(&evictor);
  verbs::HostRegistrar registrar(*rig.device, rig.cache);
  std::vector<std::byte> bytes(20'000);
  const auto open = [&](size_t length, int refusal) {
    evictor.left = 3;
    rig.nic.refuse_regions = refusal;
    return registrar.open({bytes.data(), length}, nullptr, true, true).error();
  };
  // Where the NIC has no region left, any that is ended may be the one.
  for (int i = 0; i < 2; ++i) {
    ck_assert_int_ne(open(10'000, ENOSPC), 0);
    ck_assert_int_eq(evictor.left, 0);
  }
  ck_assert_int_eq(open(10'000, ENOMEM), -FI_ENOMEM);
  ck_assert_int_eq(evictor.left, 0);
  for (const size_t length : {10'000u, 20'000u}) {
    ck_assert_int_eq(open(length, ENOMEM), -FI_ENOMEM);
    ck_assert_int_eq(evictor.left, 3);
  }
  // A shorter one may find room, and so may any once one was registered.
  ck_assert_int_eq(open(100, ENOMEM), -FI_ENOMEM);
  ck_assert_int_eq(evictor.left, 0);
  ck_assert_int_eq(open(20'000, 0), 0);
  ck_assert_int_eq(open(20'000, ENOMEM), -FI_ENOMEM);
  ck_assert_int_eq(evictor.left, 0);
  rig.device->set_evictor(nullptr);
  rig.nic.refuse_regions = 0;
}

/// Only new regions of host memory are refused. Regions that are open already, such as those of
/// GPUs, stay usable.
TEST(a_region_of_the_host_is_refused_where_a_fork_takes_pages_away) {
  fake::Nic::one().fork_status = IBV_FORK_DISABLED;
  fake::Nic::one().refuse_fork_init = EINVAL;
  Two two;
  two.meet();
  std::vector<std::byte> bytes(100);
  transport::RegionRegistrar* const registrar = two.pair.a_to_b().optional().registrar;
  ck_assert_ptr_nonnull(registrar);
  ck_assert_int_eq(registrar->open({bytes.data(), 100}, nullptr, true, true).error(),
                   -FI_EOPNOTSUPP);
  ck_assert_int_eq(two.rig.cache.warned, 1);
}

struct ForkCase {
  ibv_fork_status status;  ///< status at the start
  int refusal;             ///< error of ibv_fork_init()
  verbs::ForkPolicy policy;
  bool opens, registers, apart;
};
using verbs::ForkPolicy;
constexpr ForkCase kForks[] = {
    {IBV_FORK_UNNEEDED, EINVAL, ForkPolicy::automatic, true, true, false},
    {IBV_FORK_UNNEEDED, EINVAL, ForkPolicy::safe, true, true, false},
    {IBV_FORK_DISABLED, 0, ForkPolicy::automatic, true, true, true},
    {IBV_FORK_DISABLED, 0, ForkPolicy::safe, true, true, true},
    {IBV_FORK_ENABLED, EINVAL, ForkPolicy::automatic, true, true, true},
    {IBV_FORK_DISABLED, EINVAL, ForkPolicy::automatic, true, false, false},
    {IBV_FORK_DISABLED, ENOSYS, ForkPolicy::safe, false, false, false},
    {IBV_FORK_DISABLED, EINVAL, ForkPolicy::unsafe, true, true, false},
};

/// The answers of libibverbs decide, not the version of the kernel. The fake adapter marks no
/// pages, like a libibverbs that has lost count of its references, so the provider marks them.
TEST(what_a_fork_needs_is_found_by_trying, std::size(kForks)) {
  const ForkCase& c = kForks[_i];
  fake::Nic::one().fork_status = c.status;
  fake::Nic::one().refuse_fork_init = c.refusal;
  auto device = verbs::Device::open("fake0", address_of("10.0.0.1", 0), c.policy);
  ck_assert_int_eq(bool(device), c.opens);
  if (!device) return;
  ck_assert_int_eq((*device)->fork_safe(), c.registers);
  const size_t bytes = size_t(sysconf(_SC_PAGESIZE)) * 3;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  auto* const first = static_cast<std::byte*>(memory);
  auto* const second = first + bytes / 3;
  const verbs::MemoryRegion region(
      verbs::register_host_memory(**device, second + 5, 10, IBV_ACCESS_LOCAL_WRITE));
  ck_assert(region);
  ck_assert_int_eq(goes_to_children(second), !c.apart);
  ck_assert(goes_to_children(first) && goes_to_children(second + bytes / 3));
  munmap(memory, bytes);
}

TEST(what_cannot_be_kept_from_children_is_not_registered) {
  fake::Nic::one().fork_status = IBV_FORK_DISABLED;
  Rig rig;
  const size_t bytes = size_t(sysconf(_SC_PAGESIZE));
  void* memory = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  munmap(memory, bytes);
  const size_t before = rig.nic.regions.size();
  ck_assert_ptr_null(
      verbs::register_host_memory(*rig.device, memory, bytes, IBV_ACCESS_LOCAL_WRITE));
  ck_assert_int_eq(errno, EFAULT);
  ck_assert_uint_eq(rig.nic.regions.size(), before);
}

/// Memory around a hole is not registered at all, neither before nor behind the hole.
TEST(children_get_what_lies_around_a_hole, 3) {
  fake::Nic::one().fork_status = IBV_FORK_DISABLED;
  Rig rig;
  constexpr size_t kPages = 11;
  const size_t hole = std::array<size_t, 3>{0, 5, 10}[size_t(_i)];
  const size_t page = size_t(sysconf(_SC_PAGESIZE));
  void* memory =
      mmap(nullptr, kPages * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  auto* const first = static_cast<std::byte*>(memory);
  munmap(first + hole * page, page);
  ck_assert_ptr_null(
      verbs::register_host_memory(*rig.device, memory, kPages * page, IBV_ACCESS_LOCAL_WRITE));
  for (size_t i = 0; i < kPages; ++i)
    if (i != hole) ck_assert(goes_to_children(first + i * page));
  munmap(memory, kPages * page);
}

/// A child without the stack that it runs on could not even execute another program.
TEST(no_stack_is_kept_from_children, 2) {
  fake::Nic::one().fork_status = _i ? IBV_FORK_UNNEEDED : IBV_FORK_DISABLED;
  Rig rig;
  const auto registers = [&rig](void* memory) {
    return bool(verbs::MemoryRegion(
        verbs::register_host_memory(*rig.device, memory, 5000, IBV_ACCESS_LOCAL_WRITE)));
  };
  std::byte own[10'000];
  const bool from_here = registers(own);
  bool of_thread = !_i, from_thread = !_i;
  std::thread([&] {
    std::byte bytes[10'000];
    of_thread = registers(bytes);
    from_thread = registers(own);  // registers the first thread's stack
  }).join();
  ck_assert_int_eq(from_here, _i);
  ck_assert_int_eq(of_thread, _i);
  ck_assert_int_eq(from_thread, _i);
  const auto on_heap = std::make_unique<std::byte[]>(1 << 20);
  ck_assert(registers(on_heap.get()));
}

/// The driver registers longer regions, but tells the adapter only 32 bits of the length.
TEST(a_region_whose_length_the_driver_would_cut_is_refused) {
  Rig rig;
  const uint64_t most = rig.device->limits().max_region;
  ck_assert_uint_gt(most, uint64_t(3) << 30);
  ck_assert_uint_le(most, UINT32_MAX);
  ck_assert_uint_eq(most % (2 << 20), 0);
}

/// The message was not sent in either form, so the caller keeps it.
TEST(a_send_that_the_device_refuses_was_not_sent, 2) {
  Two two;
  two.meet();
  std::vector<std::byte> bytes(200);
  const size_t length = _i ? bytes.size() : 0;  // in a block, or inline
  const iovec payload{bytes.data(), length};
  two.rig.nic.post_send_error = -EIO;
  ck_assert_int_eq(two.pair.a_to_b().send(numbered(1), &payload, 1, length, SendHint::none),
                   -FI_EAGAIN);
  ck_assert(two.until([&] { return two.a().sink->downs.size() == 1; }));
  ck_assert_uint_eq(two.b().sink->packets.size(), 1);
}

TEST(a_send_without_a_block_was_not_sent) {
  Two two;
  two.meet();
  std::vector<std::byte> bytes(200);
  const iovec payload{bytes.data(), bytes.size()};
  two.rig.nic.refuse_regions = ENOMEM;
  ck_assert_int_eq(two.pair.a_to_b().send(numbered(1), &payload, 1, bytes.size(), SendHint::none),
                   -FI_EAGAIN);
  // No block is in use that could come back.
  ck_assert(two.until([&] { return two.a().sink->downs.size() == 1; }));
  ck_assert_int_eq(two.a().sink->downs[0].status, -FI_ENOMEM);
  two.rig.nic.refuse_regions = 0;
  ck_assert_uint_eq(two.b().sink->packets.size(), 1);
}

// --- receives of several connections in one region

using Part = verbs::ReceiveRegions::Part;

bool lies_in_its_region(const Rig& rig, const Part& part, size_t bytes) {
  const auto region = std::find_if(rig.nic.regions.begin(), rig.nic.regions.end(),
                                   [&](const auto& each) { return each->lkey == part.lkey(); });
  if (region == rig.nic.regions.end()) return false;
  const auto* const begin = static_cast<const std::byte*>((*region)->addr);
  return part.bytes() >= begin && part.bytes() + bytes <= begin + (*region)->length;
}

TEST(receives_of_many_connections_lie_in_few_regions) {
  constexpr size_t kRegionBytes = 4096;
  Rig rig;
  verbs::ReceiveRegions regions(*rig.device);
  {
    std::vector<Part> parts(100);
    std::set<std::byte*> places;
    for (Part& part : parts) {
      ck_assert_int_eq(regions.take(kRegionBytes, part), 0);
      ck_assert(lies_in_its_region(rig, part, kRegionBytes));
      places.insert(part.bytes());
    }
    ck_assert_uint_eq(rig.nic.regions.size(), 8);  // regions of 1, 1, 2, 4, ... 64 parts
    std::byte* before = nullptr;
    for (std::byte* const place : places) {
      ck_assert(!before || place - before >= ptrdiff_t(kRegionBytes));
      before = place;
    }
    ck_assert_uint_eq(places.size(), parts.size());
    // A released part is used again. Other sizes use other regions.
    std::byte* const free = parts[70].bytes();
    parts[70].reset();
    Part again, other;
    ck_assert_int_eq(regions.take(kRegionBytes, again), 0);
    ck_assert_ptr_eq(again.bytes(), free);
    ck_assert_int_eq(regions.take(3 * verbs::ReceiveRegions::kMostBytes, other), 0);
    ck_assert(lies_in_its_region(rig, other, 3 * verbs::ReceiveRegions::kMostBytes));
    ck_assert_uint_eq(rig.nic.regions.size(), 9);
  }
  ck_assert(rig.nic.regions.empty());
}

TEST(regions_for_receives_do_not_outgrow_their_limit) {
  constexpr size_t kRegionBytes = verbs::ReceiveRegions::kMostBytes / 2;
  Rig rig;
  verbs::ReceiveRegions regions(*rig.device);
  std::vector<Part> parts(9);
  for (Part& part : parts) ck_assert_int_eq(regions.take(kRegionBytes, part), 0);
  for (const auto& region : rig.nic.regions)
    ck_assert_uint_le(region->length, verbs::ReceiveRegions::kMostBytes);
}

TEST(receives_that_cannot_be_registered_are_none) {
  Rig rig;
  verbs::ReceiveRegions regions(*rig.device);
  Part part;
  rig.nic.refuse_regions = ENOSPC;
  ck_assert_int_eq(regions.take(4096, part), -ENOSPC);
  ck_assert(!part);
  rig.nic.refuse_regions = 0;
  ck_assert_int_eq(regions.take(4096, part), 0);
}

struct Evictor final : verbs::RegionEvictor {
  explicit Evictor(int times) : left(times) {}
  bool evict_after(int error) noexcept override {
    asked_with = error;
    if (left == 0) return false;
    if (--left == 0) fake::Nic::one().refuse_regions = 0;
    return true;
  }
  int left, asked_with = 0;
};

/// The giver has nothing to give (row 0), gives enough at once, or gives bit by bit.
TEST(memory_of_its_own_is_registered_where_something_gives_way, 3) {
  Rig rig;
  Evictor evictor(_i);
  rig.device->set_evictor(&evictor);
  rig.nic.refuse_regions = ENOSPC;
  verbs::OwnMemory memory;
  ck_assert_int_eq(memory.make(*rig.device, 4096, verbs::OwnUse::receives), _i ? 0 : ENOSPC);
  ck_assert_int_eq(evictor.asked_with, ENOSPC);
  rig.device->set_evictor(nullptr);
  rig.nic.refuse_regions = 0;
}

/// Releases a part as another thread could while the device registers. This makes enough room.
struct PartEvictor final : verbs::RegionEvictor {
  bool evict_after(int) noexcept override {
    part.reset();
    fake::Nic::one().refuse_regions = 0;
    return true;
  }
  Part part;
};

TEST(a_part_goes_back_while_the_device_registers) {
  Rig rig;
  verbs::ReceiveRegions regions(*rig.device);
  PartEvictor evictor;
  Part other;
  ck_assert_int_eq(regions.take(4096, evictor.part), 0);
  rig.device->set_evictor(&evictor);
  rig.nic.refuse_regions = ENOSPC;
  ck_assert_int_eq(regions.take(8192, other), 0);
  ck_assert(lies_in_its_region(rig, other, 8192));
  ck_assert_uint_eq(rig.nic.regions.size(), 1);
  rig.device->set_evictor(nullptr);
}

// --- where each use of memory is a registration of its own

struct Sharing : Two {
  Sharing() { rig.cache.each_time = "a reason"; }
  int share(const transport::Access access = transport::Access::remote_read) {
    const iovec memory{bytes.data(), bytes.size()};
    return pair.a_to_b().share(&memory, 1, bytes.size(), access, remote_key);
  }
  std::vector<std::byte> bytes = std::vector<std::byte>(300'000);
  RemoteKey remote_key;
};

/// Before there is a connection, no peer can know of the registration.
TEST(nothing_is_registered_for_a_peer_before_it_is_connected, 2) {
  Sharing two;
  two.rig.fabric.hold = true;
  for (int i = 0; i < 100; ++i) {
    ck_assert_int_eq(
        two.share(_i ? transport::Access::remote_write : transport::Access::remote_read),
        -FI_EAGAIN);
    two.pair.poll();
  }
  ck_assert_int_eq(two.rig.cache.made, 0);
  ck_assert_uint_eq(two.rig.fabric.attempts, 1);  // sharing starts the connection
  two.rig.fabric.hold = false;
  static_cast<FakeConnector*>(two.rig.fabric.find(two.a().name))->go_on();
  ck_assert(two.until([&] { return two.share() == 0; }));
  ck_assert_int_eq(two.rig.cache.made, 1);
  ck_assert_int_eq(two.pair.a_to_b().revoke(two.remote_key), 0);
  ck_assert_int_eq(two.rig.cache.held, 0);
}

TEST(nothing_is_registered_for_a_peer_that_takes_no_packets) {
  Sharing two;
  two.meet();
  Link& link = two.pair.a_to_b();
  while (!link.send(numbered(1), nullptr, 0, 0, SendHint::none))
    ;
  for (int i = 0; i < 100; ++i) ck_assert_int_eq(two.share(), -FI_EAGAIN);
  ck_assert_int_eq(two.rig.cache.made, 0);
  ck_assert(two.until([&] { return two.share() == 0; }));
  ck_assert_int_eq(link.send(numbered(2), nullptr, 0, 0, SendHint::none), 0);
  ck_assert_int_eq(two.rig.cache.made, 1);
  ck_assert_int_eq(link.revoke(two.remote_key), 0);
}

/// A lasting registration is found again, so sharing need not wait.
TEST(memory_that_stays_registered_is_shared_before_there_is_a_connection) {
  Sharing two;
  two.rig.cache.each_time = nullptr;
  ck_assert_int_eq(two.share(), 0);
  ck_assert_int_eq(two.pair.a_to_b().revoke(two.remote_key), 0);
}

}  // namespace
}  // namespace erdma::test
