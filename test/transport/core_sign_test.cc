// Endpoints tell their peers on which core their threads poll in vain.
#include "transport/shm/core_sign.h"

#include <vector>

#include "libcheck.h"
#include "transport/shm_pair.h"

namespace erdma::test {
namespace {

using transport::CoreUse;
using transport::shm::core_sign;
using transport::shm::kColdRings;
using transport::shm::kSignLife;
using transport::shm::same_core;
using util::kMillisecond;

constexpr uint64_t kLife = kSignLife * kMillisecond;
constexpr uint64_t kNow = 10 * kLife;

TEST(two_signs_tell_whether_two_threads_were_on_one_core_at_one_time) {
  const auto beside = [](const CoreUse& one, const CoreUse& other) {
    return same_core(core_sign(one), core_sign(other));
  };
  constexpr int kCores[] = {0, 1, 8191};
  for (const int core : kCores) {
    ck_assert(beside({core, kNow}, {core, kNow}));
    ck_assert(beside({core, kNow - kLife}, {core, kNow}));
    ck_assert(!beside({core, kNow - kLife - kMillisecond}, {core, kNow}));
    ck_assert(beside({core, kNow + kMillisecond}, {core, kNow}));  // by another core's clock
    ck_assert(!beside({core + 1, kNow}, {core, kNow}));
    ck_assert(!same_core(0, core_sign({core, kNow})));  // nothing was shown yet
  }
  ck_assert(!beside({-1, kNow}, {-1, kNow}));
}

TEST(the_count_of_milliseconds_wraps) {
  constexpr uint64_t kWrap = (uint64_t{1} << 32) * kMillisecond;
  ck_assert(same_core(core_sign({3, kWrap - kMillisecond}), core_sign({3, kWrap})));
  ck_assert(!same_core(core_sign({3, kWrap - 2 * kLife}), core_sign({3, kWrap})));
}

TEST(a_connected_peer_learns_of_the_core) {
  Met pair;
  const CoreUse use{5, kNow};
  ck_assert(!pair.a.transport->peer_shows(use));
  pair.a.transport->show_core(use);
  ck_assert(!pair.a.transport->peer_shows(use));
  ck_assert(pair.b.transport->peer_shows(use));
  ck_assert(!pair.b.transport->peer_shows({6, kNow}));
  pair.a.transport->show_core({6, kNow});
  ck_assert(!pair.b.transport->peer_shows(use));
}

TEST(a_peer_that_has_closed_shows_nothing) {
  Met pair;
  const CoreUse use{5, kNow};
  pair.a.transport->show_core(use);
  ck_assert(pair.b.transport->peer_shows(use));
  pair.a.owned.reset();
  while (pair.b.transport->peer_shows(use)) pair.b.poll();  // the test's time limit ends the loop
}

// Each of the first peers has a ring in one chunk of memory, and the last in a second one.
TEST(all_peers_learn_of_the_core) {
  Side shown;
  ck_assert(open_side(shown));
  std::vector<Pair> peers(kColdRings + 1);
  for (Pair& pair : peers) {
    pair.b.transport = shown.transport;
    pair.b.name = shown.name;
    pair.b.sink = shown.sink;
    ck_assert(open_side(pair.a));
    const size_t before = shown.sink->packets.size();
    ck_assert_int_eq(pair.send(pair.a_to_b(), 0, nullptr, 0), 0);
    ck_assert(pair.poll_until([&] { return shown.sink->packets.size() > before; }));
  }
  const CoreUse use{5, kNow};
  shown.transport->show_core(use);
  for (const Pair& pair : peers) ck_assert(pair.a.transport->peer_shows(use));
}

}  // namespace
}  // namespace erdma::test
