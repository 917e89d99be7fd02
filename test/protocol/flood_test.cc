#include <vector>

#include "libcheck.h"
#include "protocol/pair.h"

/// Tests that peers that send more than is received use only a bounded amount of memory.
namespace {

using namespace erdma::test;
namespace wire = erdma::protocol::wire;

wire::MessageHeader header_of(wire::Op op, uint32_t index, uint64_t length) {
  return {op, wire::kTagged, 1, index, index, 0, length};
}

void flood_eager(Pair& pair, uint32_t from, uint32_t to, size_t length) {
  const std::vector<char> payload(length, 'x');
  for (uint32_t i = from; i < to; ++i) {
    const wire::MessageHeader header = header_of(wire::Op::eager, i, length);
    pair.b_to_a().inject(&header, sizeof(header), payload.data(), length);
  }
}

TEST(a_flood_of_rendezvous_requests_ends_the_link) {
  Pair pair;
  // The peer sends twice as many as an honest peer can have.
  for (uint32_t i = 0; i < 131'072; ++i) {
    const wire::MessageHeader header = header_of(wire::Op::rts, i, 1 << 20);
    pair.b_to_a().inject(&header, sizeof(header), nullptr, 0);
  }
  pair.b.engine.progress();
  ck_assert_int_eq(pair.b_to_a().failed, 0);
  const wire::MessageHeader header = header_of(wire::Op::rts, 0, 1 << 20);
  pair.b_to_a().inject(&header, sizeof(header), nullptr, 0);
  pair.b.engine.progress();
  ck_assert_int_eq(pair.b_to_a().failed, 0);  // the link was reported down already
  ck_assert(pair.b_to_a().inbound.empty());
  pair.b_to_a().inject(&header, sizeof(header), nullptr, 0);
  pair.b_to_a().inject(&header, sizeof(header), nullptr, 0);
  pair.b.engine.progress();
  ck_assert_uint_eq(pair.b_to_a().ended, 2);  // the headers remain, so the link ends again
  pair.end_work();
}

/// Otherwise a sender in a loop would take in messages faster than its application receives them.
TEST(sends_take_nothing_in_while_there_is_news_to_read) {
  constexpr uint32_t kLooks = 64, kLooksAnyway = 1024;  // most sends until one makes progress
  Pair pair;
  const char byte = 0;
  must(pair.b.send(0, &byte, 1, 0));
  flood_eager(pair, 0, 1, 8);
  ck_assert_int_gt(pair.b.engine.progress(), 0);
  flood_eager(pair, 1, 2, 8);
  for (uint32_t i = 0; i < 4 * kLooks; ++i) must(pair.b.send(0, &byte, 1, 0));
  ck_assert_uint_eq(pair.b_to_a().inbound.size(), 1);
  for (uint32_t i = 0; i < kLooksAnyway; ++i) must(pair.b.send(0, &byte, 1, 0));
  ck_assert(pair.b_to_a().inbound.empty());
  while (pair.b.engine.progress() > 0) {
  }
  flood_eager(pair, 2, 3, 8);
  for (uint32_t i = 0; i < kLooks; ++i) must(pair.b.send(0, &byte, 1, 0));
  ck_assert(pair.b_to_a().inbound.empty());
  pair.end_work();
}

TEST(a_peer_that_does_not_hold_back_loses_its_link) {
  Pair pair;
  flood_eager(pair, 0, 20'000, 1024);  // 20 MiB; b tells the peer at the first one
  pair.b.engine.progress();
  ck_assert_uint_eq(pair.b_to_a().ended, 1);
  ck_assert(pair.b_to_a().inbound.empty());
  pair.end_work();
}

TEST(a_peer_that_cannot_know_of_the_budget_waits_and_loses_nothing) {
  Pair pair;
  pair.b.transport.behaviour.room = 0;
  flood_eager(pair, 0, 12'000, 1024);
  pair.b.engine.progress();
  ck_assert(pair.b_to_a().held);
  ck_assert(!pair.b_to_a().inbound.empty());
  pair.b.transport.behaviour.room = SIZE_MAX;
  while (!pair.b_to_a().inbound.empty()) pair.b.engine.progress();
  ck_assert(!pair.b_to_a().held);
  ck_assert_uint_eq(pair.b_to_a().ended, 0);
  char bytes[1024];
  for (uint32_t i = 0; i < 12'000; ++i) {
    must(pair.b.receive(bytes, sizeof(bytes), i));
    ck_assert_int_eq(pair.b.received.take().error, 0);
  }
}

constexpr size_t kLength = 1024;
constexpr size_t kOvershoot = size_t{8} << 20;

/// Returns a budget that `messages` messages exceed by `beyond` bytes.
erdma::protocol::EngineConfig budget_for(size_t messages, size_t beyond) {
  erdma::protocol::EngineConfig config = erdma::test::kConfig;
  config.unexpected_bytes = messages * (sizeof(erdma::protocol::Unexpected) + kLength) - beyond;
  return config;
}

TEST(a_peer_that_cannot_know_of_the_budget_is_held_beyond_eight_megabytes) {
  Pair pair(budget_for(12'000, kOvershoot));
  pair.b.transport.behaviour.room = 0;
  flood_eager(pair, 0, 12'000, kLength);
  pair.b.engine.progress();
  ck_assert(!pair.b_to_a().held);
  flood_eager(pair, 12'000, 12'001, kLength);
  pair.b.engine.progress();
  ck_assert(pair.b_to_a().held);
  pair.end_work();
}

TEST(a_peer_that_nothing_can_hold_loses_its_link_beyond_sixteen_megabytes) {
  Pair pair(budget_for(20'000, 2 * kOvershoot));
  pair.b.transport.behaviour.room = 0;
  pair.b.transport.behaviour.holds = false;
  flood_eager(pair, 0, 20'000, kLength);
  pair.b.engine.progress();
  ck_assert_uint_eq(pair.b_to_a().ended, 0);
  flood_eager(pair, 20'000, 20'001, kLength);
  pair.b.engine.progress();
  ck_assert_uint_eq(pair.b_to_a().ended, 1);
  pair.end_work();
}

/// If each new connection left one message more, there would be no bound.
TEST(a_peer_that_connects_again_leaves_no_more_messages, 2) {
  Pair pair(budget_for(20'000, 2 * kOvershoot));
  pair.b.transport.behaviour.room = 0;
  pair.b.transport.behaviour.holds = false;
  flood_eager(pair, 0, 20'001, kLength);
  pair.b.engine.progress();
  ck_assert_uint_eq(pair.b_to_a().ended, 1);
  const size_t kept = pair.b.engine.peers().at(0)->unexpected_bytes;
  const wire::MessageHeader rts = header_of(wire::Op::rts, 0, 1 << 20);
  for (uint32_t i = 0; i < 3; ++i) {
    if (_i == 0)
      flood_eager(pair, 20'001 + i, 20'002 + i, kLength);
    else
      pair.b_to_a().inject(&rts, sizeof(rts), nullptr, 0);
    pair.b.engine.progress();
    ck_assert_uint_eq(pair.b_to_a().ended, 2 + i);
  }
  ck_assert_uint_eq(pair.b.engine.peers().at(0)->unexpected_bytes, kept);
  pair.end_work();
}

/// The link of a NIC cannot hold a peer back.
TEST(a_peer_that_nothing_can_hold_loses_its_link_before_it_takes_more_than_a_bound) {
  Pair pair;
  pair.b.transport.behaviour.room = 0;
  pair.b.transport.behaviour.holds = false;
  flood_eager(pair, 0, 10'000, 1024);  // an honest peer may have as much under way
  pair.b.engine.progress();
  ck_assert_uint_eq(pair.b_to_a().ended, 0);
  flood_eager(pair, 10'000, 20'000, 1024);
  pair.b.engine.progress();
  ck_assert_uint_eq(pair.b_to_a().ended, 1);
  ck_assert(pair.b_to_a().inbound.empty());
  pair.end_work();
}

TEST(a_held_peer_goes_on_when_its_messages_are_received) {
  Pair pair;
  pair.b.transport.behaviour.room = 0;
  flood_eager(pair, 0, 12'000, 1024);
  pair.b.engine.progress();
  ck_assert(pair.b_to_a().held);
  char bytes[1024];
  for (uint32_t i = 0; i < 12'000; ++i) {
    must(pair.b.receive(bytes, sizeof(bytes), i));
    pair.b.engine.progress();
    ck_assert_int_eq(pair.b.received.take().error, 0);
  }
  ck_assert(!pair.b_to_a().held);
  pair.end_work();
}

}  // namespace
