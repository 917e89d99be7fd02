// Tests accesses of the simulated adapter to memory of the simulated GPU, by its address (peermem)
// and as a dmabuf. With SOFTERDMA_POSTED, its stores arrive late.
#include <algorithm>
#include <memory>

#include "softcuda/device_memory.h"
#include "softerdma/rig.h"

#undef ibv_reg_mr

using erdma::test::DeviceMemory;
using erdma::test::fill_memory;
using namespace erdma::hmem::cuda_api;
using namespace softerdma::test;

namespace {

constexpr size_t kBytes = 8192;

std::vector<char> numbers() {
  std::vector<char> made(kBytes);
  for (size_t i = 0; i < kBytes; ++i) made[i] = char(i * 7 + i / 256);
  return made;
}

ibv_mr* by_dmabuf(Side& side, const DeviceMemory& memory, size_t length = kBytes) {
  int fd = -1;
  ck_assert_int_eq(
      cuMemGetHandleForAddressRange(&fd, memory.pointer(), kBytes, kRangeHandleDmabufFd, 0),
      kSuccess);
  ibv_mr* made = ibv_reg_dmabuf_mr(side.pd, 0, length, memory.pointer(), fd, int(kAll));
  const int error = errno;
  close(fd);  // the region holds the memory without the descriptor
  errno = error;
  return made;
}

ibv_mr* by_address(Side& side, const DeviceMemory& memory, size_t length = kBytes) {
  return ibv_reg_mr(side.pd, memory.at(0), length, int(kAll));
}

}  // namespace

SUITE(.counted = false);

TEST(adapter_moves_bytes_between_gpus, 2) {
  setenv("SOFTERDMA_DMABUF", "1", 1);
  Side sides[2];
  connect_compat(sides);
  const DeviceMemory from(numbers()), to(kBytes);
  ibv_mr* source = _i ? by_dmabuf(sides[0], from) : by_address(sides[0], from);
  ibv_mr* target = _i ? by_dmabuf(sides[1], to) : by_address(sides[1], to);
  ck_assert_ptr_nonnull(source);
  ck_assert_ptr_nonnull(target);
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
    Side& poster = sides[opcode == IBV_WR_RDMA_READ];
    const bool reads = opcode == IBV_WR_RDMA_READ;
    fill_memory(to.pointer(), 0, kBytes);
    ibv_sge sge{(reads ? to : from).pointer() + 100, 5000, (reads ? target : source)->lkey};
    ibv_send_wr wr = poster.request(opcode, &sge, sides[0]);
    wr.wr.rdma.remote_addr = (reads ? from : to).pointer() + 100;
    wr.wr.rdma.rkey = (reads ? source : target)->rkey;
    ck_assert_int_eq(poster.post(wr), 0);
    ck_assert_int_eq(poster.wait().status, IBV_WC_SUCCESS);
    const auto seen = to.bytes(), expected = numbers();
    ck_assert_int_eq(seen[99], 0);
    ck_assert(std::equal(seen.begin() + 100, seen.begin() + 5100, expected.begin() + 100));
    ck_assert_int_eq(seen[5100], 0);
  }
  ck_assert_int_eq(ibv_dereg_mr(source), 0);
  ck_assert_int_eq(ibv_dereg_mr(target), 0);
}

TEST(send_gathers_from_a_gpu) {
  Side sides[2];
  connect_compat(sides);
  const DeviceMemory from(numbers());
  ibv_mr* source = by_address(sides[0], from);
  ck_assert_ptr_nonnull(source);
  ck_assert_int_eq(sides[1].receive(8192), 0);
  ibv_sge sge{from.pointer(), 3000, source->lkey};
  ck_assert_int_eq(sides[0].post(sides[0].request(IBV_WR_SEND, &sge, sides[1])), 0);
  ck_assert_int_eq(sides[1].wait().status, IBV_WC_SUCCESS);
  const auto sent = numbers();
  ck_assert_mem_eq(sides[1].data(), sent.data(), 3000);
}

TEST(what_can_not_be_registered_is_refused) {
  setenv("SOFTERDMA_PEERMEM", "0", 1);
  Side sides[2];
  connect_compat(sides);
  const DeviceMemory memory(kBytes);
  ck_assert_ptr_null(by_address(sides[0], memory));
  ck_assert_int_eq(errno, EFAULT);
  ck_assert_ptr_null(by_dmabuf(sides[0], memory));
  ck_assert_int_eq(errno, EOPNOTSUPP);
}

