// Tests the transfers and completions of work requests.
#include <algorithm>

#include "vm/erdma/pair.h"

using namespace ermodel::test;

TEST(send_fills_the_receive) {
  Pair pair;
  pair.region[0]->memory.fill(100, 5000, 1);
  pair.qp[1]->receive(pair.there(4000, 6000));
  const Completion sent = pair.run({.parts = {pair.here(100, 5000)}});
  ck_assert_uint_eq(sent.syndrome, 0);
  ck_assert_uint_eq(sent.opcode, ERM_SEND);
  ck_assert_uint_eq(sent.queue, ERM_OF_SENDS);
  ck_assert_uint_eq(sent.index, 0);
  ck_assert_uint_eq(sent.qpn, 7);
  const Completion received = pair.received();
  ck_assert_uint_eq(received.syndrome, 0);
  ck_assert_uint_eq(received.opcode, ERM_RECEIVED);
  ck_assert_uint_eq(received.queue, ERM_OF_RECEIVES);
  ck_assert_uint_eq(received.size, 5000);
  ck_assert(pair.region[1]->memory.holds(4000, 5000, 1));
  ck_assert_uint_eq(pair.region[1]->memory[9000], 0);
  ck_assert_uint_eq(pair.region[1]->memory[3999], 0);
}

TEST(send_has_up_to_six_parts) {
  Pair pair;
  Send send;
  for (unsigned i = 0; i < 6; ++i) {
    pair.region[0]->memory.fill(i * 9000, 1000, i);
    send.parts.push_back(pair.here(i * 9000, 1000));
  }
  pair.qp[1]->receive(pair.there(0, 6000));
  ck_assert_uint_eq(pair.run(send).syndrome, 0);
  for (unsigned i = 0; i < 6; ++i) ck_assert(pair.region[1]->memory.holds(i * 1000, 1000, i));
  send.opcode = ERM_WRITE;
  send.remote = pair.there(20000, 6000);
  ck_assert_uint_eq(pair.run(send).syndrome, 0);
  for (unsigned i = 0; i < 6; ++i)
    ck_assert(pair.region[1]->memory.holds(20000 + i * 1000, 1000, i));
}

TEST(inline_bytes_come_from_the_request, 0, 97) {
  Pair pair;
  Send send{.is_inline = true};
  for (int i = 0; i < _i; ++i) send.bytes.push_back(Pages::byte(9, uint64_t(i)));
  send.opcode = ERM_WRITE;
  send.remote = pair.there(50, send.bytes.size());
  ck_assert_uint_eq(pair.run(send).syndrome, 0);
  ck_assert(pair.region[1]->memory.holds(50, send.bytes.size(), 9));
  ck_assert_uint_eq(pair.region[1]->memory[50 + send.bytes.size()], 0);
  pair.qp[1]->receive(pair.there(200, 100));
  send.opcode = ERM_SEND;
  ck_assert_uint_eq(pair.run(send).syndrome, 0);
  ck_assert(pair.region[1]->memory.holds(200, send.bytes.size(), 9));
  ck_assert_uint_eq(pair.received().size, send.bytes.size());
}

TEST(requests_go_round_the_queue) {
  Pair pair;
  Send send{.opcode = ERM_WRITE, .is_inline = true};
  for (unsigned i = 0; i < 500; ++i) {
    send.bytes.resize(1 + i % 90);
    send.bytes.back() = uint8_t(i);
    send.remote = pair.there(i, send.bytes.size());
    const uint16_t expected = pair.qp[0]->sq_pi;
    ck_assert_uint_eq(pair.run(send).index, expected);
    ck_assert_uint_eq(pair.region[1]->memory[i + send.bytes.size() - 1], uint8_t(i));
  }
}

