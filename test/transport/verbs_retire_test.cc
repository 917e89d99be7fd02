#include <functional>
#include <utility>

#include "libcheck.h"
#include "transport/verbs_rig.h"

/// Tests endpoints with more peers than connections: which connection is given up, that both sides
/// agree on its end wherever it breaks, and that no endpoint waits for a peer that computes.
namespace erdma::test {
namespace {

using transport::Link;
using transport::RemoteKey;
using transport::SendHint;

TEST(the_oldest_connection_is_given_up_for_a_new_one_without_loss) {
  verbs::Options options;
  options.max_connections = 3;
  Rig rig;
  Pair pair;
  constexpr size_t kPeers = 12;
  std::vector<std::unique_ptr<Side>> peers;
  ck_assert(rig.open(pair.a, options, &rig.clock));
  for (size_t i = 0; i < kPeers; ++i) {
    peers.push_back(std::make_unique<Side>());
    ck_assert(rig.open(*peers.back(), {}, &rig.clock));
  }
  uint64_t sent[kPeers] = {}, wanted[kPeers] = {};
  unsigned state = 1;
  for (size_t round = 0; round < 20'000; ++round) {
    state = state * 1664525u + 1013904223u;
    const size_t to = (state >> 16) % kPeers;
    wanted[to] += round < 15'000;
    for (size_t i = 0; i < kPeers; ++i) {
      Link& link = **pair.a.transport->link_to(peers[i]->name);
      if (sent[i] < wanted[i] && !link.send(numbered(sent[i]), nullptr, 0, 0, SendHint::none))
        ++sent[i];
    }
    pair.a.poll();
    for (auto& peer : peers) {
      peer->poll();
      // A peer that does not know that its connection is to be given up answers.
      if (round % 64 == to)
        (void)(**peer->transport->link_to(pair.a.name))
            .send(numbered(0), nullptr, 0, 0, SendHint::none);
    }
    rig.clock.time += 10'000;
  }
  const auto all_there = [&] {
    for (size_t i = 0; i < kPeers; ++i)
      if (peers[i]->sink->packets.size() != sent[i]) return false;
    return true;
  };
  for (int i = 0; i < 10'000 && !all_there(); ++i) {
    pair.a.poll();
    for (auto& peer : peers) peer->poll();
  }
  ck_assert(all_there());
  for (size_t i = 0; i < kPeers; ++i) {
    ck_assert_uint_gt(sent[i], 3);
    ck_assert_uint_eq(peers[i]->sink->downs.size(), 0);
    for (uint64_t k = 0; k < sent[i]; ++k)
      ck_assert_uint_eq(peers[i]->sink->packets[k].number(), k);
  }
  ck_assert_uint_eq(pair.a.sink->downs.size(), 0);
  ck_assert_uint_gt(Rig::transport(pair.a).counters().reclaimed, kPeers);
  ck_assert(rig.nic.violations.empty());
}

TEST(connections_to_itself_take_no_place_of_others) {
  verbs::Options options;
  options.max_connections = 2;
  Rig rig;
  Pair pair;
  ck_assert(rig.open(pair.a, options, &rig.clock));
  ck_assert(rig.open(pair.b, {}, &rig.clock));
  Link& self = **pair.a.transport->link_to(pair.a.name);
  Link& other = pair.a_to_b();
  for (Link* link : {&self, &other}) {
    ck_assert_int_eq(link->send(numbered(7), nullptr, 0, 0, SendHint::none), -FI_EAGAIN);
    ck_assert(
        pair.poll_until([&] { return !link->send(numbered(7), nullptr, 0, 0, SendHint::none); }));
  }
  ck_assert(pair.poll_until([&] { return pair.b.sink->packets.size() == 1; }));
}

/// Three peers of an endpoint that may have two connections. When it sends to the third, it gives
/// up the connection to `old` or to `other`.
struct Three {
  Rig rig;
  Side a, old, other, third;
  transport::Transport* idle[2] = {};  ///< transports of endpoints that compute
  explicit Three(const verbs::Options& others = {}) {
    verbs::Options options = others;
    options.max_connections = 2;
    ck_assert(rig.open(a, options, &rig.clock));
    for (Side* side : {&old, &other, &third}) ck_assert(rig.open(*side, others, &rig.clock));
  }
  ~Three() { ck_assert(rig.nic.violations.empty()); }
  Link& to(Side& side) { return **a.transport->link_to(side.name); }
  Link& from(Side& side) { return **side.transport->link_to(a.name); }
  void poll() {
    for (Side* side : {&a, &old, &other, &third})
      if (side->transport) side->poll();
  }
  template <typename Condition>
  bool until(Condition condition, uint64_t step = 100'000) {
    for (int i = 0; i < 200'000; ++i) {
      if (condition()) return true;
      poll();
      rig.clock.time += step;
    }
    return condition();
  }
  bool send(Link& link) {
    return until([&] { return !link.send(numbered(1), nullptr, 0, 0, SendHint::none); });
  }
  void meet_two() {
    ck_assert(send(to(old)) && send(to(other)));
    ck_assert(until([&] { return old.sink->packets.size() + other.sink->packets.size() == 2; }));
    for (int i = 0; i < 1000; ++i) poll();
  }
  uint64_t given_up() { return Rig::transport(a).counters().reclaimed; }
  /// Makes `a` give up its connection to `old` for one to the third.
  void retire_old() {
    meet_two();
    ck_assert(send(to(third)));
    ck_assert(until([&] { return given_up() == 1; }));
    for (int i = 0; i < 1000; ++i) poll();
    ck_assert(downs() == 0);
  }
  size_t downs() {
    size_t count = 0;
    for (Side* side : {&a, &old, &other, &third}) count += side->sink->downs.size();
    return count;
  }
  /// Lets `old` die without a message, and another process take its name.
  void replace_old() {
    old.owned.reset();
    old.transport = nullptr;
    old.own_sink = {};
    ck_assert(rig.open(old, {}, &rig.clock, old.name.port()));
  }
};

TEST(a_peer_that_was_replaced_while_it_had_no_connection_is_reported, 2) {
  Three world;
  world.retire_old();
  world.replace_old();
  ck_assert(world.send(_i ? world.from(world.old) : world.to(world.old)));
  ck_assert(world.until([&] { return !world.a.sink->downs.empty(); }));
  ck_assert_ptr_eq(world.a.sink->downs[0].link, &world.to(world.old));
  ck_assert_int_eq(world.a.sink->downs[0].status, -FI_ECONNRESET);
  RecordingSink& receiver = _i ? *world.a.sink : *world.old.sink;
  ck_assert(world.until([&] { return receiver.packets.size() == 1; }));
  ck_assert_uint_eq(world.a.sink->downs[0].packets_before, 0);
  ck_assert_uint_eq(world.downs(), 1);
}

TEST(a_peer_that_is_connected_anew_goes_on_as_before, 2) {
  Three world;
  world.retire_old();
  ck_assert(world.send(_i ? world.from(world.old) : world.to(world.old)));
  RecordingSink& receiver = _i ? *world.a.sink : *world.old.sink;
  const size_t packets = _i ? 1 : 2;
  ck_assert(world.until([&] { return receiver.packets.size() == packets; }));
  ck_assert_uint_eq(world.downs(), 0);
}

/// An operation may begin to wait for the peer long after its connection was given up.
TEST(a_peer_that_died_without_a_connection_is_found_once_something_waits_for_it) {
  Three world;
  world.retire_old();
  world.old.owned.reset();
  world.old.transport = nullptr;
  ck_assert(!world.until([&] { return world.a.sink->downs.size() == 1; }));
  world.a.sink->waits = true;
  ck_assert(world.until([&] { return world.a.sink->downs.size() == 1; }));
  ck_assert_ptr_eq(world.a.sink->downs[0].link, &world.to(world.old));
  ck_assert_int_eq(world.a.sink->downs[0].status, -FI_ECONNREFUSED);
}

/// The connection breaks at the request with this number, of either side. If one side counts the
/// end as a loss, the other must not count it as agreed, as its operations would wait for ever.
TEST(both_sides_come_to_one_view_wherever_a_retirement_breaks, 16) {
  Three world;
  world.meet_two();
  for (Side* side : {&world.a, &world.old, &world.other}) side->sink->waits = true;
  world.rig.nic.fail_send = _i / 2;
  world.rig.fabric.quiet_deaths = _i % 2;
  ck_assert_int_eq(world.to(world.third).send(numbered(1), nullptr, 0, 0, SendHint::none),
                   -FI_EAGAIN);
  for (int i = 0; i < 20'000; ++i) {
    world.poll();
    world.rig.clock.time += 2'000'000;
  }
  ck_assert_int_eq(world.rig.nic.fail_send, -1);
  for (Side* side : {&world.old, &world.other})
    ck_assert_uint_eq(world.a.sink->downs_of(world.to(*side)), side->sink->downs.size());
  ck_assert_uint_le(world.downs(), 2);
  for (Side* side : {&world.old, &world.other}) {
    const size_t before = side->sink->packets.size();
    ck_assert(world.send(world.to(*side)));
    ck_assert(world.until([&] { return side->sink->packets.size() > before; }));
  }
}

TEST(peers_that_compute_keep_nobody_from_a_peer_that_polls) {
  Three world;
  world.meet_two();
  std::swap(world.old.transport, world.idle[0]);
  std::swap(world.other.transport, world.idle[1]);
  ck_assert(world.send(world.to(world.third)));
  ck_assert(world.until([&] { return world.third.sink->packets.size() == 1; }));
  // Both links still work after the request to give up their connections.
  for (Side* side : {&world.old, &world.other}) ck_assert(world.send(world.to(*side)));
  std::swap(world.old.transport, world.idle[0]);
  std::swap(world.other.transport, world.idle[1]);
  for (Side* side : {&world.old, &world.other})
    ck_assert(world.until([&] { return side->sink->packets.size() == 2; }));
  ck_assert_uint_eq(world.downs(), 0);
  // When the peers answer, the connections above the limit are given up.
  ck_assert(world.until([&] { return Rig::transport(world.a).connections() == 2; }));
}

TEST(memory_of_peers_that_compute_is_accessed_however_many_they_are) {
  Three world;
  std::vector<std::byte> there(64), here(64);
  ck_assert(world.send(world.from(world.old)));
  auto memory = world.from(world.old).optional().registrar->open({there.data(), there.size()},
                                                                 nullptr, true, true);
  ck_assert(memory);
  RemoteKey remote_key;
  (*memory)->describe(remote_key);
  world.meet_two();
  for (Side* side : {&world.old, &world.other, &world.third}) side->transport = nullptr;
  for (int round = 1; round < 6; ++round) {
    size_t wanted = world.a.sink->dones.size();
    for (Side* side : {&world.old, &world.other, &world.third}) {
      here[0] = std::byte(round);
      const iovec local{here.data(), here.size()};
      ck_assert(world.until([&] {
        return !world.to(*side).put({remote_key, 0, 64}, &local, 1, 1, true);
      }));
      ++wanted;
      ck_assert(world.until([&] { return world.a.sink->dones.size() == wanted; }));
      ck_assert_int_eq(world.a.sink->dones.back().status, 0);
    }
    ck_assert_int_eq(int(there[0]), round);
  }
  ck_assert_uint_eq(world.downs(), 0);
}

TEST(who_asked_a_peer_to_retire_and_computes_does_not_keep_it_waiting) {
  Three world;
  world.meet_two();
  std::vector<std::byte> there(64), here(64);
  auto memory = world.to(world.old).optional().registrar->open({there.data(), there.size()},
                                                               nullptr, true, true);
  RemoteKey remote_key;
  (*memory)->describe(remote_key);
  ck_assert_int_eq(world.to(world.third).send(numbered(1), nullptr, 0, 0, SendHint::none),
                   -FI_EAGAIN);
  // Endpoint a polls until its request is under way, and then computes.
  const iovec local{here.data(), here.size()};
  world.a.poll();
  world.rig.clock.time += 1'000'000'000;
  world.a.poll();
  transport::Transport* const computes = std::exchange(world.a.transport, nullptr);
  for (int i = 0; i < 10; ++i) world.old.poll();
  here[0] = std::byte{7};
  Link& back = **world.old.transport->link_to(world.a.name);
  ck_assert_int_eq(back.send(numbered(7), nullptr, 0, 0, SendHint::none), -FI_EAGAIN);
  ck_assert(world.until([&] { return !back.put({remote_key, 0, 64}, &local, 1, 1, true); }));
  ck_assert(world.until([&] { return world.old.sink->dones.size() == 1; }));
  ck_assert_int_eq(world.old.sink->dones[0].status, 0);
  ck_assert_int_eq(int(there[0]), 7);
  ck_assert(world.send(back));
  world.a.transport = computes;
  ck_assert(world.until([&] { return world.a.sink->packets.size() == 1; }));
  ck_assert_uint_eq(world.downs(), 0);
}

/// A link that has a connection must be up.
void expect_up_if_connected(Link& link) {
  const auto& known = static_cast<const verbs::VerbsLink&>(link);
  if (known.connection(true)) ck_assert_int_eq(int(known.state()), int(verbs::LinkState::up));
}

/// The application fails the link while the mail about the connection that continues it is unread.
TEST(a_link_that_fails_while_it_is_continued_is_down_at_both_sides, 2) {
  Three world;
  world.retire_old();
  world.old.sink->waits = true;
  Side& connects = _i ? world.old : world.a;
  Link& link = _i ? world.from(world.old) : world.to(world.old);
  FakeFabric& fabric = world.rig.fabric;
  fabric.hold = true;
  const unsigned attempts = fabric.attempts;
  ck_assert(world.until([&] {
    ck_assert_int_eq(link.send(numbered(7), nullptr, 0, 0, SendHint::none), -FI_EAGAIN);
    return fabric.attempts > attempts;
  }));
  fabric.hold = false;
  fabric.find(connects.name)->go_on();
  world.to(world.old).fail(-FI_ETIMEDOUT);
  ck_assert(world.until([&] {
    expect_up_if_connected(world.to(world.old));
    return world.downs() >= 2;
  }));
  ck_assert_uint_eq(world.a.sink->downs_of(world.to(world.old)), 1);
  ck_assert_int_eq(world.a.sink->downs[0].status, -FI_ETIMEDOUT);
  ck_assert_uint_eq(world.old.sink->downs.size(), 1);
  const size_t before = world.old.sink->packets.size();
  ck_assert(world.send(world.to(world.old)) && world.send(world.from(world.old)));
  ck_assert(world.until(
      [&] { return world.old.sink->packets.size() > before && !world.a.sink->packets.empty(); }));
  ck_assert_uint_eq(world.downs(), 2);
}

TEST(a_link_that_fails_while_it_is_first_connected_uses_its_connection) {
  Two two;
  Link& link = two.pair.a_to_b();
  ck_assert_int_eq(link.send(numbered(7), nullptr, 0, 0, SendHint::none), -FI_EAGAIN);
  const unsigned attempts = two.rig.fabric.attempts;
  link.fail(-FI_ETIMEDOUT);
  ck_assert(two.until([&] { return !two.a().sink->downs.empty(); }));
  ck_assert_int_eq(two.a().sink->downs[0].status, -FI_ETIMEDOUT);
  ck_assert(two.until([&] {
    expect_up_if_connected(link);
    return !link.send(numbered(8), nullptr, 0, 0, SendHint::none);
  }));
  ck_assert(two.until([&] { return two.b().sink->packets.size() == 1; }));
  ck_assert_uint_eq(two.a().sink->downs.size(), 1);
  ck_assert_uint_eq(two.b().sink->downs.size(), 0);
  ck_assert_uint_eq(two.rig.fabric.attempts, attempts);
}

/// An application that fails a link when it hears for the first time that the link is down.
struct FailingAgain final : transport::Sink {
  explicit FailingAgain(RecordingSink& told) : x_told(told) {}
  void on_packet(Link& link, const std::byte* header, const std::byte* payload,
                 size_t length) noexcept override {
    x_told.on_packet(link, header, payload, length);
  }
  void on_done(uint64_t token, int status) noexcept override { x_told.on_done(token, status); }
  void on_link_down(Link& link, int status) noexcept override {
    x_told.on_link_down(link, status);
    if (x_told.downs.size() == 1) link.fail(-FI_EIO);
  }

