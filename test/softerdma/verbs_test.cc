// Tests the device's peculiarities and errors with two compat queue pairs of one process.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "softerdma/mapping.h"
#include "softerdma/rig.h"
#include "softerdma/shared.h"

using namespace softerdma;
using namespace softerdma::test;
using namespace std::string_literals;

SUITE(.counted = false);

TEST(device_is_what_an_erdma_nic_says_it_is) {
  Side sides[2];
  start("compat");
  open_devices(sides);
  ibv_device_attr attr{};
  ck_assert_int_eq(ibv_query_device(sides[0].context, &attr), 0);
  ck_assert_uint_eq(attr.vendor_id, 0x1ded);
  ck_assert_uint_eq(attr.vendor_part_id, 4223);
  ck_assert_int_eq(attr.max_sge, 1);
  ck_assert_int_eq(attr.max_sge_rd, 1);
  ck_assert_int_gt(attr.max_mw, 0);
  ibv_port_attr port{};
  ck_assert_int_eq(ibv_query_port(sides[0].context, 1, &port), 0);
  ck_assert_int_eq(port.state, IBV_PORT_ACTIVE);
  ck_assert_int_eq(port.active_mtu, IBV_MTU_1024);
  ck_assert_int_eq(ibv_is_fork_initialized(), IBV_FORK_UNNEEDED);
  ck_assert_ptr_null(ibv_create_srq(nullptr, nullptr));
  ck_assert_int_eq(errno, EOPNOTSUPP);
}

constexpr uint32_t kSizes[] = {0, 1, 8, 80, 81, 96, 2048, 2049, 65536};

TEST(send_arrives_whole, std::size(kSizes)) {
  Side sides[2];
  connect_compat(sides);
  uint32_t size = kSizes[_i];
  for (int round = 0; round < 100; ++round) {
    std::memset(sides[0].data(), round + 1, size);
    ck_assert_int_eq(sides[1].receive(1 << 17, 5), 0);
    ck_assert_int_eq(sides[0].send(size, sides[1]), 0);
    ibv_wc wc = sides[1].wait();
    ck_assert_int_eq(wc.status, IBV_WC_SUCCESS);
    ck_assert_uint_eq(wc.byte_len, size);
    ck_assert_uint_eq(wc.wr_id, 5);
    ck_assert_mem_eq(sides[0].data(), sides[1].data(), size);
    ck_assert_int_eq(sides[0].wait().status, IBV_WC_SUCCESS);
  }
  ck_assert_uint_eq(softerdma_violations(), 0);
}

TEST(create_qp_refuses_what_the_device_lacks) {
  Side sides[2];
  start("compat");
  open_devices(sides);
  sides[0].make_queues();
  ibv_qp_init_attr good = sides[0].init;
  auto refused = [&](auto change) {
    ibv_qp_init_attr init = good;
    change(init);
    errno = 0;
    ck_assert_ptr_null(ibv_create_qp(sides[0].pd, &init));
    return errno;
  };
  ck_assert_int_eq(refused([](auto& i) { i.cap.max_inline_data = 97; }), EINVAL);
  ck_assert_int_eq(refused([](auto& i) { i.cap.max_recv_sge = 2; }), EINVAL);
  ck_assert_int_eq(refused([](auto& i) { i.cap.max_send_sge = 7; }), EINVAL);
  ck_assert_int_eq(refused([](auto& i) { i.cap.max_recv_wr = 0; }), EINVAL);
  ck_assert_int_eq(refused([](auto& i) { i.cap.max_send_wr = 8193; }), EINVAL);
  ck_assert_int_eq(refused([](auto& i) { i.qp_type = IBV_QPT_UD; }), EOPNOTSUPP);
  ck_assert_ptr_nonnull(ibv_create_qp(sides[0].pd, &good));
}

