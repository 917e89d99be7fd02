#include <vector>

#include "libcheck.h"
#include "transport/verbs/send_queue.h"

namespace {

using erdma::transport::verbs::SendQueue;
using erdma::transport::verbs::Work;
using erdma::transport::verbs::WorkId;

constexpr uint32_t kConnection = 7;

struct Queue {
  Queue() { ck_assert_int_eq(queue.start(nullptr, kConnection, 8), 0); }
  /// Stages a request that is known by `mark`.
  void stage(ibv_wr_opcode opcode, uint64_t mark) {
    ibv_send_wr request{};
    request.opcode = opcode;
    Work& work = queue.append(request, true);
    work = {};
    work.type = Work::Type::piece;
    work.offset = mark;
  }
  bool complete(uint32_t number) {
    return queue.complete(WorkId::send(kConnection, number),
                          [&](const Work& work) { done.push_back(work.offset); });
  }

  SendQueue queue;
  std::vector<uint64_t> done;
};

TEST(a_completion_stands_for_all_sends_before_it) {
  Queue q;
  for (uint64_t i = 0; i < 3; ++i) q.stage(IBV_WR_SEND, i);
  ck_assert(q.complete(1));
  ck_assert((q.done == std::vector<uint64_t>{0, 1}));
  ck_assert_uint_eq(q.queue.outstanding(), 1);
}

TEST(a_send_that_overtakes_a_read_does_not_stand_for_it) {
  Queue q;
  q.stage(IBV_WR_SEND, 0);
  q.stage(IBV_WR_RDMA_READ, 1);
  q.stage(IBV_WR_RDMA_WRITE, 2);
  q.stage(IBV_WR_SEND, 3);
  ck_assert(q.complete(3));
  ck_assert((q.done == std::vector<uint64_t>{0, 2, 3}));
  ck_assert_uint_eq(q.queue.outstanding(), 3);  // the read and the requests behind it
  ck_assert(!q.complete(3));
  ck_assert(q.complete(1));
  ck_assert((q.done == std::vector<uint64_t>{0, 2, 3, 1}));
  ck_assert_uint_eq(q.queue.outstanding(), 0);
}

TEST(a_read_stands_for_the_sends_before_it) {
  Queue q;
  q.stage(IBV_WR_SEND, 0);
  q.stage(IBV_WR_RDMA_READ, 1);
  ck_assert(q.complete(1));
  ck_assert((q.done == std::vector<uint64_t>{0, 1}));
  ck_assert_uint_eq(q.queue.outstanding(), 0);
}

TEST(places_are_used_again_in_order) {
  Queue q;
  for (uint32_t round = 0; round < 100; ++round) {
    q.done.clear();
    q.stage(IBV_WR_RDMA_READ, 1);
    q.stage(IBV_WR_SEND, 2);
    ck_assert(q.complete(2 * round + 1));
    ck_assert(q.complete(2 * round));
    ck_assert((q.done == std::vector<uint64_t>{2, 1}));
    ck_assert_uint_eq(q.queue.room(), 8);
  }
}

TEST(what_is_complete_is_not_dropped_again) {
  Queue q;
  q.stage(IBV_WR_RDMA_READ, 0);
  q.stage(IBV_WR_SEND, 1);
  q.stage(IBV_WR_SEND, 2);
  ck_assert(q.complete(1));
  q.done.clear();
  q.queue.drop_all([&](const Work& work) { q.done.push_back(work.offset); });
  ck_assert((q.done == std::vector<uint64_t>{0, 2}));
  ck_assert_uint_eq(q.queue.outstanding(), 0);
}

TEST(what_follows_a_refused_request_is_signalled) {
  Queue q;
  ibv_send_wr first{}, refused{}, next{};
  q.queue.append(first, false);
  q.queue.append(refused, true);
  q.queue.drop_last();
  q.queue.append(next, false);
  ck_assert(next.send_flags & IBV_SEND_SIGNALED);
  ck_assert_uint_eq(q.queue.outstanding(), 2);
}

TEST(a_completion_of_nothing_is_refused) {
  Queue q;
  ck_assert(!q.complete(0));
  q.stage(IBV_WR_SEND, 0);
  ck_assert(!q.complete(1));
  ck_assert(q.complete(0));
  ck_assert(!q.complete(0));
}

}  // namespace