TEST(region_ends_where_the_memory_does) {
  setenv("SOFTERDMA_DMABUF", "1", 1);
  Side sides[2];
  connect_compat(sides);
  const DeviceMemory memory(kBytes);
  ck_assert_ptr_null(by_address(sides[0], memory, kBytes + 1));
  ck_assert_int_eq(errno, EFAULT);
  ck_assert_ptr_null(by_dmabuf(sides[0], memory, kBytes + 1));
  ck_assert_int_eq(errno, EINVAL);
}

namespace {

/// Two adapters, and memory of a GPU that the second one stores to. READs may flush these stores.
struct PostedRig {
  explicit PostedRig(const char* posted = "1", unsigned access = kAll) {
    setenv("SOFTERDMA_POSTED", posted, 1);
    setenv("SOFTERDMA_DMABUF", "1", 1);
    setenv("SOFTCUDA_DEVICES", "2", 1);
    connect_compat(sides);
    to = std::make_unique<DeviceMemory>(kBytes);
    target = ibv_reg_mr(sides[1].pd, to->at(0), kBytes, int(access));
    ck_assert_ptr_nonnull(target);
    message = numbers();
    std::copy(message.begin(), message.end(), sides[0].data());
    std::copy(message.begin(), message.end(), sides[1].data());
  }

  /// Moves the first `length` bytes of host memory to the GPU.
  void store(ibv_wr_opcode opcode, uint32_t length, size_t offset = 0) {
    const bool reads = opcode == IBV_WR_RDMA_READ;
    Side& poster = sides[reads];
    ibv_sge sge = sides[0].piece(length);
    if (reads) sge = {to->pointer() + offset, length, target->lkey};
    ibv_send_wr wr = poster.request(opcode, &sge, sides[0]);
    if (!reads) {
      wr.wr.rdma.remote_addr = to->pointer() + offset;
      wr.wr.rdma.rkey = target->rkey;
    }
    const bool receives = opcode != IBV_WR_RDMA_WRITE && !reads;
    if (receives) {
      ibv_sge into{to->pointer() + offset, uint32_t(kBytes - offset), target->lkey};
      ibv_recv_wr receive{};
      receive.sg_list = &into;
      receive.num_sge = 1;
      ibv_recv_wr* bad = nullptr;
      ck_assert_int_eq(ibv_post_recv(sides[1].qp, &receive, &bad), 0);
    }
    ck_assert_int_eq(poster.post(wr), 0);
    ck_assert_int_eq(poster.wait().status, IBV_WC_SUCCESS);
    if (receives) ck_assert_int_eq(sides[1].wait().status, IBV_WC_SUCCESS);
  }
  /// Posts a READ by side `by` of the other side's memory.
  void read(int by, uint64_t address, const ibv_mr* from, uint32_t length) {
    ibv_sge sge = sides[by].piece(length, kBytes);
    ibv_send_wr wr = sides[by].request(IBV_WR_RDMA_READ, &sge, sides[1 - by]);
    wr.wr.rdma.remote_addr = address;
    wr.wr.rdma.rkey = from->rkey;
    ck_assert_int_eq(sides[by].post(wr), 0);
    ck_assert_int_eq(sides[by].wait().status, IBV_WC_SUCCESS);
  }
  /// Returns true if a CUDA kernel would see the bytes.
  bool visible(uint32_t length) const {
    const auto seen = to->bytes();
    return std::equal(message.begin(), message.begin() + length, seen.begin());
  }
  bool blank() const {
    const auto seen = to->bytes();
    return std::all_of(seen.begin(), seen.end(), [](char c) { return c == 0; });
  }

  Side sides[2];
  std::unique_ptr<DeviceMemory> to;
  ibv_mr* target = nullptr;
  std::vector<char> message;
};

struct Stored {
  ibv_wr_opcode opcode;
  uint32_t length;
};
constexpr Stored kStored[] = {
    {IBV_WR_RDMA_WRITE, 5000}, {IBV_WR_RDMA_WRITE, 1}, {IBV_WR_RDMA_WRITE_WITH_IMM, 100},
    {IBV_WR_RDMA_READ, 5000},  {IBV_WR_SEND, 40},      {IBV_WR_SEND, 1500},
    {IBV_WR_SEND, 5000}};

}  // namespace

