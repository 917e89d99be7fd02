#include <algorithm>

#include "libcheck.h"
#include "protocol/pair.h"

namespace {

using erdma::protocol::ErrorCompletion;
using erdma::protocol::Probe;
using namespace erdma::test;
namespace wire = erdma::protocol::wire;
using erdma::fake::Transport;

int g_one, g_two, g_three;

// Messages below, at and above the packet limit; fetched by read and by write; expected and
// unexpected.
struct Case {
  size_t length;
  bool prefers_read;
  bool early_receive;
};
constexpr Case kCases[] = {
    {0, true, true},       {1, true, true},     {64, true, true},      {65, true, true},
    {1024, true, true},    {1025, true, true},  {100000, true, true},  {1025, false, true},
    {100000, false, true}, {0, true, false},    {1, true, false},      {64, true, false},
    {65, true, false},     {1024, true, false}, {100000, true, false}, {100000, false, false},
};

TEST(message_arrives_whole_and_completes_once_on_both_sides, std::size(kCases)) {
  const Case& c = kCases[_i];
  Pair pair;
  pair.a.transport.behaviour.prefers_read = c.prefers_read;
  const auto message = pattern(c.length);
  std::vector<char> buffer(c.length + 8, 'x');
  if (c.early_receive) {
    ck_assert_int_eq(pair.b.receive(buffer.data(), buffer.size(), 7, &g_two), 0);
  }
  ck_assert_int_eq(pair.a.send(1, message.data(), c.length, 7, &g_one), 0);
  pair.run_until_idle();
  if (!c.early_receive) {
    ck_assert(pair.b.received.entries.empty());
    ck_assert_int_eq(pair.b.receive(buffer.data(), buffer.size(), 7, &g_two), 0);
    pair.run_until_idle();
  }
  ck_assert_uint_eq(pair.a.sent.entries.size(), 1);
  const ErrorCompletion sent = pair.a.sent.take();
  ck_assert_ptr_eq(sent.context, &g_one);
  ck_assert_int_eq(sent.error, 0);
  ck_assert_uint_eq(sent.flags, FI_SEND | FI_TAGGED);
  ck_assert_uint_eq(pair.b.received.entries.size(), 1);
  const ErrorCompletion received = pair.b.received.take();
  ck_assert_ptr_eq(received.context, &g_two);
  ck_assert_int_eq(received.error, 0);
  ck_assert_uint_eq(received.flags, FI_RECV | FI_TAGGED);
  ck_assert_uint_eq(received.length, c.length);
  ck_assert_uint_eq(received.tag, 7);
  ck_assert_uint_eq(received.source, 0);
  ck_assert(std::equal(message.begin(), message.end(), buffer.begin()));
  ck_assert_int_eq(buffer[c.length], 'x');
  expect_clean(pair);
}

TEST(message_longer_than_its_receive_is_truncated_with_the_rest_in_olen, 3) {
  const size_t length = _i == 0 ? 100 : 5000;
  Pair pair;
  pair.a.transport.behaviour.prefers_read = _i != 2;
  const auto message = pattern(length);
  std::vector<char> buffer(40);
  pair.b.receive(buffer.data(), buffer.size(), 7, &g_two);
  pair.a.send(1, message.data(), length, 7, &g_one);
  pair.run_until_idle();
  ck_assert_int_eq(pair.a.sent.take().error, 0);
  const ErrorCompletion received = pair.b.received.take();
  ck_assert_int_eq(received.error, FI_ETRUNC);
  ck_assert_uint_eq(received.length, 40);
  ck_assert_uint_eq(received.overflow, length - 40);
  ck_assert(std::equal(buffer.begin(), buffer.end(), message.begin()));
  expect_clean(pair);
}

TEST(a_peer_is_trusted_once_the_application_itself_names_it) {
  Pair pair;
  ck_assert_int_eq(pair.a.send(1, nullptr, 0, 7), 0);
  pair.run_until_idle();
  const auto& to_b = pair.a.transport.link(pair.b.transport.name);
  const auto& to_a = pair.b.transport.link(pair.a.transport.name);
  ck_assert(to_b.trusted);
  ck_assert(!to_a.trusted);  // b has not addressed a yet
  ck_assert_int_eq(pair.b.send(0, nullptr, 0, 7), 0);
  ck_assert(to_a.trusted);
  pair.end_work({&g_one, &g_two, &g_three});
}

TEST(send_completes_with_delivery_complete_only_after_the_receive, 3) {
  const size_t length = _i == 0 ? 8 : 5000;
  Pair pair;
  pair.a.transport.behaviour.prefers_read = _i != 2;
  const auto message = pattern(length);
  const iovec iov{const_cast<char*>(message.data()), length};
  auto args = Node::send_args(1, iov, 7, &g_one);
  args.until_delivered = true;
  ck_assert_int_eq(pair.a.engine.post_send(args), 0);
  pair.run_until_idle();
  ck_assert(pair.a.sent.entries.empty());
  std::vector<char> buffer(length);
  pair.b.receive(buffer.data(), length, 7, &g_two);
  pair.run_until_idle();
  ck_assert_int_eq(pair.b.received.take().error, 0);
  ck_assert_int_eq(pair.a.sent.take().error, 0);
  expect_clean(pair);
}

/// The completion of a WRITE does not mean that its bytes have arrived, so the sender waits until
/// the receiver has taken `done` and has made the bytes visible in the memory of a GPU.
TEST(delivery_of_a_message_that_its_sender_writes_is_confirmed_by_the_receiver, 3) {
  const bool device = _i > 0;
  const int status = _i == 2 ? FI_EIO : 0;
  Pair pair;
  pair.a.transport.behaviour.prefers_read = false;
  pair.b.transport.behaviour.flushes = pair.b.transport.behaviour.hold_flushes = device;
  pair.b.transport.behaviour.flush_status = -status;
  const auto message = pattern(5000);
  std::vector<char> buffer(5000);
  const iovec into{buffer.data(), buffer.size()};
  auto receive = Node::receive_args(into, 7, &g_two);
  receive.device = device;
  must(pair.b.engine.post_receive(receive));
  const iovec from{const_cast<char*>(message.data()), message.size()};
  auto send = Node::send_args(1, from, 7, &g_one);
  send.until_delivered = true;
  must(pair.a.engine.post_send(send));
  pair.b.engine.progress();
  for (int i = 0; i < 4; ++i) pair.a.engine.progress();
  ck_assert(buffer == message);
  ck_assert(pair.a.sent.entries.empty());
  if (device) {
    pair.run_until_idle();
    ck_assert_uint_eq(pair.b.transport.flushing.size(), 1);
    ck_assert(pair.a.sent.entries.empty());
    pair.b.transport.behaviour.hold_flushes = false;
  }
  pair.run_until_idle();
  ck_assert_int_eq(pair.b.received.take().error, status);
  const ErrorCompletion sent = pair.a.sent.take();
  ck_assert_int_eq(sent.error, status);
  ck_assert_ptr_eq(sent.context, &g_one);
  expect_clean(pair);
}

TEST(messages_keep_their_order_over_a_full_link_and_mixed_protocols) {
  Pair pair;
  pair.a.transport.behaviour.room = 2;
  constexpr size_t kLengths[] = {8, 5000, 64, 1000, 2000, 0, 8, 3000, 1, 200};
  std::vector<std::vector<char>> messages;
  for (size_t i = 0; i < std::size(kLengths); ++i) {
    messages.push_back(pattern(kLengths[i], unsigned(i)));
    ck_assert_int_eq(pair.a.send(1, messages[i].data(), kLengths[i], 7, &messages[i]), 0);
  }
  pair.run_until_idle();
  for (size_t i = 0; i < std::size(kLengths); ++i) {
    std::vector<char> buffer(6000);
    pair.b.receive(buffer.data(), buffer.size(), 7);
    pair.run_until_idle();
    const ErrorCompletion received = pair.b.received.take();
    ck_assert_uint_eq(received.length, kLengths[i]);
    ck_assert(std::equal(messages[i].begin(), messages[i].end(), buffer.begin()));
  }
  pair.run_until_idle();
  ck_assert_uint_eq(pair.a.sent.entries.size(), std::size(kLengths));
  pair.a.sent.entries.clear();
  expect_clean(pair);
}

TEST(send_over_a_full_link_looks_for_room_before_it_waits) {
  Pair pair;
  char byte = 'b';
  ck_assert_int_eq(pair.a.send(1, &byte, 1, 7, &g_one), 0);  // connects a and b
  pair.run_until_idle();
  ck_assert_int_eq(pair.a.sent.take().error, 0);
  pair.a.transport.behaviour.room = 0;
  pair.a.transport.behaviour.more_room = 1;
  ck_assert_int_eq(pair.a.send(1, &byte, 1, 7, &g_two), 0);
  ck_assert_uint_eq(pair.a.sent.entries.size(), 1);  // sent at once: nothing waits behind it
  ck_assert_ptr_eq(pair.a.sent.take().context, &g_two);
  pair.end_work({&g_one, &g_two, &g_three});
}

TEST(inject_frees_the_buffer_at_once_even_if_the_link_is_full) {
  Pair pair;
  pair.a.transport.behaviour.room = 0;
  auto message = pattern(2000);
  const auto original = message;
  const iovec iov{message.data(), message.size()};
  auto args = Node::send_args(1, iov, 7, &g_one);
  args.inject = true;
  args.report = false;
  ck_assert_int_eq(pair.a.engine.post_send(args), 0);
  ck_assert(pair.a.engine.has_injected());
  std::fill(message.begin(), message.end(), 'z');
  pair.a.transport.behaviour.room = 10;
  std::vector<char> buffer(2000);
  pair.b.receive(buffer.data(), buffer.size(), 7);
  pair.run_until_idle();
  ck_assert(!pair.a.engine.has_injected());
  ck_assert_int_eq(pair.b.received.take().error, 0);
  ck_assert(buffer == original);
  ck_assert_int_eq(pair.a.sent.take().report, false);
}

TEST(inject_beyond_the_limit_is_refused) {
  Pair pair;
  std::vector<char> message(4097);
  const iovec iov{message.data(), message.size()};
  auto args = Node::send_args(1, iov, 7);
  args.inject = true;
  ck_assert_int_eq(pair.a.engine.post_send(args), -FI_EMSGSIZE);
}

TEST(send_beyond_the_limit_in_flight_is_eagain_and_clears_with_progress) {
  Pair pair;
  pair.a.transport.behaviour.room = 0;
  char byte = 'b';
  for (uint32_t i = 0; i < kConfig.send_limit; ++i)
    ck_assert_int_eq(pair.a.send(1, &byte, 1, i), 0);
  ck_assert_int_eq(pair.a.send(1, &byte, 1, 99), -FI_EAGAIN);
  pair.a.transport.behaviour.room = SIZE_MAX;
  pair.run_until_idle();
  ck_assert_int_eq(pair.a.send(1, &byte, 1, 99), 0);
  pair.end_work({&g_one, &g_two, &g_three});
}

TEST(fenced_send_waits_for_what_is_in_flight) {
  Pair pair;
  pair.b.transport.behaviour.hold_transfers = true;
  const auto large = pattern(5000);
  std::vector<char> first(5000), second(8);
  pair.b.receive(first.data(), first.size(), 1);
  pair.b.receive(second.data(), second.size(), 2);
  pair.a.send(1, large.data(), large.size(), 1);
  const iovec iov{const_cast<char*>(large.data()), 8};
  auto args = Node::send_args(1, iov, 2);
  args.fence = true;
  ck_assert_int_eq(pair.a.engine.post_send(args), 0);
  for (int i = 0; i < 10; ++i) pair.a.engine.progress(), pair.b.engine.progress();
  ck_assert(pair.b.received.entries.empty());
  pair.b.transport.behaviour.hold_transfers = false;
  pair.run_until_idle();
  ck_assert_uint_eq(pair.b.received.take().tag, 1);
  ck_assert_uint_eq(pair.b.received.take().tag, 2);
}

TEST(remote_data_travels_with_eager_and_rendezvous, 2) {
  const size_t length = _i == 0 ? 8 : 5000;
  Pair pair;
  const auto message = pattern(length);
  const iovec iov{const_cast<char*>(message.data()), length};
  auto args = Node::send_args(1, iov, 7);
  args.has_data = true;
  args.data = 0xfedcba9876543210u;
  std::vector<char> buffer(length);
  pair.b.receive(buffer.data(), length, 7);
  must(pair.a.engine.post_send(args));
  pair.run_until_idle();
  const ErrorCompletion received = pair.b.received.take();
  ck_assert_uint_eq(received.flags, FI_RECV | FI_TAGGED | FI_REMOTE_CQ_DATA);
  ck_assert_uint_eq(received.data, 0xfedcba9876543210u);
}

/// Node a has written a message to b, and has no room for the packet that reports it.
struct DoneBlocked : Pair {
  DoneBlocked() {
    b.transport.behaviour.prefers_read = a.transport.behaviour.prefers_read = false;
    a.transport.behaviour.hold_transfers = true;
    b.receive(buffer.data(), buffer.size(), 7);
    must(a.send(1, message.data(), message.size(), 7));
    run_until_idle();
    a.transport.behaviour.room = 0;
    a.transport.behaviour.hold_transfers = false;
    run_until_idle();
  }
  const std::vector<char> message = pattern(5000);
  std::vector<char> buffer = std::vector<char>(5000);
};

/// An application that has all its completions need not make progress any more. Therefore a send
/// completes only after the packet that its receiver needs was sent.
TEST(a_send_completes_when_the_receiver_can_know) {
  DoneBlocked pair;
  ck_assert(pair.buffer == pair.message);
  ck_assert(pair.a.sent.entries.empty() && pair.b.received.entries.empty());
  pair.a.transport.behaviour.room = SIZE_MAX;
  pair.a.engine.progress();
  ck_assert_uint_eq(pair.a.sent.take().tag, 7);
  pair.b.engine.progress();
  ck_assert_uint_eq(pair.b.received.take().tag, 7);
  expect_clean(pair);
}

/// The packet that was still to be sent is dropped.
TEST(a_send_whose_receiver_never_learns_fails_with_the_link) {
  DoneBlocked pair;
  pair.a.lose_peers();
  ck_assert_int_eq(pair.a.sent.take().error, FI_ECONNRESET);
  pair.b.lose_peers();
  ck_assert_int_eq(pair.b.received.take().error, FI_ECONNRESET);
  expect_clean(pair);
}

TEST(tagged_and_untagged_messages_do_not_meet) {
  Pair pair;
  char in[2] = {}, out = 'u';
  iovec iov{&in[0], 1};
  auto untagged = Node::receive_args(iov, 0, &g_one);
  untagged.tagged = false;
  ck_assert_int_eq(pair.b.engine.post_receive(untagged), 0);
  pair.b.receive(&in[1], 1, 0, &g_two);
  const iovec from{&out, 1};
  auto args = Node::send_args(1, from, 0);
  args.tagged = false;
  must(pair.a.engine.post_send(args));
  pair.run_until_idle();
  const ErrorCompletion received = pair.b.received.take();
  ck_assert_ptr_eq(received.context, &g_one);
  ck_assert_uint_eq(received.flags, FI_RECV | FI_MSG);
  ck_assert(pair.b.received.entries.empty());
  pair.end_work({&g_one, &g_two, &g_three});
}

// --- peek, claim, discard, cancel ---------------------------------------------------------------

TEST(peek_that_misses_is_an_error_completion_enomsg) {
  Pair pair;
  iovec iov{nullptr, 0};
  ck_assert_int_eq(pair.b.engine.probe(Node::receive_args(iov, 7, &g_one), Probe::peek), 0);
  const ErrorCompletion miss = pair.b.received.take();
  ck_assert_int_eq(miss.error, FI_ENOMSG);
  ck_assert_ptr_eq(miss.context, &g_one);
}

TEST(peek_reports_length_tag_and_source_and_leaves_the_message, 2) {
  const size_t length = _i == 0 ? 8 : 5000;
  Pair pair;
  const auto message = pattern(length);
  pair.a.send(1, message.data(), length, 7);
  iovec iov{nullptr, 0};
  ck_assert_int_eq(
      pair.b.engine.probe(Node::receive_args(iov, 0, &g_one, ~uint64_t{0}), Probe::peek), 0);
  const ErrorCompletion found = pair.b.received.take();
  ck_assert_int_eq(found.error, 0);
  ck_assert_uint_eq(found.length, length);
  ck_assert_uint_eq(found.tag, 7);
  ck_assert_uint_eq(found.source, 0);
  std::vector<char> buffer(length);
  pair.b.receive(buffer.data(), length, 7);
  pair.run_until_idle();
  ck_assert_int_eq(pair.b.received.take().error, 0);
  ck_assert(buffer == message);
}

/// A miss is answered as well: a caller that waits for the answer must not wait for ever.
TEST(peek_is_answered_even_where_only_errors_are_reported, 2) {
  Pair pair;
  const auto message = pattern(8);
  pair.a.send(1, message.data(), message.size(), 7);
  pair.run_until_idle();
  iovec iov{nullptr, 0};
  auto args = Node::receive_args(iov, 7, &g_one);
  args.report = false;
  const std::vector<Probe> peeks[] = {{Probe::peek, Probe::peek_discard},
                                      {Probe::peek_claim, Probe::claim_discard}};
  for (const Probe probe : peeks[_i]) {
    must(pair.b.engine.probe(args, probe));
    const ErrorCompletion found = pair.b.received.take();
    ck_assert_int_eq(found.error, 0);
    ck_assert(found.report);
  }
  ck_assert(pair.b.received.entries.empty());
}

TEST(claimed_message_goes_to_the_claim_and_to_nobody_else, 2) {
  const size_t length = _i == 0 ? 8 : 5000;
  Pair pair;
  const auto message = pattern(length);
  pair.a.send(1, message.data(), length, 7);
  pair.run_until_idle();
  std::vector<char> buffer(length), other(length);
  iovec iov{buffer.data(), length};
  must(pair.b.engine.probe(Node::receive_args(iov, 7, &g_one), Probe::peek_claim));
  ck_assert_int_eq(pair.b.received.take().error, 0);
  pair.b.receive(other.data(), length, 7, &g_two);
  pair.run_until_idle();
  ck_assert(pair.b.received.entries.empty());
  ck_assert_int_eq(pair.b.engine.probe(Node::receive_args(iov, 7, &g_one), Probe::claim), 0);
  pair.run_until_idle();
  const ErrorCompletion received = pair.b.received.take();
  ck_assert_ptr_eq(received.context, &g_one);
  ck_assert(buffer == message);
  ck_assert_int_eq(pair.b.engine.probe(Node::receive_args(iov, 7, &g_one), Probe::claim),
                   -FI_EINVAL);
  pair.end_work({&g_one, &g_two, &g_three});
}

TEST(discarded_message_is_gone_and_its_sender_completes, 2) {
  const bool claim_first = _i == 1;
  Pair pair;
  const auto message = pattern(5000);
  pair.a.send(1, message.data(), message.size(), 7);
  pair.run_until_idle();
  iovec iov{nullptr, 0};
  if (claim_first) {
    must(pair.b.engine.probe(Node::receive_args(iov, 7, &g_one), Probe::peek_claim));
    must(pair.b.engine.probe(Node::receive_args(iov, 7, &g_one), Probe::claim_discard));
    ck_assert_int_eq(pair.b.received.take().error, 0);
  } else {
    must(pair.b.engine.probe(Node::receive_args(iov, 7, &g_one), Probe::peek_discard));
  }
  ck_assert_int_eq(pair.b.received.take().error, 0);
  pair.run_until_idle();
  ck_assert_int_eq(pair.a.sent.take().error, 0);
  must(pair.b.engine.probe(Node::receive_args(iov, 7, &g_one), Probe::peek));
  ck_assert_int_eq(pair.b.received.take().error, FI_ENOMSG);
  expect_clean(pair);
}

TEST(cancelled_receive_completes_with_ecanceled_and_takes_no_message) {
  Pair pair;
  char byte = 'a', in[2] = {};
  pair.b.receive(&in[0], 1, 7, &g_one);
  pair.b.receive(&in[1], 1, 7, &g_two);
  ck_assert_int_eq(pair.b.engine.cancel(&g_one), 0);
  const ErrorCompletion cancelled = pair.b.received.take();
  ck_assert_int_eq(cancelled.error, FI_ECANCELED);
  ck_assert_ptr_eq(cancelled.context, &g_one);
  pair.a.send(1, &byte, 1, 7);
  pair.run_until_idle();
  ck_assert_ptr_eq(pair.b.received.take().context, &g_two);
  ck_assert_int_eq(pair.b.engine.cancel(&g_three), -FI_ENOENT);
}

TEST(queued_send_can_be_cancelled) {
  Pair pair;
  pair.a.transport.behaviour.room = 0;
  char byte = 'a';
  pair.a.send(1, &byte, 1, 7, &g_one);
  ck_assert_int_eq(pair.a.engine.cancel(&g_one), 0);
  ck_assert_int_eq(pair.a.sent.take().error, FI_ECANCELED);
  pair.a.transport.behaviour.room = 1;
  pair.run_until_idle();
  ck_assert_uint_eq(pair.a_to_b().sent, 0);
}

// --- bounded memory -----------------------------------------------------------------------------

TEST(sender_holds_back_when_unmatched_messages_use_up_the_budget) {
  Pair pair({4096, 20000, 64});
  const auto message = pattern(1000);
  unsigned accepted = 0;
  int rc = 0;
  for (; accepted < 1000 && rc == 0; ++accepted) {
    rc = pair.a.send(1, message.data(), message.size(), accepted);
    pair.a.engine.progress();
    pair.b.engine.progress();
    pair.a.engine.progress();
  }
  ck_assert_int_eq(rc, -FI_EAGAIN);
  ck_assert_uint_lt(accepted, 64 + 40);
  // All messages match later, in any order, and the sender returns to eager messages.
  std::vector<char> buffer(1000);
  for (unsigned tag = accepted - 1; tag-- > 0;) {
    pair.b.receive(buffer.data(), buffer.size(), tag);
    pair.run_until_idle();
    const ErrorCompletion received = pair.b.received.take();
    ck_assert_int_eq(received.error, 0);
    ck_assert_uint_eq(received.tag, tag);
    ck_assert(buffer == message);
  }
  const uint32_t shared_memory = pair.a.transport.keys_made;
  pair.b.receive(buffer.data(), buffer.size(), 5000);
  ck_assert_int_eq(pair.a.send(1, message.data(), message.size(), 5000), 0);
  pair.run_until_idle();
  ck_assert_uint_eq(pair.a.transport.keys_made, shared_memory);
}

/// A message goes whole if the link can send it at once, or if it has at most 64 bytes. Otherwise
/// only its header goes.
TEST(message_goes_whole_up_to_what_the_link_takes, 2) {
  Pair pair;
  const size_t limit = _i ? 1024 : 32, most = _i ? 1024 : 64;
  pair.a.transport.behaviour.eager = limit;
  for (const size_t length : {most, most + 1}) {
    const auto message = pattern(length);
    std::vector<char> buffer(length);
    // One message goes at once, and one after a wait for room.
    for (const bool waits : {false, true}) {
      const uint32_t shared = pair.a.transport.keys_made;
      pair.a.transport.behaviour.room = waits ? 0 : SIZE_MAX;
      pair.b.receive(buffer.data(), length, 1);
      must(pair.a.send(1, message.data(), length, 1));
      pair.a.transport.behaviour.room = SIZE_MAX;
      pair.run_until_idle();
      ck_assert_uint_eq(pair.a.transport.keys_made - shared, length > most);
      ck_assert_int_eq(pair.b.received.take().error, 0);
      ck_assert_int_eq(pair.a.sent.take().error, 0);
      ck_assert(buffer == message);
    }
  }
  expect_clean(pair);
}

TEST(sender_that_only_sends_learns_of_the_budget) {
  Pair pair({4096, 16384, 64});
  const auto message = pattern(1000);
  const iovec from{const_cast<char*>(message.data()), message.size()};
  auto send = Node::send_args(1, from, 7);
  send.inject = true;
  int status = 0;
  for (int i = 0; i < 1000 && status == 0; ++i) {
    status = pair.a.engine.post_send(send);
    pair.b.engine.progress();
  }
  ck_assert_int_eq(status, -FI_EAGAIN);
  pair.end_work({&g_one, &g_two, &g_three});
}

TEST(removed_address_no_longer_names_the_source_of_messages) {
  Pair pair;
  char byte = 'x', got = 0;
  for (const uint64_t source : {uint64_t{0}, UINT64_MAX}) {
    must(pair.a.send(1, &byte, 1, 7));
    must(pair.b.receive(&got, 1, 7));
    pair.run_until_idle();
    ck_assert_uint_eq(pair.b.received.take().source, source);
    pair.b.book.size = 0;
    pair.b.engine.peers().address_removed(0, pair.a.transport.name);
  }
}

TEST(empty_message_needs_no_memory, 2) {
  Pair pair;
  auto send = Node::send_args(1, {nullptr, 0}, 7);
  auto receive = Node::receive_args({nullptr, 0}, 7);
  const iovec nothing{nullptr, 0};
  send.iov = receive.iov = _i ? &nothing : nullptr;
  send.count = receive.count = size_t(_i);
  send.fence = true;
  must(pair.b.engine.post_receive(receive));
  must(pair.a.engine.post_send(send));
  pair.run_until_idle();
  ck_assert_int_eq(pair.a.sent.take().error, 0);
  ck_assert_int_eq(pair.b.received.take().error, 0);
}

TEST(memory_is_revoked_when_the_endpoint_closes, 2) {
  Pair pair;
  pair.a.transport.behaviour.prefers_read = pair.b.transport.behaviour.prefers_read = _i == 0;
  pair.a.transport.behaviour.hold_transfers = pair.b.transport.behaviour.hold_transfers = true;
  const auto message = pattern(5000);
  std::vector<char> got(5000);
  must(pair.b.receive(got.data(), got.size(), 7));
  must(pair.a.send(1, message.data(), message.size(), 7));
  pair.run_until_idle();
  const size_t shared = pair.a.transport.shared.size() + pair.b.transport.shared.size();
  ck_assert_uint_eq(shared, 1);
  pair.a.engine.detach(true);
  pair.b.engine.detach(true);
  ck_assert(pair.a.transport.shared.empty() && pair.b.transport.shared.empty());
  // The peer may access it until the transports have ended.
  ck_assert_uint_eq(pair.a.transport.revoked_at_end + pair.b.transport.revoked_at_end, shared);
  pair.end_work({&g_one, &g_two, &g_three});
}

/// Packets that follow would be kept as unexpected messages, until the application posts receives.
TEST(transports_learn_when_no_receive_waits_any_more, 2) {
  const size_t length = _i ? 20'000 : 8;  // by fragments, or in one packet
  Pair pair;
  pair.a.transport.behaviour.fragmented = length;
  const auto message = pattern(length);
  std::vector<char> got(length);
  int contexts[2];
  for (int& context : contexts) must(pair.b.receive(got.data(), length, 7, &context));
  for (const int& context : contexts) {
    ck_assert(!pair.b.engine.take_served());
    must(pair.a.send(1, message.data(), length, 7));
    pair.run_until_idle();
    ck_assert_ptr_eq(pair.b.received.take().context, &context);
  }
  ck_assert(pair.b.engine.take_served());
  ck_assert(!pair.b.engine.take_served());
  must(pair.a.send(1, message.data(), length, 7));  // unexpected
  pair.run_until_idle();
  ck_assert(!pair.b.engine.take_served());
  must(pair.b.receive(got.data(), length, 7, contexts));
  pair.run_until_idle();
  ck_assert(got == message);
  pair.end_work();
}

}  // namespace