 private:
  RecordingSink& x_told;
};

TEST(a_link_that_fails_again_as_its_peer_was_replaced_loses_the_new_connection) {
  Three world;
  world.retire_old();
  world.replace_old();
  Link& link = world.to(world.old);
  ck_assert_int_eq(world.from(world.old).send(numbered(7), nullptr, 0, 0, SendHint::none),
                   -FI_EAGAIN);
  FailingAgain failing(*world.a.sink);
  for (int i = 0; i < 100 && world.a.sink->downs.size() < 2; ++i) {
    world.a.transport->poll(failing);
    expect_up_if_connected(link);
    world.rig.clock.time += 1'000'000;
  }
  ck_assert_uint_eq(world.a.sink->downs.size(), 2);
  ck_assert_int_eq(world.a.sink->downs[0].status, -FI_ECONNRESET);
  ck_assert_int_eq(world.a.sink->downs[1].status, -FI_EIO);
  ck_assert(world.until([&] { return world.old.sink->downs.size() == 1; }));
}

TEST(a_link_that_fails_again_when_it_could_not_be_connected_is_down_again) {
  Two two;
  Link& link = two.pair.a_to_b();
  two.b().owned.reset();
  ck_assert_int_eq(link.send(numbered(7), nullptr, 0, 0, SendHint::none), -FI_EAGAIN);
  link.fail(-FI_ETIMEDOUT);
  FailingAgain failing(*two.a().sink);
  for (int i = 0; i < 1000 && two.a().sink->downs.size() < 2; ++i) {
    two.a().transport->poll(failing);
    two.rig.clock.time += 1'000'000;
  }
  ck_assert_uint_eq(two.a().sink->downs.size(), 2);
  ck_assert_int_eq(two.a().sink->downs[0].status, -FI_ECONNREFUSED);
  ck_assert_int_eq(two.a().sink->downs[1].status, -FI_EIO);
}

/// A clock whose process may lose the processor between two looks.
struct StandingStill final : util::Clock {
  explicit StandingStill(const FakeClock& others) : x_others(others) {}
  uint64_t now() const noexcept override {
    if (meanwhile) std::exchange(meanwhile, nullptr)();
    return x_others.now();
  }
  mutable std::function<void()> meanwhile;