TEST(cq_has_a_power_of_two_entries_and_fails_with_eio) {
  Side sides[2];
  start("compat");
  open_devices(sides);
  ck_assert_int_eq(ibv_create_cq(sides[0].context, 1, nullptr, nullptr, 0)->cqe, 64);
  ck_assert_int_eq(ibv_create_cq(sides[0].context, 65, nullptr, nullptr, 0)->cqe, 128);
  ck_assert_ptr_null(ibv_create_cq(sides[0].context, 1, nullptr, nullptr, 31));
  ck_assert_int_eq(errno, EIO);
}

TEST(read_takes_the_first_sge_and_forgets_the_others) {
  Side sides[2];
  connect_compat(sides);
  std::memset(sides[1].data(), 'x', 64);
  ibv_sge sge[2] = {sides[0].piece(16), sides[0].piece(16, 100)};
  ibv_send_wr wr = sides[0].request(IBV_WR_RDMA_READ, sge, sides[1]);
  wr.num_sge = 2;
  ck_assert_int_eq(sides[0].post(wr), 0);
  ck_assert_int_eq(sides[0].wait().status, IBV_WC_SUCCESS);
  ck_assert_int_eq(sides[0].data()[15], 'x');
  ck_assert_int_eq(sides[0].data()[100], 0);
  ck_assert_uint_eq(softerdma_violations(), 1);
}

TEST(send_queue_is_full_by_blocks_until_a_signaled_completion_is_polled) {
  Side sides[2];
  connect_compat(sides, 2);  // 8 blocks of 32 bytes
  ibv_sge sge = sides[0].piece(8);
  ibv_send_wr wr = sides[0].request(IBV_WR_RDMA_WRITE, &sge, sides[1]);  // 48 bytes: 2 blocks
  wr.send_flags = 0;
  for (int i = 0; i < 3; ++i) ck_assert_int_eq(sides[0].post(wr), 0);
  wr.send_flags = IBV_SEND_SIGNALED;
  ck_assert_int_eq(sides[0].post(wr), 0);
  ck_assert_int_eq(sides[0].post(wr), -ENOMEM);
  ck_assert_int_eq(sides[0].wait().status, IBV_WC_SUCCESS);
  ck_assert(sides[0].quiet());
  ck_assert_int_eq(sides[0].post(wr), 0);
}

TEST(post_recv_refuses_two_sges_and_a_full_queue) {
  Side sides[2];
  connect_compat(sides);
  ibv_sge sge[2] = {sides[0].piece(8), sides[0].piece(8)};
  ibv_recv_wr wr{};
  wr.sg_list = sge;
  wr.num_sge = 2;
  ibv_recv_wr* bad = nullptr;
  ck_assert_int_eq(ibv_post_recv(sides[0].qp, &wr, &bad), -EINVAL);
  ck_assert_ptr_eq(bad, &wr);
  for (int i = 0; i < 16; ++i) ck_assert_int_eq(sides[0].receive(8), 0);
  ck_assert_int_eq(sides[0].receive(8), -ENOMEM);
}

/// Expects one error event and the state ERR at this end of a killed connection.
void assert_killed(Side& side) {
  ibv_async_event event{};
  ck_assert_int_eq(ibv_get_async_event(side.context, &event), 0);
  ck_assert_int_eq(event.event_type, IBV_EVENT_QP_FATAL);
  ibv_ack_async_event(&event);
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  ck_assert_int_eq(ibv_query_qp(side.qp, &attr, IBV_QP_STATE, &init), 0);
  ck_assert_int_eq(attr.qp_state, IBV_QPS_ERR);
}

TEST(send_without_a_receive_kills_the_connection) {
  Side sides[2];
  connect_compat(sides);
  ck_assert_int_eq(sides[0].send(8, sides[1], 0), 0);
  ck_assert_int_eq(sides[0].wait().status, IBV_WC_GENERAL_ERR);
  assert_killed(sides[0]);
  assert_killed(sides[1]);
  ck_assert_uint_eq(softerdma_violations(), 1);
}

