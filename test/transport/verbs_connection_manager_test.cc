#include <functional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "fake/captured_log.h"
#include "transport/handshake_world.h"

/// Tests which endpoints get a connection with each other, for any order of events.
namespace erdma::test {
namespace {

/// Runs `scenario` once for each order in which its messages can arrive, and returns the number of
/// orders.
int try_all_orders(const std::function<void(World&)>& scenario,
                   const std::function<void(World&)>& check) {
  std::vector<size_t> path, widths;
  for (int runs = 1;; ++runs) {
    World world;
    scenario(world);
    widths.clear();
    while (world.choices()) {
      if (path.size() == widths.size()) path.push_back(0);
      widths.push_back(world.choices());
      world.deliver(path[widths.size() - 1]);
    }
    check(world);
    while (!path.empty() && path.back() + 1 >= widths[path.size() - 1]) path.pop_back();
    if (path.empty()) return runs;
    ++path.back();
  }
}

TEST(a_connection_comes_up_at_both_ends_with_the_terms_of_the_other) {
  World world;
  Host &a = world.add(kA, 1), &b = world.add(kB, 2);
  a.connect(name_b());
  world.settle();
  expect_joined(world, a, b);
  const Mail& up = b.up.begin()->second;
  ck_assert(up.terms.name == name_a() && up.peer == name_a());
  ck_assert_uint_eq(up.terms.nonce, 1);
  ck_assert_uint_eq(up.terms.credits, 8);
  ck_assert_uint_eq(up.terms.receive_bytes, 2048);
  ck_assert_uint_eq(up.terms.heartbeat_address, 0x7000'0000'1000);
  ck_assert_uint_eq(up.terms.heartbeat_rkey, 0x1234);
  ck_assert(!up.active && a.up.begin()->second.active);
}

TEST(simultaneous_connects_end_in_one_connection_in_every_order) {
  const int orders = try_all_orders(
      [](World& world) {
        Host &a = world.add(kA, 1), &b = world.add(kB, 2);
        world.send(next_connection_id(), [&a] { a.connect(name_b()); });
        world.send(next_connection_id(), [&b] { b.connect(name_a()); });
      },
      [](World& world) {
        Host &a = *world.find(name_a()), &b = *world.find(name_b());
        a.poll();
        b.poll();
        expect_joined(world, a, b);  // before any time passes
        world.settle();
        expect_joined(world, a, b);
        ck_assert(a.failed.empty() && b.failed.empty() && a.lost.empty() && b.lost.empty());
      });
  ck_assert_int_gt(orders, 100);
}

/// Mixes messages at random with time, polls, closes and new connects.
void walk(unsigned seed, bool restart) {
  std::mt19937 random(seed);
  World world;
  Host *a = &world.add(kA, 1), *b = &world.add(kB, 2);
  const auto traffic = [&](Host& from, const util::SocketAddress& to) {
    from.poll();
    if (!from.up_to(to) && from.tokens == from.failed.size()) from.connect(to, true);
  };
  for (int step = 0; step < 60; ++step) {
    Host& host = random() % 2 ? *a : *b;
    const util::SocketAddress peer = &host == a ? name_b() : name_a();
    const unsigned what = random() % 16;
    if (what < 10 && world.choices()) {
      world.deliver(random() % world.choices());
    } else if (what < 12) {
      traffic(host, peer);
    } else if (what < 13) {
      host.poll();
    } else if (what < 14) {
      world.clock.time += 3'000'000;
      host.manager->expire();
    } else if (what < 15 && !host.up.empty()) {
      host.close_connection(host.up.begin()->first, true);
      host.tokens = host.failed.size();
    } else if (restart && random() % 4 == 0) {
      const uint64_t nonce = 100 + unsigned(step);
      if (&host == a)
        world.remove(*a), a = &world.add(kA, nonce);
      else
        world.remove(*b), b = &world.add(kB, nonce);
    }
  }
  // One end may be left without its other end. Traffic on it finds this out.
  for (int i = 0; i < 3; ++i) {
    world.settle();
    if (a->up.empty()) a->tokens = a->failed.size(), traffic(*a, name_b());
    if (b->up.empty()) b->tokens = b->failed.size(), traffic(*b, name_a());
  }
  world.settle();
  expect_joined(world, *a, *b);
}

TEST(lost_and_closed_connections_are_replaced_in_any_order) {
  for (unsigned seed = 0; seed < 20'000; ++seed) walk(seed, false), g_log.clear();
}

TEST(restarted_peers_are_connected_in_any_order) {
  for (unsigned seed = 0; seed < 20'000; ++seed) walk(seed, true), g_log.clear();
}

TEST(connecting_to_itself_makes_two_connections) {
  World world;
  Host& a = world.add(kA, 1);
  a.connect(name_a());
  world.settle();
  ck_assert_uint_eq(a.up.size(), 2);
  ck_assert_int_ne(a.up.begin()->second.active, a.up.rbegin()->second.active);
  ck_assert_uint_eq(world.other[a.up.begin()->first].id, a.up.rbegin()->first);
  ck_assert(a.failed.empty() && a.lost.empty());
}

TEST(a_connect_that_crosses_the_peers_connection_makes_no_second_one) {
  World world;
  Host &a = world.add(kA, 1), &b = world.add(kB, 2);
  b.connect(name_a());
  world.deliver_all();  // both managers have the connection; the polling threads do not yet
  a.connect(name_b());
  world.settle();
  expect_joined(world, a, b);
}

TEST(a_connect_that_waits_for_the_peers_attempt_goes_on_when_that_fails) {
  World world;
  Host &a = world.add(kA, 1), &b = world.add(kB, 2);
  b.connect(name_a());
  world.deliver(0);  // b's connect reaches a
  world.deliver(0);  // a is asked
  a.connect(name_b());
  b.manager->finish();
  b.poll();
  world.settle();
  expect_joined(world, a, b);
  ck_assert(a.up.begin()->second.active);
}

TEST(a_restarted_peer_replaces_its_old_connection) {
  World world;
  Host& a = world.add(kA, 1);
  world.add(kB, 2).connect(name_a());
  world.settle();
  const uint64_t old = a.up.begin()->first;
  world.find(name_b())->up.clear();
  world.other.erase(old);  // b dies without a sign
  world.remove(*world.find(name_b()));
  Host& b = world.add(kB, 3);
  b.connect(name_a());
  world.settle();
  ck_assert_uint_eq(a.lost.size(), 1);
  ck_assert_uint_eq(a.lost[0].connection_id, old);
  ck_assert_int_eq(a.lost[0].status, -FI_ECONNRESET);
  expect_joined(world, a, b);
}

TEST(a_request_that_was_overtaken_does_not_end_the_connection) {
  World world;
  Host &a = world.add(kA, 1), &b = world.add(kB, 2);
  b.connect(name_a());
  world.deliver(0);  // b's connect reaches a; the hello of b arrives last
  a.connect(name_b());
  while (world.choices() > 1) world.deliver(world.choices() - 1);
  a.poll();
  b.poll();
  ck_assert_uint_eq(a.up.size(), 1);
  ck_assert_uint_eq(world.choices(), 1);
  world.settle();
  ck_assert(a.lost.empty() && b.lost.empty());
  expect_joined(world, a, b);
}

TEST(a_missing_listener_refuses_at_once) {
  World world;
  Host& a = world.add(kA, 1);
  a.connect(name_b());
  world.deliver_all();
  a.poll();
  ck_assert_uint_eq(a.failed.size(), 1);
  ck_assert_uint_eq(a.failed[0].attempt, 1);
  ck_assert(a.failed[0].peer == name_b());
  ck_assert_int_eq(a.failed[0].status, -FI_ECONNREFUSED);
}

TEST(a_patient_connect_finds_a_listener_that_appears_later) {
  World world;
  Host& a = world.add(kA, 1);
  a.connect(name_b(), true);
  expect_joined_once_it_listens(world, a, 10);
}

TEST(patience_ends_with_the_connect_timeout) {
  World world;
  Host& a = world.add(kA, 1);
  const uint64_t begin = world.clock.time;
  a.connect(name_b(), true);
  world.settle();
  ck_assert_uint_eq(a.failed.size(), 1);
  ck_assert_int_eq(a.failed[0].status, -FI_ECONNREFUSED);
  ck_assert_uint_ge(world.clock.time - begin, 9'500'000'000);
  ck_assert_uint_le(world.clock.time - begin, 10'000'000'000);
}

TEST(a_connection_that_is_given_up_is_held_until_it_can_be_destroyed, 3) {
  World world;
  Host& a = world.add(kA, 1);
  world.add(kB, 2);
  a.holds_requests = true;
  a.connect(name_b());
  const uint64_t id = world.other.begin()->first;
  world.deliver(0);
  world.clock.time = a.manager->next_deadline();
  a.manager->expire();
  a.poll();
  ck_assert_int_eq(a.failed[0].status, -FI_ETIMEDOUT);
  ck_assert_int_eq(a.alive, 1);
  ck_assert_uint_eq(a.manager->next_deadline(), UINT64_MAX);
  if (_i > 0) ck_assert(a.manager->finish());
  ck_assert_int_eq(a.alive, 1);
  if (_i < 2) {
    a.manager->on_closed(id, -FI_ECONNRESET);
    ck_assert(!a.manager->finish());
  } else {
    a.manager.reset();
    ck_assert_uint_eq(a.mailbox.size(), 1);
    ck_assert(a.mailbox[0].type == Mail::Type::leave_open);
  }
  a.poll();
  ck_assert_int_eq(a.alive, 0);
}

TEST(a_handshake_that_hangs_times_out_and_gives_back_the_connection) {
  World world;
  Host &a = world.add(kA, 1), &b = world.add(kB, 2);
  a.connect(name_b());
  world.deliver(0);
  ck_assert_int_eq(a.alive, 1);
  world.clock.time = a.manager->next_deadline();
  a.manager->expire();
  a.poll();
  ck_assert_int_eq(a.failed[0].status, -FI_ETIMEDOUT);
  ck_assert_int_eq(a.alive, 0);
  world.settle();
  ck_assert_int_eq(b.alive, 0);
}

/// The network of a peer, or of this host, may be made while both start, or come back later.
TEST(a_peer_without_a_route_is_tried_again, 2) {
  World world;
  Host& a = world.add(kA, 1);
  a.connect(name_b(), _i == 0);
  a.manager->on_closed(world.other.begin()->first, -FI_EHOSTUNREACH);
  a.poll();
  ck_assert_uint_eq(a.failed.size(), 0);
  Host& b = world.add(kB, 2);
  world.settle();
  expect_joined(world, a, b);
}

TEST(a_connection_that_was_up_is_made_again_once_there_is_a_route) {
  World world;
  Host &a = world.add(kA, 1), &b = world.add(kB, 2);
  a.connect(name_b(), true);
  world.settle();
  a.close_connection(a.up.begin()->first, true);
  world.settle();
  a.refuse_to_connect = -FI_EHOSTUNREACH;
  a.connect(name_b());
  expect_joined_later(world, a, b);
}

TEST(patience_with_a_route_ends_with_the_connect_timeout, 2) {
  World world;
  Host& a = world.add(kA, 1);
  a.refuse_to_connect = -FI_EHOSTUNREACH;
  const uint64_t begin = world.clock.time;
  a.connect(name_b(), _i == 0);
  world.settle();
  ck_assert_uint_eq(a.failed.size(), 1);
  ck_assert_int_eq(a.failed[0].status, -FI_EHOSTUNREACH);
  ck_assert_uint_ge(world.clock.time - begin, 9'500'000'000);
  ck_assert_uint_le(world.clock.time - begin, 10'000'000'000);
}

TEST(another_address_family_is_unreachable) {
  World world;
  Host& a = world.add(kA, 1);
  sockaddr_in6 ipv6{};
  ipv6.sin6_family = AF_INET6;
  ipv6.sin6_addr.s6_addr[15] = 1;
  ipv6.sin6_port = htons(5);
  a.connect(util::SocketAddress::from_sockaddr(&ipv6, sizeof(ipv6)));
  a.poll();
  ck_assert_int_eq(a.failed[0].status, -FI_EHOSTUNREACH);
}

TEST(a_peer_without_resources_is_tried_again) {
  World world;
  Host &a = world.add(kA, 1), &b = world.add(kB, 2);
  b.refuse_to_prepare = 3;
  a.connect(name_b());
  world.settle();
  expect_joined(world, a, b);
  ck_assert_int_eq(b.crowded, 3);
  ck_assert_int_eq(a.crowded, 0);
}

TEST(while_other_connections_hold_resources_our_own_attempt_waits_for_them) {
  World world;
  Host &a = world.add(kA, 1), &b = world.add(kB, 2), &c = world.add("10.0.0.3", 3);
  c.connect(a.config.name);
  world.settle();
  ck_assert_uint_eq(a.up.size(), 1);
  a.refuse_to_prepare = 3;
  a.connect(name_b());
  world.settle();
  ck_assert_int_eq(a.crowded, 3);
  ck_assert_uint_eq(a.failed.size(), 0);
  ck_assert_uint_eq(a.up.size(), 2);
  ck_assert_uint_eq(b.up.size(), 1);
}

TEST(a_half_made_connection_holds_resources_too) {
  World world;
  Host &a = world.add(kA, 1), &c = world.add("10.0.0.3", 3);
  world.add(kB, 2);
  c.connect(a.config.name);
  while (!a.alive) world.deliver(0);
  a.refuse_to_prepare = 1;
  a.connect(name_b());
  world.settle();
  ck_assert_uint_eq(a.failed.size(), 0);
  ck_assert_uint_eq(a.up.size(), 2);
}

TEST(our_own_attempt_waits_for_resources_no_longer_than_its_time_limit) {
  World world;
  Host &a = world.add(kA, 1), &c = world.add("10.0.0.3", 3);
  world.add(kB, 2);
  c.connect(a.config.name);
  world.settle();
  a.refuse_to_prepare = 1'000'000;
  const uint64_t begin = world.clock.time;
  a.connect(name_b());
  world.settle();
  ck_assert_uint_eq(a.failed.size(), 1);
  ck_assert_int_eq(a.failed[0].status, -FI_ENOMEM);
  ck_assert_uint_le(world.clock.time - begin, Options().connect_timeout_ns);
  ck_assert_uint_eq(a.up.size(), 1);
}

TEST(no_resources_of_our_own_fail_the_attempt, 2) {
  World world;
  Host& a = world.add(kA, 1);
  world.add(kB, 2);
  (_i ? a.refuse_queue_pairs : a.refuse_to_prepare) = 1;
  a.connect(name_b());
  world.settle();
  ck_assert_int_eq(a.failed[0].status, -FI_ENOMEM);
  a.connect(name_b());
  world.settle();
  ck_assert_uint_eq(a.up.size(), 1);
}

TEST(a_connection_that_can_not_be_used_is_none_on_either_side, 2) {
  World world;
  Host &a = world.add(kA, 1), &b = world.add(kB, 2);
  (_i ? a : b).fail_to_agree = 1;
  a.connect(name_b());
  world.settle();
  for (Host* host : {&a, &b})
    while (!host->up.empty()) host->close_connection(host->up.begin()->first, false);
  world.settle();
  ck_assert_int_eq(a.alive, 0);
  ck_assert_int_eq(b.alive, 0);
  ck_assert_uint_eq(a.failed.size() + a.lost.size(), 1);
  a.connect(name_b());
  world.settle();
  expect_joined(world, a, b);
}

TEST(a_closing_endpoint_takes_nobody_and_keeps_what_it_has) {
  World world;
  Host &a = world.add(kA, 1), &b = world.add(kB, 2);
  a.connect(name_b());
  world.settle();
  b.manager->stop_listening();
  b.listening = true;  // the request was already under way
  Host& c = world.add("10.0.0.3", 3);
  c.connect(name_b());
  world.settle();
  ck_assert_int_eq(c.failed[0].status, -FI_ECONNREFUSED);
  expect_joined(world, a, b);
}

TEST(an_orderly_close_is_seen_as_such) {
  World world;
  Host &a = world.add(kA, 1), &b = world.add(kB, 2);
  a.connect(name_b());
  world.settle();
  a.close_connection(a.up.begin()->first, true);
  world.settle();
  ck_assert_int_eq(b.lost[0].status, -FI_ESHUTDOWN);
  ck_assert_int_eq(b.alive, 0);
}

TEST(an_endpoint_that_stops_while_connecting_gives_everything_back) {
  World world;
  Host& b = world.add(kB, 2);
  for (int delivered = 0; delivered < 4; ++delivered) {
    Host& a = world.add(kA, 1);
    a.connect(name_b(), true);
    for (int i = 0; i < delivered; ++i) world.deliver(world.choices() - 1);
    a.manager->finish();
    a.poll();
    a.up.clear();
    ck_assert_int_eq(a.alive, 0);
    world.deliver_all();
    b.poll();
    ck_assert_int_eq(b.alive, 0);
    world.remove(a);
  }
}

TEST(a_failed_queue_pair_ends_its_connection_only) {
  World world;
  Host& a = world.add(kA, 1);
  world.add(kB, 2);
  world.add("10.0.0.3", 3);
  a.connect(name_b());
  world.settle();
  const uint64_t id = a.up.begin()->first;
  a.connect(address_of("10.0.0.3", 5000));
  world.settle();
  a.manager->on_device_event({.queue_pair = id, .what = "fatal"});
  a.manager->on_device_event({.queue_pair = id, .what = "fatal"});
  a.manager->on_device_event({.queue_pair = 12345678, .what = "fatal"});
  world.settle();
  ck_assert_uint_eq(a.lost.size(), 1);
  ck_assert_uint_eq(a.lost[0].connection_id, id);
  ck_assert_uint_eq(a.up.size(), 1);
}

TEST(a_failed_completion_queue_ends_its_connections_and_gets_no_more) {
  World world;
  Host& a = world.add(kA, 1);
  world.add(kB, 2);
  a.connect(name_b());
  world.settle();
  const ibv_cq other{};
  a.manager->on_device_event({.completion_queue = &other, .what = "of another endpoint"});
  world.settle();
  ck_assert(a.lost.empty());
  a.manager->on_device_event({.completion_queue = &a.queue, .what = "fatal"});
  ck_assert_uint_eq(a.failed_queues.size(), 2);
  ck_assert_ptr_eq(a.failed_queues[1], &a.queue);
  world.settle();
  ck_assert_uint_eq(a.lost.size(), 1);
  ck_assert_int_eq(a.lost[0].status, -FI_EIO);
}

/// The next attempt gets another completion queue.
TEST(a_completion_queue_that_fails_does_not_end_a_connect) {
  World world;
  Host &a = world.add(kA, 1), &b = world.add(kB, 2);
  a.connect(name_b());
  world.deliver(0);
  ck_assert_int_eq(a.alive, 1);
  a.manager->on_device_event({.completion_queue = &a.queue, .what = "fatal"});
  a.poll();
  ck_assert_int_eq(a.alive, 0);
  ck_assert_uint_eq(a.failed.size(), 0);
  world.settle();
  expect_joined(world, a, b);
}

TEST(completion_queues_that_all_fail_end_a_connect_in_time) {
  World world;
  Host& a = world.add(kA, 1);
  a.unanswered = true;
  const uint64_t begin = world.clock.time;
  a.connect(name_b());
  while (a.failed.empty()) {
    world.deliver_all();
    a.manager->on_device_event({.completion_queue = &a.queue, .what = "fatal"});
    ck_assert_uint_le(world.clock.time - begin, 10'000'000'000);
    world.clock.time = std::min(a.manager->next_deadline(), begin + 11'000'000'000);
    a.manager->expire();
    a.poll();
  }
  ck_assert_uint_eq(a.failed.size(), 1);
  ck_assert_int_eq(a.failed[0].status, -FI_EIO);
  ck_assert_int_eq(a.alive, 0);
  ck_assert_int_gt(a.failed_queues.size(), 10);
}

TEST(a_device_that_goes_away_ends_all) {
  World world;
  Host &a = world.add(kA, 1), &b = world.add(kB, 2);
  a.connect(name_b());
  world.settle();
  a.connect(address_of("10.0.0.3", 5000), true);
  a.manager->on_device_event({});
  world.settle();
  ck_assert_int_eq(a.lost[0].status, -FI_ENODEV);
  ck_assert_int_eq(a.failed[0].status, -FI_ENODEV);
  ck_assert_uint_eq(b.lost.size(), 1);
}

TEST(each_attempt_is_visited_once_whatever_the_visits_do) {
  AttemptTable table;
  constexpr uint64_t kAttempts = 300;
  const auto add = [&](uint64_t id) {
    table.add(id, table.peer_of(address_of("10.0.0.9", uint16_t(id))), true);
  };
  for (uint64_t id = 1; id <= kAttempts; ++id) add(id);
  std::vector<uint64_t> visited;
  table.for_each([&](Attempt& attempt) {
    const uint64_t id = attempt.id;
    visited.push_back(id);
    if (id == 3) add(kAttempts + 1);
    if (id % 3 == 0) table.erase(attempt);
    if (id % 3 == 1) table.detach(attempt);
    if (id == 10) table.erase(*table.find(11));
  });
  ck_assert_uint_eq(visited.size(), kAttempts);  // one was added, and one erased before its visit
  ck_assert_uint_eq(std::set<uint64_t>(visited.begin(), visited.end()).size(), kAttempts);
  ck_assert_uint_eq(visited.back(), kAttempts + 1);
  while (Attempt* const attempt = table.any()) table.erase(*attempt);
}

TEST(a_thousand_peers_connect) {
  World world;
  Host& a = world.add(kA, 1);
  std::vector<Host*> others;
  for (int i = 0; i < 1000; ++i) {
    const std::string ip = "10.1." + std::to_string(i / 250) + "." + std::to_string(1 + i % 250);
    others.push_back(&world.add(ip.c_str(), 100 + uint64_t(i)));
    if (i % 2) a.connect(others.back()->config.name);
    if (i % 3) others.back()->connect(name_a());
  }
  world.settle();
  size_t expected = 0;
  for (int i = 0; i < 1000; ++i) {
    const size_t wanted = i % 2 || i % 3;
    expected += wanted;
    ck_assert_uint_eq(a.up_to(others[size_t(i)]->config.name), wanted);
  }
  ck_assert_uint_eq(a.up.size(), expected);
  ck_assert_int_eq(a.alive, int(expected));
}

}  // namespace

}  // namespace erdma::test
