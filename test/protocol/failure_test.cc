#include <algorithm>
#include <cstdlib>
#include <new>

#include "fake/captured_log.h"
#include "fake/captured_stderr.h"
#include "libcheck.h"
#include "protocol/direct_rig.h"
#include "protocol/pair.h"

namespace {

bool g_no_arrays = false;   ///< allocations of arrays fail
bool g_no_objects = false;  ///< all other allocations fail
int g_refusals = 0;         ///< number of failed allocations of objects

void* allocate_object(size_t bytes) noexcept {
  g_refusals += g_no_objects;
  return g_no_objects ? nullptr : std::malloc(bytes);
}

}  // namespace

// If only one of malloc and free is inlined, the compiler warns of a mismatch.
[[gnu::noinline]] void* operator new(size_t bytes) {
  void* memory = allocate_object(bytes);
  if (!memory) throw std::bad_alloc();
  return memory;
}
// AddressSanitizer's version of this operator does not call the one above.
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return allocate_object(bytes);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void* operator new[](size_t bytes) {
  void* memory = g_no_arrays ? nullptr : std::malloc(bytes);
  if (!memory) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return g_no_arrays ? nullptr : std::malloc(bytes);
}
[[gnu::noinline]] void operator delete[](void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, size_t) noexcept {
  std::free(memory);
}

