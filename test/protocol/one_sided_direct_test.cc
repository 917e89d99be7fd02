// Tests direct access to a peer's memory: which peers are granted it, which operations use it, and
// how it is revoked.
#include <algorithm>

#include "libcheck.h"
#include "protocol/direct_rig.h"

namespace {

using erdma::protocol::ErrorCompletion;
using erdma::protocol::wire::OneSidedHeader;
using namespace erdma::test;
namespace wire = erdma::protocol::wire;

constexpr uint64_t kKey = OneSidedPair::kKey;
bool g_has_short;  ///< each test is run with and without the fast path

struct DirectPair : erdma::test::DirectPair {
  explicit DirectPair(uint64_t access = kAll) : erdma::test::DirectPair(g_has_short, access) {}
};

void expect_done(erdma::fake::CompletionSink& sink, int error, void* context = &g_one) {
  ck_assert_uint_eq(sink.entries.size(), 1);
  const ErrorCompletion done = sink.take();
  ck_assert_ptr_eq(done.context, context);
  ck_assert_int_eq(done.error, error);
}

constexpr size_t kLengths[] = {1, 64, 65, 100000};

TEST_CASE(.set_up = {[] { g_has_short = false; }, [] { g_has_short = true; }});

TEST(what_was_used_before_is_accessed_without_the_target, std::size(kLengths)) {
  const size_t length = kLengths[_i];
  DirectPair pair;
  pair.introduce();
  ck_assert_uint_eq(pair.direct(), 0);
  const auto bytes = pattern(length, 3);
  must(pair.initiator.write(1, bytes.data(), length, &pair.memory[17], kKey, &g_one));
  pair.alone();
  expect_done(pair.initiator.writes, 0);
  ck_assert(std::equal(bytes.begin(), bytes.end(), pair.memory.begin() + 17));
  std::vector<char> back(length);
  must(pair.initiator.read(1, back.data(), length, &pair.memory[17], kKey, &g_two));
  pair.alone();
  expect_done(pair.initiator.reads, 0, &g_two);
  ck_assert(back == bytes);
  ck_assert_uint_eq(pair.direct(), 2);
  ck_assert(pair.target.silent());
}

TEST(a_whole_region_and_its_end_are_accessed_without_the_target) {
  DirectPair pair;
  pair.introduce();
  const size_t all = pair.memory.size();
  std::vector<char> bytes(all);
  for (const size_t length : {all, all / 2}) {
    must(pair.initiator.read(1, bytes.data(), length, pair.memory.data() + all - length, kKey,
                             &g_two));
    pair.alone();
    expect_done(pair.initiator.reads, 0, &g_two);
  }
  ck_assert_uint_eq(pair.direct(), 2);
}

TEST(a_region_that_is_used_once_is_not_opened) {
  DirectPair pair;
  char byte;
  must(pair.initiator.read(1, &byte, 1, pair.memory.data(), kKey, &g_one));
  pair.run_until_idle();
  ck_assert(pair.network.open.empty());
  ck_assert_uint_eq(pair.region.users, 0);
}

TEST(what_the_grant_does_not_cover_is_refused_by_the_target) {
  struct {
    uint64_t access;
    int64_t offset;
    size_t length;
    bool reads;
  } const wrong[] = {
      {FI_REMOTE_READ, 0, 8, false},
      {FI_REMOTE_WRITE, 0, 8, true},
      {OneSidedPair::kAll, (1 << 18) - 7, 8, true},
      {OneSidedPair::kAll, -1, 8, false},
      {OneSidedPair::kAll, -1, 4096, true},
      {OneSidedPair::kAll, 1, 1 << 18, false},
  };
  for (const auto& w : wrong) {
    DirectPair pair(w.access);
    pair.introduce();
    ck_assert_uint_eq(pair.network.open.size(), 1);
    const auto before = pair.memory;
    std::vector<char> bytes(w.length, 'w');
    must(pair.initiator.transfer(w.reads ? wire::Op::read : wire::Op::write, 1, bytes.data(),
                                 w.length, pair.memory.data() + w.offset, kKey, &g_one));
    pair.run_until_idle();
    expect_done(w.reads ? pair.initiator.reads : pair.initiator.writes, FI_EACCES);
    ck_assert_uint_eq(pair.direct(), 0);
    ck_assert(pair.memory == before);
    ck_assert_uint_eq(pair.network.faults, 0);
  }
}

TEST(data_and_pieces_of_several_segments_go_by_packets) {
  DirectPair pair;
  pair.introduce();
  char bytes[16] = "0123456789";
  const iovec iov{bytes, 16};
  const wire::Segment segments[] = {{uint64_t(&pair.memory[0]), kKey, 8},
                                    {uint64_t(&pair.memory[64]), kKey, 8}};
  must(pair.a.engine.post_one_sided(
      OneSidedNode::args(wire::Op::write, 1, &iov, 1, segments, 2, &g_one)));
  const wire::Segment whole{uint64_t(&pair.memory[0]), kKey, 16};
  auto with_data = OneSidedNode::args(wire::Op::write, 1, &iov, 1, &whole, 1, &g_two);
  with_data.local.has_data = true;
  must(pair.a.engine.post_one_sided(with_data));
  pair.run_until_idle();
  ck_assert_uint_eq(pair.direct(), 0);
  ck_assert_uint_eq(pair.target.remote_writes.entries.size(), 2);
}

TEST(a_small_write_does_not_overtake_a_small_read) {
  DirectPair pair;
  pair.introduce();
  pair.memory[5] = 'o';
  pair.a.transport.behaviour.hold_direct = true;
  char old = 0, news = 'n';
  must(pair.initiator.read(1, &old, 1, &pair.memory[5], kKey, &g_one));
  must(pair.initiator.write(1, &news, 1, &pair.memory[5], kKey, &g_two));
  pair.run_until_idle();
  ck_assert_int_eq(pair.memory[5], 'o');
  pair.a.transport.behaviour.hold_direct = false;
  pair.run_until_idle();
  ck_assert_int_eq(old, 'o');
  ck_assert_int_eq(pair.memory[5], 'n');
  expect_done(pair.initiator.reads, 0);
  expect_done(pair.initiator.writes, 0, &g_two);
}

/// Two segments need a packet. A longer read is not ordered (max_order_*_size).
TEST(a_small_read_in_a_packet_does_not_overtake_small_reads, 2) {
  const bool ordered = _i == 0;
  DirectPair pair;
  pair.introduce();
  pair.memory[5] = 'o';
  pair.a.transport.behaviour.hold_direct = true;
  char first = 0, second = 0;
  must(pair.initiator.read(1, &first, 1, &pair.memory[5], kKey, &g_one));
  must(pair.initiator.read(1, &second, 1, &pair.memory[5], kKey, &g_one));
  ck_assert_uint_eq(pair.direct(), 2);
  std::vector<char> bytes(ordered ? 64 : 65);
  const iovec iov{bytes.data(), bytes.size()};
  const wire::Segment segments[] = {{uint64_t(&pair.memory[5]), kKey, 32},
                                    {uint64_t(&pair.memory[64]), kKey, bytes.size() - 32}};
  must(pair.a.engine.post_one_sided(
      OneSidedNode::args(wire::Op::read, 1, &iov, 1, segments, 2, &g_two)));
  pair.run_until_idle();
  if (ordered)
    ck_assert(pair.initiator.reads.entries.empty());
  else
    expect_done(pair.initiator.reads, 0, &g_two);
  pair.memory[5] = 'n';
  pair.a.transport.behaviour.hold_direct = false;
  pair.run_until_idle();
  ck_assert_int_eq(first, 'n');
  ck_assert_int_eq(second, 'n');
  ck_assert_int_eq(bytes[0], ordered ? 'n' : 'o');
  ck_assert_uint_eq(pair.initiator.reads.entries.size(), ordered ? 3 : 2);
  ck_assert_uint_eq(pair.direct(), 2);
}

TEST(a_small_operation_does_not_overtake_packets, 2) {
  const bool fresh = _i == 0;
  DirectPair pair;
  pair.introduce();
  char first = '1', second = '2';
  if (!fresh) {
    must(pair.initiator.write(1, &first, 1, &pair.memory[9], kKey));
    pair.alone();
    pair.forget();
  }
  const iovec iov{&first, 1};
  const wire::Segment segment{uint64_t(&pair.memory[5]), kKey, 1};
  auto by_packet = OneSidedNode::args(wire::Op::write, 1, &iov, 1, &segment, 1, &g_one);
  by_packet.local.has_data = true;
  must(pair.a.engine.post_one_sided(by_packet));
  must(pair.initiator.write(1, &second, 1, &pair.memory[5], kKey, &g_two));
  pair.alone();
  ck_assert_int_ne(pair.memory[5], '2');
  pair.run_until_idle();
  ck_assert_int_eq(pair.memory[5], '2');
  ck_assert_uint_eq(pair.initiator.writes.entries.size(), 2);
  ck_assert_uint_eq(pair.direct(), 1);
}

TEST(a_row_of_operations_that_never_ends_becomes_direct) {
  DirectPair pair;
  char byte = 'x';
  for (int i = 0; i < 40; ++i) {
    must(pair.initiator.write(1, &byte, 1, &pair.memory[5], kKey));
    if (i % 4 == 3) pair.b.engine.progress();
    if (i % 4 == 3) pair.a.engine.progress();
  }
  ck_assert_uint_gt(pair.direct(), 10);
}

TEST(delivery_is_waited_for_where_it_is_asked_for) {
  DirectPair pair;
  pair.introduce();
  pair.a.transport.behaviour.hold_direct = true;
  char byte = 'x';
  const iovec iov{&byte, 1};
  const wire::Segment segment{uint64_t(&pair.memory[5]), kKey, 1};
  auto args = OneSidedNode::args(wire::Op::write, 1, &iov, 1, &segment, 1, &g_one);
  for (const bool until_delivered : {false, true}) {
    args.local.until_delivered = until_delivered;
    must(pair.a.engine.post_one_sided(args));
    ck_assert_int_eq(pair.a_to_b().directs.back().until_placed, until_delivered);
  }
  pair.end_work({&g_one});
}

TEST(a_closing_region_is_given_back_when_nothing_is_under_way) {
  DirectPair pair;
  pair.introduce();
  ck_assert_uint_eq(pair.region.users, 1);
  pair.a.transport.behaviour.hold_direct = true;
  char byte, many[65];  // a longer read does not wait for the one under way
  must(pair.initiator.read(1, &byte, 1, &pair.memory[5], kKey, &g_one));
  pair.close_region();
  pair.run_until_idle();
  pair.b.engine.grants().stop_waiting(
      kKey, erdma::protocol::Await::busy_peers);  // the peer said that an access is under way
  ck_assert_uint_eq(pair.region.users, 1);
  must(pair.initiator.read(1, many, sizeof(many), &pair.memory[5], kKey, &g_two));
  pair.run_until_idle();
  expect_done(pair.initiator.reads, FI_EACCES, &g_two);
  pair.a.transport.behaviour.hold_direct = false;
  pair.run_until_idle();
  expect_done(pair.initiator.reads, 0);
  ck_assert_uint_eq(pair.region.users, 0);
  pair.region.registered.reset();
  must(pair.initiator.write(1, &byte, 1, &pair.memory[5], kKey, &g_one));
  pair.run_until_idle();
  expect_done(pair.initiator.writes, FI_EACCES);
  ck_assert_uint_eq(pair.network.faults, 0);
}

TEST(a_peer_that_does_not_answer_is_waited_for_once) {
  DirectPair pair;
  pair.introduce();
  pair.close_region();
  ck_assert_uint_eq(pair.region.users, 1);
  pair.b.engine.grants().stop_waiting(kKey, erdma::protocol::Await::busy_peers);
  ck_assert_uint_eq(pair.region.users, 0);
  // The target grants another region while the peer has not answered yet.
  erdma::test::FakeRegion second(pair.memory.data(), 64, OneSidedPair::kAll);
  pair.target.regions.by_key[7] = &second;
  pair.a_to_b().inbound.clear();
  char byte;
  for (int i = 0; i < 2; ++i) {
    must(pair.initiator.read(1, &byte, 1, pair.memory.data(), 7));
    pair.run_until_idle();
  }
  ck_assert_uint_eq(second.users, 1);
  pair.b.engine.grants().revoke(7);
  ck_assert_uint_eq(second.users, 0);
  pair.run_until_idle();  // the peer answers, so the next revocation waits for it
  erdma::test::FakeRegion third(pair.memory.data(), 64, OneSidedPair::kAll);
  pair.target.regions.by_key[8] = &third;
  for (int i = 0; i < 2; ++i) {
    must(pair.initiator.read(1, &byte, 1, pair.memory.data(), 8));
    pair.run_until_idle();
  }
  pair.b.engine.grants().revoke(8);
  ck_assert_uint_eq(third.users, 1);
  pair.run_until_idle();
  ck_assert_uint_eq(third.users, 0);
}

TEST(a_link_that_goes_down_takes_the_access_with_it) {
  DirectPair pair;
  pair.introduce();
  pair.a.transport.behaviour.hold_direct = true;
  char byte = 0;
  must(pair.initiator.read(1, &byte, 1, &pair.memory[5], kKey, &g_one));
  pair.a_to_b().failed = -FI_ECONNRESET;
  pair.b_to_a().failed = -FI_ECONNRESET;
  pair.a.transport.behaviour.hold_direct = false;
  pair.run_until_idle();
  pair.forget();
  ck_assert_uint_eq(pair.region.users, 0);
  const size_t before = pair.direct();
  must(pair.initiator.read(1, &byte, 1, &pair.memory[5], kKey, &g_one));
  pair.run_until_idle();
  expect_done(pair.initiator.reads, 0);
  ck_assert_uint_eq(pair.direct(), before);
}

TEST(what_somebody_counts_is_not_granted) {
  DirectPair pair;
  pair.introduce();
  ck_assert_uint_eq(pair.region.users, 1);
  pair.target.remote_writes.counted = true;
  pair.b.engine.grants().revoke_all();
  pair.run_until_idle();
  ck_assert_uint_eq(pair.region.users, 0);
  char byte = 0;
  for (int i = 0; i < 3; ++i) {
    must(pair.initiator.write(1, &byte, 1, &pair.memory[5], kKey));
    pair.run_until_idle();
  }
  ck_assert_uint_eq(pair.direct(), 0);
  ck_assert_uint_eq(pair.target.remote_writes.entries.size(), 3);
}

TEST(reads_from_oneself_are_direct_from_the_first_on) {
  DirectPair pair;
  pair.initiator.regions.by_key[kKey] = &pair.region;
  char byte = 0;
  must(pair.initiator.read(0, &byte, 1, &pair.memory[5], kKey, &g_one));
  pair.alone();
  expect_done(pair.initiator.reads, 0);
  ck_assert_int_eq(byte, pair.memory[5]);
  ck_assert_uint_eq(pair.a.transport.link(pair.a.transport.name).direct_count, 1);
}

TEST(a_refusal_of_the_link_leads_back_to_packets) {
  DirectPair pair;
  pair.introduce();
  char byte = 'r';
  for (const int refusal : {-FI_EAGAIN, -FI_EINVAL}) {
    pair.a.transport.behaviour.direct_refusal = refusal;
    must(pair.initiator.write(1, &byte, 1, &pair.memory[5], kKey, &g_one));
    pair.alone();
    if (refusal == -FI_EAGAIN) {
      ck_assert(pair.initiator.writes.entries.empty());
      pair.a.transport.behaviour.direct_refusal = 0;
    }
    pair.run_until_idle();
    expect_done(pair.initiator.writes, 0);
  }
  ck_assert_uint_eq(pair.target.remote_writes.entries.size(), 1);
}

void inject(DirectPair& pair, bool to_initiator, const OneSidedHeader& header, const void* payload,
            size_t length) {
  auto& link = to_initiator ? pair.a_to_b() : pair.b_to_a();
  link.inject(&header, sizeof(header), payload, length);
  pair.run_until_idle();
}

TEST(a_peer_cannot_end_or_fill_what_the_device_is_at) {
  for (const auto op : {wire::Op::fin, wire::Op::result}) {
    DirectPair pair;
    pair.introduce();
    pair.a.transport.behaviour.hold_direct = true;
    char bytes[8] = "unread";
    must(pair.initiator.read(1, bytes, 8, &pair.memory[5], kKey, &g_one));
    const uint64_t token = pair.a_to_b().directs.front().token;
    OneSidedHeader header{};
    header.index = uint32_t(token);
    header.generation = uint16_t(token >> 32);
    header.op = op;
    inject(pair, true, header, "hostile!", op == wire::Op::result ? 8 : 0);
    ck_assert_str_eq(bytes, "unread");
    if (g_has_short)  // packets cannot answer an operation of the fast path
      ck_assert(pair.initiator.reads.entries.empty());
    else
      expect_done(pair.initiator.reads, FI_ECONNRESET);  // error of the broken link
    pair.end_work({&g_one});
  }
}

TEST(grants_that_make_no_sense_end_the_link) {
  const struct {
    uint64_t address, length;
    size_t payload;
  } cases[] = {{4096, 64, 0}, {4096, 64, 81}, {~uint64_t{0} - 3, 64, 8}};
  for (const auto& c : cases) {
    DirectPair pair;
    pair.introduce();
    OneSidedHeader header{};
    header.op = wire::Op::grant;
    header.segment = {c.address, 99, c.length};
    const char payload[81] = {};
    inject(pair, true, header, payload, c.payload);
    ck_assert_uint_eq(pair.a_to_b().ended, 1);
  }
}

TEST(answers_that_nobody_asked_for_are_harmless) {
  DirectPair pair;
  OneSidedHeader header{};
  header.op = wire::Op::revoked;
  header.segment.key = kKey;
  inject(pair, false, header, nullptr, 0);
  pair.introduce();
  header.op = wire::Op::revoke;
  header.segment.key = kKey + 1;
  inject(pair, true, header, nullptr, 0);
  inject(pair, true, header, nullptr, 0);
  ck_assert_uint_eq(pair.a_to_b().ended + pair.b_to_a().ended, 0);
  ck_assert_uint_eq(pair.region.users, 1);
}

/// A device refuses regions if a fork would take pages away.
TEST(a_region_that_cannot_be_opened_is_tried_once) {
  DirectPair pair;
  pair.b.transport.behaviour.refuses_to_open = true;
  for (int i = 0; i < 3; ++i) pair.introduce();
  ck_assert_uint_eq(pair.direct(), 0);
  ck_assert_uint_eq(pair.b.transport.open_count, 1);
}

/// A fork does not take GPU memory away. It is open since its registration, and is granted.
TEST(a_region_that_is_open_is_granted_where_others_cannot_be) {
  DirectPair pair;
  auto open = pair.b_to_a().optional().registrar->open(pair.region.iov[0], nullptr, true, true);
  pair.region.registered = std::move(*open);
  pair.region.device = pair.region.register_tried = true;
  pair.b.transport.behaviour.refuses_to_open = true;
  pair.introduce();
  pair.introduce();
  ck_assert_uint_gt(pair.direct(), 0);
  ck_assert_uint_eq(pair.b.transport.open_count, 1);
}

}  // namespace