TEST(send_longer_than_the_receive_kills_the_connection) {
  Side sides[2];
  connect_compat(sides);
  ck_assert_int_eq(sides[1].receive(7, 3), 0);
  ck_assert_int_eq(sides[0].send(8, sides[1]), 0);
  ck_assert_int_eq(sides[0].wait().status, IBV_WC_GENERAL_ERR);
  assert_killed(sides[1]);
  ibv_wc wc = sides[1].wait();
  ck_assert_int_eq(wc.status, IBV_WC_WR_FLUSH_ERR);
  ck_assert_uint_eq(wc.wr_id, 3);
}

TEST(write_is_refused_where_key_range_or_access_do_not_fit, 3) {
  Side sides[2];
  connect_compat(sides);
  ibv_mr* readable = (ibv_reg_mr)(sides[1].pd, sides[1].data(), 4096, IBV_ACCESS_REMOTE_READ);
  ibv_sge sge = sides[0].piece(64);
  ibv_send_wr wr = sides[0].request(IBV_WR_RDMA_WRITE, &sge, sides[1]);
  switch (_i) {
    case 0:
      wr.wr.rdma.rkey += 1;
      break;
    case 1:
      wr.wr.rdma.remote_addr += sides[1].memory.size() - 63;
      break;
    default:
      wr.wr.rdma.rkey = readable->rkey;
  }
  std::memset(sides[0].data(), 'x', 64);
  ck_assert_int_eq(sides[0].post(wr), 0);
  ck_assert_int_eq(sides[0].wait().status, IBV_WC_REM_ACCESS_ERR);
  ck_assert_int_eq(sides[1].data()[0], 0);
  assert_killed(sides[1]);
}

/// The driver passes 32 bits of the length to the adapter, without an error.
TEST(region_of_four_gigabytes_has_no_byte_for_the_adapter) {
  Side sides[2];
  connect_compat(sides);
  constexpr size_t kBytes = size_t{4} << 30;
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ck_assert_ptr_ne(memory, MAP_FAILED);
  ibv_mr* region = (ibv_reg_mr)(sides[1].pd, memory, kBytes, static_cast<int>(kAll));
  ck_assert_ptr_nonnull(region);
  ck_assert_uint_eq(region->length, kBytes);
  ibv_sge sge = sides[0].piece(64);
  ibv_send_wr wr = sides[0].request(IBV_WR_RDMA_WRITE, &sge, sides[1]);
  wr.wr.rdma.rkey = region->rkey;
  wr.wr.rdma.remote_addr = reinterpret_cast<uint64_t>(memory);
  ck_assert_int_eq(sides[0].post(wr), 0);
  ck_assert_int_eq(sides[0].wait().status, IBV_WC_REM_ACCESS_ERR);
  assert_killed(sides[1]);
}

TEST(regions_run_out) {
  setenv("SOFTERDMA_MAX_MR", "3", 1);
  Side sides[2];
  connect_compat(sides);  // the sides have two regions
  ck_assert_ptr_nonnull((ibv_reg_mr)(sides[0].pd, sides[0].data(), 8, 0));
  ck_assert_ptr_null((ibv_reg_mr)(sides[0].pd, sides[0].data(), 8, 0));
  ck_assert_int_eq(errno, ENOSPC);
}