 private:
  const FakeClock& x_others;
};

constexpr verbs::Phase kReached[] = {verbs::Phase::accept_sent, verbs::Phase::closing,
                                     verbs::Phase::making /* none: it is gone */};

/// Endpoint a stands still after its look at the completion queues and before its look at the
/// clock. Meanwhile the peer agrees, hears nothing, and ends the connection.
TEST(a_request_is_not_taken_back_when_its_consent_came_meanwhile, 3) {
  Rig rig;
  StandingStill clock(rig.clock);
  Side a, old, other, third;
  verbs::Options options;
  options.max_connections = 2;
  ck_assert(rig.open(a, options, &clock));
  for (Side* side : {&old, &other, &third}) ck_assert(rig.open(*side, {}, &rig.clock));
  const auto to = [&](Side& side) -> Link& { return **a.transport->link_to(side.name); };
  const auto poll = [&] {
    for (Side* side : {&a, &old, &other, &third}) side->poll();
    rig.clock.time += 100'000;
  };
  const auto sent = [&](Link& link) {
    for (int i = 0; i < 200'000; ++i, poll())
      if (!link.send(numbered(1), nullptr, 0, 0, SendHint::none)) return true;
    return false;
  };
  ck_assert(sent(to(old)) && sent(to(other)));
  for (int i = 0; i < 1000; ++i) poll();
  ck_assert_int_eq(to(third).send(numbered(1), nullptr, 0, 0, SendHint::none), -FI_EAGAIN);
  for (int i = 0; i < 100; ++i) a.poll();  // the request is under way
  rig.clock.time += 60'000'000;
  const auto reached = [&](const Side& side) {
    const auto& link = static_cast<verbs::VerbsLink&>(**side.transport->link_to(a.name));
    const verbs::Connection* const connection =
        link.connection(true) ? link.connection(true) : link.connection(false);
    return !connection || connection->lifecycle.phase() == kReached[_i];
  };
  clock.meanwhile = [&] {
    for (int i = 0; i < 200'000 && !reached(old) && !reached(other); ++i) {
      for (Side* side : {&old, &other}) side->poll();
      rig.clock.time += 1'000'000;
    }
    ck_assert(reached(old) != reached(other));
  };
  while (clock.meanwhile) a.poll();
  for (Side* side : {&old, &other}) {
    const size_t before = side->sink->packets.size();
    ck_assert(sent(to(*side)));
    for (int i = 0; i < 20'000 && side->sink->packets.size() == before; ++i) poll();
    ck_assert_uint_eq(side->sink->packets.size(), before + 1);
  }
  for (Side* side : {&a, &old, &other, &third}) ck_assert_uint_eq(side->sink->downs.size(), 0);
}

/// Each endpoint has more peers than connections. From time to time, each computes for longer than
/// others wait for its consent.
TEST(limits_everywhere_lose_nothing_although_peers_compute, 8) {
  constexpr size_t kPeers = 5;
  verbs::Options options;
  options.max_connections = 2;
  Rig rig;
  Side sides[kPeers];
  for (Side& side : sides) ck_assert(rig.open(side, options, &rig.clock));
  uint64_t sent[kPeers][kPeers] = {};
  unsigned state = unsigned(_i) + 1, computes[kPeers] = {};
  const auto next = [&](unsigned below) {
    state = state * 1664525u + 1013904223u;
    return (state >> 16) % below;
  };
  const auto link = [&](size_t from, size_t to) -> Link& {
    return **sides[from].transport->link_to(sides[to].name);
  };
  const auto received = [&](size_t from, size_t to) {
    uint64_t count = 0;
    for (const auto& packet : sides[to].sink->packets) {
      if (packet.link != &link(to, from)) continue;
      ck_assert_uint_eq(packet.number(), count);
      ++count;
    }
    return count;
  };
  for (int round = 0; round < 6000; ++round) {
    for (size_t i = 0; i < kPeers; ++i) {
      if (!next(50)) computes[i] = next(400);
      if (computes[i] && computes[i]--) continue;
      const size_t to = next(kPeers);
      if (to != i && !link(i, to).send(numbered(sent[i][to]), nullptr, 0, 0, SendHint::none))
        ++sent[i][to];
      sides[i].poll();
    }
    rig.clock.time += 1'000'000;
  }
  const auto all_there = [&] {
    for (size_t i = 0; i < kPeers * kPeers; ++i)
      if (received(i / kPeers, i % kPeers) != sent[i / kPeers][i % kPeers]) return false;
    return true;
  };
  for (int i = 0; i < 2000 && !all_there(); ++i) {
    for (Side& side : sides) side.poll();
    rig.clock.time += 1'000'000;
  }
  ck_assert(all_there());
  for (Side& side : sides) {
    ck_assert_uint_eq(side.sink->downs.size(), 0);
    ck_assert_uint_gt(Rig::transport(side).counters().reclaimed, 0);
  }
  ck_assert(rig.nic.violations.empty());
}

}  // namespace

}  // namespace erdma::test
