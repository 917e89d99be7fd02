// Tests commands of the adapter, which take time and may fail.
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