TEST(read_brings_what_is_there) {
  Pair pair;
  pair.region[1]->memory.fill(3, 30000, 4);
  const Completion done = pair.run(
      {.opcode = ERM_READ, .parts = {pair.here(5000, 30000)}, .remote = pair.there(3, 30000)});
  ck_assert_uint_eq(done.syndrome, 0);
  ck_assert_uint_eq(done.opcode, ERM_READ);
  ck_assert(pair.region[0]->memory.holds(5000, 30000, 4));
  ck_assert(!pair.receives[1]->poll());
}

TEST(immediate_data_has_the_order_that_liberdma_expects) {
  Pair pair;
  pair.qp[1]->receive(pair.there(0, 64));
  pair.qp[1]->receive(pair.there(0, 64));
  Send send{.opcode = ERM_SEND_IMM, .parts = {pair.here(0, 8)}, .data = 0x78563412};
  ck_assert_uint_eq(pair.run(send).syndrome, 0);
  Completion received = pair.received();
  ck_assert_uint_eq(received.opcode, ERM_RECEIVED_SEND_IMM);
  ck_assert_uint_eq(received.data, 0x12345678);
  send.opcode = ERM_WRITE_IMM;
  send.remote = pair.there(1000, 8);
  pair.region[0]->memory.fill(0, 8, 3);
  ck_assert_uint_eq(pair.run(send).syndrome, 0);
  received = pair.received();
  ck_assert_uint_eq(received.opcode, ERM_RECEIVED_WRITE_IMM);
  ck_assert_uint_eq(received.data, 0x12345678);
  ck_assert_uint_eq(received.size, 8);
  ck_assert_uint_eq(received.index, 1);
  ck_assert(pair.region[1]->memory.holds(1000, 8, 3));
}

TEST(empty_requests_need_no_memory) {
  Pair pair;
  pair.qp[1]->receive({});
  ck_assert_uint_eq(pair.run({}).syndrome, 0);
  ck_assert_uint_eq(pair.received().size, 0);
  ck_assert_uint_eq(pair.run({.opcode = ERM_WRITE}).syndrome, 0);
  ck_assert_uint_eq(pair.run({.opcode = ERM_READ, .parts = {erm_sge{}}}).syndrome, 0);
}

TEST(send_that_invalidates_takes_the_key) {
  Pair pair;
  Region other(*pair.drivers[1], 40, 4096);
  pair.qp[1]->receive(pair.there(0, 8));
  ck_assert_uint_eq(pair.run({.opcode = ERM_SEND_INVALIDATE, .data = other.key}).syndrome, 0);
  const Completion received = pair.received();
  ck_assert_uint_eq(received.opcode, ERM_RECEIVED_INVALIDATE);
  ck_assert_uint_eq(__builtin_bswap32(received.data), other.key);
  ck_assert_uint_eq(
      pair.run({.opcode = ERM_WRITE, .parts = {pair.here(0, 8)}, .remote = other.sge(0, 8)})
          .syndrome,
      ERM_REMOTE_KEY);
}

TEST(unsignalled_requests_have_no_completion) {
  Pair pair;
  Send send{.opcode = ERM_WRITE, .parts = {pair.here(0, 8)}, .remote = pair.there(0, 8)};
  send.signalled = false;
  for (int i = 0; i < 5; ++i) pair.qp[0]->post(send);
  send.signalled = true;
  const uint16_t last = pair.qp[0]->sq_pi;
  ck_assert_uint_eq(pair.run(send).index, last);
  ck_assert(!pair.sends[0]->poll());
}

