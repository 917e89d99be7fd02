// Device memory in messages through a NIC: the simulated adapter, in both of its personalities.
#include <memory>

#include "fabric/hmem_cases.h"
#include "transport/simulated_device.h"

namespace {

using namespace erdma::test;

void on_nic(const char* rendezvous, bool peermem, bool dmabuf) {
  g_device = "erdma_0";
  g_direct = peermem || dmabuf;
  setenv("FI_ERDMA_SHM", "off", 1);
  setenv("FI_ERDMA_RENDEZVOUS", rendezvous, 1);
  setenv("SOFTERDMA_PEERMEM", peermem ? "1" : "0", 1);
  setenv("SOFTERDMA_DMABUF", dmabuf ? "1" : "0", 1);
}
void staged_by_writing() {
  on_nic("write", false, false);
}
void staged_by_reading() {
  on_nic("read", false, false);
}
void direct_by_writing() {
  on_nic("write", true, false);
}
void direct_by_reading() {
  on_nic("read", false, true);
}

/// The other side of a job may have its memory copied: its processor fills what can't be
/// registered.
void without_registration() {
  on_nic("write", true, true);
  setenv("FI_ERDMA_MR_CACHE", "off", 1);
  g_direct = false;
}

/// Whether the sender copies what is in the GPU.
START_TEST(long_message_is_read_by_the_nic_where_it_lies) {
  on_nic(_i & 1 ? "read" : "write", _i & 2, _i & 4);
  HmemPorts ports;
  const auto message = pattern(300'000);
  Memory from(true, message), to(false, std::vector<char>(300'000));
  ports.receive(to.at(), 300'000, 1, nullptr);
  ports.send(from.at(), 300'000, 1, nullptr);
  ports.finish();
  ck_assert(to.bytes() == message);
  ck_assert_uint_eq(softcuda_calls("cuMemcpyAsync"), _i & 6 ? 0 : 1);
}
END_TEST

int run() {
  Suite* suite = suite_create("device memory through a NIC");
  TCase* tc = tcase_create("who copies");
  tcase_add_loop_test(tc, long_message_is_read_by_the_nic_where_it_lies, 0, 8);
  suite_add_tcase(suite, tc);
  for (const SFun setup : {staged_by_writing, staged_by_reading, direct_by_writing,
                           direct_by_reading, without_registration})
    suite_add_tcase(suite, hmem_case(setup));
  SRunner* runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  const int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? 1 : 0;
}

}  // namespace

int main(int, char** argv) {
  return erdma::test::on_simulated_devices(argv, run);
}
