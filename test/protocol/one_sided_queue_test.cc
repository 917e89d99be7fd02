#include <algorithm>

#include <rdma/fi_atomic.h>

#include "libcheck.h"
#include "protocol/one_sided_rig.h"

namespace {

using namespace erdma::test;
namespace wire = erdma::protocol::wire;

constexpr uint64_t kKey = OneSidedPair::kKey;

TEST(injected_write_frees_its_memory_at_once_and_is_pending_until_it_left, 2) {
  const size_t length = _i ? 4000 : 16;  // a packet holds it, or the target fetches it
  OneSidedPair pair;
  pair.a.transport.behaviour.room = 0;
  auto bytes = pattern(length);
  const auto original = bytes;
  const iovec iov{bytes.data(), length};
  const wire::Segment segment{uint64_t(pair.memory.data()), kKey, length};
  auto args = OneSidedNode::args(wire::Op::write, 1, &iov, 1, &segment, 1, nullptr);
  args.local.inject = true;
  args.local.report = false;
  must(pair.a.engine.post_one_sided(args));
  std::fill(bytes.begin(), bytes.end(), 'z');
  ck_assert(pair.a.engine.has_injected());
  pair.a.transport.behaviour.room = SIZE_MAX;
  pair.a.engine.progress();
  ck_assert_int_eq(pair.a.engine.has_injected(), _i);
  run_until_idle(pair);
  ck_assert(!pair.a.engine.has_injected());
  ck_assert_int_eq(pair.initiator.writes.take().report, false);
  ck_assert(std::equal(original.begin(), original.end(), pair.memory.begin()));
  pair.expect_silent();
}

/// The caller only posts, and never reads completions.
TEST(whoever_posts_sixty_four_operations_hears_of_its_peers) {
  OneSidedPair pair;
  int news = 7, heard = 0;
  must(pair.a.receive(&heard, sizeof(heard), 1, &g_one));
  must(pair.b.send(0, &news, sizeof(news), 1, &g_two));
  const auto write = [&] {
    must(pair.initiator.write(1, &news, sizeof(news), pair.memory.data(), kKey, &g_one));
  };
  for (int i = 1; i < 64; ++i) write();
  ck_assert(pair.a.received.entries.empty());
  write();
  ck_assert_uint_eq(pair.a.received.entries.size(), 1);
  ck_assert_int_eq(heard, news);
  run_until_idle(pair);
}

/// A link refuses so if it is not connected, or has no room for the packet with the key.
TEST(what_the_target_fetches_or_fills_waits_until_it_can_be_shared, 2) {
  OneSidedPair pair;
  auto bytes = pattern(4000);
  pair.a.transport.behaviour.share_refusal = -FI_EAGAIN;
  if (_i)
    must(pair.initiator.read(1, bytes.data(), bytes.size(), pair.memory.data(), kKey, &g_one));
  else
    must(pair.initiator.write(1, bytes.data(), bytes.size(), pair.memory.data(), kKey, &g_one));
  for (int i = 0; i < 100; ++i) pair.a.engine.progress(), pair.b.engine.progress();
  ck_assert_uint_eq(pair.a.transport.keys_made, 0);
  ck_assert_uint_eq(pair.a.transport.link(pair.b.transport.name).sent, 0);
  pair.a.transport.behaviour.share_refusal = 0;
  run_until_idle(pair);
  ck_assert_uint_eq(pair.a.transport.keys_made, 1);
  expect_done(_i ? pair.initiator.reads : pair.initiator.writes,
              FI_RMA | (_i ? FI_READ : FI_WRITE));
  ck_assert(std::equal(bytes.begin(), bytes.end(), pair.memory.begin()));
  pair.expect_silent();
}

/// An endpoint that closes waits only for writes that leave in one packet.
TEST(write_that_waits_for_its_link_is_known_if_it_is_one_packet, 2) {
  const size_t length = _i ? 4000 : 16;
  OneSidedPair pair;
  pair.a.transport.behaviour.room = 0;
  const auto bytes = pattern(length);
  const iovec iov{const_cast<char*>(bytes.data()), length};
  const wire::Segment segment{uint64_t(pair.memory.data()), kKey, length};
  must(pair.a.engine.post_one_sided(
      OneSidedNode::args(wire::Op::write, 1, &iov, 1, &segment, 1, &g_one)));
  ck_assert_int_eq(pair.a.engine.has_packets(), !_i);
  ck_assert(!pair.a.engine.has_injected());
  pair.a.transport.behaviour.room = SIZE_MAX;
  pair.a.engine.progress();
  ck_assert(!pair.a.engine.has_packets());
  run_until_idle(pair);
  expect_done(pair.initiator.writes, FI_RMA | FI_WRITE);
}

TEST(inject_beyond_the_limit_is_refused) {
  OneSidedPair pair;
  std::vector<char> bytes(4097);
  const iovec iov{bytes.data(), bytes.size()};
  const wire::Segment segment{uint64_t(pair.memory.data()), kKey, bytes.size()};
  auto args = OneSidedNode::args(wire::Op::write, 1, &iov, 1, &segment, 1, nullptr);
  args.local.inject = true;
  ck_assert_int_eq(pair.a.engine.post_one_sided(args), -FI_EMSGSIZE);
  pair.expect_silent();
}

TEST(operations_beyond_the_limit_are_eagain_and_clear_with_progress) {
  OneSidedPair pair;
  char byte = 'b';
  for (uint32_t i = 0; i < erdma::test::kConfig.send_limit; ++i)
    must(pair.initiator.write(1, &byte, 1, pair.memory.data(), kKey));
  ck_assert_int_eq(pair.initiator.write(1, &byte, 1, pair.memory.data(), kKey), -FI_EAGAIN);
  ck_assert_int_eq(pair.initiator.read(1, &byte, 1, pair.memory.data(), kKey), -FI_EAGAIN);
  run_until_idle(pair);
  must(pair.initiator.write(1, &byte, 1, pair.memory.data(), kKey));
  run_until_idle(pair);
  ck_assert_uint_eq(pair.initiator.writes.entries.size(), erdma::test::kConfig.send_limit + 1);
  pair.initiator.writes.entries.clear();
  pair.expect_silent();
}

TEST(reads_from_oneself_are_queued_beyond_the_limit, 2) {
  OneSidedPair pair;
  auto& a = pair.initiator;
  a.regions.by_key[kKey] = &pair.region;
  pair.a.transport.behaviour.room = 0;
  char bytes[2000], byte = 'w';
  const uint32_t limit = erdma::test::kConfig.send_limit;
  for (uint32_t i = 0; i < 3 * limit; ++i)
    must(a.read(0, bytes, _i ? 2000 : 8, pair.memory.data(), kKey));
  ck_assert_int_eq(a.write(0, &byte, 1, pair.memory.data(), kKey), -FI_EAGAIN);
  pair.a.transport.behaviour.room = SIZE_MAX;
  run_until_idle(pair);
  ck_assert_uint_eq(a.reads.entries.size(), 3 * limit);
  while (!a.reads.entries.empty()) ck_assert_int_eq(a.reads.take().error, 0);
}

// fi_info promises the order of small operations. The link is full again and again.
TEST(small_operations_keep_their_order_over_a_full_link) {
  OneSidedPair pair;
  pair.a.transport.behaviour.room = 2;
  pair.b.transport.behaviour.room = 1;
  uint64_t values[20], seen[20];
  for (uint64_t i = 0; i < 20; ++i) {
    values[i] = i;
    must(pair.initiator.write(1, &values[i], 8, pair.memory.data(), kKey));
    must(pair.initiator.read(1, &seen[i], 8, pair.memory.data(), kKey));
  }
  run_until_idle(pair);
  for (uint64_t i = 0; i < 20; ++i) ck_assert_uint_eq(seen[i], i);
  ck_assert_uint_eq(pair.initiator.reads.entries.size(), 20);
  ck_assert_uint_eq(pair.initiator.writes.entries.size(), 20);
}

// A link that is not connected may have no memory to connect. If it dropped a result, the read
// would never end.
TEST(result_waits_while_the_link_has_no_memory_to_connect, 2) {
  const size_t length = _i ? 900 : 8;  // sent from a copy, or from the region
  OneSidedPair pair;
  std::vector<char> seen(length);
  must(pair.initiator.read(1, seen.data(), length, pair.memory.data(), kKey, &g_one));
  auto& back = pair.b.transport.link(pair.a.transport.name);
  back.down = -FI_ENOMEM;
  for (int i = 0; i < 3; ++i) pair.a.engine.progress(), pair.b.engine.progress();
  ck_assert(pair.initiator.reads.entries.empty());
  back.down = 0;
  run_until_idle(pair);
  expect_done(pair.initiator.reads, FI_RMA | FI_READ);
  ck_assert(std::equal(seen.begin(), seen.end(), pair.memory.begin()));
  pair.expect_silent();
}

TEST(fenced_operation_waits_for_what_is_in_flight) {
  OneSidedPair pair;
  pair.b.transport.behaviour.hold_transfers = true;
  const auto large = pattern(5000);
  must(pair.initiator.write(1, large.data(), large.size(), pair.memory.data(), kKey, &g_one));
  char seen[8];
  const iovec iov{seen, 8};
  const wire::Segment segment{uint64_t(pair.memory.data() + 4000), kKey, 8};
  auto args = OneSidedNode::args(wire::Op::read, 1, &iov, 1, &segment, 1, &g_two);
  args.local.fence = true;
  must(pair.a.engine.post_one_sided(args));
  for (int i = 0; i < 10; ++i) pair.a.engine.progress(), pair.b.engine.progress();
  ck_assert(pair.initiator.reads.entries.empty());
  ck_assert_uint_eq(pair.region.users, 1);
  pair.b.transport.behaviour.hold_transfers = false;
  run_until_idle(pair);
  expect_done(pair.initiator.writes, FI_RMA | FI_WRITE);
  expect_done(pair.initiator.reads, FI_RMA | FI_READ, 0, &g_two);
  ck_assert(std::equal(seen, seen + 8, large.begin() + 4000));
  pair.expect_silent();
}

TEST(fenced_message_waits_for_a_write) {
  OneSidedPair pair;
  const auto large = pattern(5000);
  pair.b.transport.behaviour.hold_transfers = true;
  must(pair.initiator.write(1, large.data(), large.size(), pair.memory.data(), kKey, &g_one));
  char message = 'm', buffer = 0;
  const iovec iov{&message, 1};
  auto args = erdma::test::Node::send_args(1, iov, 7);
  args.fence = true;
  must(pair.b.receive(&buffer, 1, 7));
  must(pair.a.engine.post_send(args));
  for (int i = 0; i < 10; ++i) pair.a.engine.progress(), pair.b.engine.progress();
  ck_assert_int_eq(buffer, 0);
  pair.b.transport.behaviour.hold_transfers = false;
  run_until_idle(pair);
  ck_assert_int_eq(buffer, 'm');
}

}  // namespace
