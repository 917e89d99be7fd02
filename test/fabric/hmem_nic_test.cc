// Device memory in messages through a NIC: the simulated adapter, in both of its personalities.
#include <memory>

#include "fabric/hmem_cases.h"
#include "transport/simulated_device.h"

namespace {

using namespace erdma::test;

void on_nic() {
  g_device = "erdma_0";
  setenv("FI_ERDMA_SHM", "off", 1);
}
void by_writing() {
  on_nic();
  setenv("FI_ERDMA_RENDEZVOUS", "write", 1);
}

int run() {
  Suite* suite = suite_create("device memory through a NIC");
  suite_add_tcase(suite, hmem_case(on_nic));
  suite_add_tcase(suite, hmem_case(by_writing));
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
