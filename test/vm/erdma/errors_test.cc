// Tests errors, and the properties of the hardware that are not known.
#include "vm/erdma/pair.h"

using namespace ermodel::test;

namespace {

Send write_of(Pair& pair, uint64_t length = 8) {
  return {.opcode = ERM_WRITE, .parts = {pair.here(0, length)}, .remote = pair.there(0, length)};
}

size_t fatal_events(Driver& driver) {
  size_t count = 0;
  for (const Event& event : driver.aeq.take(driver.memory))
    count += event.type() == ERM_QP_FATAL && event.number() == 7;
  driver.aeq.arm(driver.slot);
  return count;
}

/// Expects that the request ends both QPs, with this syndrome at the sender.
void ends_with(Pair& pair, const Send& send, uint32_t syndrome) {
  const Completion done = pair.run(send);
  ck_assert_uint_eq(done.syndrome, syndrome);
  ck_assert_uint_eq(fatal_events(*pair.drivers[0]), 1);
  ck_assert_uint_eq(fatal_events(*pair.drivers[1]), 1);
  ck_assert_uint_eq(pair.drivers[0]->raised(0), 1);
}

constexpr struct {
  uint32_t opcode, rights, syndrome;
} kRights[] = {
    {ERM_SEND, kAllRights & ~uint32_t(ERM_LOCAL_READ), ERM_LOCAL_RIGHTS},
    {ERM_WRITE, kAllRights & ~uint32_t(ERM_LOCAL_READ), ERM_LOCAL_RIGHTS},
    {ERM_READ, kAllRights & ~uint32_t(ERM_LOCAL_WRITE), ERM_LOCAL_RIGHTS},
    {ERM_READ, kAllRights & ~uint32_t(ERM_REMOTE_WRITE), ERM_LOCAL_RIGHTS},
};

constexpr struct {
  uint32_t opcode, rights;
} kRemoteRights[] = {
    {ERM_WRITE, kAllRights & ~uint32_t(ERM_REMOTE_WRITE)},
    {ERM_READ, kAllRights & ~uint32_t(ERM_REMOTE_READ)},
    {ERM_SEND, kAllRights & ~uint32_t(ERM_LOCAL_WRITE)},
};

}  // namespace

TEST(local_memory_needs_its_key) {
  Pair pair;
  Send send = write_of(pair);
  send.parts[0].key += 0x500;
  ck_assert_uint_eq(pair.run(send).syndrome, ERM_LOCAL_KEY);
  ck_assert_uint_eq(fatal_events(*pair.drivers[0]), 1);
  ck_assert_uint_eq(fatal_events(*pair.drivers[1]), 0);
}

TEST(the_low_byte_of_a_key_counts) {
  Pair pair;
  Send send = write_of(pair);
  send.parts[0].key += 1;
  ck_assert_uint_eq(pair.run(send).syndrome, ERM_LOCAL_KEY);
}

TEST(local_memory_has_an_end, 2) {
  Pair pair;
  Send send = write_of(pair);
  send.parts[0] = _i ? pair.here(64 << 10, 1) : pair.here(uint64_t(-1), 8);
  ck_assert_uint_eq(pair.run(send).syndrome, ERM_LOCAL_RANGE);
}

TEST(all_parts_are_looked_at) {
  Pair pair;
  Send send = write_of(pair);
  send.parts.push_back(pair.here((64 << 10) - 4, 8));
  ck_assert_uint_eq(pair.run(send).syndrome, ERM_LOCAL_RANGE);
  ck_assert_uint_eq(pair.region[1]->memory[0], 0);
}

TEST(local_memory_has_rights, 4) {
  Pair pair;
  Region poor(*pair.drivers[0], 30, 4096, kRights[_i].rights);
  pair.qp[1]->receive(pair.there(0, 8));
  const Send send{
      .opcode = kRights[_i].opcode, .parts = {poor.sge(0, 8)}, .remote = pair.there(0, 8)};
  ck_assert_uint_eq(pair.run(send).syndrome, kRights[_i].syndrome);
}

TEST(memory_belongs_to_a_domain) {
  Pair pair;
  Region foreign(*pair.drivers[0], 30, 4096, kAllRights, kPd + 1);
  Send send = write_of(pair);
  send.parts[0] = foreign.sge(0, 8);
  ck_assert_uint_eq(pair.run(send).syndrome, ERM_LOCAL_PD);
}

TEST(remote_memory_needs_its_key) {
  Pair pair;
  Send send = write_of(pair);
  send.remote.key += 0x500;
  ends_with(pair, send, ERM_REMOTE_KEY);
}

