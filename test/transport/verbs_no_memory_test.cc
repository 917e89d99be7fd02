#include "fake/scarce_memory.h"
#include "transport/handshake_world.h"
#include "transport/verbs/deadlines.h"
#include "transport/verbs/send_queue.h"

/// Tests connects while there is no memory.
namespace erdma::test {
namespace {

/// Memory is allocated for the peer and its table, for the attempt, and for its time
/// limit.
TEST(a_connect_without_memory_does_not_stand_in_the_way_of_the_next, 5) {
  World world;
  Host &a = world.add(kA, 1), &b = world.add(kB, 2);
  const util::SocketAddress peer = name_b();
  fake::run_short(_i);
  const bool thrown = fake::counted([&] {
    try {
      a.manager->connect(peer, 1, false);
    } catch (const std::bad_alloc&) {
      return true;
    }
    return false;
  });
  ck_assert(fake::replenish());  // an allocation did fail
  a.poll();
  ck_assert_uint_eq(a.failed.size() + thrown, 1);  // the caller was told
  a.failed.clear();
  a.connect(peer);
  world.settle();
  expect_joined(world, a, b);
}

TEST(a_device_that_goes_away_ends_its_connections_without_memory) {
  World world;
  Host& a = world.add(kA, 1);
  world.add(kB, 2);
  a.connect(name_b());
  world.settle();
  a.mailbox.reserve(4);
  fake::run_short(0);
  fake::counted([&] {
    a.manager->on_device_event({});
    return 0;
  });
  ck_assert(!fake::replenish());
  a.poll();
  ck_assert_uint_eq(a.lost.size(), 1);
  ck_assert_int_eq(a.lost[0].status, -FI_ENODEV);
}

/// The peer's name is too long for a std::string without an allocation.
TEST(a_peer_with_a_long_name_is_given_up_without_memory) {
  World world;
  Host& a = world.add("10.100.100.100", 1);
  const util::SocketAddress peer = address_of("10.100.100.101", 5000);
  a.connect(peer);
  a.mailbox.reserve(4);
  a.mailbox.clear();
  world.clock.time = a.manager->next_deadline();
  fake::run_short(0);
  fake::counted([&] {
    a.manager->expire();
    return 0;
  });
  ck_assert(!fake::replenish());
  a.poll();
  ck_assert_uint_eq(a.failed.size(), 1);
}

struct Limited {
  uint64_t deadline = 0;
};

TEST(a_time_limit_needs_no_memory) {
  Deadlines<Limited> deadlines;
  Limited one, other;
  const auto add = [&] { return deadlines.add(one) ? 0 : -FI_ENOMEM; };
  ck_assert_int_eq(fake::without_each_allocation(-FI_ENOMEM, add), 0);
  ck_assert(deadlines.add(other));
  fake::run_short(0);
  const Limited* const due = fake::counted([&] {
    deadlines.set(one, 100);
    deadlines.set(other, 200);
    deadlines.set(one, 300);
    deadlines.clear(one);
    deadlines.set(one, 300);
    return deadlines.due(200);
  });
  ck_assert(!fake::replenish());
  ck_assert_ptr_eq(due, &other);
}

TEST(a_send_queue_without_memory_is_none) {
  SendQueue queue;
  ibv_qp queue_pair{};
  const auto start = [&] { return queue.start(&queue_pair, 1, 64); };
  int failures = 0;
  ck_assert_int_eq(fake::without_each_allocation(-FI_ENOMEM, start, &failures), 0);
  ck_assert_int_ge(failures, 2);
  ck_assert_uint_eq(queue.room(), 64);
}

}  // namespace
}  // namespace erdma::test