TEST(store_to_a_gpu_is_seen_after_a_read_of_one_byte, std::size(kStored)) {
  PostedRig rig;
  rig.store(kStored[_i].opcode, kStored[_i].length);
  ck_assert(rig.blank());
  rig.read(0, rig.to->pointer() + kBytes - 1, rig.target, 1);
  ck_assert(rig.visible(kStored[_i].length));
}

TEST(reader_behind_a_store_gets_what_was_stored) {
  PostedRig rig;
  rig.store(IBV_WR_RDMA_WRITE, 5000);
  rig.read(0, rig.to->pointer(), rig.target, 5000);
  ck_assert_mem_eq(rig.sides[0].data() + kBytes, rig.message.data(), 5000);
}

TEST(what_is_no_flush_leaves_a_gpu_with_old_bytes, 6) {
  PostedRig rig("1", _i == 5 ? kAll | IBV_ACCESS_RELAXED_ORDERING : kAll);
  DeviceMemory other(kBytes);
  const auto* from = rig.target;
  rig.store(IBV_WR_RDMA_WRITE, 5000);
  std::vector<char> copy(kBytes);
  Context context = nullptr;
  switch (_i) {
    case 0:  // a READ of no bytes
      rig.read(0, rig.to->pointer(), from, 0);
      break;
    case 1:  // a copy by the processor
      ck_assert_int_eq(cuMemcpyDtoH_v2(copy.data(), rig.to->pointer(), kBytes), 0);
      ck_assert_int_eq(copy[1], 0);
      ck_assert_int_eq(cuFlushGPUDirectRDMAWrites(0, 0), 0);
      break;
    case 2:  // a READ by the other adapter
      from = by_address(rig.sides[0], *rig.to);
      rig.read(1, rig.to->pointer(), from, 8);
      ck_assert_int_eq(rig.sides[1].data()[kBytes + 1], 0);
      break;
    case 3:  // a READ of host memory
      rig.read(0, uint64_t(rig.sides[1].data()), rig.sides[1].mr, 8);
      break;
    case 4: {  // a READ of another GPU
      ck_assert_int_eq(cuDevicePrimaryCtxRetain(&context, 1), 0);
      ck_assert_int_eq(cuCtxSetCurrent(context), 0);
      DevicePointer second = 0;
      ck_assert_int_eq(cuMemAlloc_v2(&second, kBytes), 0);
      from = ibv_reg_mr(rig.sides[1].pd, reinterpret_cast<void*>(second), kBytes, int(kAll));
      rig.read(0, second, from, 8);
      break;
    }
    default:  // a READ with relaxed ordering
      rig.read(0, rig.to->pointer(), from, 8);
  }
  ck_assert(rig.blank());
}

TEST(stores_arrive_in_their_order_by_chance) {
  PostedRig rig("4");
  size_t early = 0;
  for (size_t i = 0; i < 200; ++i) {
    rig.sides[0].data()[0] = char(i + 1);
    rig.store(IBV_WR_RDMA_WRITE, 1, i);
    const auto seen = rig.to->bytes();
    size_t arrived = 0;
    while (arrived <= i && seen[arrived] == char(arrived + 1)) ++arrived;
    ck_assert(std::all_of(seen.begin() + long(arrived), seen.end(), [](char c) { return !c; }));
    early = std::max(early, arrived);
  }
  ck_assert_uint_gt(early, 0);
  ck_assert_uint_lt(early, 200);
}

TEST(store_arrives_through_a_dmabuf_and_at_the_end_of_its_region) {
  PostedRig rig;
  ibv_mr* const region = by_dmabuf(rig.sides[1], *rig.to);
  ck_assert_ptr_nonnull(region);
  rig.target = region;
  rig.store(IBV_WR_RDMA_WRITE, 5000);
  ck_assert(rig.blank());
  ck_assert_int_eq(ibv_dereg_mr(rig.target), 0);
  ck_assert(rig.visible(5000));
}

TEST(store_to_memory_that_was_freed_goes_nowhere) {
  PostedRig rig;
  rig.store(IBV_WR_RDMA_WRITE, 5000);
  rig.to.reset();
  ck_assert_int_eq(ibv_dereg_mr(rig.target), 0);
}