TEST(long_transfers_let_others_go_on) {
  Pair pair;
  Region from(*pair.drivers[0], 50, 1 << 20), to(*pair.drivers[1], 50, 1 << 20);
  Cq cq(*pair.drivers[0], 20), far(*pair.drivers[1], 20);
  Qp second(*pair.drivers[0], 21, cq, cq), peer(*pair.drivers[1], 21, far, far);
  second.connect(peer);
  from.memory.fill(0, 1 << 20, 6);
  pair.qp[0]->post(
      {.opcode = ERM_WRITE, .parts = {from.sge(0, 1 << 20)}, .remote = to.sge(0, 1 << 20)});
  second.post({.opcode = ERM_WRITE, .parts = {from.sge(0, 8)}, .remote = to.sge(0, 8)});
  for (int i = 0; i < 3; ++i) erm_step(pair.drivers[0]->device);
  ck_assert(cq.poll());
  ck_assert(!pair.sends[0]->poll());
  pair.settle();
  ck_assert(pair.sends[0]->poll());
  ck_assert(to.memory.holds(0, 1 << 20, 6));
}

TEST(both_ends_may_be_on_one_device) {
  World world;
  world.start();
  Driver& driver = *world.drivers[0];
  Cq cq(driver, 1), far(driver, 2);
  Qp a(driver, 1, cq, cq), b(driver, 2, far, far);
  Region region(driver, 1, 8192);
  a.connect(b);
  region.memory.fill(0, 100, 5);
  b.receive(region.sge(4000, 100));
  a.post({.parts = {region.sge(0, 100)}});
  world.settle();
  ck_assert_uint_eq(cq.poll()->syndrome, 0);
  ck_assert_uint_eq(far.poll()->size, 100);
  ck_assert(region.memory.holds(4000, 100, 5));
}

TEST(requests_wait_for_the_peer_to_be_connected) {
  World world;
  world.start();
  Cq near(*world.drivers[0], 1), far(*world.drivers[1], 1);
  Qp a(*world.drivers[0], 1, near, near), b(*world.drivers[1], 1, far, far);
  Region region(*world.drivers[0], 1, 4096), there(*world.drivers[1], 1, 4096);
  ck_assert_uint_eq(a.modify(ERM_RTS, b.cookie), 0);
  a.post({.opcode = ERM_WRITE, .parts = {region.sge(0, 8)}, .remote = there.sge(0, 8)});
  world.settle();
  ck_assert(!near.poll());
  ck_assert_uint_eq(b.modify(ERM_RTS, a.cookie), 0);
  world.settle();
  ck_assert_uint_eq(near.poll()->syndrome, 0);
}

TEST(each_end_names_the_other) {
  World world;
  world.start();
  Cq near(*world.drivers[0], 1), far(*world.drivers[1], 1);
  Qp a(*world.drivers[0], 1, near, near), b(*world.drivers[1], 1, far, far);
  a.modify(ERM_RTS, b.cookie + 1);
  b.modify(ERM_RTS, a.cookie);
  a.post({.opcode = ERM_WRITE});
  b.post({.opcode = ERM_WRITE});
  world.settle();
  ck_assert(!near.poll() && !far.poll());
}

TEST(a_qp_that_begins_anew_is_not_the_peer_of_the_old_one) {
  Pair pair;
  pair.qp[0]->modify(ERM_CLOSING);
  pair.qp[0]->modify(ERM_IDLE);
  ck_assert_uint_eq(pair.qp[0]->modify(ERM_RTS, pair.qp[1]->cookie), 0);
  pair.qp[0]->post({.opcode = ERM_WRITE});
  pair.settle();
  ck_assert(!pair.sends[0]->poll());  // the QP waits for a new peer
  pair.qp[1]->post({.opcode = ERM_WRITE});
  pair.settle();
  ck_assert_uint_eq(pair.sends[1]->poll()->syndrome, ERM_RETRIES_EXCEEDED);
}

TEST(a_record_that_an_earlier_qp_left_means_nothing) {
  Pair pair;
  Qp& qp = *pair.qp[0];
  qp.write({.opcode = ERM_WRITE});
  *pair.memory.at<uint64_t>(qp.sq_record) = ERM_PUT(ERM_SQ_DOORBELL_QPN, 99) | qp.sq_pi;
  pair.settle();
  ck_assert(!pair.sends[0]->poll());
  qp.ring_doorbell();
  pair.settle();
  ck_assert(pair.sends[0]->poll());
}

