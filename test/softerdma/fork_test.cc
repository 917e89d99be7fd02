// Tests registered memory at a fork, with kernels that copy it for the child and kernels that do
// not.
#include <sys/mman.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstring>

#include "goes_to_children.h"
#include "softerdma/rig.h"

using namespace softerdma::test;
using erdma::test::goes_to_children;

SUITE(.counted = false);

namespace {

void fork_once() {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  ck_assert_int_eq(waitpid(child, nullptr, 0), child);
}

/// Rows: without ibv_fork_init(); with ibv_fork_init(); with a kernel that copies.
TEST(a_fork_takes_registered_pages_that_the_child_gets, 3) {
  Side sides[2];
  setenv("SOFTERDMA_COPY_ON_FORK", _i == 2 ? "1" : "0", 1);
  if (_i > 0) ck_assert_int_eq(ibv_fork_init(), 0);
  const ibv_fork_status expected[] = {IBV_FORK_DISABLED, IBV_FORK_ENABLED, IBV_FORK_UNNEEDED};
  ck_assert_int_eq(ibv_is_fork_initialized(), expected[_i]);
  connect_compat(sides);
  ck_assert_int_eq(goes_to_children(sides[1].data() + (1 << 17)), _i != 1);
  std::strcpy(sides[1].data(), "old");
  fork_once();
  std::strcpy(sides[1].data(), "new");
  ibv_sge sge = sides[0].piece(16);
  ck_assert_int_eq(sides[0].post(sides[0].request(IBV_WR_RDMA_READ, &sge, sides[1])), 0);
  ck_assert_int_eq(sides[0].wait().status, IBV_WC_SUCCESS);
  // Without protection, the adapter at both ends uses pages that the processes have lost.
  ck_assert_str_eq(sides[0].data(), _i == 0 ? "" : "new");
  ck_assert_int_eq(ibv_dereg_mr(sides[1].mr), 0);
  ck_assert(goes_to_children(sides[1].data() + (1 << 17)));
}

TEST(it_is_too_late_for_fork_init_once_the_device_was_used) {
  Side sides[2];
  setenv("SOFTERDMA_COPY_ON_FORK", "0", 1);
  connect_compat(sides);
  ck_assert_int_eq(ibv_fork_init(), EINVAL);
  ck_assert_int_eq(ibv_is_fork_initialized(), IBV_FORK_DISABLED);
}

/// libibverbs loses count of such memory, too.
TEST(memory_unmapped_under_a_registration_is_not_kept_from_children_again) {
  Side sides[2];
  setenv("SOFTERDMA_COPY_ON_FORK", "0", 1);
  ck_assert_int_eq(ibv_fork_init(), 0);
  connect_compat(sides);
  const auto map = [](void* where) {
    return mmap(where, 8192, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | (where != nullptr ? MAP_FIXED : 0), -1, 0);
  };
  void* memory = map(nullptr);
  for (int round = 0; round < 2; ++round) {
    ibv_mr* mr = (ibv_reg_mr)(sides[0].pd, memory, 8192, IBV_ACCESS_LOCAL_WRITE);
    ck_assert_ptr_nonnull(mr);
    ck_assert_int_eq(goes_to_children(memory), round == 1);
    munmap(memory, 8192);
    ck_assert_int_eq(ibv_dereg_mr(mr), 0);
    ck_assert_ptr_eq(map(memory), memory);
  }
}

}  // namespace
