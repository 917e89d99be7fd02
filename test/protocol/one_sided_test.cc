#include <algorithm>

#include <rdma/fi_atomic.h>

#include "libcheck.h"
#include "protocol/one_sided_rig.h"

namespace {

using erdma::protocol::ErrorCompletion;
using namespace erdma::test;
namespace wire = erdma::protocol::wire;

constexpr uint64_t kKey = OneSidedPair::kKey;

constexpr size_t kLengths[] = {0, 1, 8, 64, 65, 1024, 1025, 100000};

TEST(write_places_its_bytes_and_completes_once, std::size(kLengths)) {
  const size_t length = kLengths[_i];
  OneSidedPair pair;
  const auto bytes = pattern(length);
  auto expected = pair.memory;
  std::copy(bytes.begin(), bytes.end(), expected.begin() + 17);
  must(pair.initiator.write(1, bytes.data(), length, &pair.memory[17], kKey, &g_one));
  ck_assert(pair.initiator.writes.entries.empty());
  pair.run_until_idle();
  expect_done(pair.initiator.writes, FI_RMA | FI_WRITE);
  ck_assert(pair.memory == expected);
  ck_assert_uint_eq(pair.target.remote_writes.entries.size(), 1);
  ck_assert(!pair.target.remote_writes.take().report);
  ck_assert_uint_eq(pair.region.events.size(), length ? 1 : 0);
  pair.expect_silent();
}

TEST(read_brings_the_bytes_and_completes_once, std::size(kLengths)) {
  const size_t length = kLengths[_i];
  OneSidedPair pair;
  std::vector<char> bytes(length + 1, 'x');
  must(pair.initiator.read(1, bytes.data(), length, &pair.memory[3], kKey, &g_one));
  pair.run_until_idle();
  expect_done(pair.initiator.reads, FI_RMA | FI_READ);
  ck_assert(std::equal(bytes.begin(), bytes.end() - 1, pair.memory.begin() + 3));
  ck_assert_int_eq(bytes.back(), 'x');
  ck_assert_uint_eq(pair.target.remote_reads.entries.size(), 1);
  ck_assert(!pair.target.remote_reads.take().report);
  pair.expect_silent();
}

// Requests with every combination of local pieces and remote segments that do not fit each other,
// small or large, with or without remote CQ data.
TEST(pieces_on_both_sides_are_paired_in_order, 8) {
  const bool reads = _i & 1, large = _i & 2, data = (_i & 4) && !reads;
  const size_t unit = large ? 4000 : 4;
  OneSidedPair pair;
  FakeRegion second(pair.memory.data() + 100000, 50000, OneSidedPair::kAll);
  pair.target.regions.by_key[77] = &second;
  auto local = pattern(unit * 7, 5);
  const auto original = local;
  const auto before = pair.memory;
  const iovec iov[] = {{&local[0], unit},
                       {&local[unit], unit * 2},
                       {&local[unit * 3], 0},
                       {&local[unit * 3], unit * 4}};
  const auto address = [&](size_t offset) { return uint64_t(pair.memory.data() + offset); };
  const wire::Segment segments[] = {{address(1), kKey, unit * 3},
                                    {address(110000), 77, unit},
                                    {address(50000), kKey, unit * 2},
                                    {address(100000), 77, unit}};
  auto args =
      OneSidedNode::args(reads ? wire::Op::read : wire::Op::write, 1, iov, 4, segments, 4, &g_one);
  args.local.has_data = data;
  args.local.data = 0xfedcba9876543210u;
  must(pair.a.engine.post_one_sided(args));
  pair.run_until_idle();
  expect_done(reads ? pair.initiator.reads : pair.initiator.writes,
              FI_RMA | (reads ? FI_READ : FI_WRITE));
  std::vector<char> remote;
  for (const wire::Segment& s : segments) {
    const char* at = reinterpret_cast<char*>(s.address);
    remote.insert(remote.end(), at, at + s.length);
  }
  ck_assert(remote == local);
  ck_assert(reads ? pair.memory == before : local == original);
  if (!reads) {
    const ErrorCompletion there = pair.target.remote_writes.take();
    ck_assert_int_eq(there.report, data);
    ck_assert_uint_eq(there.length, unit * 7);
    if (data) ck_assert_uint_eq(there.data, 0xfedcba9876543210u);
  } else {
    pair.target.remote_reads.take();
  }
  ck_assert_uint_eq(pair.region.events.size(), 1);
  ck_assert_uint_eq(second.events.size(), 1);
  pair.expect_silent();
}

TEST(remote_data_reaches_the_target_with_any_size_of_write, std::size(kLengths)) {
  const size_t length = kLengths[_i];
  OneSidedPair pair;
  const auto bytes = pattern(length);
  const iovec iov{const_cast<char*>(bytes.data()), length};
  const wire::Segment segment{uint64_t(pair.memory.data()), kKey, length};
  auto args = OneSidedNode::args(wire::Op::write, 1, &iov, 1, &segment, 1, &g_one);
  args.local.has_data = true;
  args.local.data = 0xfedcba9876543210u;
  must(pair.a.engine.post_one_sided(args));
  pair.run_until_idle();
  expect_done(pair.initiator.writes, FI_RMA | FI_WRITE);
  const ErrorCompletion there = pair.target.remote_writes.take();
  ck_assert(there.report);
  ck_assert_uint_eq(there.flags, FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA);
  ck_assert_uint_eq(there.data, 0xfedcba9876543210u);
  ck_assert_uint_eq(there.length, length);
  ck_assert_uint_eq(there.source, 0);
  ck_assert_ptr_null(there.context);
  ck_assert(std::equal(bytes.begin(), bytes.end(), pair.memory.begin()));
  pair.expect_silent();
}

// Requests that must be refused without an access. Their lengths are below and above one packet.
struct Refusal {
  uint64_t key;
  int64_t offset;  ///< offset from the start of the region
  bool wraps;      ///< the range reaches the end of the address space
  uint64_t access;
};
/// A region counts the access itself, an endpoint the operation that the peer asked for.
TEST(fetching_atomic_that_modifies_is_a_write_to_the_region_and_a_read_to_the_endpoint, 4) {
  struct Case {
    int op;
    uint8_t flags;
    uint64_t region_events;
    bool endpoint_reads;
  };
  constexpr uint64_t kRead = FI_REMOTE_READ, kWrite = FI_REMOTE_WRITE;
  constexpr Case kCases[] = {{FI_SUM, 0, kWrite, false},
                             {FI_SUM, wire::kFetch, kRead | kWrite, true},
                             {FI_ATOMIC_READ, wire::kFetch, kRead, true},
                             {FI_CSWAP, wire::kFetch | wire::kCompare, kRead | kWrite, true}};
  const Case& c = kCases[_i];
  OneSidedPair pair;
  uint64_t operand = 1, compare = 2, result = 0;
  const iovec operands{&operand, 8}, compares{&compare, 8}, results{&result, 8};
  const wire::Segment segment{reinterpret_cast<uint64_t>(pair.memory.data()), kKey, 8};
  const bool fetches = c.flags != 0;
  auto args = OneSidedNode::args(wire::Op::atomic, 1, &results, fetches, &segment, 1, &g_one);
  args.word = {0, uint8_t(c.op), FI_UINT64, 0};
  args.flags = c.flags;
  args.element = 8;
  args.count = 1;
  args.operands = &operands;
  args.operand_count = c.op != FI_ATOMIC_READ;
  args.compares = &compares;
  args.compare_count = c.op == FI_CSWAP;
  must(pair.a.engine.post_one_sided(args));
  pair.run_until_idle();
  expect_done(fetches ? pair.initiator.reads : pair.initiator.writes,
              FI_ATOMIC | (fetches ? FI_READ : FI_WRITE));
  ck_assert_uint_eq(pair.region.events.size(), 1);
  ck_assert_uint_eq(pair.region.events[0], c.region_events);
  ck_assert_uint_eq(pair.target.remote_reads.entries.size(), c.endpoint_reads);
  ck_assert_uint_eq(pair.target.remote_writes.entries.size(), !c.endpoint_reads);
}

/// An atomic operation on two regions, one of them in two segments: a packet for each segment.
struct SpanningAtomic : OneSidedPair {
  SpanningAtomic() : second(memory.data() + 100000, 50000, kAll) {
    target.regions.by_key[77] = &second;
  }
  void post(bool fetches) {
    const auto at = [&](size_t offset) { return uint64_t(memory.data() + offset); };
    const wire::Segment segments[] = {{at(100000), 77, 8}, {at(0), kKey, 16}, {at(64), kKey, 8}};
    const iovec operands{ones, sizeof(ones)}, results{before, sizeof(before)};
    auto args = OneSidedNode::args(wire::Op::atomic, 1, &results, fetches, segments, 3, &g_one);
    args.word = {0, FI_SUM, FI_UINT64, 0};
    args.flags = fetches ? wire::kFetch : 0;
    args.element = 8;
    args.count = 4;
    args.operands = &operands;
    args.operand_count = 1;
    must(a.engine.post_one_sided(args));
  }

