#include <arpa/inet.h>

#include "fake/transport.h"
#include "protocol/fuzz_run.h"

namespace erdma::fuzz {
namespace {

util::SocketAddress address_of(size_t index) {
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  in.sin_port = htons(uint16_t(5000 + index));
  return util::SocketAddress::from_sockaddr(&in, sizeof(in));
}

const auto over_fake = [](Random& random, auto&& body) {
  fake::Network network;
  Medium medium;
  std::unique_ptr<fake::Transport> transports[3];
  for (size_t i = 0; i < 3; ++i) {
    medium.names[i] = address_of(i);
    transports[i] = std::make_unique<fake::Transport>(network, medium.names[i]);
    medium.transports[i] = transports[i].get();
    fake::Behaviour& behaviour = transports[i]->behaviour;
    behaviour.room = 256;
    behaviour.prefers_read = random.one_in(2);
    behaviour.reads_at_once = random.one_in(2);
    behaviour.eager = random.of<size_t>({64, 1024, 8192});
    behaviour.fragmented = random.of<size_t>({0, 4096, 32768});
    behaviour.retracts = behaviour.shares = random.one_in(2);
    behaviour.opens = !behaviour.shares && random.one_in(2);
    behaviour.offers = random.one_in(3);
    behaviour.takes_offers = random.one_in(2);
  }
  auto& to_hostile = transports[kVictim]->link(medium.names[kHostile]);
  medium.work_is_bounded = [&] {
    // The limit allows a read of 64 KiB in packets of 64 bytes, and as many packets of the victim's
    // own.
    return to_hostile.sent <= (to_hostile.arrived + 4096) * 1024;
  };
  medium.end_hostile = [&] {
    network.by_port.erase(medium.names[kHostile].port());
    to_hostile.fail(-FI_ECONNRESET);
    to_hostile.down = -FI_ECONNRESET;
  };
  body(medium);
};

// Each step takes 15 to 30 times longer with AddressSanitizer. Every run draws new ones.
#if defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kSteps = 250'000;
#else
constexpr uint64_t kSteps = 1'000'000;
#endif

SUITE(.once = [] { (void)seed(); });

// A run by hand may take hours; until() ends one that hangs.
TEST_CASE(.timeout = std::getenv("ERDMA_FUZZ_STEPS") ? 0.0 : 60.0);

TEST(hostile_peer_over_the_fake_link) {
  erdma::test::leaves_owners_short();
  fuzz_over("fake", kSteps, over_fake);
}

TEST(peer_that_takes_no_answers_over_the_fake_link) {
  erdma::test::leaves_owners_short();
  flood_over(600'000, over_fake);
}

}  // namespace

}  // namespace erdma::fuzz
