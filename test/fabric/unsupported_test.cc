// What is not offered says so, and never by a crash or a success that is none.
#include <cstdlib>

#include <rdma/fi_atomic.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_trigger.h>

#include "fabric/one_sided_rig.h"

namespace {

using namespace erdma::test;

void on_shm() {
  g_device = "shm";
}

START_TEST(objects_that_do_not_exist_are_enosys) {
  Root root(one_sided_ask());
  fid_ep* ep = nullptr;
  fid_stx* stx = nullptr;
  fid_pep* pep = nullptr;
  fi_collective_attr collective{};
  ck_assert_int_eq(fi_scalable_ep(root.domain, root.info, &ep, nullptr), -FI_ENOSYS);
  ck_assert_int_eq(fi_stx_context(root.domain, nullptr, &stx, nullptr), -FI_ENOSYS);
  ck_assert_int_eq(fi_passive_ep(root.fabric, root.info, &pep, nullptr), -FI_ENOSYS);
  ck_assert_int_eq(fi_query_collective(root.domain, FI_BARRIER, &collective, 0), -FI_ENOSYS);
  ck_assert(!ep && !stx && !pep);
}
END_TEST

START_TEST(operations_that_do_not_exist_are_enosys) {
  Root root(one_sided_ask());
  Port port(root);
  void* ops = nullptr;
  for (fid_t fid : {&root.fabric->fid, &root.domain->fid, &port.ep->fid})
    ck_assert_int_eq(fi_open_ops(fid, "no such operations", 0, &ops, nullptr), -FI_ENOSYS);
  ck_assert_ptr_null(ops);
  fid_ep* other = nullptr;
  ck_assert_int_eq(fi_tx_context(port.ep, 0, nullptr, &other, nullptr), -FI_ENOSYS);
  ck_assert_int_eq(fi_rx_context(port.ep, 0, nullptr, &other, nullptr), -FI_ENOSYS);
  fid_mc* group = nullptr;
  ck_assert_int_eq(fi_join(port.ep, nullptr, 0, &group, nullptr), -FI_ENOSYS);
  ck_assert_int_eq(fi_barrier(port.ep, 0, nullptr), -FI_ENOSYS);
  ck_assert_int_eq(fi_control(&root.domain->fid, FI_BACKLOG, nullptr), -FI_ENOSYS);
  ck_assert_int_eq(fi_listen(reinterpret_cast<fid_pep*>(port.ep)), -FI_ENOSYS);
  ck_assert_int_eq(fi_shutdown(port.ep, 0), -FI_ENOSYS);
}
END_TEST

START_TEST(flags_that_mean_nothing_here_are_refused) {
  OneSidedPorts ports;
  char bytes[8] = {};
  const iovec iov{bytes, 8};
  const fi_rma_iov remote{ports.at(0), 8, ports.region.key()};
  const fi_msg_rma rma{&iov, nullptr, 1, ports.address, &remote, 1, nullptr, 0};
  const fi_msg message{&iov, nullptr, 1, ports.address, nullptr, 0};
  const fi_msg_tagged tagged{&iov, nullptr, 1, ports.address, 0, 0, nullptr, 0};
  const fi_ioc operand{bytes, 1};
  const fi_rma_ioc target{ports.at(0), 1, ports.region.key()};
  const fi_msg_atomic atomic{&operand, nullptr,   1,      ports.address, &target,
                             1,        FI_UINT64, FI_SUM, nullptr,       0};
  for (const uint64_t flag : {uint64_t{FI_TRIGGER}, uint64_t{FI_COMMIT_COMPLETE}}) {
    ck_assert_int_eq(fi_writemsg(ports.a.ep, &rma, flag), -FI_EBADFLAGS);
    ck_assert_int_eq(fi_readmsg(ports.a.ep, &rma, flag), -FI_EBADFLAGS);
    ck_assert_int_eq(fi_sendmsg(ports.a.ep, &message, flag), -FI_EBADFLAGS);
    ck_assert_int_eq(fi_tsendmsg(ports.a.ep, &tagged, flag), -FI_EBADFLAGS);
    ck_assert_int_eq(fi_atomicmsg(ports.a.ep, &atomic, flag), -FI_EBADFLAGS);
  }
}
END_TEST

START_TEST(an_endpoint_with_a_shared_transmit_context_is_refused) {
  Root root(one_sided_ask());
  fi_info* const info = fi_dupinfo(root.info);
  fid_ep* ep = nullptr;
  info->ep_attr->tx_ctx_cnt = FI_SHARED_CONTEXT;
  ck_assert_int_ne(fi_endpoint(root.domain, info, &ep, nullptr), 0);
  ck_assert_ptr_null(ep);
  fi_freeinfo(info);
}
END_TEST

}  // namespace

int main() {
  Suite* suite = suite_create("what is not offered");
  TCase* tcase = tcase_create("not offered");
  tcase_add_checked_fixture(tcase, on_shm, nullptr);
  tcase_add_test(tcase, objects_that_do_not_exist_are_enosys);
  tcase_add_test(tcase, operations_that_do_not_exist_are_enosys);
  tcase_add_test(tcase, flags_that_mean_nothing_here_are_refused);
  tcase_add_test(tcase, an_endpoint_with_a_shared_transmit_context_is_refused);
  suite_add_tcase(suite, tcase);
  SRunner* runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  const int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