TEST(completions_go_round_the_queue) {
  Pair pair;
  const Send send{.opcode = ERM_WRITE, .parts = {pair.here(0, 8)}, .remote = pair.there(0, 8)};
  for (uint32_t i = 0; i < 3 * pair.sends[0]->depth; ++i) {
    ck_assert_uint_eq(pair.run(send).syndrome, 0);
    ck_assert(!pair.sends[0]->poll());
  }
}

TEST(each_arming_has_one_event) {
  Pair pair;
  const Send send{.opcode = ERM_WRITE, .parts = {pair.here(0, 8)}, .remote = pair.there(0, 8)};
  Cq& cq = *pair.sends[0];
  pair.run(send);
  ck_assert_uint_eq(cq.take_events(), 0);
  cq.arm();
  pair.settle();
  ck_assert_uint_eq(cq.take_events(), 0);
  const unsigned before = pair.drivers[0]->raised(1);
  for (int i = 0; i < 3; ++i) pair.run(send);
  ck_assert_uint_eq(cq.take_events(), 1);
  ck_assert_uint_eq(pair.drivers[0]->raised(1), before + 1);
  // An event about an earlier completion comes at once.
  pair.qp[0]->post(send);
  pair.settle();
  cq.arm();
  pair.settle();
  ck_assert_uint_eq(cq.take_events(), 1);
}

TEST(solicited_arming_waits_for_such_a_message_or_an_error) {
  Pair pair;
  Cq& cq = *pair.receives[1];
  for (int i = 0; i < 3; ++i) pair.qp[1]->receive(pair.there(0, 8));
  Send send{.parts = {pair.here(0, 8)}};
  cq.arm(true);
  pair.run(send);
  ck_assert_uint_eq(cq.take_events(), 0);
  send.solicited = true;
  pair.run(send);
  ck_assert_uint_eq(cq.take_events(), 1);
  ck_assert(cq.poll() && cq.poll());
  cq.arm(true);
  pair.settle();
  ck_assert_uint_eq(cq.take_events(), 0);
  pair.qp[1]->modify(ERM_ERROR);
  pair.settle();
  ck_assert_uint_eq(cq.take_events(), 1);
}

TEST(a_record_of_another_cq_means_nothing) {
  Pair pair;
  Cq& cq = *pair.sends[0];
  cq.cqn += 1;
  cq.arm();
  cq.cqn -= 1;
  pair.run({.opcode = ERM_WRITE});
  ck_assert_uint_eq(cq.take_events(), 0);
}

TEST(regions_may_have_large_pages) {
  Pair pair;
  const uint64_t pages[2] = {pair.memory.allocate(1 << 16), pair.memory.allocate(1 << 16)};
  Region region(*pair.drivers[1], 70, 0x100);
  region.deregister();
  region.request.start = region.start = 0x7f0000000000 + 0xf000;
  region.request.size = 0x3000;
  region.request.place =
      static_cast<uint32_t>(ERM_PUT(ERM_MR_PAGE_SHIFT, 16) | ERM_PUT(ERM_MR_PAGES, 2));
  std::copy(pages, pages + 2, region.request.pages);
  ck_assert_uint_eq(pair.drivers[1]->ask(ERM_REGISTER, region.request).syndrome, 0);
  pair.region[0]->memory.fill(0, 0x3000, 8);
  ck_assert_uint_eq(pair.run({.opcode = ERM_WRITE,
                              .parts = {pair.here(0, 0x3000)},
                              .remote = region.sge(0, 0x3000)})
                        .syndrome,
                    0);
  ck_assert_uint_eq(*pair.memory.at<uint8_t>(pages[0] + 0xf000), Pages::byte(8, 0));
  ck_assert_uint_eq(*pair.memory.at<uint8_t>(pages[1] + 0x1fff), Pages::byte(8, 0x2fff));
}

