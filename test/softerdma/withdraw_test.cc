// Tests that memory is withdrawn (ibv_dereg_mr) when no peer accesses it, and that accesses to
// other memory do not delay that.
#include <atomic>
#include <string>
#include <thread>

#include "fake/captured_stderr.h"
#include "softerdma/mapping.h"
#include "softerdma/rig.h"
#include "softerdma/shared.h"

using namespace softerdma;
using namespace softerdma::test;

SUITE(.counted = false);

namespace {

/// The words with which a peer tells this process that it accesses the memory of `side`.
QpShared& words_of(const Side& side, Mapping& file) {
  const uint32_t number = side.qp->qp_num;
  file = Mapping::open(std::getenv("SOFTERDMA_DIR") + std::string("/p") +
                       std::to_string(number >> kQpBits) + "/q" +
                       std::to_string(number & (kQpsPerProcess - 1)));
  ck_assert(!!file);
  return *file.as<QpShared>();
}

/// As if this process, which is the peer too, were in the middle of an access.
void begin_access(const Side& side, QpShared& words, uint32_t region) {
  words.region.store(region);
  words.busy.store(QpShared::busy_word(side.qp->qp_num >> kQpBits, 1));
}

TEST(a_region_is_withdrawn_while_a_peer_accesses_another) {
  const erdma::test::CapturedStderr error_output;
  Side sides[2];
  connect_compat(sides);
  Mapping file;
  QpShared& words = words_of(sides[0], file);
  ibv_mr* const other = (ibv_reg_mr)(sides[0].pd, sides[0].data(), 4096, 0);
  begin_access(sides[0], words, sides[0].mr->rkey);
  ck_assert_int_eq(ibv_dereg_mr(other), 0);
  ck_assert_uint_ne(words.busy.load(), 0);
  const std::string line = error_output.only_write();  // says that the access lasts too long
  ck_assert_str_eq(line.c_str(), "");
  words.busy.store(0);
}

/// Rows: the peer has not told yet which region it accesses; it accesses this one.
TEST(a_region_is_withdrawn_after_the_access_to_it, 2) {
  Side sides[2];
  connect_compat(sides);
  Mapping file;
  QpShared& words = words_of(sides[0], file);
  begin_access(sides[0], words, _i ? sides[0].mr->rkey : 0);
  std::atomic<bool> begun = false, over = false, waited = false;
  std::thread owner([&] {
    begun = true;
    ck_assert_int_eq(ibv_dereg_mr(sides[0].mr), 0);
    waited = over.load();
  });
  while (!begun) sched_yield();
  for (int i = 0; i < 20; ++i) sched_yield();  // the owner withdraws it now, if it does not wait
  over = true;
  words.busy.store(0);
  owner.join();
  ck_assert(waited);
}

TEST(a_long_access_tells_its_region, 2) {
  Side sides[2];
  connect_compat(sides);
  Mapping file;
  QpShared& words = words_of(sides[1], file);
  std::atomic<bool> told = false;
  std::thread owner([&] {
    while (words.region.load() != sides[1].mr->rkey) {
    }
    told = true;
  });
  ibv_sge sge = sides[0].piece(1 << 18);
  const ibv_wr_opcode opcode = _i ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
  while (!told) {
    ck_assert_int_eq(sides[0].post(sides[0].request(opcode, &sge, sides[1])), 0);
    ck_assert_int_eq(sides[0].wait().status, IBV_WC_SUCCESS);
  }
  owner.join();
  ck_assert_uint_eq(words.region.load(), 0);
}

}  // namespace