TEST(memory_without_access_cannot_be_registered, 3) {
  Side sides[2];
  connect_compat(sides);
  const size_t page = size_t(sysconf(_SC_PAGESIZE));
  auto* const memory = static_cast<char*>(
      mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ck_assert_ptr_ne(memory, MAP_FAILED);
  if (_i < 2) ck_assert_int_eq(mprotect(memory + _i * page, page, PROT_NONE), 0);
  errno = 0;
  ibv_mr* const region = (ibv_reg_mr)(sides[0].pd, memory, 2 * page, static_cast<int>(kAll));
  ck_assert_int_eq(region != nullptr, _i == 2);
  ck_assert_int_eq(errno, _i == 2 ? 0 : EFAULT);
  if (region) ck_assert_int_eq(ibv_dereg_mr(region), 0);
  munmap(memory, 2 * page);
}

TEST(write_with_immediate_data_consumes_a_receive) {
  Side sides[2];
  connect_compat(sides);
  ck_assert_int_eq(sides[1].receive(0, 9), 0);
  std::memset(sides[0].data(), 'x', 64);
  ibv_sge sge = sides[0].piece(64);
  ibv_send_wr wr = sides[0].request(IBV_WR_RDMA_WRITE_WITH_IMM, &sge, sides[1]);
  wr.imm_data = 4711;
  ck_assert_int_eq(sides[0].post(wr), 0);
  ibv_wc wc = sides[1].wait();
  ck_assert_int_eq(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  ck_assert_uint_eq(wc.imm_data, 4711);
  ck_assert_uint_eq(wc.byte_len, 64);
  ck_assert_int_eq(sides[1].data()[63], 'x');
}

TEST(atomics_add_and_swap) {
  Side sides[2];
  connect_compat(sides);
  auto* word = reinterpret_cast<uint64_t*>(sides[1].data());
  *word = 40;
  ibv_sge sge = sides[0].piece(8);
  ibv_send_wr wr = sides[0].request(IBV_WR_ATOMIC_FETCH_AND_ADD, &sge, sides[1]);
  wr.wr.atomic.remote_addr = reinterpret_cast<uint64_t>(word);
  wr.wr.atomic.rkey = sides[1].mr->rkey;
  wr.wr.atomic.compare_add = 2;
  ck_assert_int_eq(sides[0].post(wr), 0);
  ck_assert_int_eq(sides[0].wait().opcode, IBV_WC_FETCH_ADD);
  ck_assert_uint_eq(*reinterpret_cast<uint64_t*>(sides[0].data()), 40);
  ck_assert_uint_eq(*word, 42);
  wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
  wr.wr.atomic.compare_add = 42;
  wr.wr.atomic.swap = 1;
  ck_assert_int_eq(sides[0].post(wr), 0);
  ck_assert_int_eq(sides[0].wait().opcode, IBV_WC_COMP_SWAP);
  ck_assert_uint_eq(*word, 1);
}

TEST(armed_queue_writes_one_event) {
  Side sides[2];
  connect_compat(sides);
  pollfd readable{sides[1].channel->fd, POLLIN, 0};
  ck_assert_int_eq(sides[1].receive(8), 0);
  ck_assert_int_eq(sides[1].receive(8), 0);
  ck_assert_int_eq(ibv_req_notify_cq(sides[1].cq, 0), 0);
  ck_assert_int_eq(poll(&readable, 1, 0), 0);
  ck_assert_int_eq(sides[0].send(8, sides[1]), 0);
  ck_assert_int_eq(sides[0].send(8, sides[1]), 0);
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  ck_assert_int_eq(ibv_get_cq_event(sides[1].channel, &cq, &context), 0);
  ck_assert_ptr_eq(cq, sides[1].cq);
  ibv_ack_cq_events(cq, 1);
  ck_assert_int_eq(poll(&readable, 1, 0), 0);
}

TEST(overrun_loses_completions_and_is_reported) {
  Side sides[2];
  connect_compat(sides, 64);
  ibv_sge sge = sides[0].piece(8);
  ibv_send_wr wr = sides[0].request(IBV_WR_RDMA_WRITE, &sge, sides[1]);
  for (int i = 0; i < 65; ++i) ck_assert_int_eq(sides[0].post(wr), 0);
  ck_assert_uint_eq(softerdma_violations(), 1);
  for (int i = 0; i < 64; ++i) sides[0].wait();
  ck_assert(sides[0].quiet());
}

TEST(error_flushes_receives_unless_that_is_withheld, 2) {
  Side sides[2];
  connect_compat(sides);
  if (_i == 1) ck_assert_int_eq(softerdma_control("flush withhold"), 0);
  ck_assert_int_eq(sides[0].receive(8, 11), 0);
  modify(sides[0], IBV_QPS_ERR, sides[1]);
  ck_assert_int_eq(sides[0].send(8, sides[1]), 0);  // the real driver takes it, too
  if (_i == 1) {
    ck_assert(sides[0].quiet());
    return;
  }
  ibv_wc wc = sides[0].wait();
  ck_assert_int_eq(wc.status, IBV_WC_WR_FLUSH_ERR);
  ck_assert_uint_eq(wc.wr_id, 11);
  ck_assert_uint_eq(sides[0].wait().wr_id, 7);
}

TEST(fault_fails_the_nth_request) {
  Side sides[2];
  connect_compat(sides);
  ck_assert_int_eq(softerdma_control("wr n=2 op=write status=retry_exc"), 0);
  ck_assert_int_eq(softerdma_control("nonsense"), EINVAL);
  ibv_sge sge = sides[0].piece(8);
  ibv_send_wr wr = sides[0].request(IBV_WR_RDMA_WRITE, &sge, sides[1]);
  ck_assert_int_eq(sides[0].post(wr), 0);
  ck_assert_int_eq(sides[0].wait().status, IBV_WC_SUCCESS);
  ck_assert_int_eq(sides[0].post(wr), 0);
  ck_assert_int_eq(sides[0].wait().status, IBV_WC_RETRY_EXC_ERR);
}

TEST(fault_leaves_a_request_without_an_end) {
  Side sides[2];
  connect_compat(sides);
  ck_assert_int_eq(softerdma_control("wr op=read status=none"), 0);
  ibv_sge sge = sides[0].piece(8);
  const ibv_send_wr read = sides[0].request(IBV_WR_RDMA_READ, &sge, sides[1]);
  ck_assert_int_eq(sides[0].post(read), 0);
  ck_assert(sides[0].quiet());
  ck_assert(sides[1].quiet());
}

TEST(fault_withholds_completions_until_cleared) {
  Side sides[2];
  connect_compat(sides);
  ck_assert_int_eq(softerdma_control("completions withhold"), 0);
  ck_assert_int_eq(sides[1].receive(8), 0);
  ck_assert_int_eq(sides[0].send(8, sides[1]), 0);
  ck_assert(sides[0].quiet());
  ck_assert(sides[1].quiet());
  ck_assert_int_eq(softerdma_control("clear"), 0);
  ck_assert_int_eq(sides[0].wait().status, IBV_WC_SUCCESS);
  ck_assert_int_eq(sides[1].wait().status, IBV_WC_SUCCESS);
}

TEST(fault_strikes_again_and_only_whom_it_names) {
  Side sides[2];
  connect_compat(sides);
  const std::string mine = "qp=" + std::to_string(sides[0].qp->qp_num) + " dev=erdma_0";
  for (const std::string& other :
       {"qp=" + std::to_string(sides[1].qp->qp_num), "dev=erdma_1"s, "op=read"s, "op=send"s})
    ck_assert_int_eq(softerdma_control(("wr status=general " + other).c_str()), 0);
  ibv_sge sge = sides[0].piece(8);
  const ibv_send_wr wr = sides[0].request(IBV_WR_RDMA_WRITE, &sge, sides[1]);
  ck_assert_int_eq(sides[0].post(wr), 0);
  ck_assert_int_eq(sides[0].wait().status, IBV_WC_SUCCESS);
  ck_assert_int_eq(softerdma_control(("wr op=write status=loc_access " + mine).c_str()), 0);
  ck_assert_int_eq(sides[0].post(wr), 0);
  ck_assert_int_eq(sides[0].wait().status, IBV_WC_LOC_ACCESS_ERR);
}

constexpr struct {
  const char* name;
  ibv_wc_status status;
} kStatuses[] = {
    {"general", IBV_WC_GENERAL_ERR},     {"rem_access", IBV_WC_REM_ACCESS_ERR},
    {"loc_qp_op", IBV_WC_LOC_QP_OP_ERR}, {"loc_access", IBV_WC_LOC_ACCESS_ERR},
    {"flush", IBV_WC_WR_FLUSH_ERR},      {"retry_exc", IBV_WC_RETRY_EXC_ERR},
};
TEST(fault_gives_the_status_that_it_names, std::size(kStatuses)) {
  Side sides[2];
  connect_compat(sides);
  ck_assert_int_eq(sides[1].receive(8), 0);
  ck_assert_int_eq(softerdma_control(("wr op=send status="s + kStatuses[_i].name).c_str()), 0);
  ck_assert_int_eq(sides[0].send(8, sides[1]), 0);
  ck_assert_int_eq(sides[0].wait().status, kStatuses[_i].status);
}

TEST(fault_drops_the_connection_at_the_nth_request) {
  Side sides[2];
  connect_compat(sides);
  ck_assert_int_eq(softerdma_control("drop n=2 dev=erdma_0"), 0);
  ibv_sge sge = sides[0].piece(8);
  const ibv_send_wr wr = sides[0].request(IBV_WR_RDMA_WRITE, &sge, sides[1]);
  ck_assert_int_eq(sides[0].post(wr), 0);
  ck_assert_int_eq(sides[0].wait().status, IBV_WC_SUCCESS);
  ck_assert_int_eq(sides[0].post(wr), 0);
  ck_assert_int_ne(sides[0].wait().status, IBV_WC_SUCCESS);
  ck_assert_int_eq(sides[0].post(wr), 0);
  ck_assert_int_eq(sides[0].wait().status, IBV_WC_WR_FLUSH_ERR);
}

TEST(fault_delays_completions) {
  Side sides[2];
  connect_compat(sides);
  ck_assert_int_eq(softerdma_control("completions delay us=3000"), 0);
  ibv_sge sge = sides[0].piece(8);
  const auto begin = std::chrono::steady_clock::now();
  ck_assert_int_eq(sides[0].post(sides[0].request(IBV_WR_RDMA_WRITE, &sge, sides[1])), 0);
  ck_assert_int_eq(sides[0].wait().status, IBV_WC_SUCCESS);
  ck_assert(std::chrono::steady_clock::now() - begin >= std::chrono::microseconds(3000));
}

/// Completions of one queue pair stay in order. Between two, the latest comes first.
TEST(fault_reorders_completions_between_queue_pairs) {
  Side sides[2];
  connect_compat(sides);
  Side second = sides[0];
  second.qp = ibv_create_qp(second.pd, &second.init);
  Side third = sides[1];
  third.qp = ibv_create_qp(third.pd, &third.init);
  for (ibv_qp_state state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) {
    modify(second, state, third);
    modify(third, state, second);
  }
  ck_assert_int_eq(softerdma_control("completions reorder"), 0);
  ibv_sge sge = sides[0].piece(8);
  ibv_send_wr wr = sides[0].request(IBV_WR_RDMA_WRITE, &sge, sides[1]);
  for (uint64_t id : {1u, 2u, 3u, 4u}) {
    wr.wr_id = id;
    ck_assert_int_eq((id < 3 ? sides[0] : second).post(wr), 0);
  }
  for (uint64_t id : {3u, 4u, 1u, 2u}) ck_assert_uint_eq(sides[0].wait().wr_id, id);
}

TEST(flush_may_be_half_or_none, 2) {
  setenv("SOFTERDMA_FLUSH", _i == 0 ? "half" : "none", 1);
  Side sides[2];
  connect_compat(sides);
  for (int i = 0; i < 4; ++i) ck_assert_int_eq(sides[0].receive(8), 0);
  modify(sides[0], IBV_QPS_ERR, sides[1]);
  for (int i = 0; i < (_i == 0 ? 2 : 0); ++i)
    ck_assert_int_eq(sides[0].wait().status, IBV_WC_WR_FLUSH_ERR);
  ck_assert(sides[0].quiet());
}

TEST(faults_come_from_a_file_that_changes) {
  const std::string path = erdma::test::temporary_path("softerdma-faults");
  const auto write_file = [&](time_t changed, const char* text) {
    std::ofstream(path + ".new") << text;
    const timespec times[2] = {{changed, 0}, {changed, 0}};
    ck_assert_int_eq(utimensat(AT_FDCWD, (path + ".new").c_str(), times, 0), 0);
    ck_assert_int_eq(rename((path + ".new").c_str(), path.c_str()), 0);
  };
  write_file(1, "reg errno=EFAULT n=3 # the first two are those of connect_compat()\n");
  setenv("SOFTERDMA_FAULTS", path.c_str(), 1);
  Side sides[2];
  connect_compat(sides);
  const auto try_to_register = [&] {
    ibv_mr* region = (ibv_reg_mr)(sides[0].pd, sides[0].data(), 8, 0);
    return region ? ibv_dereg_mr(region) : errno;
  };
  ck_assert_int_eq(try_to_register(), EFAULT);
  write_file(2, "reg errno=ENOMEM times=1000000\n");
  while (try_to_register() != ENOMEM) sched_yield();
  write_file(3, "");
  while (try_to_register() != 0) sched_yield();
  unlink(path.c_str());
}

TEST(fault_fails_a_registration) {
  Side sides[2];
  connect_compat(sides);
  ck_assert_int_eq(softerdma_control("reg errno=ENOMEM"), 0);
  ck_assert_ptr_null((ibv_reg_mr)(sides[0].pd, sides[0].data(), 8, 0));
  ck_assert_int_eq(errno, ENOMEM);
  ck_assert_ptr_nonnull((ibv_reg_mr)(sides[0].pd, sides[0].data(), 8, 0));
}

/// The thread that handles the event may look at the queue pair before it acknowledges.
TEST(queue_pair_outlives_the_events_about_it) {
  Side sides[2];
  connect_compat(sides);
  ck_assert_int_eq(sides[0].send(8, sides[1], 0), 0);
  ibv_async_event event{};
  ck_assert_int_eq(ibv_get_async_event(sides[0].context, &event), 0);
  std::atomic<bool> began = false, acknowledged = false, waited = false;
  std::thread destroyer([&] {
    began = true;
    ibv_destroy_qp(sides[0].qp);
    waited = acknowledged.load();
  });
  for (int i = 0; i < 1000 || !began; ++i) sched_yield();
  acknowledged = true;
  ibv_ack_async_event(&event);
  destroyer.join();
  ck_assert(waited);
}

TEST(port_down_is_an_event_and_exhausts_the_retries) {
  Side sides[2];
  connect_compat(sides);
  ck_assert_int_eq(softerdma_control("port dev=erdma_1 down"), 0);
  ibv_async_event event{};
  ck_assert_int_eq(ibv_get_async_event(sides[1].context, &event), 0);
  ck_assert_int_eq(event.event_type, IBV_EVENT_PORT_ERR);
  ibv_port_attr port{};
  ck_assert_int_eq(ibv_query_port(sides[1].context, 1, &port), 0);
  ck_assert_int_eq(port.state, IBV_PORT_DOWN);
  ck_assert_int_eq(sides[1].receive(8), 0);
  ck_assert_int_eq(sides[0].send(8, sides[1]), 0);
  ck_assert_int_eq(sides[0].wait().status, IBV_WC_RETRY_EXC_ERR);
}

/// The child connects to the parent and dies. In compat mode, this shows only when the parent
/// sends.
TEST(dead_peer_is_silent_until_the_retries_are_exhausted) {
  int to_child[2], to_parent[2];
  ck_assert(pipe(to_child) == 0 && pipe(to_parent) == 0);
  start("compat");
  pid_t child = fork();
  Side sides[2];
  open_devices(sides);
  Side& mine = sides[child == 0 ? 1 : 0];
  Side& other = sides[child == 0 ? 0 : 1];
  mine.make_queues();
  mine.qp = ibv_create_qp(mine.pd, &mine.init);
  ibv_qp remote{};
  uint32_t number = mine.qp->qp_num;
  ck_assert_int_eq(write(child == 0 ? to_parent[1] : to_child[1], &number, 4), 4);
  ck_assert_int_eq(read(child == 0 ? to_child[0] : to_parent[0], &remote.qp_num, 4), 4);
  other.qp = &remote;
  for (ibv_qp_state s : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) modify(mine, s, other);
  char ready = 0;
  if (child == 0) {
    ck_assert_int_eq(mine.receive(8), 0);
    ck_assert_int_eq(write(to_parent[1], &ready, 1), 1);
    mine.wait();
    ck_assert_int_eq(write(to_parent[1], &ready, 1), 1);
    for (;;) pause();
  }
  ck_assert_int_eq(read(to_parent[0], &ready, 1), 1);
  other.mr = mine.mr;
  ck_assert_int_eq(mine.send(8, other), 0);
  ck_assert_int_eq(read(to_parent[0], &ready, 1), 1);
  ck_assert_int_eq(mine.wait().status, IBV_WC_SUCCESS);
  kill(child, SIGKILL);
  ck_assert_int_eq(waitpid(child, nullptr, 0), child);
  ck_assert(mine.quiet());
  ck_assert_int_eq(mine.send(8, other), 0);
  ck_assert_int_eq(mine.wait().status, IBV_WC_RETRY_EXC_ERR);
}

/// A process that is killed during a write leaves its word in the target's queue pair.
TEST(a_peer_killed_in_the_middle_of_an_access_is_let_go) {
#ifdef __SANITIZE_THREAD__
  return;  // TSan supports no new threads in a child of a process with threads
#endif
  int to_parent[2];
  ck_assert(pipe(to_parent) == 0);
  start("compat");
  Side sides[2];
  connect_compat(sides);
  pid_t child = fork();
  if (child == 0) {
    Side its_sides[2];
    connect_compat(its_sides);
    ck_assert_int_eq(write(to_parent[1], &its_sides[0].qp->qp_num, 4), 4);
    for (;;) pause();
  }
  uint32_t its_number = 0;
  ck_assert_int_eq(read(to_parent[0], &its_number, 4), 4);
  const uint32_t slot = its_number >> kQpBits;
  const uint32_t number = sides[0].qp->qp_num;
  ck_assert_uint_ne(slot, number >> kQpBits);
  const Mapping queue = Mapping::open(std::getenv("SOFTERDMA_DIR") + std::string("/p") +
                                      std::to_string(number >> kQpBits) + "/q" +
                                      std::to_string(number & (kQpsPerProcess - 1)));
  ck_assert(!!queue);
  auto& busy = queue.as<QpShared>()->busy;
  busy.store(QpShared::busy_word(slot, 1));  // the first process with this slot
  kill(child, SIGKILL);
  ck_assert_int_eq(waitpid(child, nullptr, 0), child);
  modify(sides[0], IBV_QPS_ERR, sides[1]);
  ck_assert_uint_eq(busy.load(), 0);
  // The word is cleared also if another process has taken the dead one's slot.
  busy.store(QpShared::busy_word(number >> kQpBits, 0));
  ck_assert_int_eq(ibv_dereg_mr(sides[0].mr), 0);
  ck_assert_uint_eq(busy.load(), 0);
}
