// Tests the command queue: the driver's calls at its start, and each command.
#include "vm/erdma/pair.h"

using namespace ermodel::test;

namespace {

struct One : World {
  explicit One(const std::function<void(erm_config&)>& with = {}) {
    if (with) with(config);
    start();
  }
  Driver& driver() { return *drivers[0]; }
};

}  // namespace

TEST(start_waits_for_the_registers) {
  World world;
  world.network.reset(erm_network_create());
  Driver driver(world.network.get(), world.memory, world.config, 10);
  ck_assert_uint_eq(driver.slot.bar_at<uint32_t>(ERM_VERSION), 1);
  ck_assert_uint_eq(driver.slot.bar_at<uint32_t>(ERM_MAC_LOW), 0x00ed000a);
  ck_assert_uint_eq(driver.slot.bar_at<uint32_t>(ERM_MAC_HIGH), 0x5254);
  ck_assert(!erm_step(driver.device));
  ck_assert(!driver.started());
  driver.write_registers();
  ck_assert(erm_step(driver.device));
  ck_assert(driver.started());
}

TEST(start_needs_depths_that_are_powers_and_memory) {
  World world;
  world.network.reset(erm_network_create());
  Driver driver(world.network.get(), world.memory, world.config, 10);
  driver.write_registers(192);
  erm_step(driver.device);
  ck_assert(!driver.started());
  driver.write_registers();
  world.memory.release(driver.results);
  erm_step(driver.device);
  ck_assert(!driver.started());
  driver.write_registers();
  erm_step(driver.device);
  ck_assert(driver.started());
}

TEST(a_third_device_has_no_place) {
  One one;
  const uint8_t mac[6] = {};
  ck_assert_ptr_null(erm_create(one.network.get(), &kHooks, &one.driver().slot, &one.config, mac));
}

TEST(device_tells_its_limits) {
  One one([](erm_config& config) {
    config.qblocks = 2;
    config.log_largest_mr = 33;
  });
  const Answer limits = one.driver().ask(ERM_QUERY_DEVICE);
  ck_assert_uint_eq(limits.syndrome, 0);
  ck_assert_uint_eq(ERM_GET(ERM_LOG_MOST_CQES, limits.first), 20);
  ck_assert_uint_eq(ERM_GET(ERM_LOG_MOST_RECEIVES, limits.first), 15);
  ck_assert_uint_eq(ERM_GET(ERM_LOG_LARGEST_MR, limits.first), 33);
  ck_assert_uint_eq(ERM_GET(ERM_QP_BLOCKS, limits.second), 2);
  ck_assert_uint_ne(one.driver().ask(ERM_QUERY_FIRMWARE).first, 0);
  ck_assert_uint_eq(one.driver().ask(ERM_SET_MTU, erm_set_mtu{0, 1024}).syndrome, 0);
}

TEST(results_go_round_the_queue) {
  One one;
  for (uint32_t i = 0; i < 3 * kCommandDepth; ++i)
    ck_assert_uint_eq(one.driver().ask(ERM_QUERY_FIRMWARE).syndrome, 0);
}

TEST(unknown_commands_are_refused) {
  One one;
  ck_assert_uint_ne(one.driver().ask(0x0ff).syndrome, 0);
  ck_assert_uint_ne(one.driver().ask(0x1ff).syndrome, 0);
  ck_assert_uint_ne(one.driver().ask(0x200).syndrome, 0);
  ck_assert_uint_eq(one.driver().slot.said.size(), 3);
}

TEST(many_commands_wait_at_a_time) {
  One one;
  const uint64_t request = 0;
  for (int i = 0; i < 100; ++i) one.driver().push(&request, 8, ERM_QUERY_FIRMWARE);
  one.settle();
  Answer answer;
  for (int i = 0; i < 100; ++i) ck_assert(one.driver().take(&answer));
  ck_assert(!one.driver().take(&answer));
}

