#include <string>

#include "protocol/fuzz_run.h"
#include "transport/conformance.h"
#include "transport/shm/link.h"
#include "transport/shm/shm_transport.h"
#include "transport/simulated_device.h"
#include "transport/verbs/registration.h"
#include "transport/verbs/verbs_transport.h"

/// The same three over the transports: shared memory here, the NIC's on the simulated adapter.
namespace erdma::fuzz {
namespace {

using transport::verbs::RegistrationCache;
using transport::verbs::VerbsTransport;

/// Entries of the ring by which a write() is done, with any status.
void meddle_shm(transport::Link& link, Random& random) {
  char byte = 0;  // the link answers only where something was exposed for writing
  const iovec iov{&byte, 1};
  transport::Exposure exposure;
  if (link.expose(&iov, 1, 1, transport::Access::remote_write, exposure) != 0) return;
  (void)link.withdraw(exposure);
  const util::PoolHandle write{uint32_t(random.below(2)), uint16_t(1 + random.below(6))};
  static_cast<transport::shm::ShmLink&>(link).remote_writes()->reply(
      write, {},
      random.of<int>({0, -FI_EBUSY, -FI_EOPNOTSUPP, -FI_EAGAIN, 1, INT32_MIN, -FI_EACCES}));
}

START_TEST(hostile_peer_over_shared_memory) {
  erdma::test::leaves_owners_short();
  fuzz_over("shm", 60'000, [](Random& random, auto&& body) {
    std::unique_ptr<transport::shm::ShmTransport> sides[3];
    Medium medium;
    transport::shm::Options options;
    options.cma = !random.one_in(3);
    for (size_t i = 0; i < 3; ++i) {
      auto opened = transport::shm::ShmTransport::open(options, test::address_of("127.0.0.1", 0));
      ck_assert_int_eq(opened.error(), 0);
      sides[i] = std::move(*opened);
      medium.transports[i] = sides[i].get();
      medium.names[i] = sides[i]->name();
    }
    medium.end_hostile = [&] { medium.transports[kHostile]->shutdown(); };
    medium.meddle = meddle_shm;
    body(medium);
  });
}
END_TEST

START_TEST(hostile_peer_behind_the_simulated_nic) {
  erdma::test::leaves_owners_short();
  fuzz_over("nic", 8'000, [](Random& random, auto&& body) {
    Medium medium;
    const auto device = test::open_first_device();
    ck_assert_ptr_nonnull(device.get());
    auto cache = RegistrationCache::create(*device, {.enabled = random.one_in(2)});
    ck_assert_int_eq(cache.error(), 0);
    std::unique_ptr<VerbsTransport> sides[3];
    for (size_t i = 0; i < 3; ++i) {
      auto opened = VerbsTransport::open({}, *device, **cache, device->address());
      ck_assert_int_eq(opened.error(), 0);
      sides[i] = std::move(*opened);
      medium.transports[i] = sides[i].get();
      medium.names[i] = sides[i]->name();
    }
    medium.end_hostile = [&] { medium.transports[kHostile]->shutdown(); };
    body(medium);
  });
}
END_TEST

Suite* make_suite(bool nic) {
  Suite* suite = suite_create("hostile fuzz");
  TCase* tcase = tcase_create("hostile fuzz");
  // Hours by hand; a hang ends by until().
  tcase_set_timeout(tcase, std::getenv("ERDMA_FUZZ_STEPS") ? 0 : 60);
  if (nic)
    tcase_add_test(tcase, hostile_peer_behind_the_simulated_nic);
  else
    tcase_add_test(tcase, hostile_peer_over_shared_memory);
  suite_add_tcase(suite, tcase);
  return suite;
}

int run(bool nic) {
  (void)seed();
  SRunner* runner = srunner_create(make_suite(nic));
  srunner_run_all(runner, CK_ENV);
  const int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

int run_nic() {
  return run(true);
}

}  // namespace
}  // namespace erdma::fuzz

int main(int, char** argv) {
  using namespace erdma;
  const char* preloaded = std::getenv("LD_PRELOAD");
  const bool simulated = preloaded && std::string(preloaded).find("softerdma") != std::string::npos;
  const int shm = simulated ? 0 : fuzz::run(false);
  const int nic = test::on_simulated_devices(argv, fuzz::run_nic);
  return shm || (nic && nic != 77) ? 1 : 0;
}