TEST(remote_memory_has_an_end) {
  Pair pair;
  Send send = write_of(pair);
  send.remote = pair.there((64 << 10) - 7, 8);
  ends_with(pair, send, ERM_REMOTE_RANGE);
}

TEST(remote_memory_belongs_to_a_domain) {
  Pair pair;
  Region foreign(*pair.drivers[1], 30, 4096, kAllRights, kPd + 1);
  Send send = write_of(pair);
  send.remote = foreign.sge(0, 8);
  ends_with(pair, send, ERM_REMOTE_PD);
}

TEST(remote_memory_has_rights, 3) {
  Pair pair;
  Region poor(*pair.drivers[1], 30, 4096, kRemoteRights[_i].rights);
  pair.qp[1]->receive(poor.sge(0, 8));
  ends_with(
      pair,
      {.opcode = kRemoteRights[_i].opcode, .parts = {pair.here(0, 8)}, .remote = poor.sge(0, 8)},
      ERM_REMOTE_RIGHTS);
}

TEST(a_refusal_may_look_like_silence) {
  Pair pair([](erm_config& config) { config.denied = 1; });
  Send send = write_of(pair);
  send.remote.key += 0x500;
  ends_with(pair, send, ERM_RETRIES_EXCEEDED);
}

TEST(a_region_of_4_gib_has_no_bytes) {
  Pair pair;
  Region region(*pair.drivers[1], 30, 4096);
  region.deregister();
  region.request.size = static_cast<uint32_t>(4ull << 30);
  ck_assert_uint_eq(pair.drivers[1]->ask(ERM_REGISTER, region.request).syndrome, 0);
  Send send = write_of(pair);
  send.remote = region.sge(0, 8);
  ends_with(pair, send, ERM_REMOTE_RANGE);
}

TEST(send_larger_than_the_receive_ends_both) {
  Pair pair;
  pair.qp[1]->receive(pair.there(0, 8));
  ends_with(pair, {.parts = {pair.here(0, 9)}}, ERM_REMOTE_RANGE);
  ck_assert_uint_eq(pair.received().syndrome, ERM_REMOTE_RANGE);
  ck_assert_uint_eq(pair.region[1]->memory[0], 0);
}

TEST(send_without_a_receive_ends_both) {
  Pair pair;
  ends_with(pair, {.parts = {pair.here(0, 8)}}, ERM_RETRIES_EXCEEDED);
}

TEST(send_without_a_receive_may_wait) {
  Pair pair([](erm_config& config) { config.rnr = 1; });
  pair.qp[0]->post({.parts = {pair.here(0, 8)}});
  pair.qp[0]->post(write_of(pair));
  pair.settle();
  ck_assert(!pair.sends[0]->poll());
  pair.qp[1]->receive(pair.there(0, 8));
  pair.settle();
  ck_assert_uint_eq(pair.sends[0]->poll()->opcode, ERM_SEND);
  ck_assert_uint_eq(pair.sends[0]->poll()->opcode, ERM_WRITE);
  ck_assert_uint_eq(pair.received().syndrome, 0);
}

TEST(send_without_a_receive_may_end_the_sender_alone) {
  Pair pair([](erm_config& config) { config.rnr = 2; });
  ck_assert_uint_eq(pair.run({.parts = {pair.here(0, 8)}}).syndrome, ERM_RETRIES_EXCEEDED);
  ck_assert_uint_eq(fatal_events(*pair.drivers[0]), 1);
  ck_assert_uint_eq(fatal_events(*pair.drivers[1]), 0);
}

TEST(a_write_with_immediate_data_needs_a_receive, 2) {
  Pair pair;
  Send send = write_of(pair);
  send.opcode = ERM_WRITE_IMM;
  pair.region[0]->memory.fill(0, 8, 1);
  if (_i) pair.qp[1]->receive({});
  ck_assert_uint_eq(pair.run(send).syndrome, _i ? 0 : ERM_RETRIES_EXCEEDED);
  ck_assert(pair.region[1]->memory.holds(0, 8, 1) == (_i == 1));
}

