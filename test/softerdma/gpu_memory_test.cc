// The simulated adapter reaches memory of the simulated GPU: by its address, as with peermem, or as
// a dmabuf.
#include "softcuda/device_memory.h"
#include "softerdma/rig.h"

#undef ibv_reg_mr

using erdma::test::DeviceMemory;
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
  close(fd);  // a region holds the memory, not the descriptor
  errno = error;
  return made;
}

ibv_mr* by_address(Side& side, const DeviceMemory& memory, size_t length = kBytes) {
  return ibv_reg_mr(side.pd, memory.at(0), length, int(kAll));
}

}  // namespace

START_TEST(adapter_moves_bytes_between_gpus) {
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
    cuMemsetD8_v2(to.pointer(), 0, kBytes);
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
END_TEST

START_TEST(send_gathers_from_a_gpu) {
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
END_TEST

START_TEST(what_can_not_be_registered_is_refused) {
  setenv("SOFTERDMA_PEERMEM", "0", 1);
  Side sides[2];
  connect_compat(sides);
  const DeviceMemory memory(kBytes);
  ck_assert_ptr_null(by_address(sides[0], memory));
  ck_assert_int_eq(errno, EFAULT);
  ck_assert_ptr_null(by_dmabuf(sides[0], memory));
  ck_assert_int_eq(errno, EOPNOTSUPP);
}
END_TEST

START_TEST(region_ends_where_the_memory_does) {
  setenv("SOFTERDMA_DMABUF", "1", 1);
  Side sides[2];
  connect_compat(sides);
  const DeviceMemory memory(kBytes);
  ck_assert_ptr_null(by_address(sides[0], memory, kBytes + 1));
  ck_assert_int_eq(errno, EFAULT);
  ck_assert_ptr_null(by_dmabuf(sides[0], memory, kBytes + 1));
  ck_assert_int_eq(errno, EINVAL);
}
END_TEST

int main() {
  return run_suite("memory of a GPU", [](TCase* tc) {
    tcase_add_loop_test(tc, adapter_moves_bytes_between_gpus, 0, 2);
    tcase_add_test(tc, send_gathers_from_a_gpu);
    tcase_add_test(tc, what_can_not_be_registered_is_refused);
    tcase_add_test(tc, region_ends_where_the_memory_does);
  });
}
