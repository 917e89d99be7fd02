#include <memory>

#include "libcheck.h"
#include "transport/simulated_device.h"
#include "transport/verbs/completion_queues.h"

/// Tests the room in the completion queues of an endpoint. Nobody would notice an overrun.
namespace erdma::transport::verbs {
namespace {

SUITE(.run = test::on_simulated_devices);

TEST(a_queue_without_room_is_followed_by_another) {
  const std::unique_ptr<Device> device = test::open_first_device();
  ck_assert_ptr_nonnull(device.get());
  CompletionQueues queues(*device);
  ck_assert_int_eq(queues.open(), 0);
  CqShare first, second, third;
  ck_assert_int_eq(queues.reserve(1, first), 0);
  const auto rest = uint32_t(first.cq->cqe) - 1;
  ck_assert_int_eq(queues.reserve(rest, second), 0);
  ck_assert_ptr_eq(second.cq, first.cq);
  ck_assert_uint_eq(queues.count(), 1);
  ck_assert_int_eq(queues.reserve(1, third), 0);
  ck_assert_ptr_ne(third.cq, first.cq);
  ck_assert_uint_eq(queues.count(), 2);
  // Released room is reserved again.
  queues.release(second);
  CqShare fourth;
  ck_assert_int_eq(queues.reserve(rest, fourth), 0);
  ck_assert_ptr_eq(fourth.cq, first.cq);
  ck_assert_uint_eq(queues.count(), 2);
  for (const CqShare& share : {first, third, fourth}) queues.release(share);
}

/// Connections would come up and lose all their completions.
TEST(a_queue_that_failed_gets_no_more_connections) {
  const std::unique_ptr<Device> device = test::open_first_device();
  ck_assert_ptr_nonnull(device.get());
  CompletionQueues queues(*device), others(*device);
  ck_assert_int_eq(queues.open() | others.open(), 0);
  CqShare first, second, third, other;
  ck_assert_int_eq(queues.reserve(1, first), 0);
  ck_assert_int_eq(others.reserve(1, other), 0);
  queues.fail(other.cq);
  ck_assert_int_eq(queues.reserve(1, second), 0);
  ck_assert_ptr_eq(second.cq, first.cq);
  queues.fail(first.cq);
  ck_assert_int_eq(queues.reserve(1, third), 0);
  ck_assert_ptr_ne(third.cq, first.cq);
  for (const CqShare& share : {first, second, third}) queues.release(share);
  others.release(other);
}

}  // namespace
}  // namespace erdma::transport::verbs
