// One-sided operations through a NIC: the simulated adapter, in both of its personalities.
#include <atomic>
#include <thread>

#include "fabric/one_sided_cases.h"
#include "transport/simulated_device.h"

namespace {

using namespace erdma::test;

void on_nic() {
  g_device = "erdma_0";
  setenv("FI_ERDMA_SHM", "off", 1);
}
void without_registration() {
  on_nic();
  setenv("FI_ERDMA_MR_CACHE", "off", 1);
}

int run() {
  Suite* suite = suite_create("RMA and atomics through a NIC");
  suite_add_tcase(suite, one_sided_case(on_nic));
  suite_add_tcase(suite, one_sided_case(without_registration));
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
