// One-sided operations within a host: the loop to oneself, CMA, and the copy where it is refused.
#include <atomic>
#include <thread>

#include "fabric/one_sided_cases.h"

namespace {

using namespace erdma::test;

void with_cma() {
  setenv("FI_ERDMA_CMA", "on", 1);
}
void with_measured_paths() {
  unsetenv("FI_ERDMA_CMA");
}
void without_cma() {
  setenv("FI_ERDMA_CMA", "off", 1);
}

}  // namespace

int main() {
  Suite* suite = suite_create("RMA and atomics within a host");
  for (void (*path)() : {with_cma, with_measured_paths, without_cma})
    suite_add_tcase(suite, one_sided_case(path));
  SRunner* runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  const int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? 1 : 0;
}