  FakeRegion second;
  uint64_t ones[4] = {1, 1, 1, 1}, before[4] = {};
};

TEST(atomic_on_several_regions_counts_once_in_each, 2) {
  const bool fetches = _i;
  SpanningAtomic pair;
  for (size_t times = 1; times <= 3; ++times) {
    pair.post(fetches);
    pair.run_until_idle();
    expect_done(fetches ? pair.initiator.reads : pair.initiator.writes,
                FI_ATOMIC | (fetches ? FI_READ : FI_WRITE));
    ck_assert_uint_eq(pair.region.events.size(), times);
    ck_assert_uint_eq(pair.second.events.size(), times);
    ck_assert_uint_eq(pair.target.remote_reads.entries.size(), fetches ? times : 0);
    ck_assert_uint_eq(pair.target.remote_writes.entries.size(), fetches ? 0 : times);
  }
}

/// An application that has counted all operations of its peers may stop calling progress.
TEST(atomic_on_several_regions_counts_when_it_is_over, 3) {
  const bool closes = _i == 1, loses = _i == 2;
  SpanningAtomic pair;
  const char was = pair.memory[100000];
  pair.a.transport.behaviour.room = 1;
  pair.post(false);
  pair.b.engine.progress();
  ck_assert_int_ne(pair.memory[100000], was);
  ck_assert(pair.second.events.empty());
  if (closes) pair.target.regions.by_key.erase(77);
  if (loses) pair.b_to_a().fail(-FI_ECONNRESET);
  if (loses) pair.b.engine.progress();
  pair.a.transport.behaviour.room = SIZE_MAX;
  pair.run_until_idle();
  ck_assert_uint_eq(pair.second.events.size(), closes || loses ? 0 : 1);
  ck_assert_uint_eq(pair.region.events.size(), 1);
  ck_assert_uint_eq(pair.second.users, 0);
  pair.end_work({&g_one});
}

constexpr uint64_t kBoth = FI_REMOTE_READ | FI_REMOTE_WRITE;
const Refusal kRefusals[] = {
    {kKey + 1, 0, false, kBoth},
    {0, 0, false, kBoth},
    {kKey, -1, false, kBoth},
    {kKey, 4096 - 63, false, kBoth},
    {kKey, 4096, false, kBoth},
    {kKey, 0, true, kBoth},
    {kKey, 0, false, FI_SEND | FI_RECV | FI_READ | FI_WRITE},
};

TEST(access_without_right_is_an_error_and_touches_nothing, std::size(kRefusals) * 4) {
  const Refusal& c = kRefusals[size_t(_i) / 4];
  const bool reads = _i & 1;
  const size_t length = _i & 2 ? 2000 + 64 : 64;
  OneSidedPair pair(8192, c.access);
  pair.region.iov[0].iov_len = 4096;
  if (_i & 2) pair.region.iov[0] = {pair.memory.data() + 64, 2048};
  auto* start = static_cast<char*>(pair.region.iov[0].iov_base);
  char* remote = c.wraps ? reinterpret_cast<char*>(UINT64_MAX - 10) : start + c.offset;
  const bool inside = c.key == kKey && c.offset == 0 && !c.wraps;
  const size_t bytes = inside ? 64 : length;
  auto local = pattern(length, 3);
  const auto original = local;
  const auto before = pair.memory;
  if (reads)
    must(pair.initiator.read(1, local.data(), bytes, remote, c.key, &g_one));
  else
    must(pair.initiator.write(1, local.data(), bytes, remote, c.key, &g_one));
  pair.run_until_idle();
  expect_done(reads ? pair.initiator.reads : pair.initiator.writes,
              FI_RMA | (reads ? FI_READ : FI_WRITE), FI_EACCES);
  ck_assert(local == original && pair.memory == before);
  ck_assert(pair.region.events.empty());
  pair.expect_silent();
}

TEST(one_bad_segment_of_several_touches_none, 2) {
  OneSidedPair pair;
  const bool large = _i & 1;
  const auto local = pattern(large ? 9000 : 30);
  const auto before = pair.memory;
  const size_t third = local.size() / 3;
  const iovec iov{const_cast<char*>(local.data()), local.size()};
  const uint64_t start = uint64_t(pair.memory.data());
  const wire::Segment segments[] = {{start, kKey, third}, {start, kKey, third}, {start, 5, third}};
  must(pair.a.engine.post_one_sided(
      OneSidedNode::args(wire::Op::write, 1, &iov, 1, segments, 3, &g_one)));
  pair.run_until_idle();
  expect_done(pair.initiator.writes, FI_RMA | FI_WRITE, FI_EACCES);
  ck_assert(pair.memory == before);
  pair.expect_silent();
}

TEST(read_only_region_can_be_read_but_not_written) {
  OneSidedPair pair(4096, FI_REMOTE_READ);
  char bytes[8];
  must(pair.initiator.read(1, bytes, 8, pair.memory.data(), kKey, &g_one));
  must(pair.initiator.write(1, bytes, 8, pair.memory.data(), kKey, &g_two));
  run_until_idle(pair);
  expect_done(pair.initiator.reads, FI_RMA | FI_READ);
  expect_done(pair.initiator.writes, FI_RMA | FI_WRITE, FI_EACCES, &g_two);
  pair.expect_silent();
}

TEST(engine_without_regions_refuses_every_access) {
  erdma::test::Pair pair;
  OneSidedNode initiator(pair.a);
  char bytes[8] = {};
  must(initiator.write(1, bytes, 8, bytes, 1, &g_one));
  pair.run_until_idle();
  expect_done(initiator.writes, FI_RMA | FI_WRITE, FI_EACCES);
}

TEST(dead_target_ends_each_operation_in_one_error) {
  OneSidedPair pair;
  auto large = pattern(5000);
  pair.b.transport.behaviour.hold_transfers = true;
  must(pair.initiator.write(1, large.data(), large.size(), pair.memory.data(), kKey));
  must(pair.initiator.read(1, large.data(), large.size(), pair.memory.data(), kKey));
  must(pair.initiator.read(1, large.data(), 8, pair.memory.data(), kKey));
  pair.a.engine.progress();
  pair.b.engine.progress();
  pair.a.transport.behaviour.room = 0;
  must(pair.initiator.write(1, large.data(), 8, pair.memory.data(), kKey));
  pair.a_to_b().fail(-FI_ECONNRESET);
  pair.a.engine.progress();
  for (auto* sink : {&pair.initiator.reads, &pair.initiator.writes}) {
    ck_assert_uint_eq(sink->entries.size(), 2);
    while (!sink->entries.empty()) ck_assert_int_eq(sink->take().error, FI_ECONNRESET);
  }
  ck_assert(pair.a.transport.shared.empty());
  pair.end_work({&g_one, &g_two});
}

TEST(dead_initiator_leaves_no_use_of_a_region, 2) {
  OneSidedPair pair;
  auto large = pattern(5000);
  pair.b.transport.behaviour.hold_transfers = true;
  must(pair.initiator.write(1, large.data(), large.size(), pair.memory.data(), kKey));
  must(pair.initiator.read(1, large.data(), large.size(), pair.memory.data(), kKey));
  pair.a.engine.progress();
  pair.b.transport.behaviour.transfer_refusal = _i ? -FI_EAGAIN : 0;  // they wait, or move
  pair.b.engine.progress();
  ck_assert_uint_eq(pair.region.users, 2);
  pair.b_to_a().fail(-FI_ECONNRESET);
  pair.b.engine.progress();
  ck_assert_uint_eq(pair.region.users, 0);
  ck_assert(pair.target.silent());
  ck_assert(pair.region.events.empty());
  pair.end_work({&g_one, &g_two});
}

/// The memory for a message may belong to the application again, which sees none of them any more.
TEST(closing_engine_serves_what_has_arrived_but_takes_no_message, 2) {
  OneSidedPair pair;
  const auto message = pattern(_i ? 5000 : 8);
  std::vector<char> buffer(message.size(), '-');
  must(pair.b.receive(buffer.data(), buffer.size(), 1, &g_two));
  must(pair.a.send(1, message.data(), message.size(), 1, &g_two));
  must(pair.initiator.write(1, "written", 7, pair.memory.data(), kKey, &g_one));
  pair.b.engine.progress_without_messages();
  pair.a.engine.progress();
  expect_done(pair.initiator.writes, FI_RMA | FI_WRITE);
  ck_assert_mem_eq(pair.memory.data(), "written", 7);
  ck_assert(pair.b.received.entries.empty());
  ck_assert(buffer == std::vector<char>(message.size(), '-'));
  pair.end_work({&g_one, &g_two});
}

/// A link may move the bytes in the call that asks for them.
TEST(long_write_that_is_fetched_at_once_is_answered) {
  OneSidedPair pair;
  auto large = pattern(5000);
  pair.b.transport.behaviour.reads_at_once = true;
  must(pair.initiator.write(1, large.data(), large.size(), pair.memory.data(), kKey, &g_one));
  pair.run_until_idle();
  expect_done(pair.initiator.writes, FI_RMA | FI_WRITE);
  ck_assert_mem_eq(pair.memory.data(), large.data(), large.size());
  ck_assert_uint_eq(pair.target.remote_writes.entries.size(), 1);
  ck_assert(!pair.target.remote_writes.take().report);
  ck_assert_uint_eq(pair.region.users, 0);
  pair.expect_silent();
}

TEST(transfer_that_fails_at_the_target_is_an_error_here, 3) {
  OneSidedPair pair;
  auto large = pattern(5000);
  if (_i == 1) pair.b.transport.behaviour.transfer_refusal = -FI_EINVAL;
  pair.b.transport.behaviour.transfer_status = _i == 2 ? -FI_ECANCELED : -FI_EIO;
  must(pair.initiator.write(1, large.data(), large.size(), pair.memory.data(), kKey, &g_one));
  pair.run_until_idle();
  constexpr int kErrors[] = {FI_EIO, FI_EINVAL, FI_ECONNABORTED};
  expect_done(pair.initiator.writes, FI_RMA | FI_WRITE, kErrors[_i]);
  ck_assert(pair.region.events.empty());
  pair.expect_silent();
}

TEST(abandoned_region_ends_the_connections_that_use_it) {
  OneSidedPair pair;
  auto large = pattern(5000);
  pair.b.transport.behaviour.hold_transfers = true;
  must(pair.initiator.write(1, large.data(), large.size(), pair.memory.data(), kKey));
  pair.a.engine.progress();
  pair.b.engine.progress();
  FakeRegion other(pair.memory.data(), 1, 0);
  pair.b.engine.abandon(other, true);
  ck_assert_int_eq(pair.b_to_a().failed, 0);
  pair.b.engine.abandon(pair.region, true);
  ck_assert_int_eq(pair.b_to_a().failed, -FI_ETIMEDOUT);
  pair.b.engine.progress();
  ck_assert_uint_eq(pair.region.users, 0);
  pair.end_work({&g_one, &g_two});
}

// A hostile peer loses its connection, and nothing more happens.
struct Malformed {
  wire::Op op;
  uint8_t flags;
  uint64_t length;  ///< length of the segment
  size_t payload;
};
const Malformed kMalformed[] = {
    {wire::Op::write, 0, 8, 7},
    {wire::Op::write, 0, 8, 9},
    {wire::Op::write, wire::kHasData, 0, 7},
    {wire::Op::write, wire::kKeyed, 8, 0},
    {wire::Op::write, wire::kKeyed, 8, 81},
    {wire::Op::write, wire::kKeyed, 0, 16},
    {wire::Op::write, wire::kKeyed, UINT64_MAX, 16},
    {wire::Op::write, wire::kSegments, 8, 8},
    {wire::Op::read, 0, 8, 1},
    {wire::Op::read, 0, (1 << 16) + 1, 0},
    {wire::Op::segments, 0, 0, 0},
    {wire::Op::segments, 0, 0, 25},
    {wire::Op::segments, 0, 0, 96},
    {wire::Op::atomic, 0, 1, 0},
    {wire::Op::atomic, 0, 0, 1},
    {wire::Op::atomic, 0, 1 | uint64_t(200) << 32, 1},
    {wire::Op::atomic, 0, 1 | uint64_t(2) << 32 | uint64_t(200) << 40, 1},
    {wire::Op::atomic, 0, 1 | uint64_t(2) << 32 | uint64_t(7) << 40, 7},
    {wire::Op::atomic, 0, 1 | uint64_t(2) << 32 | uint64_t(7) << 40, 16},
    {wire::Op::atomic, wire::kCompare, 1 | uint64_t(2) << 32 | uint64_t(7) << 40, 16},
    {wire::Op::atomic, 0, 1 | uint64_t(12) << 32 | uint64_t(7) << 40, 8},
    {wire::Op::atomic, 0, 513 | uint64_t(2) << 32 | uint64_t(7) << 40, 8},
    {wire::Op::atomic, 0, 1 | uint64_t(10) << 32 | uint64_t(7) << 40, 0},
    {wire::Op(12), 0, 0, 0},
};

TEST(malformed_request_costs_its_sender_the_connection, std::size(kMalformed)) {
  const Malformed& c = kMalformed[_i];
  OneSidedPair pair;
  const auto before = pair.memory;
  wire::OneSidedHeader header{};
  header.op = c.op;
  header.flags = c.flags;
  header.segment = {uint64_t(pair.memory.data()), kKey, c.length};
  std::vector<char> payload(c.payload, 'p');
  pair.b_to_a().inject(&header, sizeof(header), payload.data(), payload.size());
  pair.b.engine.progress();
  ck_assert_uint_eq(pair.b_to_a().ended, 1);
  ck_assert(pair.memory == before);
  pair.expect_silent();
}

TEST(result_that_nobody_waits_for_is_ignored_and_one_too_long_is_not) {
  OneSidedPair pair;
  wire::OneSidedHeader header{};
  header.op = wire::Op::result;
  header.index = 3;
  header.generation = 9;
  pair.a_to_b().inject(&header, sizeof(header), "x", 1);
  pair.a.engine.progress();
  ck_assert_uint_eq(pair.a_to_b().ended, 0);
  char bytes[9] = "--------";
  must(pair.initiator.read(1, bytes, 4, pair.memory.data(), kKey, &g_one));
  header.index = 0;
  header.generation = 1;
  pair.a_to_b().inject(&header, sizeof(header), "12345678", 8);
  pair.a.engine.progress();
  ck_assert_uint_eq(pair.a_to_b().ended, 1);
  ck_assert_str_eq(bytes, "--------");
  expect_done(pair.initiator.reads, FI_RMA | FI_READ, FI_ECONNRESET);
}

}  // namespace