TEST(error_flushes_as_configured, 3) {
  Pair pair([=](erm_config& config) { config.flush = unsigned(_i); });
  for (int i = 0; i < 3; ++i) pair.qp[0]->receive(pair.here(0, 8));
  ck_assert_uint_eq(pair.qp[1]->modify(ERM_RTR), 0);  // the peer does not answer
  Send send = write_of(pair);
  send.signalled = false;
  for (int i = 0; i < 4; ++i) pair.qp[0]->write(send);
  pair.qp[0]->ring_doorbell();
  ck_assert_uint_eq(pair.qp[0]->modify(ERM_ERROR), 0);
  pair.qp[0]->receive(pair.here(0, 8));  // posted after the error
  pair.qp[0]->post(send);
  pair.settle();
  int receives = 0, sends = 0;
  while (const auto done = pair.receives[0]->poll()) {
    ck_assert_uint_eq(done->syndrome, ERM_FLUSHED);
    ck_assert_uint_eq(done->index, uint32_t(receives++));
  }
  while (const auto done = pair.sends[0]->poll()) {
    ck_assert_uint_eq(done->syndrome, ERM_FLUSHED);
    ck_assert_uint_eq(done->index, uint32_t(2 * sends++));
  }
  ck_assert_int_eq(receives, _i >= 1 ? 4 : 0);
  ck_assert_int_eq(sends, _i >= 2 ? 5 : 0);
}

TEST(what_follows_a_failure_is_flushed) {
  Pair pair;
  Send bad = write_of(pair);
  bad.parts[0].key += 0x500;
  bad.signalled = false;
  pair.qp[0]->write(bad);
  pair.qp[0]->write(write_of(pair));
  pair.qp[0]->ring_doorbell();
  pair.settle();
  ck_assert_uint_eq(pair.sends[0]->poll()->syndrome, ERM_LOCAL_KEY);
  const auto second = pair.sends[0]->poll();
  ck_assert_uint_eq(second->syndrome, ERM_FLUSHED);
  ck_assert_uint_eq(second->index, 2);
}

TEST(asynchronous_events_may_be_missing) {
  Pair pair([](erm_config& config) { config.aeq = 0; });
  Send send = write_of(pair);
  send.remote.key += 0x500;
  ck_assert_uint_eq(pair.run(send).syndrome, ERM_REMOTE_KEY);
  ck_assert_uint_eq(fatal_events(*pair.drivers[0]) + fatal_events(*pair.drivers[1]), 0);
}

TEST(each_so_many_th_request_is_lost) {
  Pair pair([](erm_config& config) { config.loss = 3; });
  for (int i = 0; i < 2; ++i) ck_assert_uint_eq(pair.run(write_of(pair)).syndrome, 0);
  ck_assert_uint_eq(pair.run(write_of(pair)).syndrome, ERM_RETRIES_EXCEEDED);
}

TEST(requests_take_their_time) {
  Pair pair([](erm_config& config) { config.delay_us = 100; });
  pair.qp[0]->post(write_of(pair));
  pair.settle();
  pair.pass(99);
  pair.settle();
  ck_assert(!pair.sends[0]->poll());
  pair.pass(1);
  pair.settle();
  ck_assert(pair.sends[0]->poll());
}

TEST(passed_over_queues_keep_their_order) {
  Pair pair([](erm_config& config) { config.late = 5; });
  Send send = write_of(pair);
  send.is_inline = true;
  for (unsigned i = 0; i < 20; ++i) {
    send.bytes = {uint8_t(i + 1)};
    send.parts.clear();
    send.remote = pair.there(i % 4, 1);
    pair.qp[0]->write(send);
  }
  pair.qp[0]->ring_doorbell();
  int rounds = 0;
  for (bool more = true; more; ++rounds) more = erm_step(pair.drivers[0]->device);
  ck_assert_int_gt(rounds, 25);
  for (uint32_t i = 0; i < 20; ++i) ck_assert_uint_eq(pair.sends[0]->poll()->index, i * 2);
  for (unsigned i = 0; i < 4; ++i) ck_assert_uint_eq(pair.region[1]->memory[i], 17 + i);
}

TEST(strict_arming_loses_the_first_event_of_an_old_liberdma) {
  Pair pair([](erm_config& config) { config.strict_arm = 1; });
  Cq& cq = *pair.sends[0];
  cq.arm();  // both counts are 0, like those of a queue that was never armed
  pair.run(write_of(pair));
  ck_assert_uint_eq(cq.take_events(), 0);
  cq.arm();
  pair.run(write_of(pair));
  ck_assert_uint_eq(cq.take_events(), 1);
}

