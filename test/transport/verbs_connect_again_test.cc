#include <cerrno>
#include <cstdint>
#include <iterator>
#include <string>

#include "transport/handshake_world.h"

/// Tests which outcomes of a connect are retried, how often, and what the last one reports.
namespace erdma::test {
namespace {

constexpr struct {
  bool retry_refused;  ///< the peer may not have started yet
  uint64_t timeout, least, most;
} kNobodies[] = {{false, 2'000'000'000, 1'500'000'000, 2'000'000'000},
                 {false, 10'000'000'000, 1'500'000'000, 2'000'000'000},
                 {true, 10'000'000'000, 9'500'000'000, 10'000'000'000}};

TEST(nobody_who_listens_looks_like_a_reset_and_is_told_in_time, std::size(kNobodies)) {
  World world;
  Options options;
  options.connect_timeout_ns = kNobodies[_i].timeout;
  Host& a = world.add(kA, 1, options);
  a.resets = true;
  const uint64_t begin = world.clock.time;
  a.connect(name_b(), kNobodies[_i].retry_refused);
  world.settle();
  ck_assert_uint_eq(a.failed.size(), 1);
  ck_assert_int_eq(a.failed[0].status, -FI_ECONNREFUSED);
  const uint64_t passed = world.clock.time - begin;
  ck_assert_uint_ge(passed, kNobodies[_i].least);
  ck_assert_uint_le(passed, kNobodies[_i].most);
}

TEST(an_attempt_under_way_at_the_end_does_not_hide_that_nobody_listens) {
  World world;
  Options options;
  options.connect_timeout_ns = 1'000'000'000;
  Host& a = world.add(kA, 1, options);
  a.resets = true;
  const uint64_t begin = world.clock.time;
  a.connect(name_b());
  for (int resets = 0; resets < 4; ++resets) {
    world.deliver_all();
    world.clock.time = a.manager->next_deadline();
    a.manager->expire();
  }
  world.clock.time = begin + options.connect_timeout_ns;
  a.manager->expire();
  a.poll();
  ck_assert_uint_eq(a.failed.size(), 1);
  ck_assert_int_eq(a.failed[0].status, -FI_ECONNREFUSED);
}

/// Here an absent listener refuses the connection, so a reset comes from a peer that lives.
TEST(resets_of_a_peer_that_lives_are_none_of_nobody) {
  World world;
  Host& a = world.add(kA, 1, {}, false);
  a.resets = true;
  const uint64_t begin = world.clock.time;
  a.connect(name_b());
  world.settle();
  ck_assert_uint_eq(a.failed.size(), 1);
  ck_assert_int_eq(a.failed[0].status, -FI_ECONNRESET);
  ck_assert_uint_ge(world.clock.time - begin, 9'500'000'000);
}

/// A refusal or a request of the peer in between shows that the peer is alive.
TEST(resets_between_answers_are_not_taken_for_nobody, 2) {
  World world;
  Host& a = world.add(kA, 1);
  a.resets = true;
  const uint64_t begin = world.clock.time;
  a.connect(name_b());
  const auto try_again = [&] {
    world.deliver_all();
    world.clock.time = a.manager->next_deadline();
    a.manager->expire();
  };
  while (world.clock.time - begin < 9'000'000'000) {
    for (int resets = 0; resets < 2; ++resets) try_again();
    world.deliver_all();
    Host& b = world.add(kB, 2);
    (_i ? a : b).refuse_to_prepare = 1;
    if (_i) {
      b.listening = false;
      b.connect(name_a());
    } else {
      try_again();
    }
    world.deliver_all();
    world.remove(b);
    a.poll();
    ck_assert(a.failed.empty());
  }
}

TEST(a_listener_that_comes_back_after_resets_is_found) {
  World world;
  Host& a = world.add(kA, 1);
  a.resets = true;
  a.connect(name_b());
  expect_joined_once_it_listens(world, a, 5);
}

TEST(a_port_that_is_taken_is_not_the_last) {
  World world;
  Host &a = world.add(kA, 1), &b = world.add(kB, 2);
  a.busy_ports = 20;
  const uint64_t begin = world.clock.time;
  a.connect(name_b());
  world.settle();
  expect_joined(world, a, b);
  ck_assert_uint_lt(world.clock.time - begin, 100'000'000);
  ck_assert_int_eq(a.alive, 1);
}

TEST(ports_that_are_all_taken_fail_the_attempt_in_time) {
  World world;
  Host& a = world.add(kA, 1);
  world.add(kB, 2);
  a.busy_ports = 1'000'000;
  const uint64_t begin = world.clock.time;
  a.connect(name_b());
  world.settle();
  ck_assert_uint_eq(a.failed.size(), 1);
  ck_assert_int_eq(a.failed[0].status, -FI_EADDRINUSE);
  ck_assert_uint_le(world.clock.time - begin, 10'000'000'000);
  ck_assert_int_gt(a.busy_ports, 1'000'000 - 100);  // the attempts were spaced out
}

/// Other outcomes in between show that there are free ports.
TEST(ports_that_are_taken_now_and_then_cost_no_time) {
  World world;
  Host &a = world.add(kA, 1), &b = world.add(kB, 2);
  a.busy_ports = 30;
  b.refuse_to_prepare = 1;
  const uint64_t begin = world.clock.time;
  a.connect(name_b());
  while (a.busy_ports > 0 || !b.crowded) {
    world.deliver_all();
    b.poll();
    world.clock.time = a.manager->next_deadline();
    a.manager->expire();
  }
  a.busy_ports = 30;
  world.settle();
  expect_joined(world, a, b);
  ck_assert_uint_lt(world.clock.time - begin, 300'000'000);
}

/// If the address of this endpoint is gone, every port of it fails.
TEST(no_port_of_an_address_that_is_gone_is_tried_for_long, 2) {
  World world;
  Host& a = world.add(kA, 1);
  world.add(kB, 2);
  a.busy_ports = 1'000'000;
  a.port_error = -FI_EADDRNOTAVAIL;
  a.refuse_to_connect = _i ? -FI_EADDRNOTAVAIL : 0;
  const uint64_t begin = world.clock.time;
  a.connect(name_b());
  world.settle();
  ck_assert_uint_eq(a.failed.size(), 1);
  ck_assert_int_eq(a.failed[0].status, -FI_EHOSTUNREACH);
  ck_assert_uint_le(world.clock.time - begin, 100'000'000);
}

/// An earlier connection from this port to the peer lingers.
TEST(a_port_that_can_not_be_had_is_not_the_last, 2) {
  World world;
  Host &a = world.add(kA, 1), &b = world.add(kB, 2);
  a.port_error = -FI_EADDRNOTAVAIL;
  (_i ? a.refuse_to_connect : a.busy_ports) = _i ? -FI_EADDRNOTAVAIL : 20;
  a.connect(name_b());
  a.refuse_to_connect = 0;
  world.settle();
  expect_joined(world, a, b);
}

/// Others may give back what lacks here, and a listener waits for it, too.
constexpr int kShortages[] = {-FI_EMFILE, -ENFILE, -FI_ENOMEM, -ENOBUFS};

TEST(a_connect_waits_for_descriptors_and_memory, std::size(kShortages)) {
  World world;
  Host &a = world.add(kA, 1), &b = world.add(kB, 2);
  a.refuse_to_connect = kShortages[_i];
  a.connect(name_b());
  expect_joined_later(world, a, b);
}

TEST(a_shortage_that_lasts_is_the_reason_of_the_failure, std::size(kShortages)) {
  World world;
  Host& a = world.add(kA, 1);
  a.refuse_to_connect = kShortages[_i];
  const uint64_t begin = world.clock.time;
  a.connect(name_b());
  world.settle();
  ck_assert_uint_eq(a.failed.size(), 1);
  ck_assert_int_eq(a.failed[0].status, kShortages[_i]);
  ck_assert_uint_ge(world.clock.time - begin, 9'500'000'000);
  ck_assert_uint_le(world.clock.time - begin, 10'000'000'000);
}

/// The kernel gives up an unanswered request after 10 s, whatever the connect timeout is. Its
/// answer is late, too, if the process of the peer is stopped meanwhile.
void let_kernel_give_up(World& world, Host& host) {
  world.deliver_all();
  world.clock.time += 10'000'000'000;
  host.manager->on_closed(host.greeted.back(), -FI_ETIMEDOUT);
  host.poll();
}

TEST(a_patient_connect_goes_on_after_the_kernel_has_given_up) {
  World world;
  Options options;
  options.connect_timeout_ns = 60'000'000'000;
  Host& a = world.add(kA, 1, options);
  a.unanswered = true;
  a.connect(name_b(), true);
  for (int tries = 1; tries <= 3; ++tries) {
    let_kernel_give_up(world, a);
    ck_assert(a.failed.empty());
    ck_assert_int_eq(a.alive, 0);
    world.clock.time = a.manager->next_deadline();
    a.manager->expire();
  }
  ck_assert_uint_eq(a.greeted.size(), 3);
  a.unanswered = false;
  Host& b = world.add(kB, 2);
  world.settle();
  expect_joined(world, a, b);
}

TEST(a_peer_that_never_answers_fails_in_time, 2) {
  const bool patient = _i;
  World world;
  Options options;
  options.connect_timeout_ns = patient ? 10'000'000'000 : 60'000'000'000;
  Host& a = world.add(kA, 1, options);
  a.unanswered = true;
  a.connect(name_b(), patient);
  let_kernel_give_up(world, a);
  ck_assert_uint_eq(a.failed.size(), 1);
  ck_assert_int_eq(a.failed[0].status, -FI_ETIMEDOUT);
}

/// Connects to a peer that does not answer, so that the request stays under way.
void connect_in_vain(World& world, Host& a, const util::SocketAddress& peer) {
  const size_t choices = world.choices(), failed = a.failed.size();
  a.connect(peer);
  if (world.choices() > choices) world.deliver(world.choices() - 1);
  while (a.failed.size() == failed) {
    world.clock.time = a.manager->next_deadline();
    a.manager->expire();
    a.poll();
  }
  ck_assert_int_eq(a.failed.back().status, -FI_ETIMEDOUT);
}

Host& add_impatient(World& world, const char* ip) {
  Options options;
  options.connect_timeout_ns = 100'000'000;
  options.max_connections = 2;
  Host& host = world.add(ip, 1, options);
  host.resets = host.holds_requests = true;
  return host;
}

TEST(a_peer_that_does_not_answer_holds_few_connections_however_often_it_is_tried) {
  World world;
  Host& a = add_impatient(world, kA);
  for (int i = 0; i < 20; ++i) connect_in_vain(world, a, name_b());
  ck_assert_int_eq(a.alive, 2);
  // One request is answered, and the next attempt gets its place.
  a.manager->on_closed(a.greeted.front(), -FI_ECONNRESET);
  ck_assert_int_eq(a.alive, 2);
  a.poll();
  ck_assert_int_eq(a.alive, 1);
  world.add(kB, 2);
  a.connect(name_b());
  world.deliver_all();
  a.poll();
  ck_assert_uint_eq(a.up_to(name_b()), 1);
  a.up.clear();
  a.holds_requests = false;
}

/// Such requests must not take the places of peers that connect to this endpoint.
TEST(peers_that_do_not_answer_leave_places_for_others) {
  World world;
  Host& a = add_impatient(world, "10.0.0.1");
  for (int i = 0; i < 200; ++i)
    connect_in_vain(world, a, address_of(("10.9.0." + std::to_string(i + 1)).c_str(), 5000));
  ck_assert_int_gt(a.alive, 50);
  ck_assert_int_lt(a.alive, 80);
}

}  // namespace
}  // namespace erdma::test
