#include <array>
#include <string>

#include "protocol/fuzz_run.h"
#include "transport/conformance.h"
#include "transport/shm/link.h"
#include "transport/shm/shm_transport.h"
#include "transport/simulated_device.h"
#include "transport/verbs/registration.h"
#include "transport/verbs/verbs_transport.h"

/// Runs the three fuzz tests with the transports: shared memory on this host, and the verbs
/// transport on the simulated adapter.
namespace erdma::fuzz {
namespace {

using transport::verbs::RegistrationCache;
using transport::verbs::VerbsTransport;

/// Pushes ring entries that finish writes, with random statuses.
void meddle_shm(transport::Link& link, Random& random) {
  char byte = 0;  // the link handles such entries only if memory is shared for writing
  const iovec iov{&byte, 1};
  transport::RemoteKey remote_key;
  if (link.share(&iov, 1, 1, transport::Access::remote_write, remote_key) != 0) return;
  (void)link.revoke(remote_key);
  const util::PoolHandle write{uint32_t(random.below(2)), uint16_t(1 + random.below(6))};
  static_cast<transport::shm::ShmLink&>(link).remote_writes()->reply(
      write, {},
      random.of<int>({0, -FI_EBUSY, -FI_EOPNOTSUPP, -FI_EAGAIN, 1, INT32_MIN, -FI_EACCES}));
}

SUITE(
        .run = test::here_and_on_devices, .once = [] { (void)seed(); });

// A run by hand may take hours; until() ends one that hangs.
TEST_CASE(.timeout = std::getenv("ERDMA_FUZZ_STEPS") ? 0.0 : 60.0, .offered = test::not_on_devices);

TEST(hostile_peer_over_shared_memory) {
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

TEST_CASE(
        .timeout = std::getenv("ERDMA_FUZZ_STEPS") ? 0.0 : 60.0,
        .offered = [] { return test::g_on_devices; });

TEST(hostile_peer_behind_the_simulated_nic) {
  erdma::test::leaves_owners_short();
  fuzz_over("nic", 8'000, [](Random& random, auto&& body) {
    Medium medium;
    // The hostile peer has a protection domain of its own, like another process. It may offer keys
    // that it has heard, and behind them the victim would find its own memory, which it may have
    // freed since.
    const std::array devices{test::open_first_device(), test::open_first_device()};
    ck_assert(devices[0].get() && devices[1].get());
    const bool caches_keys = random.one_in(2);
    std::array caches{RegistrationCache::create(*devices[0], {.enabled = caches_keys}),
                      RegistrationCache::create(*devices[1], {.enabled = caches_keys})};
    ck_assert(caches[0].error() == 0 && caches[1].error() == 0);
    std::unique_ptr<VerbsTransport> sides[3];
    for (size_t i = 0; i < 3; ++i) {
      const size_t own = i == kHostile ? 1 : 0;
      auto opened = VerbsTransport::open({}, *devices[own], **caches[own], devices[own]->address());
      ck_assert_int_eq(opened.error(), 0);
      sides[i] = std::move(*opened);
      medium.transports[i] = sides[i].get();
      medium.names[i] = sides[i]->name();
    }
    medium.end_hostile = [&] { medium.transports[kHostile]->shutdown(); };
    body(medium);
  });
}

}  // namespace

}  // namespace erdma::fuzz
