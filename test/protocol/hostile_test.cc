#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "fake/live_bytes.h"
#include "libcheck.h"
#include "protocol/direct_rig.h"

/// Tests a peer that sends each kind of answer to each operation, in each of its states, although
/// it was not asked. The peer loses its connection, and reads and writes no memory that it was not
/// given.
namespace {

using erdma::protocol::ErrorCompletion;
using erdma::protocol::OneSidedArgs;
using namespace erdma::test;
namespace wire = erdma::protocol::wire;
namespace transport = erdma::transport;

constexpr uint64_t kKey = OneSidedPair::kKey;

/// Id of the initiator's operation, which is the first of its engine.
constexpr uint32_t kIndex = 0;
constexpr uint16_t kGeneration = 1;

/// Memory that the hostile target shares for writes of others.
struct Loot {
  explicit Loot(Pair& pair) : bytes(8192, '.') {
    const iovec iov{bytes.data(), bytes.size()};
    must(pair.b_to_a().share(&iov, 1, bytes.size(), transport::Access::remote_write, remote_key));
  }
  bool untouched() const { return bytes == std::vector<char>(bytes.size(), '.'); }
  std::vector<char> bytes;
  transport::RemoteKey remote_key;
};

void inject_control(Pair& pair, wire::Op op, int32_t status, uint64_t length, const void* payload,
                    size_t bytes) {
  wire::ControlHeader header{};
  header.op = op;
  header.index = kIndex;
  header.generation = kGeneration;
  header.status = status;
  header.length = length;
  pair.a_to_b().inject(&header, sizeof(header), payload, bytes);
}

void inject_result(Pair& pair, size_t bytes) {
  wire::OneSidedHeader header{};
  header.op = wire::Op::result;
  header.index = kIndex;
  header.generation = kGeneration;
  const std::vector<char> payload(bytes, 'r');
  pair.a_to_b().inject(&header, sizeof(header), payload.data(), bytes);
}

// --- the operations -----------------------------------------------------------------------------

std::vector<char> g_local;  ///< local memory of the operation

void message(OneSidedPair& pair, size_t length, bool delivered = false) {
  const iovec iov{g_local.data(), length};
  auto args = Node::send_args(1, iov, 7, &g_one);
  args.until_delivered = delivered;
  must(pair.a.engine.post_send(args));
}

void atomic(OneSidedPair& pair, size_t count, uint8_t flags) {
  const iovec iov{g_local.data(), count * 8};
  const wire::Segment segment{uint64_t(pair.memory.data()), kKey, count * 8};
  OneSidedArgs args =
      OneSidedNode::args(wire::Op::atomic, 1, &iov, flags ? 1 : 0, &segment, 1, &g_one);
  args.word = {0, 2, 7, 0};  // FI_SUM of FI_UINT64
  args.flags = flags;
  args.element = 8;
  args.count = count;
  args.operands = &iov;
  args.operand_count = 1;
  must(pair.a.engine.post_one_sided(args));
}

struct Operation {
  const char* name;
  std::function<void(OneSidedPair&)> post;
  bool takes_fin, takes_failure, takes_cts, takes_result;
};

const Operation kOperations[] = {
    {"eager that waits to be delivered", [](auto& p) { message(p, 100, true); }, true, true, false,
     false},
    {"rendezvous, to be read",
     [](auto& p) {
       p.a.transport.behaviour.prefers_read = true;
       message(p, 5000);
     },
     true, true, false, false},
    {"rendezvous, to be written",
     [](auto& p) {
       p.a.transport.behaviour.prefers_read = false;
       message(p, 5000);
     },
     true, true, true, false},
    {"rendezvous, offered",
     [](auto& p) {
       p.a.transport.behaviour.prefers_read = p.a.transport.behaviour.offers = true;
       message(p, 5000);
     },
     true, true, true, false},
    {"rendezvous, being written",
     [](auto& p) {
       p.a.transport.behaviour.prefers_read = false;
       p.a.transport.behaviour.hold_transfers = true;
       message(p, 5000);
       static std::vector<char> sink(5000);
       must(p.b.receive(sink.data(), sink.size(), 7));
       p.b.engine.progress();
       p.a.engine.progress();
     },
     false, false, false, false},
    {"rendezvous, written, that waits to be delivered",
     [](auto& p) {
       p.a.transport.behaviour.prefers_read = false;
       message(p, 5000, true);
       static std::vector<char> sink(5000);
       must(p.b.receive(sink.data(), sink.size(), 7));
       p.b.engine.progress();
       p.a.engine.progress();
     },
     true, true, false, false},
    {"message that is queued",
     [](auto& p) {
       p.a.transport.behaviour.room = 0;
       message(p, 100, true);
     },
     false, false, false, false},
    {"write",
     [](auto& p) { must(p.initiator.write(1, g_local.data(), 64, p.memory.data(), kKey, &g_one)); },
     true, true, false, false},
    {"write, shared",
     [](auto& p) {
       must(p.initiator.write(1, g_local.data(), 5000, p.memory.data(), kKey, &g_one));
     },
     true, true, false, false},
    {"read",
     [](auto& p) { must(p.initiator.read(1, g_local.data(), 64, p.memory.data(), kKey, &g_one)); },
     false, true, false, true},
    {"read, shared",
     [](auto& p) {
       must(p.initiator.read(1, g_local.data(), 5000, p.memory.data(), kKey, &g_one));
     },
     true, true, false, false},
    {"read that is queued",
     [](auto& p) {
       p.a.transport.behaviour.room = 0;
       must(p.initiator.read(1, g_local.data(), 64, p.memory.data(), kKey, &g_one));
     },
     false, false, false, false},
    {"atomic", [](auto& p) { atomic(p, 1, 0); }, true, true, false, false},
    {"fetching atomic", [](auto& p) { atomic(p, 8, wire::kFetch); }, false, true, false, true},
    {"fetching atomic of which a part is queued",
     [](auto& p) {
       p.a.transport.behaviour.eager = 64;
       p.a.transport.behaviour.room = 1;
       atomic(p, 16, wire::kFetch);
     },
     false, true, false, true},
};

enum Answer { kFin, kFailure, kCts, kDone, kResult, kEmptyResult, kLongResult, kAnswers };

bool permitted(const Operation& operation, Answer answer) {
  switch (answer) {
    case kFin:
      return operation.takes_fin;
    case kFailure:
      return operation.takes_failure;
    case kCts:
      return operation.takes_cts;
    case kResult:
      return operation.takes_result;
    default:
      return false;
  }
}

void inject(Pair& pair, Answer answer, const Loot& loot) {
  switch (answer) {
    case kFin:
      return inject_control(pair, wire::Op::fin, 0, 0, nullptr, 0);
    case kFailure:
      return inject_control(pair, wire::Op::fin, -FI_EACCES, 0, nullptr, 0);
    case kCts:
      return inject_control(pair, wire::Op::cts, 0, 64, loot.remote_key.bytes,
                            loot.remote_key.size);
    case kDone:
      return inject_control(pair, wire::Op::done, 0, 0, nullptr, 0);
    case kResult:
      return inject_result(pair, 64);
    case kEmptyResult:
      return inject_result(pair, 0);
    default:
      return inject_result(pair, 129);  // more than any operation asks for
  }
}

TEST(answer_that_its_operation_does_not_await_costs_the_connection_and_nothing_else,
     int(std::size(kOperations)) * kAnswers) {
  const Operation& operation = kOperations[_i / kAnswers];
  const Answer answer = Answer(_i % kAnswers);
  g_local = pattern(8192, 5);
  const auto before = g_local;
  OneSidedPair pair;
  Loot loot(pair);
  operation.post(pair);
  inject(pair, answer, loot);
  pair.a.engine.progress();
  if (permitted(operation, answer)) {
    ck_assert_msg(pair.a_to_b().ended == 0, "%s, answer %d", operation.name, answer);
    pair.end_work();
    return;
  }
  // `done` names a delivery. There is none, so the packet is stale.
  if (answer == kDone) {
    ck_assert_uint_eq(pair.a_to_b().ended, 0);
    pair.a_to_b().fail(-FI_ECONNRESET);
    pair.a.engine.progress();
  }
  ck_assert_msg(pair.a_to_b().ended == 1, "%s, answer %d", operation.name, answer);
  for (int i = 0; i < 4; ++i) pair.a.engine.progress();
  ck_assert_msg(loot.untouched(), "%s, answer %d", operation.name, answer);
  ck_assert_msg(g_local == before, "%s, answer %d", operation.name, answer);
  size_t completions = 0;
  for (auto* sink : {&pair.a.sent, &pair.initiator.reads, &pair.initiator.writes})
    for (const ErrorCompletion& each : sink->entries) {
      ++completions;
      ck_assert_int_eq(each.error, FI_ECONNRESET);
    }
  ck_assert_uint_eq(completions, 1);
  // The peer's link ends as well.
  erdma::fake::Transport::bring_down(pair.b_to_a(), -FI_ECONNRESET, pair.b.engine);
}

TEST(result_of_one_byte_more_than_was_asked_for_touches_nothing, 64) {
  g_local = pattern(8192, 5);
  const auto before = g_local;
  OneSidedPair pair;
  must(pair.initiator.read(1, g_local.data(), 64, pair.memory.data(), kKey, &g_one));
  const size_t first = size_t(_i);  // length of a first packet
  if (first) inject_result(pair, first);
  inject_result(pair, 65 - first);
  pair.a.engine.progress();
  ck_assert_uint_eq(pair.a_to_b().ended, 1);
  ck_assert(std::equal(g_local.begin() + _i, g_local.end(), before.begin() + _i));
  ck_assert_uint_eq(pair.initiator.reads.entries.size(), 1);
  ck_assert_int_eq(pair.initiator.reads.take().error, FI_ECONNRESET);
}

TEST(part_of_an_atomic_that_is_refused_ends_it_while_the_rest_is_queued, 2) {
  g_local = pattern(8192, 5);
  OneSidedPair pair;
  pair.a.transport.behaviour.eager = 64;
  pair.a.transport.behaviour.room = 1;
  atomic(pair, 16, uint8_t(_i ? wire::kFetch : 0));
  inject_control(pair, wire::Op::fin, -FI_EACCES, 0, nullptr, 0);
  pair.a.engine.progress();
  pair.a.transport.behaviour.room = SIZE_MAX;
  pair.run_until_idle();
  auto& sink = _i ? pair.initiator.reads : pair.initiator.writes;
  ck_assert_uint_eq(sink.entries.size(), 1);
  ck_assert_int_eq(sink.take().error, FI_EACCES);
}

TEST(status_of_a_transfer_that_packets_carry_is_never_taken_for_a_retry, 4) {
  // A device or peer reports what only direct access may report, although there is no grant.
  const int status = _i & 1 ? -FI_EOPNOTSUPP : -FI_EBUSY;
  g_local = pattern(8192, 5);
  OneSidedPair pair;
  const bool reads = _i & 2;
  for (auto* node : {&pair.a, &pair.b}) node->transport.behaviour.flushes = true;
  pair.a.transport.behaviour.hold_flushes = true;
  if (reads)
    must(pair.initiator.read(1, g_local.data(), 64, pair.memory.data(), kKey, &g_one));
  else
    must(pair.initiator.write(1, g_local.data(), 64, pair.memory.data(), kKey, &g_one));
  const uint64_t token = make_token(erdma::protocol::TokenOf::send, {kIndex, kGeneration});
  static_cast<transport::Sink&>(pair.a.engine).on_done(token, status);
  auto& sink = reads ? pair.initiator.reads : pair.initiator.writes;
  ck_assert_uint_eq(sink.entries.size(), 1);
  ck_assert_int_eq(sink.take().error, -status);
  pair.run_until_idle();
  ck_assert(sink.entries.empty());
}

// --- the receiver's side ------------------------------------------------------------------------

void inject_done(Pair& pair, int32_t status, uint8_t flags, const char* payload) {
  wire::ControlHeader header{};
  header.op = wire::Op::done;
  header.flags = flags;
  header.index = kIndex;
  header.generation = kGeneration;
  header.status = status;
  pair.b_to_a().inject(&header, sizeof(header), payload, payload ? strlen(payload) : 0);
}

TEST(done_for_a_message_that_is_read_here_costs_the_connection, 2) {
  Pair pair;
  pair.b.transport.behaviour.hold_transfers = true;
  const auto bytes = pattern(5000);
  std::vector<char> into(5000);
  must(pair.b.receive(into.data(), into.size(), 7, &g_one));
  must(pair.a.send(1, bytes.data(), bytes.size(), 7));
  if (_i) pair.b.transport.behaviour.transfer_refusal = -FI_EAGAIN;
  pair.b.engine.progress();
  inject_done(pair, 0, 0, nullptr);
  pair.b.engine.progress();
  ck_assert_uint_eq(pair.b_to_a().ended, 1);
  ck_assert_uint_eq(pair.b.received.entries.size(), 1);
  ck_assert_int_eq(pair.b.received.take().error, FI_ECONNRESET);
  pair.end_work({&g_one});
}

TEST(second_done_while_the_bytes_settle_costs_the_connection_but_not_the_message) {
  Pair pair;
  for (Node* node : {&pair.a, &pair.b}) {
    node->transport.behaviour.prefers_read = false;
    node->transport.behaviour.flushes = node->transport.behaviour.hold_flushes = true;
  }
  const auto bytes = pattern(5000);
  std::vector<char> into(5000);
  const iovec iov{into.data(), into.size()};
  auto args = Node::receive_args(iov, 7, &g_one);
  args.device = true;
  must(pair.b.engine.post_receive(args));
  must(pair.a.send(1, bytes.data(), bytes.size(), 7));
  pair.run_until_idle();
  ck_assert_uint_eq(pair.b.transport.flushing.size(), 1);
  inject_done(pair, 0, wire::kFailed, nullptr);
  pair.b.engine.progress();
  ck_assert_uint_eq(pair.b_to_a().ended, 1);
  pair.b.transport.behaviour.hold_flushes = false;
  pair.b.engine.progress();
  ck_assert_uint_eq(pair.b.received.entries.size(), 1);
  ck_assert_int_eq(pair.b.received.take().error, 0);
  ck_assert(into == bytes);
}

// --- fields that no operation of ours decides
// -----------------------------------------------------

struct Field {
  wire::Op op;
  int32_t status;
  uint64_t length;  ///< cts: bytes; otherwise length of the segment
  size_t payload;
};
const Field kFields[] = {
    {wire::Op::fin, 0, 0, 1},     {wire::Op::done, 0, 0, 1},
    {wire::Op::budget, 0, 0, 1},  {wire::Op::budget, 3, 0, 0},
    {wire::Op::budget, -1, 0, 0}, {wire::Op::cts, 0, 64, 0},
    {wire::Op::cts, 0, 0, 16},    {wire::Op::cts, 0, 5001, 16},
    {wire::Op::cts, 0, 64, 81},   {wire::Op::cts, 0, UINT64_MAX, 16},
    {wire::Op::revoke, 0, 0, 1},  {wire::Op::revoked, 0, 0, 1},
    {wire::Op::grant, 0, 0, 4},   {wire::Op::grant, 0, 1, 0},
    {wire::Op::grant, 0, 1, 81},  {wire::Op::grant, 0, UINT64_MAX, 4},
};

TEST(field_that_no_honest_peer_sends_costs_the_connection, std::size(kFields)) {
  const Field& c = kFields[_i];
  OneSidedPair pair;
  g_local = pattern(8192, 5);
  pair.a.transport.behaviour.prefers_read = false;
  message(pair, 5000);
  const std::vector<char> payload(c.payload, 'p');
  if (c.op >= wire::Op::segments) {
    wire::OneSidedHeader header{};
    header.op = c.op;
    header.segment = {4096, 1, c.length};
    pair.a_to_b().inject(&header, sizeof(header), payload.data(), payload.size());
  } else {
    inject_control(pair, c.op, c.status, c.length, payload.data(), payload.size());
  }
  pair.a.engine.progress();
  ck_assert_uint_eq(pair.a_to_b().ended, 1);
  ck_assert_uint_eq(pair.a.sent.entries.size(), 1);
  ck_assert_int_eq(pair.a.sent.take().error, FI_ECONNRESET);
}

/// A peer that was not asked to leave the region may say so falsely.
TEST(revoked_that_was_not_asked_for_leaves_the_region_in_use) {
  DirectPair pair(true);
  pair.introduce();
  ck_assert_uint_eq(pair.region.users, 1);
  wire::OneSidedHeader header{};
  header.op = wire::Op::revoked;
  header.segment.key = kKey;
  pair.b_to_a().inject(&header, sizeof(header), nullptr, 0);
  pair.b.engine.progress();
  ck_assert_uint_eq(pair.region.users, 1);
  pair.close_region();
  pair.run_until_idle();
  ck_assert_uint_eq(pair.region.users, 0);
}

// --- what it costs ------------------------------------------------------------------------------

/// Sends the last grant that is kept, and one more.
TEST(grants_beyond_what_is_kept_are_ignored, 2) {
  DirectPair pair(true);
  erdma::transport::RemoteKey region;
  region.put(erdma::transport::KeyHead{erdma::transport::KeyKind::region, 0, 0, 1});
  const auto grant = [&](uint64_t key) {
    wire::OneSidedHeader header{};
    header.op = wire::Op::grant;
    header.flags = wire::kGrantReads | wire::kGrantWrites;
    header.segment = {uint64_t(pair.memory.data()), key, pair.memory.size()};
    pair.a_to_b().inject(&header, sizeof(header), region.bytes, region.size);
  };
  for (uint64_t key = 1; key < 65536 + unsigned(_i); ++key) grant(key);
  grant(kKey);
  while (!pair.a_to_b().inbound.empty()) pair.a.engine.progress();
  ck_assert_uint_eq(pair.a_to_b().ended, 0);
  char byte = 1;
  must(pair.initiator.write(1, &byte, 1, pair.memory.data(), kKey, &g_one));
  ck_assert_uint_eq(pair.direct(), _i == 0);
  run_until_idle(pair);
}

/// More than an honest peer can be waiting for.
constexpr uint32_t kMostAnswers = 3 * 65536;

TEST(answers_that_are_not_taken_are_bounded, 3) {
  OneSidedPair pair;
  wire::OneSidedHeader header{};
  switch (_i) {
    case 0:
      header.op = wire::Op::revoke;
      break;
    case 1:
      header.op = wire::Op::write;
      header.segment = {4096, 5, 1};
      break;
    default:
      header.op = wire::Op::write;  // a write of no bytes, which is permitted
      break;
  }
  pair.b.transport.behaviour.room = 0;
  for (uint32_t i = 0; i < kMostAnswers; ++i)
    pair.b_to_a().inject(&header, sizeof(header), "x", header.segment.length);
  pair.b.engine.progress();
  ck_assert_uint_eq(pair.b_to_a().ended, 0);
  ck_assert(pair.b.engine.has_injected());
  pair.b_to_a().inject(&header, sizeof(header), "x", header.segment.length);
  pair.b.engine.progress();
  ck_assert_uint_eq(pair.b_to_a().ended, 1);
  ck_assert(!pair.b.engine.has_injected());  // no answer is kept
}

TEST(answers_of_a_peer_that_takes_them_late_all_arrive) {
  OneSidedPair pair;
  pair.b.transport.behaviour.room = 0;
  wire::OneSidedHeader header{};
  header.op = wire::Op::write;
  for (uint32_t i = 0; i < kMostAnswers; ++i)
    pair.b_to_a().inject(&header, sizeof(header), nullptr, 0);
  pair.b.engine.progress();
  pair.b.transport.behaviour.room = SIZE_MAX;
  pair.b.engine.progress();
  ck_assert_uint_eq(pair.a_to_b().inbound.size(), kMostAnswers);
  for (uint32_t i = 0; i < kMostAnswers; ++i)  // the same number once more
    pair.b_to_a().inject(&header, sizeof(header), nullptr, 0);
  pair.b.engine.progress();
  ck_assert_uint_eq(pair.b_to_a().ended, 0);
}

/// If the results of all requests that a peer may have in flight were copied, they would take 8
/// GiB.
TEST(results_that_are_not_taken_are_not_copied_without_bound, 2) {
  const bool atomics = _i;
  OneSidedPair pair;
  pair.b.transport.behaviour.room = 0;
  wire::OneSidedHeader header{};
  header.op = atomics ? wire::Op::atomic : wire::Op::read;
  header.flags = atomics ? uint8_t(wire::kFetch | wire::kLast) : uint8_t(0);
  header.segment = {uint64_t(pair.memory.data()), kKey, 1 << 16};
  const wire::AtomicWord word{512, 10, 7, 0};  // FI_ATOMIC_READ of FI_UINT64
  if (atomics) std::memcpy(&header.segment.length, &word, sizeof(word));
  const size_t before = erdma::fake::live_bytes();
  size_t most = 0;
  for (uint32_t i = 0; i < 2 * 65536; ++i) {
    pair.b_to_a().inject(&header, sizeof(header), nullptr, 0);
    if (i % 4096 == 0) pair.b.engine.progress();
    most = std::max(most, erdma::fake::live_bytes() - before);
    pair.target.remote_reads.entries.clear();
  }
  ck_assert_uint_eq(pair.b_to_a().ended, 0);  // an honest peer may have as many in flight
  ck_assert_uint_le(most, size_t(256) << 20);
  pair.b_to_a().fail(-FI_ECONNRESET);
  pair.b.engine.progress();
  ck_assert_uint_eq(pair.region.users, 0);
}

TEST(results_that_are_taken_late_bring_the_right_bytes) {
  OneSidedPair pair;
  pair.b.transport.behaviour.room = 0;
  std::vector<std::vector<char>> got;
  for (const size_t length : {64u, 65u, 1000u, 700u, 1u}) got.emplace_back(length);
  size_t offset = 0;
  for (auto& bytes : got) {
    must(pair.initiator.read(1, bytes.data(), bytes.size(), &pair.memory[offset], kKey, &g_one));
    offset += bytes.size();
  }
  pair.b.engine.progress();
  ck_assert(pair.initiator.reads.entries.empty());
  const auto before = pair.memory;
  pair.memory[0] ^= 1;  // reads of up to 64 bytes are ordered with later stores
  pair.b.transport.behaviour.more_room = 1;
  while (pair.initiator.reads.entries.size() < got.size()) {
    pair.b.engine.progress();
    pair.a.engine.progress();
  }
  offset = 0;
  for (auto& bytes : got) {
    ck_assert(std::equal(bytes.begin(), bytes.end(), before.begin() + long(offset)));
    ck_assert_int_eq(pair.initiator.reads.take().error, 0);
    offset += bytes.size();
  }
  ck_assert_uint_eq(pair.region.users, 0);
}

TEST(region_of_results_that_are_not_taken_can_be_abandoned) {
  OneSidedPair pair;
  pair.b.transport.behaviour.room = 0;
  std::vector<char> bytes(1000);
  must(pair.initiator.read(1, bytes.data(), bytes.size(), pair.memory.data(), kKey, &g_one));
  pair.b.engine.progress();
  ck_assert_uint_eq(pair.region.users, 1);
  pair.b.engine.abandon(pair.region, true);
  pair.b.engine.progress();
  ck_assert_uint_eq(pair.b_to_a().ended, 1);
  ck_assert_uint_eq(pair.region.users, 0);
  pair.end_work({&g_one});
}

}  // namespace
