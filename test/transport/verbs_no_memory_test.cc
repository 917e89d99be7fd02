#include "fake/scarce_memory.h"
#include "transport/handshake_world.h"
#include "transport/verbs/deadlines.h"
#include "transport/verbs/send_queue.h"

/// Memory that runs out while a connection is made.
namespace erdma::test {
namespace {

/// For the peer and the attempt, each with its table, and with a place for its time limit.
TEST(a_connect_without_memory_does_not_stand_in_the_way_of_the_next, 6) {
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
  ck_assert(fake::replenish());  // it did fail
  a.poll();
  ck_assert_uint_eq(a.failed.size() + thrown, 1);  // somebody was told
  a.failed.clear();
  a.connect(peer);
  world.settle();
  expect_joined(world, a, b);
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
