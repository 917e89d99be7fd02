// Tests memory that processes of a host share: which operations use it, how it is revoked, and
// small operations that ask the target and go without it if it does not poll.
#include <algorithm>

#include "fake/pretended_device.h"
#include "libcheck.h"
#include "protocol/direct_rig.h"

namespace {

using namespace erdma::test;
namespace wire = erdma::protocol::wire;

constexpr uint64_t kKey = OneSidedPair::kKey;
constexpr unsigned kMorePolls = 1000;  ///< more polls than a target gets to answer

struct SharedPair : erdma::test::DirectPair {
  explicit SharedPair(bool retracts) : DirectPair(false) {
    for (auto* node : {&a, &b}) {
      node->transport.behaviour.shares = true;
      node->transport.behaviour.opens = false;
    }
    a.transport.behaviour.retracts = retracts;
    char byte = 0;
    must(initiator.read(1, &byte, 1, memory.data(), kKey, &g_one));
    run_until_idle();
    forget();
  }
  void alone(unsigned polls = kMorePolls) {
    for (unsigned i = 0; i < polls; ++i) a.engine.progress();
  }
};

TEST(a_region_is_shared_with_its_first_operation) {
  SharedPair pair(false);
  for (const size_t length : {size_t{1}, size_t{64}, size_t{100000}}) {
    const auto bytes = pattern(length, 3);
    std::vector<char> back(length);
    must(pair.initiator.write(1, bytes.data(), length, &pair.memory[17], kKey, &g_one));
    expect_done(pair.initiator.writes, FI_RMA | FI_WRITE);
    must(pair.initiator.read(1, back.data(), length, &pair.memory[17], kKey, &g_two));
    expect_done(pair.initiator.reads, FI_RMA | FI_READ, 0, &g_two);
    ck_assert(back == bytes);
  }
  ck_assert_uint_eq(pair.direct(), 6);
  ck_assert(pair.target.silent());
}

TEST(a_region_closes_without_an_answer) {
  SharedPair pair(false);
  ck_assert_uint_eq(pair.region.users, 1);
  pair.close_region();
  ck_assert_uint_eq(pair.region.users, 0);
  ck_assert_uint_eq(pair.b_to_a().revocations, 1);
  ck_assert_uint_eq(pair.a_to_b().revocations_seen, 0);
  pair.run_until_idle();
  ck_assert_uint_eq(pair.a_to_b().revocations_seen, 1);
  char byte = 'x';
  must(pair.initiator.write(1, &byte, 1, &pair.memory[5], kKey, &g_one));
  pair.run_until_idle();
  expect_done(pair.initiator.writes, FI_RMA | FI_WRITE, FI_EACCES);
  ck_assert_uint_eq(pair.network.faults, 0);
}

TEST(a_region_stays_while_its_user_is_inside, 2) {
  SharedPair pair(false);
  pair.b_to_a().inside = true;
  pair.close_region();
  ck_assert_uint_eq(pair.region.users, 1);
  pair.b.engine.grants().stop_waiting(kKey, erdma::protocol::Await::nothing);
  ck_assert_uint_eq(pair.region.users, 1);
  if (_i) pair.run_until_idle();  // the peer has answered, and accesses another region
  ck_assert_uint_eq(pair.region.users, 1);
  pair.b_to_a().inside = false;
  pair.b.engine.grants().stop_waiting(kKey, erdma::protocol::Await::answers);
  ck_assert_uint_eq(pair.region.users, 0);
}

/// While a region is being closed, another one may get its key and be granted to other peers.
TEST(what_was_not_revoked_stays_granted, 3) {
  SharedPair pair(false);
  pair.b.engine.grants().stop_waiting(kKey, erdma::protocol::Await(_i));
  ck_assert_uint_eq(pair.region.users, 1);
}

/// Peers name the key in their answer, and not which of its regions.
TEST(an_answer_about_an_earlier_region_of_the_key_does_not_free_the_next_one) {
  SharedPair pair(false);
  pair.a.transport.behaviour.direct_busy = true;
  char byte = 0;
  must(pair.initiator.read(1, &byte, 1, pair.memory.data(), kKey, &g_one));
  pair.close_region();
  ck_assert_uint_eq(pair.region.users, 0);
  FakeRegion next(pair.memory.data(), pair.memory.size(), OneSidedPair::kAll);
  pair.target.regions.by_key[kKey] = &next;
  pair.b.engine.progress();  // the read was sent to the earlier region
  ck_assert_uint_eq(next.users, 1);
  pair.b_to_a().inside = true;
  pair.b.engine.grants().revoke(kKey);
  pair.run_until_idle();
  ck_assert_uint_eq(next.users, 1);
  pair.b_to_a().inside = false;
  pair.b.engine.grants().stop_waiting(kKey, erdma::protocol::Await::answers);
  ck_assert_uint_eq(next.users, 0);
}

TEST(what_is_not_possible_now_goes_by_packets) {
  SharedPair pair(false);
  pair.a.transport.behaviour.direct_busy = true;
  char byte = 'b';
  must(pair.initiator.write(1, &byte, 1, &pair.memory[5], kKey, &g_one));
  pair.alone();
  ck_assert(pair.initiator.silent());
  pair.run_until_idle();
  expect_done(pair.initiator.writes, FI_RMA | FI_WRITE);
  ck_assert_int_eq(pair.memory[5], 'b');
  ck_assert_uint_eq(pair.direct(), 0);
  pair.a.transport.behaviour.direct_busy = false;
  must(pair.initiator.write(1, &byte, 1, &pair.memory[6], kKey, &g_one));
  ck_assert_uint_eq(pair.direct(), 1);
}

TEST(what_ends_half_way_is_done_by_packets, 2) {
  const int status = _i ? -FI_EBUSY : -FI_EOPNOTSUPP;
  SharedPair pair(false);
  auto& behaviour = pair.a.transport.behaviour;
  behaviour.hold_direct = true;
  behaviour.shared_status = status;
  const auto bytes = pattern(100000, 4);
  must(pair.initiator.write(1, bytes.data(), bytes.size(), &pair.memory[5], kKey, &g_one));
  ck_assert_uint_eq(pair.direct(), 1);
  behaviour.direct_busy = true;
  behaviour.hold_direct = false;
  pair.run_until_idle();
  expect_done(pair.initiator.writes, FI_RMA | FI_WRITE);
  ck_assert(std::equal(bytes.begin(), bytes.end(), pair.memory.begin() + 5));
  behaviour.direct_busy = false;
  must(pair.initiator.write(1, bytes.data(), 1, &pair.memory[5], kKey, &g_one));
  pair.run_until_idle();
  ck_assert_uint_eq(pair.direct(), status == -FI_EBUSY ? 2 : 1);
}

/// Otherwise revocations of other regions could interrupt it without end.
TEST(what_was_interrupted_is_not_interrupted_again) {
  SharedPair pair(false);
  auto& behaviour = pair.a.transport.behaviour;
  behaviour.hold_direct = true;
  behaviour.shared_status = -FI_EBUSY;
  const auto bytes = pattern(100000, 4);
  must(pair.initiator.write(1, bytes.data(), bytes.size(), &pair.memory[5], kKey, &g_one));
  for (int i = 0; i < 100; ++i) {
    behaviour.hold_direct = false;
    pair.a.engine.progress();
    behaviour.hold_direct = true;
    pair.run_until_idle();
  }
  ck_assert_uint_eq(pair.direct(), 1);
  expect_done(pair.initiator.writes, FI_RMA | FI_WRITE);
}

TEST(a_link_that_goes_down_ends_what_is_under_way, 2) {
  SharedPair pair(_i);
  pair.a.transport.behaviour.hold_direct = true;
  char byte = 0;
  must(pair.initiator.read(1, &byte, 1, &pair.memory[5], kKey, &g_one));
  pair.a_to_b().failed = pair.b_to_a().failed = -FI_ECONNRESET;
  pair.a.transport.behaviour.hold_direct = false;
  pair.run_until_idle();
  expect_done(pair.initiator.reads, FI_RMA | FI_READ, FI_ECONNRESET);
  ck_assert_uint_eq(pair.region.users, 0);
}

/// A flush that fails with -FI_EOPNOTSUPP is no refusal of direct access.
TEST(what_can_not_be_settled_fails) {
  erdma::fake::PretendedDevice device;
  erdma::protocol::EngineConfig config = erdma::test::kConfig;
  config.device_memory = &device;
  OneSidedPair pair(1 << 18, OneSidedPair::kAll, config);
  pair.a.transport.behaviour.flushes = true;
  pair.a.transport.behaviour.flush_status = -FI_EOPNOTSUPP;
  std::vector<char> buffer(100000);
  const iovec iov{buffer.data(), buffer.size()};
  const wire::Segment segment{uint64_t(pair.memory.data()), kKey, buffer.size()};
  auto args = OneSidedNode::args(wire::Op::read, 1, &iov, 1, &segment, 1, &g_one);
  args.device = true;
  must(pair.a.engine.post_one_sided(args));
  pair.run_until_idle();
  expect_done(pair.initiator.reads, FI_RMA | FI_READ, FI_EOPNOTSUPP);
}

// --- small operations that ask ------------------------------------------------------------------

TEST(a_target_that_polls_is_asked) {
  SharedPair pair(true);
  char byte = 'p', back = 0;
  for (int i = 0; i < 100; ++i) {
    must(pair.initiator.write(1, &byte, 1, &pair.memory[5], kKey, &g_one));
    must(pair.initiator.read(1, &back, 1, &pair.memory[5], kKey, &g_two));
    pair.run_until_idle();
    expect_done(pair.initiator.writes, FI_RMA | FI_WRITE);
    expect_done(pair.initiator.reads, FI_RMA | FI_READ, 0, &g_two);
    ck_assert_int_eq(back, 'p');
  }
  ck_assert_uint_eq(pair.direct(), 0);
}

/// FakeLink's longest operation of this kind.
TEST(a_target_that_polls_is_asked_for_what_the_link_permits, 2) {
  const size_t length = _i ? 4097 : 4096;
  SharedPair pair(true);
  const auto bytes = pattern(length, 3);
  std::vector<char> back(length);
  must(pair.initiator.write(1, bytes.data(), length, &pair.memory[17], kKey, &g_one));
  must(pair.initiator.read(1, back.data(), length, &pair.memory[17], kKey, &g_two));
  pair.run_until_idle();
  expect_done(pair.initiator.writes, FI_RMA | FI_WRITE);
  expect_done(pair.initiator.reads, FI_RMA | FI_READ, 0, &g_two);
  ck_assert(back == bytes);
  ck_assert_uint_eq(pair.direct(), _i ? 2 : 0);
}

TEST(a_target_that_does_not_poll_is_spared_long_operations) {
  SharedPair pair(true);
  const auto bytes = pattern(4096, 3);
  std::vector<char> back(4096);
  must(pair.initiator.write(1, bytes.data(), 4096, &pair.memory[17], kKey, &g_one));
  must(pair.initiator.read(1, back.data(), 4096, &pair.memory[17], kKey, &g_two));
  ck_assert(pair.initiator.silent());
  pair.alone();
  expect_done(pair.initiator.writes, FI_RMA | FI_WRITE);
  expect_done(pair.initiator.reads, FI_RMA | FI_READ, 0, &g_two);
  ck_assert(back == bytes);
  ck_assert_uint_eq(pair.direct(), 2);
  pair.memory[17] ^= 1;
  const char changed = pair.memory[17];
  pair.run_until_idle();  // the target finds no operation
  ck_assert_int_eq(pair.memory[17], changed);
}

TEST(a_target_that_does_not_is_spared, 2) {
  const bool sleeps = _i;
  SharedPair pair(true);
  char bytes[] = "abc", back = 0;
  for (int i = 0; i < 3; ++i)
    must(pair.initiator.write(1, &bytes[i], 1, &pair.memory[5], kKey, &bytes[i]));
  must(pair.initiator.read(1, &back, 1, &pair.memory[5], kKey, &g_two));
  ck_assert(pair.initiator.silent());
  if (sleeps)
    ck_assert_int_eq(pair.a.engine.execute_all_retractable(), 4);
  else
    pair.alone();
  ck_assert_uint_eq(pair.initiator.writes.entries.size(), 3);
  expect_done(pair.initiator.reads, FI_RMA | FI_READ, 0, &g_two);
  ck_assert_int_eq(back, 'c');
  ck_assert_int_eq(pair.memory[5], 'c');
  pair.memory[5] = 'o';
  pair.forget();
  pair.run_until_idle();  // the target finds no operation
  ck_assert_int_eq(pair.memory[5], 'o');
  ck_assert(pair.initiator.silent() && pair.target.silent());
}

/// A thread may sleep after that step.
TEST(what_waits_for_an_operation_begins_in_the_step_that_ends_it) {
  SharedPair pair(true);
  char first = '1', second = '2';
  must(pair.initiator.write(1, &first, 1, &pair.memory[5], kKey, &g_one));
  const iovec iov{&second, 1};
  const wire::Segment segment{uint64_t(&pair.memory[6]), kKey, 1};
  auto fenced = OneSidedNode::args(wire::Op::write, 1, &iov, 1, &segment, 1, &g_two);
  fenced.local.fence = true;
  must(pair.a.engine.post_one_sided(fenced));
  for (unsigned i = 0; i < kMorePolls && pair.direct() == 0; ++i) pair.a.engine.progress();
  ck_assert_uint_eq(pair.direct(), 2);
  pair.run_until_idle();
  ck_assert_uint_eq(pair.initiator.writes.entries.size(), 2);
  ck_assert_int_eq(pair.memory[6], '2');
}

/// An operation that the target has taken may be in any state. Only its answer shows that it is
/// done.
TEST(what_follows_something_taken_is_not_spared) {
  SharedPair pair(true);
  char first = '1', second = '2';
  must(pair.initiator.write(1, &first, 1, &pair.memory[5], kKey, &g_one));
  pair.b_to_a().taken = pair.b_to_a().arrived;
  must(pair.initiator.write(1, &second, 1, &pair.memory[5], kKey, &g_two));
  pair.alone();
  ck_assert_uint_eq(pair.direct(), 0);
  ck_assert(pair.initiator.silent());
  pair.run_until_idle();
  ck_assert_uint_eq(pair.initiator.writes.entries.size(), 2);
  ck_assert_int_eq(pair.memory[5], '2');
}

TEST(what_follows_something_that_needs_the_target_needs_it_too) {
  SharedPair pair(true);
  char first = '1', second = '2';
  const iovec iov{&first, 1};
  const wire::Segment segment{uint64_t(&pair.memory[5]), kKey, 1};
  auto with_data = OneSidedNode::args(wire::Op::write, 1, &iov, 1, &segment, 1, &g_one);
  with_data.local.has_data = true;
  must(pair.a.engine.post_one_sided(with_data));
  must(pair.initiator.write(1, &second, 1, &pair.memory[5], kKey, &g_two));
  pair.alone();
  ck_assert(pair.initiator.silent());
  ck_assert_int_ne(pair.memory[5], '2');
  pair.run_until_idle();
  ck_assert_uint_eq(pair.initiator.writes.entries.size(), 2);
  ck_assert_int_eq(pair.memory[5], '2');
}

/// Only the first operation with a grant waits for the packets before it.
TEST(what_follows_something_that_needs_the_target_is_sent_at_once, 2) {
  const bool used = _i;
  SharedPair pair(true);
  char first = '1', second = '2';
  for (int i = 0; used && i < 3; ++i) {
    must(pair.initiator.write(1, &first, 1, &pair.memory[9], kKey, &g_one));
    pair.run_until_idle();
    expect_done(pair.initiator.writes, FI_RMA | FI_WRITE);
  }
  const iovec iov{&first, 1};
  const wire::Segment segment{uint64_t(&pair.memory[5]), kKey, 1};
  auto with_data = OneSidedNode::args(wire::Op::write, 1, &iov, 1, &segment, 1, &g_one);
  with_data.local.has_data = true;
  const size_t before = pair.a_to_b().sent;
  must(pair.a.engine.post_one_sided(with_data));
  must(pair.initiator.write(1, &second, 1, &pair.memory[5], kKey, &g_two));
  ck_assert_uint_eq(pair.a_to_b().sent - before, used ? 2 : 1);
  pair.run_until_idle();
  ck_assert_uint_eq(pair.initiator.writes.entries.size(), 2);
  ck_assert_int_eq(pair.memory[5], '2');
  ck_assert_uint_eq(pair.direct(), 0);
}

TEST(what_can_not_be_done_here_is_left_to_the_target, 2) {
  const bool revoked = _i;
  SharedPair pair(true);
  char byte = 'r';
  must(pair.initiator.write(1, &byte, 1, &pair.memory[5], kKey, &g_one));
  if (revoked) {
    pair.target.remote_writes.counted = true;
    pair.b.engine.grants().revoke_all();
    pair.alone(4);
  } else {
    pair.a.transport.behaviour.direct_busy = true;
  }
  pair.alone();
  ck_assert(pair.initiator.silent());
  ck_assert_int_ne(pair.memory[5], 'r');
  pair.run_until_idle();
  expect_done(pair.initiator.writes, FI_RMA | FI_WRITE);
  ck_assert_int_eq(pair.memory[5], 'r');
}

TEST(who_did_not_look_is_not_asked_for_a_while) {
  SharedPair pair(true);
  char byte = 'w';
  size_t executed = 0, packets = pair.a_to_b().sent;
  for (int i = 0; i < 1000; ++i) {
    must(pair.initiator.write(1, &byte, 1, &pair.memory[5], kKey, &g_one));
    executed += pair.initiator.writes.entries.empty();
    pair.alone();
    expect_done(pair.initiator.writes, FI_RMA | FI_WRITE);
  }
  // There are 64, 128, 256 and 512 operations between them, and each takes one packet.
  ck_assert_uint_eq(executed, 5);
  ck_assert_uint_eq(pair.a_to_b().sent - packets, 5);
  // A target that polls again is asked again.
  while (pair.direct() < 2000) {
    must(pair.initiator.write(1, &byte, 1, &pair.memory[5], kKey, &g_one));
    if (pair.initiator.writes.entries.empty()) break;
    pair.forget();
  }
  pair.run_until_idle();
  const size_t before = pair.direct();
  for (int i = 0; i < 10; ++i) {
    must(pair.initiator.write(1, &byte, 1, &pair.memory[5], kKey, &g_one));
    pair.run_until_idle();
  }
  ck_assert_uint_eq(pair.direct(), before);
}

}  // namespace