/// The driver's own queues have one page, named inline, of the size that the request gives.
TEST(queues_of_the_kernel_lie_in_one_piece) {
  Pair pair;
  Driver& driver = *pair.drivers[0];
  Cq cq(driver, 80, 7);
  Qp qp(driver, 81, cq, cq), other(driver, 82, cq, cq);
  qp.destroy();
  const uint64_t piece = pair.memory.allocate(1 << 16);
  qp.request.sq_place |= static_cast<uint32_t>(ERM_PUT(ERM_QP_PAGE_SHIFT, 4));
  qp.request.sq_ring = piece;
  qp.request.sq_pages = static_cast<uint32_t>(0x3000 | ERM_PUT(ERM_QP_PAGES, 1));
  const Answer answer = driver.ask(ERM_CREATE_QP, qp.request);
  ck_assert_uint_eq(answer.syndrome, 0);
  qp.cookie = static_cast<uint32_t>(answer.first);
  qp.connect(other);
  qp.sq.pages[0] = piece + 0x3000;
  qp.post({.opcode = ERM_WRITE});
  pair.settle();
  ck_assert_uint_eq(cq.poll()->syndrome, 0);
}

TEST(cqs_of_the_kernel_lie_in_one_piece) {
  Pair pair;
  Driver& driver = *pair.drivers[0];
  Cq cq(driver, 80);  // a queue of two pages
  driver.ask(ERM_DESTROY_CQ, erm_destroy_queue{0, 80});
  const uint64_t piece = pair.memory.allocate(2 * kPage);
  cq.ring.pages = {piece, piece + kPage};
  cq.request.shape |= static_cast<uint32_t>(ERM_PUT(ERM_CQ_PAGE_SHIFT, 13));
  cq.request.place = static_cast<uint32_t>(ERM_PUT(ERM_CQ_PAGES, 1) | ERM_PUT(ERM_CQ_EQN, 1));
  cq.request.ring_low = static_cast<uint32_t>(piece);
  cq.request.ring_high = static_cast<uint32_t>(piece >> 32);
  ck_assert_uint_eq(driver.ask(ERM_CREATE_CQ, cq.request).syndrome, 0);
  Qp qp(driver, 81, cq, cq), other(driver, 82, cq, cq);
  qp.connect(other);
  for (uint32_t i = 0; i < cq.depth; ++i) {
    qp.post({.opcode = ERM_WRITE});
    pair.settle();
    const auto done = cq.poll();
    ck_assert(done && done->syndrome == 0);
  }
}

TEST(memory_of_the_kernel_is_named_by_its_address) {
  Pair pair;
  const uint64_t address = pair.memory.allocate(3 * kPage);
  erm_register_mr all = {};
  all.name = static_cast<uint32_t>(ERM_MR_VALID | 60);
  all.rights = static_cast<uint32_t>(ERM_PUT(ERM_MR_PD, kPd) | ERM_PUT(ERM_MR_TYPE, ERM_MR_DMA) |
                                     ERM_PUT(ERM_MR_RIGHTS, kAllRights));
  ck_assert_uint_eq(pair.drivers[1]->ask(ERM_REGISTER, all).syndrome, 0);
  pair.region[0]->memory.fill(0, 9000, 2);
  Send send{
      .opcode = ERM_WRITE, .parts = {pair.here(0, 9000)}, .remote = {address + 100, 9000, 60 << 8}};
  ck_assert_uint_eq(pair.run(send).syndrome, 0);
  for (unsigned i = 0; i < 9000; ++i)
    ck_assert_uint_eq(*pair.memory.at<uint8_t>(address + 100 + i), Pages::byte(2, i));
  send.remote.address = 64;  // no memory is there
  ck_assert_uint_eq(pair.run(send).syndrome, ERM_GENERAL);
}