TEST(each_arming_of_the_results_has_one_event_and_one_interrupt) {
  One one;
  Driver& driver = one.driver();
  const auto arm = [&driver](uint64_t count) {
    driver.slot.bar_at<uint64_t>(ERM_RESULT_DOORBELL) =
        driver.result_ci | ERM_CQ_DOORBELL_ARMED | ERM_PUT(ERM_CQ_DOORBELL_COUNT, count);
  };
  arm(0);
  one.settle();
  ck_assert_uint_eq(driver.raised(0), 0);
  for (int i = 0; i < 3; ++i) driver.ask(ERM_QUERY_FIRMWARE);
  one.settle();
  ck_assert_uint_eq(driver.raised(0), 1);
  ck_assert_uint_eq(driver.command_eq.take(one.memory).size(), 1);
  driver.command_eq.arm(driver.slot);
  one.settle();
  ck_assert_uint_eq(driver.raised(0), 1);
  // If the driver has not seen all results when it arms the queue, the event comes at once.
  driver.result_ci -= 1;
  arm(1);
  one.settle();
  ck_assert_uint_eq(driver.raised(0), 2);
}

TEST(commands_take_their_time) {
  One one([](erm_config& config) { config.command_us = 500; });
  const uint64_t request = 0;
  Answer answer;
  for (int i = 0; i < 2; ++i) one.driver().push(&request, 8, ERM_QUERY_FIRMWARE);
  one.settle();
  ck_assert(!one.driver().take(&answer));
  one.pass(499);
  one.settle();
  ck_assert(!one.driver().take(&answer));
  one.pass(1);
  one.settle();
  ck_assert(one.driver().take(&answer));
  ck_assert(!one.driver().take(&answer));
  one.pass(500);
  one.settle();
  ck_assert(one.driver().take(&answer));
}

TEST(eqs_are_as_many_as_vectors) {
  One one([](erm_config& config) { config.vectors = 4; });
  ck_assert_uint_ne(one.driver().create_eq(0), 0);
  ck_assert_uint_ne(one.driver().create_eq(1), 0);  // the queue exists already
  ck_assert_uint_eq(one.driver().create_eq(2), 0);
  ck_assert_uint_eq(one.driver().create_eq(3), 0);
  ck_assert_uint_ne(one.driver().create_eq(4), 0);
  const erm_destroy_eq end{0, 0, 3, 3, 0, 1};
  ck_assert_uint_eq(one.driver().ask(ERM_DESTROY_EQ, end).syndrome, 0);
  ck_assert_uint_ne(one.driver().ask(ERM_DESTROY_EQ, end).syndrome, 0);
}

TEST(cqs_need_an_eq_a_number_and_memory) {
  One one;
  Driver& driver = one.driver();
  ck_assert_uint_eq(Cq(driver, 1).syndrome, 0);
  ck_assert_uint_ne(Cq(driver, 1).syndrome, 0);
  ck_assert_uint_ne(Cq(driver, 2, 8, 0).syndrome, 0);
  ck_assert_uint_ne(Cq(driver, 2, 8, 9).syndrome, 0);
  ck_assert_uint_ne(Cq(driver, 2, 8, ERM_MAX_VECTORS).syndrome, 0);
  ck_assert_uint_ne(Cq(driver, 2 * ERM_QPS_PER_BLOCK).syndrome, 0);
  Cq cq(driver, 3);
  cq.request.record = 64;
  cq.request.shape += 1;
  ck_assert_uint_ne(driver.ask(ERM_CREATE_CQ, cq.request).syndrome, 0);
  cq.request.record = cq.record;
  ck_assert_uint_eq(driver.ask(ERM_CREATE_CQ, cq.request).syndrome, 0);
  ck_assert_uint_eq(driver.ask(ERM_DESTROY_CQ, erm_destroy_queue{0, 3}).syndrome, 0);
  ck_assert_uint_ne(driver.ask(ERM_DESTROY_CQ, erm_destroy_queue{0, 3}).syndrome, 0);
  ck_assert_uint_ne(driver.ask(ERM_DESTROY_CQ, erm_destroy_queue{0, ~0u}).syndrome, 0);
}

