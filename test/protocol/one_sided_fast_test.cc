// Tests the fast path of direct access: which operations take it, and that it keeps the rules of
// the slow path.

#include "libcheck.h"
#include "protocol/direct_rig.h"

namespace {

using erdma::protocol::ErrorCompletion;
using namespace erdma::test;
namespace wire = erdma::protocol::wire;

constexpr uint64_t kKey = OneSidedPair::kKey;
constexpr uint64_t kWrite = FI_RMA | FI_WRITE, kRead = FI_RMA | FI_READ;

struct ShortPair : erdma::test::DirectPair {
  explicit ShortPair(erdma::protocol::EngineConfig config = erdma::test::kConfig)
      : DirectPair(true, kAll, config) {
    introduce();
  }
  size_t shorts() { return a_to_b().short_count; }
  erdma::protocol::OneSidedArgs write_of(const iovec& iov, const wire::Segment& segment) {
    return OneSidedNode::args(wire::Op::write, 1, &iov, 1, &segment, 1, &g_one);
  }
};

TEST(what_is_plain_and_small_takes_the_fast_path) {
  ShortPair pair;
  char bytes[65] = {};
  const struct {
    size_t length;
    size_t shorts;
  } cases[] = {{1, 1}, {64, 1}, {65, 0}, {0, 0}};
  for (const auto& c : cases) {
    const size_t before = pair.shorts();
    must(pair.initiator.write(1, bytes, c.length, pair.memory.data(), kKey, &g_one));
    pair.run_until_idle();
    expect_done(pair.initiator.writes, kWrite);
    must(pair.initiator.read(1, bytes, c.length, pair.memory.data(), kKey, &g_one));
    pair.run_until_idle();
    expect_done(pair.initiator.reads, kRead);
    ck_assert_uint_eq(pair.shorts() - before, 2 * c.shorts);
  }
}

TEST(the_last_bytes_of_a_region_take_the_fast_path) {
  ShortPair pair;
  char bytes[8] = {};
  char* const last = pair.memory.data() + pair.memory.size() - 8;
  must(pair.initiator.write(1, bytes, 8, last, kKey, &g_one));
  pair.run_until_idle();
  expect_done(pair.initiator.writes, kWrite);
  ck_assert_uint_eq(pair.shorts(), 1);
  // The target must refuse an access that ends one byte later.
  must(pair.initiator.write(1, bytes, 8, last + 1, kKey, &g_one));
  pair.run_until_idle();
  expect_done(pair.initiator.writes, kWrite, FI_EACCES);
  ck_assert_uint_eq(pair.shorts(), 1);
}

TEST(what_is_not_plain_takes_the_slow_path) {
  ShortPair pair;
  char byte = 'p';
  const iovec iov{&byte, 1}, pieces[] = {{&byte, 1}, {&byte, 1}};
  const wire::Segment segment{uint64_t(pair.memory.data()), kKey, 1};
  const wire::Segment two{uint64_t(pair.memory.data()), kKey, 2};
  auto placed = pair.write_of(iov, segment), fenced = placed, with_data = placed, gpu = placed;
  placed.local.until_delivered = fenced.local.fence = with_data.local.has_data = gpu.device = true;
  const auto scattered = OneSidedNode::args(wire::Op::write, 1, pieces, 2, &two, 1, &g_one);
  for (const auto& args : {placed, fenced, with_data, gpu, scattered}) {
    must(pair.a.engine.post_one_sided(args));
    pair.run_until_idle();
    expect_done(pair.initiator.writes, kWrite);
  }
  erdma::fake::CompletionSink own;
  must(pair.a.engine.post_one_sided(pair.write_of(iov, segment), &own));
  pair.run_until_idle();
  expect_done(own, kWrite);
  ck_assert_uint_eq(pair.shorts(), 0);
}

TEST(an_injected_write_of_the_fast_path_ends_without_a_word) {
  ShortPair pair;
  char byte = 'i';
  const iovec iov{&byte, 1};
  const wire::Segment segment{uint64_t(pair.memory.data()), kKey, 1};
  auto args = pair.write_of(iov, segment);
  args.local.inject = true;
  args.local.report = false;
  args.local.context = nullptr;
  must(pair.a.engine.post_one_sided(args));
  ck_assert_uint_eq(pair.shorts(), 1);
  ck_assert(!pair.a.engine.has_injected());  // the device has the operation
  byte = 'x';
  pair.run_until_idle();
  ck_assert_int_eq(pair.memory[0], 'i');
  must(pair.a.engine.post_one_sided(args));
  pair.a_to_b().failed = -FI_ECONNRESET;
  pair.run_until_idle();
  ck_assert_uint_eq(pair.initiator.writes.entries.size(), 2);
  ck_assert(!pair.initiator.writes.take().report);
  const ErrorCompletion lost = pair.initiator.writes.take();
  ck_assert_int_eq(lost.error, FI_ECONNRESET);
  ck_assert(lost.anonymous);
}

TEST(a_fence_waits_for_the_fast_path) {
  ShortPair pair;
  pair.a.transport.behaviour.hold_direct = true;
  char byte = 0;
  must(pair.initiator.read(1, &byte, 1, &pair.memory[5], kKey, &g_one));
  const iovec iov{&byte, 1};
  const wire::Segment segment{uint64_t(&pair.memory[9]), kKey, 1};
  auto fenced = OneSidedNode::args(wire::Op::read, 1, &iov, 1, &segment, 1, &g_two);
  fenced.local.fence = true;
  must(pair.a.engine.post_one_sided(fenced));
  pair.run_until_idle();
  ck_assert_uint_eq(pair.direct(), 1);
  pair.a.transport.behaviour.hold_direct = false;
  pair.run_until_idle();
  ck_assert_uint_eq(pair.direct(), 2);
  ck_assert_uint_eq(pair.initiator.reads.entries.size(), 2);
}

TEST(the_fast_path_keeps_the_limit_of_operations) {
  erdma::protocol::EngineConfig config = erdma::test::kConfig;
  config.send_limit = 4;
  ShortPair pair(config);
  pair.a.transport.behaviour.hold_direct = true;
  char byte = 0;
  for (int i = 0; i < 4; ++i)
    must(pair.initiator.write(1, &byte, 1, &pair.memory[5], kKey, &g_one));
  ck_assert_int_eq(pair.initiator.write(1, &byte, 1, &pair.memory[5], kKey, &g_one), -FI_EAGAIN);
  pair.a.transport.behaviour.hold_direct = false;
  pair.run_until_idle();
  ck_assert_uint_eq(pair.initiator.writes.entries.size(), 4);
  must(pair.initiator.write(1, &byte, 1, &pair.memory[5], kKey, &g_one));
  pair.end_work({&g_one});
}

TEST(the_fast_path_fails_with_its_link) {
  ShortPair pair;
  pair.a.transport.behaviour.hold_direct = true;
  char byte = 0;
  must(pair.initiator.read(1, &byte, 1, &pair.memory[5], kKey, &g_one));
  pair.a_to_b().failed = -FI_ECONNRESET;
  pair.run_until_idle();
  expect_done(pair.initiator.reads, kRead, FI_ECONNRESET);
}

TEST(grants_do_not_get_mixed_up) {
  ShortPair pair;
  std::vector<char> other(64, 'o');
  erdma::test::FakeRegion second(other.data(), 64, OneSidedPair::kAll);
  pair.target.regions.by_key[7] = &second;
  char byte = 0;
  for (int i = 0; i < 2; ++i) {
    must(pair.initiator.read(1, &byte, 1, other.data(), 7));
    pair.run_until_idle();
  }
  for (int i = 0; i < 4; ++i) {
    must(pair.initiator.read(1, &byte, 1, i % 2 ? &other[3] : &pair.memory[3], i % 2 ? 7 : kKey));
    pair.run_until_idle();
    ck_assert_int_eq(byte, i % 2 ? 'o' : pair.memory[3]);
  }
  ck_assert_uint_eq(pair.shorts(), 4);
  pair.forget();
  pair.target.regions.by_key.erase(7);
  pair.b.engine.grants().revoke(7);
  pair.run_until_idle();
  must(pair.initiator.read(1, &byte, 1, &other[3], 7, &g_one));
  pair.run_until_idle();
  expect_done(pair.initiator.reads, kRead, FI_EACCES);
  ck_assert_uint_eq(pair.shorts(), 4);
  ck_assert_uint_eq(second.users, 0);
}

TEST(a_grant_that_replaces_another_counts) {
  ShortPair pair;
  char byte = 0;
  must(pair.initiator.read(1, &byte, 1, &pair.memory[3], kKey));
  pair.run_until_idle();
  pair.forget();
  std::vector<char> other(64, 'o');
  auto registered =
      pair.b_to_a().optional().registrar->open({other.data(), 64}, nullptr, true, true);
  erdma::transport::RemoteKey memory;
  (*registered)->describe(memory);
  wire::OneSidedHeader header{};
  header.op = wire::Op::grant;
  header.flags = wire::kGrantReads;
  header.segment = {uint64_t(other.data()), kKey, 64};
  pair.a_to_b().inject(&header, sizeof(header), memory.bytes, memory.size);
  pair.run_until_idle();
  must(pair.initiator.read(1, &byte, 1, &other[3], kKey, &g_one));
  pair.run_until_idle();
  expect_done(pair.initiator.reads, kRead);
  ck_assert_int_eq(byte, 'o');
  ck_assert_uint_eq(pair.shorts(), 2);
}

}  // namespace