TEST(peer_that_is_gone_is_noticed_by_the_next_request, 2) {
  Pair pair;
  ck_assert_uint_eq(_i ? pair.qp[1]->modify(ERM_CLOSING) : pair.qp[1]->destroy(), 0);
  pair.settle();
  ck_assert(!pair.sends[0]->poll());
  ck_assert_uint_eq(pair.run(write_of(pair)).syndrome, ERM_RETRIES_EXCEEDED);
}

TEST(unknown_opcodes_end_the_queue) {
  Pair pair;
  Send send = write_of(pair);
  send.opcode = 17;
  ck_assert_uint_eq(pair.run(send).syndrome, ERM_BAD_REQUEST);
}

TEST(a_key_of_another_domain_is_not_invalidated) {
  Pair pair;
  Region foreign(*pair.drivers[1], 30, 4096, kAllRights, kPd + 1);
  pair.qp[1]->receive(pair.there(0, 8));
  ck_assert_uint_eq(pair.run({.opcode = ERM_SEND_INVALIDATE, .data = foreign.key}).syndrome,
                    ERM_REMOTE_KEY);
  ck_assert_uint_eq(foreign.deregister(), 0);
}

TEST(receives_are_no_more_than_their_queue_holds) {
  Pair pair;
  pair.qp[1]->receive(pair.there(0, 8));
  *pair.memory.at<uint64_t>(pair.qp[1]->rq_record) = uint64_t(7) << 32 | (pair.qp[1]->depth + 1);
  ck_assert_uint_eq(pair.run({.parts = {pair.here(0, 8)}}).syndrome, ERM_RETRIES_EXCEEDED);
}

TEST(a_seventh_part_is_refused) {
  Pair pair;
  pair.qp[1]->receive(pair.there(0, 64));
  Send send;
  send.parts.assign(7, pair.here(0, 8));
  ck_assert_uint_eq(pair.run(send).syndrome, ERM_BAD_REQUEST);
}

/// The first word of a request may contradict the rest of it.
TEST(blocks_and_parts_are_what_was_posted, 5) {
  Pair pair;
  Qp& qp = *pair.qp[0];
  Send send = write_of(pair);
  if (_i == 1) send.opcode = ERM_READ;
  qp.write(send);
  uint64_t& header = *pair.memory.at<uint64_t>(qp.sq.pages[0]);
  const auto set = [&header](uint64_t field, uint64_t value) {
    header = (header & ~field) | ERM_PUT(field, value);
  };
  switch (_i) {
    case 0:
      set(ERM_WORK_PARTS, 3);
      break;
    case 1:
      set(ERM_WORK_BLOCKS, 0);
      break;
    case 2:
      set(ERM_WORK_BLOCKS, 2);
      break;
    case 3:
      set(ERM_WORK_BLOCKS, 7);
      qp.sq_pi = 8;
      break;
    default:
      qp.sq_pi = static_cast<uint16_t>(qp.depth + 1);
      break;
  }
  qp.ring_doorbell();
  pair.settle();
  ck_assert_uint_eq(pair.sends[0]->poll()->syndrome, ERM_BAD_REQUEST);
  ck_assert_uint_eq(fatal_events(*pair.drivers[0]), 1);
}

TEST(lengths_of_parts_agree_with_that_of_the_request, 2) {
  Pair pair;
  pair.qp[0]->write(write_of(pair));
  auto* words = pair.memory.at<erm_work_request>(pair.qp[0]->sq.pages[0]);
  words->length = _i ? 7 : 9;
  pair.qp[0]->ring_doorbell();
  pair.settle();
  ck_assert_uint_eq(pair.sends[0]->poll()->syndrome, ERM_BAD_REQUEST);
}

TEST(inline_bytes_end_with_the_request) {
  Pair pair;
  pair.qp[0]->write(
      {.opcode = ERM_WRITE, .bytes = {1, 2, 3}, .is_inline = true, .remote = pair.there(0, 3)});
  auto* words = pair.memory.at<erm_work_request>(pair.qp[0]->sq.pages[0]);
  words->length = 33;
  pair.qp[0]->ring_doorbell();
  pair.settle();
  ck_assert_uint_eq(pair.sends[0]->poll()->syndrome, ERM_BAD_REQUEST);
}

TEST(a_cq_that_is_gone_loses_completions) {
  Pair pair;
  ck_assert_uint_eq(pair.drivers[0]->ask(ERM_DESTROY_CQ, erm_destroy_queue{0, 5}).syndrome, 0);
  pair.qp[0]->post(write_of(pair));
  pair.settle();
  ck_assert(!pair.sends[0]->poll());
  ck_assert_uint_eq(pair.drivers[0]->slot.said.size(), 1);
}
