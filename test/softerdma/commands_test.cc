// Tests commands of the adapter, which take time and may fail.
#include <signal.h>
#include <sys/wait.h>

#include <cerrno>
#include <chrono>

#include "softerdma/rig.h"

#undef ibv_reg_mr

using namespace softerdma::test;

SUITE(.counted = false);

TEST(fault_fails_every_command_until_cleared) {
  Side sides[2];
  connect_compat(sides);
  ck_assert_int_eq(softerdma_control("commands errno=ETIME"), 0);
  ck_assert_ptr_null(ibv_reg_mr(sides[0].pd, sides[0].data(), 8, 0));
  ck_assert_int_eq(errno, ETIME);
  ck_assert_ptr_null(ibv_create_qp(sides[0].pd, &sides[0].init));
  ck_assert_int_eq(errno, ETIME);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_ERR;
  ck_assert_int_eq(ibv_modify_qp(sides[0].qp, &attr, IBV_QP_STATE), ETIME);
  ck_assert_int_eq(ibv_dereg_mr(sides[0].mr), ETIME);
  ck_assert_int_eq(ibv_destroy_qp(sides[0].qp), ETIME);
  ck_assert_int_eq(softerdma_control("clear"), 0);
  ck_assert_int_eq(ibv_destroy_qp(sides[0].qp), 0);
  ck_assert_int_eq(ibv_dereg_mr(sides[0].mr), 0);
}

TEST(each_command_takes_its_time) {
  setenv("SOFTERDMA_COMMAND_US", "20000", 1);
  Side sides[2];
  connect_compat(sides);
  const auto begin = std::chrono::steady_clock::now();
  ibv_mr* const region = ibv_reg_mr(sides[0].pd, sides[0].data(), 8, 0);
  ck_assert_ptr_nonnull(region);
  ck_assert_int_eq(ibv_dereg_mr(region), 0);
  ck_assert(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(40));
}

TEST(without_a_connection_the_driver_ignores_rtr_and_refuses_rts) {
  Side sides[2];
  start("standard");
  open_devices(sides);
  sides[0].make_queues();
  ibv_qp* const qp = ibv_create_qp(sides[0].pd, &sides[0].init);
  ck_assert_ptr_nonnull(qp);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  ck_assert_int_eq(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
  attr.qp_state = IBV_QPS_RTS;
  ck_assert_int_eq(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
}

TEST(regions_of_all_processes_count) {
  start("standard");
  setenv("SOFTERDMA_HOST_MR", "3", 1);
  int ready[2];
  ck_assert_int_eq(pipe(ready), 0);
  const pid_t child = fork();
  ck_assert_int_ge(child, 0);
  Side sides[2];
  open_devices(sides);
  ibv_pd* const pd = ibv_alloc_pd(sides[0].context);
  const auto make = [&] { return (ibv_reg_mr)(pd, sides[0].data(), 64, 0); };
  char byte = 0;
  if (child == 0) {
    ck_assert(make() && make());
    ck_assert_int_eq(write(ready[1], &byte, 1), 1);
    for (;;) pause();
  }
  close(ready[1]);  // a child that ends early then ends the read
  ck_assert_int_eq(read(ready[0], &byte, 1), 1);
  ibv_mr* const last = make();
  ck_assert_ptr_nonnull(last);
  ck_assert_ptr_null(make());
  ck_assert_int_eq(errno, ENOSPC);
  ck_assert_int_eq(ibv_dereg_mr(last), 0);
  ck_assert_ptr_nonnull(make());
  kill(child, SIGKILL);
  ck_assert_int_eq(waitpid(child, nullptr, 0), child);
}
