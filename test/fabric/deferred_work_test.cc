// Deferred works of fi_trigger(3), over shared memory.
#include <atomic>
#include <cstdlib>
#include <numeric>
#include <thread>

#include "fabric/trigger_rig.h"

namespace {

using namespace erdma::test;

TEST_CASE(.set_up = on_shm);

TEST(every_work_counts_where_it_was_asked_to_and_nowhere_else, 2 * int(FI_OP_CNTR_SET)) {
  TriggerWorld world;
  fid_cntr* usual = open_cntr(world.root);
  ck_assert_int_eq(fi_ep_bind(world.a.ep, &usual->fid, FI_SEND | FI_READ | FI_WRITE | FI_RECV), 0);
  const bool reported = _i % 2;
  const auto type = fi_op_type(_i / 2);
  const size_t length = type == FI_OP_SEND ? 100000 : 64;
  std::vector<char> text = pattern(length), received(length);
  uint64_t operand = 5, fetched = 1, compared = 0;
  fi_context context, peers;
  {
    // As in fabtests, the structures that describe the operation do not outlive the call.
    fi_deferred_work work = world.work(type, 3);
    const bool into = type == FI_OP_RECV || type == FI_OP_TRECV || type == FI_OP_READ;
    const iovec iov{into ? received.data() : text.data(), length};
    const fi_rma_iov remote{world.at(0), length, world.region.key()};
    const fi_ioc ioc{&operand, 1};
    fi_ioc result{&fetched, 1};
    const fi_ioc comparison{&compared, 1};
    const fi_rma_ioc target{world.at(128), 1, world.region.key()};
    const uint64_t flags = reported ? FI_COMPLETION : 0;
    const fi_addr_t peer = into && type != FI_OP_READ ? FI_ADDR_UNSPEC : world.to;
    fi_op_msg msg{world.a.ep, {&iov, nullptr, 1, peer, &context, 0}, flags};
    fi_op_tagged tagged{world.a.ep, {&iov, nullptr, 1, peer, 7, 0, &context, 0}, flags};
    fi_op_rma rma{world.a.ep, {&iov, nullptr, 1, peer, &remote, 1, &context, 0}, flags};
    const fi_op op = type == FI_OP_COMPARE_ATOMIC ? FI_CSWAP : FI_SUM;
    const fi_msg_atomic message{&ioc, nullptr, 1, world.to, &target, 1, FI_UINT64, op, &context, 0};
    fi_op_atomic atomic{world.a.ep, message, flags};
    fi_op_fetch_atomic fetch{world.a.ep, message, {&result, nullptr, 1}, flags};
    fi_op_compare_atomic compare{
        world.a.ep, message, {&result, nullptr, 1}, {&comparison, nullptr, 1}, flags};
    if (type == FI_OP_RECV || type == FI_OP_SEND) work.op.msg = &msg;
    if (type == FI_OP_TRECV || type == FI_OP_TSEND) work.op.tagged = &tagged;
    if (type == FI_OP_READ || type == FI_OP_WRITE) work.op.rma = &rma;
    if (type == FI_OP_ATOMIC) work.op.atomic = &atomic;
    if (type == FI_OP_FETCH_ATOMIC) work.op.fetch_atomic = &fetch;
    if (type == FI_OP_COMPARE_ATOMIC) work.op.compare_atomic = &compare;
    ck_assert_int_eq(world.queue(work), 0);
  }
  if (type == FI_OP_READ) std::copy(text.begin(), text.end(), world.memory.begin());
  // Both successes and failures count towards the threshold.
  world.add();
  ck_assert_int_eq(fi_cntr_adderr(world.start, 1), 0);
  ck_assert_uint_eq(fi_cntr_read(world.done), 0);
  world.expect_silence();
  const fi_addr_t back = world.b.insert(world.a);
  char* const buffer = received.data();
  if (type == FI_OP_SEND)
    ck_assert_int_eq(fi_recv(world.b.ep, buffer, length, nullptr, FI_ADDR_UNSPEC, &peers), 0);
  if (type == FI_OP_TSEND)
    ck_assert_int_eq(fi_trecv(world.b.ep, buffer, length, nullptr, FI_ADDR_UNSPEC, 7, 0, &peers),
                     0);
  if (type == FI_OP_RECV) ck_assert_int_eq(fi_inject(world.b.ep, text.data(), length, back), 0);
  if (type == FI_OP_TRECV)
    ck_assert_int_eq(fi_tinject(world.b.ep, text.data(), length, back, 7), 0);
  world.add();
  world.await(1);
  if (type == FI_OP_SEND || type == FI_OP_TSEND)
    ck_assert_ptr_eq(world.b.wait(&world.a).op_context, &peers);
  if (type < FI_OP_WRITE) ck_assert(received == text);
  if (type == FI_OP_WRITE) ck_assert(std::equal(text.begin(), text.end(), world.memory.begin()));
  uint64_t cell;
  std::memcpy(&cell, world.memory.data() + 128, 8);
  if (type >= FI_OP_ATOMIC) ck_assert_uint_eq(cell, 5);
  if (type > FI_OP_ATOMIC) ck_assert_uint_eq(fetched, 0);
  if (reported) ck_assert_ptr_eq(world.a.wait(&world.b).op_context, &context);
  world.expect_silence();
  ck_assert_uint_eq(fi_cntr_read(world.done), 1);
  ck_assert_uint_eq(fi_cntr_read(usual), reported ? 1 : 0);
  world.close_counters();
  ck_assert_int_eq(fi_close(&world.a.ep->fid), 0);
  world.a.ep = nullptr;
  ck_assert_int_eq(fi_close(&usual->fid), 0);
}

TEST(counter_works_are_chained) {
  TriggerWorld world;
  fi_op_cntr set{world.done, 5}, back{world.start, 100};
  fi_deferred_work work = world.work(FI_OP_CNTR_SET, 1);
  work.op.cntr = &set;
  ck_assert_int_eq(world.queue(work), 0);
  work.op_type = FI_OP_CNTR_ADD;
  work.threshold = 2;
  ck_assert_int_eq(world.queue(work), 0);
  // The first work triggers the second.
  work.triggering_cntr = world.done;
  work.threshold = 5;
  work.op.cntr = &back;
  ck_assert_int_eq(world.queue(work), 0);
  work.completion_cntr = world.done;
  ck_assert_int_eq(world.queue(work), -FI_EINVAL);
  ck_assert_uint_eq(fi_cntr_read(world.done), 0);
  world.add();
  ck_assert_uint_eq(fi_cntr_read(world.done), 10);
  ck_assert_uint_eq(fi_cntr_read(world.start), 101);
}

TEST(a_work_that_fails_counts_as_failed) {
  TriggerWorld world;
  char text[8];
  const iovec iov{text, 8};
  const fi_rma_iov remote{world.at(0), 8, world.region.key() + 1};
  fi_context context;
  fi_op_rma rma{world.a.ep, {&iov, nullptr, 1, world.to, &remote, 1, &context, 0}, 0};
  fi_deferred_work work = world.work(FI_OP_WRITE, 1);
  work.op.rma = &rma;
  ck_assert_int_eq(world.queue(work), 0);
  // A second work can't be posted.
  rma.msg.addr = 4711;
  ck_assert_int_eq(world.queue(work), 0);
  // A third work has no completion counter to report its failure.
  work.completion_cntr = nullptr;
  ck_assert_int_eq(world.queue(work), 0);
  world.add();
  while (fi_cntr_readerr(world.done) < 2) world.b.progress();
  ck_assert_uint_eq(fi_cntr_read(world.done), 0);
  ck_assert_int_eq(world.a.wait_error().err, FI_EINVAL);
  world.expect_silence();
}

TEST(works_are_cancelled_one_by_one_or_all) {
  TriggerWorld world;
  fi_op_cntr add{world.done, 1};
  fi_deferred_work works[4];
  for (fi_deferred_work& work : works) {
    work = world.work(FI_OP_CNTR_ADD, 1);
    work.op.cntr = &add;
    if (&work == &works[3]) work.triggering_cntr = world.done;
    if (&work == &works[3]) work.threshold = 50;
    ck_assert_int_eq(world.queue(work), 0);
  }
  fid_t const domain = &world.root.domain->fid;
  ck_assert_int_eq(fi_control(domain, FI_CANCEL_WORK, &works[1]), 0);
  ck_assert_int_eq(fi_control(domain, FI_CANCEL_WORK, &works[1]), -FI_ENOENT);
  ck_assert_int_eq(fi_close(&world.done->fid), -FI_EBUSY);
  world.add();
  ck_assert_uint_eq(fi_cntr_read(world.done), 2);
  ck_assert_int_eq(fi_control(domain, FI_CANCEL_WORK, &works[0]), -FI_ENOENT);
  ck_assert_int_eq(fi_control(domain, FI_FLUSH_WORK, world.start), 0);
  ck_assert_int_eq(fi_close(&world.done->fid), -FI_EBUSY);
  ck_assert_int_eq(fi_control(domain, FI_FLUSH_WORK, nullptr), 0);
}

TEST(an_endpoint_that_closes_takes_its_works_along) {
  TriggerWorld world;
  char text[8];
  const iovec iov{text, 8};
  fi_context context;
  fi_op_msg msg{world.a.ep, {&iov, nullptr, 1, world.to, &context, 0}, 0};
  fi_deferred_work work = world.work(FI_OP_SEND, 1);
  work.op.msg = &msg;
  ck_assert_int_eq(world.queue(work), 0);
  // A work that has been posted.
  msg.msg.addr = FI_ADDR_UNSPEC;
  work.op_type = FI_OP_RECV;
  work.threshold = 0;
  ck_assert_int_eq(world.queue(work), 0);
  ck_assert_int_eq(fi_close(&world.a.ep->fid), 0);
  world.a.ep = nullptr;
  world.add();
  ck_assert_uint_eq(fi_cntr_read(world.done), 0);
}

TEST(what_is_no_work_is_refused) {
  TriggerWorld world;
  Root other(one_sided_ask());
  Port without(other);
  char text[8];
  const iovec iov{text, 8};
  fi_context context;
  fi_op_msg msg{world.a.ep, {&iov, nullptr, 1, world.to, &context, 0}, 0};
  fi_deferred_work work = world.work(FI_OP_SEND, 1);
  fid_t const domain = &world.root.domain->fid;
  ck_assert_int_eq(fi_control(domain, FI_QUEUE_WORK, nullptr), -FI_EINVAL);
  ck_assert_int_eq(fi_control(domain, FI_CANCEL_WORK, nullptr), -FI_EINVAL);
  ck_assert_int_eq(fi_control(domain, FI_BACKLOG, nullptr), -FI_ENOSYS);
  ck_assert_int_eq(world.queue(work), -FI_EINVAL);  // no operation
  work.op.msg = &msg;
  msg.flags = FI_INJECT;
  ck_assert_int_eq(world.queue(work), -FI_ENOSYS);
  msg.flags = FI_COMMIT_COMPLETE;
  ck_assert_int_eq(world.queue(work), -FI_EBADFLAGS);
  msg.flags = FI_MULTI_RECV;
  work.op_type = FI_OP_RECV;
  ck_assert_int_eq(world.queue(work), -FI_ENOSYS);
  msg.flags = 0;
  msg.ep = without.ep;
  ck_assert_int_eq(world.queue(work), -FI_EINVAL);
  msg.ep = world.a.ep;
  const int unknown = 99;
  std::memcpy(&work.op_type, &unknown, sizeof(unknown));
  ck_assert_int_eq(world.queue(work), -FI_ENOSYS);
  work.op_type = FI_OP_SEND;
  work.triggering_cntr = nullptr;
  ck_assert_int_eq(world.queue(work), -FI_EINVAL);
}

/// A ring: each arriving message triggers the next send, without the application.
TEST(works_make_progress_by_themselves, 2) {
  constexpr uint64_t kRounds = 200;
  TriggerWorld world(_i ? FI_PROGRESS_AUTO : FI_PROGRESS_MANUAL);
  fid_cntr *at_a = open_cntr(world.root), *at_b = open_cntr(world.root);
  ck_assert_int_eq(fi_ep_bind(world.a.ep, &at_a->fid, FI_RECV), 0);
  ck_assert_int_eq(fi_ep_bind(world.b.ep, &at_b->fid, FI_RECV), 0);
  const fi_addr_t back = world.b.insert(world.a);
  uint64_t ball = 0;
  const iovec iov{&ball, 8};
  for (uint64_t i = 0; i < kRounds; ++i) {
    for (fid_ep* ep : {world.a.ep, world.b.ep})
      ck_assert_int_eq(fi_recv(ep, &ball, 8, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
    fi_op_msg forth{world.a.ep, {&iov, nullptr, 1, world.to, nullptr, 0}, 0};
    fi_op_msg home{world.b.ep, {&iov, nullptr, 1, back, nullptr, 0}, 0};
    fi_deferred_work work = world.work(FI_OP_SEND, i);
    work.triggering_cntr = i ? at_a : world.start;
    if (!i) work.threshold = 1;
    work.op.msg = &forth;
    ck_assert_int_eq(world.queue(work), 0);
    work.triggering_cntr = at_b;
    work.threshold = i + 1;
    work.op.msg = &home;
    ck_assert_int_eq(world.queue(work), 0);
  }
  // The counter is bound to no endpoint, and the thread that waits for it sleeps.
  std::thread waiter([&] { world.await(2 * kRounds); });
  world.add();
  waiter.join();
  while (fi_cntr_read(at_a) < kRounds) {
  }
  for (Port* port : {&world.a, &world.b}) {
    ck_assert_int_eq(fi_close(&port->ep->fid), 0);
    port->ep = nullptr;
  }
  ck_assert_int_eq(fi_close(&at_a->fid), 0);
  ck_assert_int_eq(fi_close(&at_b->fid), 0);
}

/// A failed attempt to close a counter does not keep it attached to endpoints later.
TEST(a_counter_can_be_closed_after_an_attempt_in_vain) {
  TriggerWorld world;
  fi_deferred_work work = world.work(FI_OP_CNTR_ADD, 1);
  fi_op_cntr add{world.done, 1};
  work.op.cntr = &add;
  ck_assert_int_eq(world.queue(work), 0);
  world.add();
  ck_assert_uint_eq(fi_cntr_read(world.done), 1);
  ck_assert_int_eq(fi_ep_bind(world.a.ep, &world.start->fid, FI_SEND), 0);
  ck_assert_int_eq(fi_close(&world.start->fid), -FI_EBUSY);
  ck_assert_int_eq(fi_mr_bind(world.region.mr, &world.start->fid, FI_REMOTE_WRITE), 0);
  world.region.close();
  ck_assert_int_eq(fi_close(&world.a.ep->fid), 0);
  world.a.ep = nullptr;
  // The other endpoint is open, and has nothing to do with the counter any more.
  ck_assert_int_eq(fi_close(&world.start->fid), 0);
  world.start = nullptr;
}

void with_short_queues() {
  on_shm();
  setenv("FI_ERDMA_TX_SIZE", "16", 1);
}

TEST_CASE(.set_up = with_short_queues);

/// The sends of one endpoint wait for receives that its peer posts only after it has a message of
/// the other endpoint.
TEST(an_endpoint_without_room_does_not_hold_up_the_works_of_another) {
  constexpr size_t kSends = 20, kLength = 300'000;
  TriggerWorld world;
  const fi_addr_t back = world.b.insert(world.a);
  const std::vector<char> text = pattern(kLength);
  const iovec iov{const_cast<char*>(text.data()), kLength};
  fi_context contexts[kSends];
  for (fi_context& context : contexts) {
    fi_op_msg msg{world.a.ep, {&iov, nullptr, 1, world.to, &context, 0}, 0};
    fi_deferred_work work = world.work(FI_OP_SEND, 1);
    work.op.msg = &msg;
    ck_assert_int_eq(world.queue(work), 0);
  }
  char word[8] = "go", heard[8];
  const iovec order{word, 8};
  fi_op_msg msg{world.b.ep, {&order, nullptr, 1, back, word, 0}, 0};
  fi_deferred_work work = world.work(FI_OP_SEND, 1);
  work.op.msg = &msg;
  ck_assert_int_eq(world.queue(work), 0);
  ck_assert_int_eq(fi_recv(world.a.ep, heard, 8, nullptr, FI_ADDR_UNSPEC, heard), 0);
  world.add();
  fi_cq_tagged_entry entry;
  ssize_t rc = -FI_EAGAIN;
  for (int tries = 0; rc == -FI_EAGAIN && tries < 20'000; ++tries) {
    world.b.progress();
    rc = fi_cq_read(world.a.cq, &entry, 1);
  }
  ck_assert_int_eq(rc, 1);
  ck_assert_ptr_eq(entry.op_context, heard);
  std::vector<char> received(kLength);
  for (size_t i = 0; i < kSends; ++i) {
    ck_assert_int_eq(
        fi_recv(world.b.ep, received.data(), kLength, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
    world.b.wait(&world.a);
    ck_assert(received == text);
  }
  world.await(kSends + 1);
}

TEST_CASE(.set_up = on_shm);

TEST(threads_queue_and_trigger) {
  constexpr uint64_t kEach = 500;
  TriggerWorld world;
  std::vector<uint64_t> received(3 * kEach);
  for (uint64_t& value : received)
    ck_assert_int_eq(fi_recv(world.b.ep, &value, 8, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
  std::vector<uint64_t> values(3 * kEach);
  std::iota(values.begin(), values.end(), 1);
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < 3; ++thread)
    threads.emplace_back([&, thread] {
      for (uint64_t i = 0; i < kEach; ++i) {
        const iovec iov{&values[thread * kEach + i], 8};
        fi_op_msg msg{world.a.ep, {&iov, nullptr, 1, world.to, nullptr, 0}, 0};
        fi_deferred_work work = world.work(FI_OP_SEND, 3 * i);
        work.op.msg = &msg;
        if (world.queue(work) || fi_cntr_add(world.start, 1)) ++failed;
      }
    });
  world.await(3 * kEach);
  for (std::thread& thread : threads) thread.join();
  ck_assert_int_eq(failed, 0);
  for (size_t i = 0; i < received.size(); ++i) world.b.wait(&world.a);
  std::sort(received.begin(), received.end());
  ck_assert(received == values);
}

}  // namespace