namespace {

using erdma::protocol::ErrorCompletion;
using erdma::protocol::Probe;
using namespace erdma::test;
namespace wire = erdma::protocol::wire;
using erdma::fake::Transport;

int g_one, g_two, g_three;

// --- failure ------------------------------------------------------------------------------------

TEST(unreachable_peer_is_one_error_completion) {
  Pair pair;
  pair.a.unreachable = true;
  char byte = 'a';
  ck_assert_int_eq(pair.a.send(1, &byte, 1, 7, &g_one), 0);
  const ErrorCompletion failed = pair.a.sent.take();
  ck_assert_int_eq(failed.error, FI_EHOSTUNREACH);
  ck_assert_ptr_eq(failed.context, &g_one);
  ck_assert(pair.a.sent.entries.empty());
}

TEST(unknown_address_is_refused) {
  Pair pair;
  char byte = 'a';
  ck_assert_int_eq(pair.a.send(77, &byte, 1, 7), -FI_EINVAL);
  ck_assert_int_eq(pair.a.send(UINT64_MAX, &byte, 1, 7), -FI_EINVAL);
  ck_assert_int_eq(pair.a.receive(&byte, 1, 7, nullptr, 0, 77), -FI_EINVAL);
}

TEST(death_of_the_receiver_fails_each_pending_send_once) {
  Pair pair;
  const auto large = pattern(5000);
  const iovec iov{const_cast<char*>(large.data()), 8};
  auto delivered = Node::send_args(1, iov, 1, &g_one);
  delivered.until_delivered = true;
  must(pair.a.engine.post_send(delivered));
  pair.a.send(1, large.data(), large.size(), 2, &g_two);
  pair.a.transport.behaviour.room = 0;
  pair.a.send(1, large.data(), 8, 3, &g_three);
  Transport::bring_down(pair.a_to_b(), -FI_ECONNRESET, pair.a.engine);
  ck_assert_uint_eq(pair.a.sent.entries.size(), 3);
  for (int i = 0; i < 3; ++i) ck_assert_int_eq(pair.a.sent.take().error, FI_ECONNRESET);
  pair.a.engine.progress();
  ck_assert(pair.a.sent.entries.empty());
  ck_assert(pair.a.transport.shared.empty());
}

TEST(death_of_the_sender_fails_what_only_it_could_complete) {
  Pair pair;
  pair.b.transport.behaviour.hold_transfers = true;
  const auto large = pattern(5000);
  std::vector<char> moving(5000), later(5000);
  char directed = 0, any = 0;
  pair.b.receive(moving.data(), moving.size(), 1, &g_one);
  pair.b.receive(&directed, 1, 9, &g_two, 0, 0);
  pair.b.receive(&any, 1, 9, &g_three);
  pair.a.send(1, large.data(), large.size(), 1);
  pair.a.send(1, large.data(), large.size(), 2);
  pair.a.send(1, large.data(), 8, 3);
  for (int i = 0; i < 4; ++i) pair.b.engine.progress();
  Transport::bring_down(pair.b_to_a(), -FI_ECONNRESET, pair.b.engine);
  ck_assert_uint_eq(pair.b.received.entries.size(), 2);
  const ErrorCompletion first = pair.b.received.take(), second = pair.b.received.take();
  ck_assert_int_eq(first.error, FI_ECONNRESET);
  ck_assert_int_eq(second.error, FI_ECONNRESET);
  ck_assert_ptr_eq(first.context, &g_one);
  ck_assert_ptr_eq(second.context, &g_two);
  // The header of the unfetched message still matches, and its receive gets the error.
  pair.b.receive(later.data(), later.size(), 0, &g_one, UINT64_MAX);
  const ErrorCompletion lost = pair.b.received.take();
  ck_assert_int_eq(lost.error, FI_ECONNRESET);
  ck_assert_uint_eq(lost.tag, 2);
  ck_assert_uint_eq(lost.source, 0);
  // A message that has arrived whole is delivered.
  pair.b.receive(later.data(), later.size(), 3, &g_one);
  ck_assert_int_eq(pair.b.received.take().error, 0);
  ck_assert(pair.b.received.entries.empty());
  pair.end_work({&g_one, &g_two, &g_three});
}

TEST(peer_that_closed_in_order_leaves_directed_receives_posted) {
  Pair pair;
  char byte = 'a', in = 0;
  pair.a.send(1, &byte, 1, 1);
  pair.b.engine.progress();
  pair.b.receive(&in, 1, 9, &g_one, 0, 0);
  Transport::bring_down(pair.b_to_a(), -FI_ESHUTDOWN, pair.b.engine);
  ck_assert(pair.b.received.entries.empty());
  ck_assert_int_eq(pair.b.engine.cancel(&g_one), 0);
  pair.end_work({&g_one, &g_two, &g_three});
}

// Lines that a user without log variables sees.

TEST(a_peer_that_dies_under_an_operation_is_seen_once, 2) {
  const erdma::test::CapturedStderr error_output;
  erdma::test::g_log_level = -1;
  Pair pair;
  const auto large = pattern(5000);
  char byte = 0;
  if (_i == 0) {
    pair.a.receive(&byte, 1, 9, &g_one, 0, 1);
    pair.a.send(1, &byte, 1, 1);
  } else {
    pair.a.send(1, large.data(), large.size(), 1, &g_one);
  }
  Transport::bring_down(pair.a_to_b(), -FI_ECONNRESET, pair.a.engine);
  const std::string line = error_output.only_write();
  ck_assert_msg(line.find("is lost (Connection reset by peer), operations") != line.npos, "%s",
                line.c_str());
}

TEST(a_peer_that_leaves_without_a_loss_is_not_seen, 2) {
  const erdma::test::CapturedStderr error_output;
  erdma::test::g_log_level = -1;
  Pair pair;
  char byte = 0;
  pair.a.send(1, &byte, 1, 1);
  pair.run_until_idle();
  if (_i) pair.a.receive(&byte, 1, 9, &g_one, 0, 1);
  Transport::bring_down(pair.a_to_b(), _i ? -FI_ESHUTDOWN : -FI_ECONNRESET, pair.a.engine);
  ck_assert(error_output.writes().empty());
  pair.end_work({&g_one, &g_two, &g_three});
}

/// No operation ends: the receive that waits may still be satisfied by another peer.
TEST(a_peer_that_is_lost_to_a_receive_from_any_source_is_seen_once) {
  const erdma::test::CapturedStderr error_output;
  erdma::test::g_log_level = -1;
  Pair pair;
  char byte = 0;
  pair.a.send(1, &byte, 1, 9);
  pair.b.receive(&byte, 1, 9, &g_two);
  pair.run_until_idle();
  pair.a.receive(&byte, 1, 9, &g_one);
  for (int i = 0; i < 2; ++i) Transport::bring_down(pair.a_to_b(), -FI_ECONNRESET, pair.a.engine);
  const std::string line = error_output.only_write();
  ck_assert_msg(
      line.find("is lost (Connection reset by peer), receives from any source") != line.npos, "%s",
      line.c_str());
  ck_assert(pair.a.received.entries.empty());
  ck_assert_int_eq(pair.a.engine.cancel(&g_one), 0);
}

/// The application knows that no other peer will satisfy its receives. An orderly close is no loss.
TEST(a_receive_from_any_source_ends_with_a_lost_peer_where_that_is_asked_for, 3) {
  const erdma::test::CapturedStderr error_output;
  erdma::test::g_log_level = -1;
  erdma::protocol::EngineConfig config = kConfig;
  config.loss_fails_all = _i > 0;
  Pair pair(config);
  char bytes[4];
  pair.a.send(1, bytes, 1, 9);
  pair.b.receive(bytes, 1, 9, &g_two);
  pair.run_until_idle();
  pair.a.receive(&bytes[2], 1, 9, &g_one);
  pair.a.receive(&bytes[3], 1, 8, &g_three);
  Transport::bring_down(pair.a_to_b(), _i == 2 ? -FI_ESHUTDOWN : -FI_ECONNRESET, pair.a.engine);
  if (_i == 1) {
    for (const void* context : {&g_one, &g_three}) {
      const auto ended = pair.a.received.take();
      ck_assert_ptr_eq(ended.context, context);
      ck_assert_int_eq(ended.error, FI_ECONNRESET);
    }
    ck_assert(error_output.only_write().find("operations with it end in errors") !=
              std::string::npos);
  }
  ck_assert(pair.a.received.entries.empty());
  pair.end_work({&g_one, &g_two, &g_three});
}

TEST(a_directed_receive_waits_for_its_peer_and_another_does_not) {
  Pair pair;
  erdma::transport::Sink& engine = pair.b.engine;
  char byte = 'a', in = 0;
  pair.a.send(1, &byte, 1, 1);
  pair.b.engine.progress();
  pair.b.receive(&in, 1, 9, &g_one);
  pair.b.receive(&in, 1, 9, &g_one, 0, 2);
  ck_assert(!engine.waits_for(pair.b_to_a()));
  pair.b.receive(&in, 1, 9, &g_two, 0, 0);
  ck_assert(engine.waits_for(pair.b_to_a()));
  ck_assert_int_eq(pair.b.engine.cancel(&g_two), 0);
  ck_assert(!engine.waits_for(pair.b_to_a()));
  pair.end_work({&g_one, &g_two, &g_three});
}

/// A transfer that the other side gave up is no operation that the application has cancelled: MPI
/// libraries count FI_ECANCELED as a success.
TEST(failed_transfer_fails_both_sides_once, 4) {
  const bool read = _i % 2 == 0, given_up = _i >= 2;
  const int error = given_up ? FI_ECONNABORTED : FI_EIO;
  Pair pair;
  pair.a.transport.behaviour.prefers_read = read;
  (read ? pair.b : pair.a).transport.behaviour.transfer_status = given_up ? -FI_ECANCELED : -error;
  const auto large = pattern(5000);
  std::vector<char> buffer(5000);
  pair.b.receive(buffer.data(), buffer.size(), 1, &g_two);
  pair.a.send(1, large.data(), large.size(), 1, &g_one);
  pair.run_until_idle();
  ck_assert_int_eq(pair.a.sent.take().error, error);
  ck_assert_int_eq(pair.b.received.take().error, read ? error : FI_EIO);
  expect_clean(pair);
}

/// All bytes have arrived, and are not visible yet. A sender that writes them has completed by
/// then, and may close.
TEST(message_that_is_settling_survives_its_sender, 3) {
  Pair pair;
  for (Node* node : {&pair.a, &pair.b}) {
    node->transport.behaviour.prefers_read = _i;
    node->transport.behaviour.reads_at_once = _i == 2;
    node->transport.behaviour.flushes = node->transport.behaviour.hold_flushes = true;
  }
  const auto message = pattern(5000);
  std::vector<char> buffer(5000);
  const iovec iov{buffer.data(), buffer.size()};
  auto args = Node::receive_args(iov, 7, &g_two);
  args.device = true;
  must(pair.b.engine.post_receive(args));
  must(pair.a.send(1, message.data(), 5000, 7, &g_one));
  pair.run_until_idle();
  ck_assert_uint_eq(pair.b.transport.flushing.size(), 1);
  pair.b_to_a().fail(-FI_ESHUTDOWN);
  pair.run_until_idle();
  ck_assert(pair.b.received.entries.empty());
  pair.b.unreachable = true;  // b cannot tell its peer
  pair.b.transport.behaviour.hold_flushes = false;
  pair.run_until_idle();
  const ErrorCompletion done = pair.b.received.take();
  ck_assert_int_eq(done.error, 0);
  ck_assert_ptr_eq(done.context, &g_two);
  ck_assert(buffer == message);
  ck_assert(pair.b.received.entries.empty() && pair.b.transport.shared.empty());
  pair.end_work({&g_one, &g_two, &g_three});
}

TEST(transfer_waits_while_the_link_has_no_room, 2) {
  const bool read = _i == 0;
  Pair pair;
  pair.a.transport.behaviour.prefers_read = read;
  Node& mover = read ? pair.b : pair.a;
  mover.transport.behaviour.transfer_refusal = -FI_EAGAIN;
  const auto large = pattern(5000);
  std::vector<char> buffer(5000);
  pair.b.receive(buffer.data(), buffer.size(), 1);
  pair.a.send(1, large.data(), large.size(), 1);
  for (int i = 0; i < 8; ++i) pair.a.engine.progress(), pair.b.engine.progress();
  ck_assert(pair.b.received.entries.empty());
  mover.transport.behaviour.transfer_refusal = 0;
  pair.run_until_idle();
  ck_assert_int_eq(pair.a.sent.take().error, 0);
  ck_assert_int_eq(pair.b.received.take().error, 0);
  ck_assert(buffer == large);
  expect_clean(pair);
}

TEST(sharing_waits_while_the_link_connects) {
  Pair pair;
  pair.a.transport.behaviour.share_refusal = -FI_EAGAIN;
  const auto large = pattern(5000);
  std::vector<char> buffer(5000);
  pair.b.receive(buffer.data(), buffer.size(), 1);
  ck_assert_int_eq(pair.a.send(1, large.data(), large.size(), 1), 0);
  pair.a.engine.progress();
  pair.a.transport.behaviour.share_refusal = 0;
  pair.run_until_idle();
  ck_assert_int_eq(pair.b.received.take().error, 0);
  ck_assert(buffer == large);
}

/// An injected message counts as sent, so it must arrive.
TEST(an_injected_message_goes_on_where_nothing_can_be_shared) {
  Pair pair;
  for (Node* node : {&pair.a, &pair.b}) node->transport.behaviour.prefers_read = false;
  pair.a.transport.behaviour.share_refusal = -FI_ENOMEM;
  const auto bytes = pattern(2000);
  std::vector<char> buffer(bytes.size());
  iovec iov{const_cast<char*>(bytes.data()), bytes.size()};
  erdma::protocol::SendArgs args = Node::send_args(1, iov, 1);
  args.inject = true;
  args.report = false;
  ck_assert_int_eq(pair.b.receive(buffer.data(), buffer.size(), 1), 0);
  ck_assert_int_eq(pair.a.engine.post_send(args), 0);
  pair.run_until_idle();
  ck_assert_int_eq(pair.b.received.take().error, 0);
  ck_assert(buffer == bytes);
  ck_assert_int_eq(pair.a.sent.take().report, false);
  expect_clean(pair);
}

// --- a peer that lies ---------------------------------------------------------------------------

TEST(garbage_closes_the_link_of_its_sender, 6) {
  Pair pair;
  char byte = 'a';
  pair.a.send(1, &byte, 1, 1);
  pair.b.engine.progress();
  wire::MessageHeader header{};
  switch (_i) {
    case 0:
      header.op = wire::Op(0);
      break;
    case 1:
      header.op = wire::Op(200);
      break;
    case 2:
      header.op = wire::Op::eager;
      header.length = 100;  // the packet has no payload
      break;
    case 3:
      header.op = wire::Op::rts;
      header.length = UINT64_MAX;
      break;
    case 4:
      header.op = wire::Op::rts;
      break;
    default:
      header.op = wire::Op::cts;
      break;
  }
  const std::vector<char> long_payload(200);
  const size_t payload = _i >= 4 ? long_payload.size() : 0;
  pair.b_to_a().inject(&header, sizeof(header), long_payload.data(), payload);
  pair.b.engine.progress();
  ck_assert_int_eq(pair.b_to_a().failed, 0);  // the link was reported down already
  pair.b.engine.progress();
  char in = 0;
  pair.b.receive(&in, 1, 9, &g_one, 0, 0);
  ck_assert_int_eq(pair.b.engine.cancel(&g_one), 0);
  pair.end_work({&g_one, &g_two, &g_three});
}

TEST(stale_and_invented_ids_are_ignored) {
  Pair pair;
  char byte = 'a';
  pair.a.send(1, &byte, 1, 1);
  pair.b.engine.progress();
  const wire::Op ops[] = {wire::Op::fin, wire::Op::done, wire::Op::cts};
  for (const wire::Op op : ops) {
    for (const uint32_t index : {0u, 5u, 1000000u, UINT32_MAX}) {
      wire::ControlHeader header{};
      header.op = op;
      header.index = index;
      header.generation = 1;
      pair.b_to_a().inject(&header, sizeof(header), nullptr, 0);
    }
  }
  pair.b.engine.progress();
  ck_assert(pair.b.sent.entries.empty() && pair.b.received.entries.empty());
  pair.end_work({&g_one, &g_two, &g_three});
}

TEST(fin_and_done_of_a_third_peer_are_ignored, 2) {
  Pair pair;
  Node third(pair.network, 2, kConfig);
  pair.a.transport.behaviour.prefers_read = pair.b.transport.behaviour.prefers_read = _i == 0;
  pair.a.transport.behaviour.hold_transfers = pair.b.transport.behaviour.hold_transfers = true;
  const auto message = pattern(5000);
  std::vector<char> got(5000);
  must(pair.b.receive(got.data(), got.size(), 7));
  must(pair.a.send(1, message.data(), message.size(), 7));
  pair.b.engine.progress();
  wire::ControlHeader header{};
  header.op = wire::Op::fin;
  header.generation = 1;
  pair.a.transport.link(third.transport.name).inject(&header, sizeof(header), nullptr, 0);
  header.op = wire::Op::done;
  pair.b.transport.link(third.transport.name).inject(&header, sizeof(header), nullptr, 0);
  pair.run_until_idle();
  ck_assert(pair.a.sent.entries.empty());
  ck_assert(pair.b.received.entries.empty());
  pair.a.transport.behaviour.hold_transfers = pair.b.transport.behaviour.hold_transfers = false;
  pair.run_until_idle();
  ck_assert_int_eq(pair.a.sent.take().error, 0);
  ck_assert_int_eq(pair.b.received.take().error, 0);
  ck_assert(got == message);
  expect_clean(pair);
}

TEST(status_that_is_no_errno_is_an_io_error, 3) {
  const int32_t invented[] = {INT32_MIN, -100000, 1};
  Pair pair;
  const auto message = pattern(5000);
  must(pair.a.send(1, message.data(), message.size(), 7));
  wire::ControlHeader header{};
  header.op = wire::Op::fin;
  header.generation = 1;
  header.status = invented[_i];
  pair.a_to_b().inject(&header, sizeof(header), nullptr, 0);
  pair.a.engine.progress();
  ck_assert_int_eq(pair.a.sent.take().error, FI_EIO);
}

TEST(multi_receive_survives_a_message_that_finds_no_memory) {
  Pair pair;
  std::vector<char> buffer(20000);
  iovec iov{buffer.data(), buffer.size()};
  auto args = Node::receive_args(iov, 0, &g_two);
  args.multi = true;
  must(pair.b.engine.post_receive(args));
  const auto message = pattern(5000);
  must(pair.a.send(1, message.data(), message.size(), 0));
  g_no_arrays = true;
  pair.b.engine.progress();
  g_no_arrays = false;
  ck_assert_int_eq(pair.b.received.take().error, FI_ENOMEM);
  char byte = 0;
  must(pair.b.receive(&byte, 1, 1, &g_three));
  must(pair.a.send(1, message.data(), message.size(), 0));
  pair.run_until_idle();
  const ErrorCompletion received = pair.b.received.take();
  ck_assert_int_eq(received.error, 0);
  ck_assert_ptr_eq(received.context, &g_two);
  ck_assert(std::equal(message.begin(), message.end(), buffer.begin()));
  pair.end_work({&g_one, &g_two, &g_three});
}

/// The fragment stays with the link until there is memory, with and without a posted receive, and
/// also if only its bytes find no memory.
TEST(a_first_fragment_that_finds_no_memory_changes_nothing, 3) {
  Pair pair;
  for (Node* node : {&pair.a, &pair.b}) node->transport.behaviour.fragmented = 65536;
  const auto message = pattern(20000);
  std::vector<char> got(message.size());
  const bool posted = _i == 1, only_bytes = _i == 2;
  if (only_bytes) {
    must(pair.b.receive(got.data(), got.size(), 7, &g_one));
    must(pair.a.send(1, message.data(), message.size(), 7));
    pair.run_until_idle();
    pair.b.received.take();
    pair.a.sent.take();
  }
  if (posted) must(pair.b.receive(got.data(), got.size(), 7, &g_two));
  must(pair.a.send(1, message.data(), message.size(), 7));
  g_no_arrays = true;
  for (int i = 0; i < 3; ++i) pair.b.engine.progress();
  g_no_arrays = false;
  ck_assert(pair.b.received.entries.empty());
  if (!posted) must(pair.b.receive(got.data(), got.size(), 7, &g_two));
  pair.run_until_idle();
  ck_assert_ptr_eq(pair.b.received.take().context, &g_two);
  ck_assert(got == message);
  pair.a.sent.take();
  expect_clean(pair);
  pair.end_work();
}

/// The peer cannot be told of the revocation yet.
TEST(all_that_was_granted_is_revoked_without_memory) {
  erdma::test::DirectPair pair(true);
  pair.introduce();
  ck_assert_uint_eq(pair.region.users, 1);
  pair.target.remote_writes.counted = true;
  pair.b.transport.behaviour.room = 0;
  g_no_objects = true;
  pair.b.engine.grants().revoke_all();
  void* const refused = operator new(1, std::nothrow);
  g_no_objects = false;
  ck_assert_ptr_null(refused);
  ck_assert_int_eq(g_refusals, 1);  // the test's allocation failed, and revoke_all() made none
  ck_assert_int_eq(pair.b_to_a().failed, 0);
  pair.b.transport.behaviour.room = 1000;
  pair.run_until_idle();
  ck_assert_uint_eq(pair.region.users, 0);
}

}  // namespace