TEST(cqs_have_a_greatest_depth) {
  One one([](erm_config& config) { config.log_most_cqes = 7; });
  ck_assert_uint_eq(Cq(one.driver(), 1, 7).syndrome, 0);
  ck_assert_uint_ne(Cq(one.driver(), 2, 8).syndrome, 0);
}

TEST(indices_of_qps_have_16_bits) {
  One one;
  Driver& driver = one.driver();
  Cq cq(driver, 1);
  Qp qp(driver, 4, cq, cq);
  qp.destroy();
  for (uint32_t depth : {16u, 15u}) {
    qp.request.sq_shape = static_cast<uint32_t>(ERM_PUT(ERM_QP_LOG_DEPTH, depth) | 4);
    ck_assert(!driver.ask(ERM_CREATE_QP, qp.request).syndrome == (depth == 15));
  }
}

TEST(qps_need_their_cqs_and_a_number) {
  One one;
  Driver& driver = one.driver();
  Cq cq(driver, 1), absent(driver, 1);
  absent.cqn = 9;
  Qp qp(driver, 4, cq, cq);
  ck_assert_uint_eq(qp.syndrome, 0);
  ck_assert_uint_ne(qp.cookie, 0);
  ck_assert_uint_ne(Qp(driver, 4, cq, cq).syndrome, 0);
  ck_assert_uint_ne(Qp(driver, 5, cq, absent).syndrome, 0);
  ck_assert_uint_ne(Qp(driver, 5, absent, cq).syndrome, 0);
  ck_assert_uint_ne(Qp(driver, ERM_QPS_PER_BLOCK, cq, cq).syndrome, 0);
  Qp other(driver, 5, cq, cq);
  ck_assert_uint_eq(other.syndrome, 0);
  ck_assert_uint_ne(other.cookie, qp.cookie);
  ck_assert_uint_eq(qp.destroy(), 0);
  ck_assert_uint_ne(qp.destroy(), 0);
  ck_assert_uint_ne(qp.modify(ERM_ERROR), 0);
}

TEST(a_qp_is_connected_once_and_has_known_states) {
  Pair pair;
  ck_assert_uint_ne(pair.qp[0]->modify(ERM_RTS, pair.qp[1]->cookie), 0);
  ck_assert_uint_ne(pair.qp[0]->modify(ERM_ERROR + 1), 0);
  ck_assert_uint_eq(pair.qp[0]->modify(ERM_CLOSING), 0);
  ck_assert_uint_ne(pair.qp[0]->modify(ERM_RTS, pair.qp[1]->cookie), 0);
}

TEST(regions_have_an_index_and_a_key) {
  One one;
  Region region(one.driver(), 8, 5000);
  ck_assert_uint_eq(region.syndrome, 0);
  ck_assert_uint_ne(Region(one.driver(), 8, 5000).syndrome, 0);
  ck_assert_uint_ne(Region(one.driver(), 2 * ERM_QPS_PER_BLOCK, 5000).syndrome, 0);
  const uint32_t name = region.request.name;
  region.request.name |= static_cast<uint32_t>(ERM_PUT(ERM_MR_KEY, 1));
  ck_assert_uint_ne(region.deregister(), 0);
  region.request.name = name;
  ck_assert_uint_eq(region.deregister(), 0);
  ck_assert_uint_ne(region.deregister(), 0);
  ck_assert_uint_eq(Region(one.driver(), 8, 5000).syndrome, 0);
}

TEST(regions_run_out) {
  One one([](erm_config& config) { config.max_mr = 3; });
  Region first(one.driver(), 1, 100);
  for (uint32_t i = 2; i <= 3; ++i) ck_assert_uint_eq(Region(one.driver(), i, 100).syndrome, 0);
  ck_assert_uint_ne(Region(one.driver(), 4, 100).syndrome, 0);
  ck_assert_uint_eq(first.deregister(), 0);
  ck_assert_uint_eq(Region(one.driver(), 4, 100).syndrome, 0);
}

TEST(a_region_that_is_not_valid_is_none) {
  One one([](erm_config& config) { config.max_mr = 1; });
  Region region(one.driver(), 1, 100);
  region.deregister();
  region.request.name &= static_cast<uint32_t>(~ERM_MR_VALID);
  ck_assert_uint_eq(one.driver().ask(ERM_REGISTER, region.request).syndrome, 0);
  ck_assert_uint_ne(region.deregister(), 0);
  ck_assert_uint_eq(Region(one.driver(), 2, 100).syndrome, 0);
}

TEST(regions_have_a_largest_size) {
  One one([](erm_config& config) { config.log_largest_mr = 16; });
  ck_assert_uint_eq(Region(one.driver(), 1, 1 << 16).syndrome, 0);
  ck_assert_uint_ne(Region(one.driver(), 2, (1 << 16) + 1).syndrome, 0);
}

/// Smaller pages are refused, as several of them could lie in one page of the host.
TEST(pages_of_regions_are_no_smaller_than_those_of_the_host) {
  One one;
  Region region(one.driver(), 1, 100);
  region.deregister();
  for (const uint32_t shift : {11u, 12u}) {
    region.request.place =
        static_cast<uint32_t>(ERM_PUT(ERM_MR_PAGE_SHIFT, shift) | ERM_PUT(ERM_MR_PAGES, 1));
    ck_assert(!one.driver().ask(ERM_REGISTER, region.request).syndrome == (shift == 12));
  }
}

TEST(reset_forgets_all_and_touches_nothing_more) {
  Pair pair;
  Driver& driver = *pair.drivers[0];
  pair.qp[0]->receive(pair.here(0, 8));
  driver.reset();
  pair.settle();
  ck_assert_uint_eq(driver.slot.bar_at<uint32_t>(ERM_STATUS), ERM_STATUS_RESET_DONE);
  // The driver frees its memory right after the reset.
  pair.memory.release(driver.commands);
  pair.memory.release(driver.aeq.ring);
  pair.memory.release(driver.ceqs[1].ring);
  pair.settle();
  ck_assert_uint_eq(driver.slot.bar_at<uint64_t>(ERM_COMMAND_DOORBELL), 0);
  driver.write_registers();
  pair.settle();
  ck_assert(driver.started());
  ck_assert_uint_eq(driver.create_eq(1), 0);
  ck_assert_uint_eq(Cq(driver, 5).syndrome, 0);
  ck_assert_uint_eq(Region(driver, 11, 100).syndrome, 0);
}

TEST(peer_of_a_reset_device_loses_its_connection) {
  Pair pair;
  pair.drivers[1]->reset();
  pair.settle();
  ck_assert_uint_eq(pair.run({.parts = {pair.here(0, 8)}}).syndrome, ERM_RETRIES_EXCEEDED);
}

TEST(an_impossible_index_ends_the_command_queue_until_reset) {
  One one;
  Driver& driver = one.driver();
  driver.slot.bar_at<uint64_t>(ERM_COMMAND_DOORBELL) = uint16_t(driver.command_pi + 1);
  *one.memory.at<uint64_t>(driver.commands + driver.command_pi * ERM_BLOCK) =
      ERM_PUT(ERM_COMMAND_BLOCKS, 1);
  one.settle();
  Answer answer;
  ck_assert(!driver.take(&answer));
  ck_assert_uint_eq(driver.slot.said.size(), 1);
  driver.slot.bar_at<uint64_t>(ERM_COMMAND_DOORBELL) = uint16_t(driver.command_pi + 2);
  one.settle();
  ck_assert(!driver.take(&answer));
  driver.reset();
  one.settle();
  driver.write_registers();
  one.settle();
  ck_assert_uint_eq(driver.ask(ERM_QUERY_FIRMWARE).syndrome, 0);
}
