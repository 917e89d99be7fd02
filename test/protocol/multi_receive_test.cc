// FI_MULTI_RECV: one buffer for several messages, with and without tags.
#include <algorithm>
#include <vector>

#include "protocol/pair.h"

namespace {

using namespace erdma::test;
using erdma::protocol::ErrorCompletion;

int g_one, g_two;

TEST(multi_receive_fills_one_buffer_and_releases_it_with_the_last_message, 4) {
  const bool late = _i & 1, tagged = _i & 2;
  Pair pair;
  pair.b.engine.set_min_multi_recv(100);
  std::vector<char> buffer(3000);
  iovec iov{buffer.data(), buffer.size()};
  auto args = Node::receive_args(iov, 0, &g_two);
  args.tagged = tagged;
  args.multi = true;
  const size_t lengths[] = {10, 1500, 1400};
  std::vector<std::vector<char>> messages;
  const auto post = [&] { ck_assert_int_eq(pair.b.engine.post_receive(args), 0); };
  if (!late) post();
  for (const size_t length : lengths) {
    messages.push_back(pattern(length, unsigned(length)));
    const iovec from{messages.back().data(), length};
    auto send = Node::send_args(1, from, 0);
    send.tagged = tagged;
    must(pair.a.engine.post_send(send));
  }
  pair.run_until_idle();
  if (late) post();
  pair.run_until_idle();
  ck_assert_uint_eq(pair.b.received.entries.size(), 3);
  unsigned releases = 0;
  for (size_t i = 0; i < 3; ++i) {
    const ErrorCompletion received = pair.b.received.take();
    ck_assert_int_eq(received.error, 0);
    ck_assert_ptr_eq(received.context, &g_two);
    const char* at = static_cast<const char*>(received.buffer);
    const auto message = std::find_if(messages.begin(), messages.end(), [&](const auto& each) {
      return each.size() == received.length;
    });
    ck_assert(message != messages.end());
    ck_assert(std::equal(message->begin(), message->end(), at));
    if (received.flags & FI_MULTI_RECV) {
      ++releases;
      ck_assert_uint_eq(i, 2);
    }
  }
  ck_assert_uint_eq(releases, 1);
}

TEST(multi_receive_used_up_by_waiting_messages_is_released_with_the_last_of_them, 2) {
  Pair pair;
  pair.b.engine.set_min_multi_recv(100);
  const auto message = pattern(100);
  const iovec from{const_cast<char*>(message.data()), message.size()};
  auto send = Node::send_args(1, from, 0);
  send.tagged = _i;
  for (int i = 0; i < 3; ++i) must(pair.a.engine.post_send(send));
  pair.run_until_idle();
  std::vector<char> buffer(250);
  iovec iov{buffer.data(), buffer.size()};
  auto args = Node::receive_args(iov, 0, &g_two);
  args.tagged = _i;
  args.multi = true;
  must(pair.b.engine.post_receive(args));
  ck_assert_uint_eq(pair.b.received.entries.size(), 2);
  ck_assert_uint_eq(pair.b.received.take().flags & FI_MULTI_RECV, 0);
  ck_assert_uint_eq(pair.b.received.take().flags & FI_MULTI_RECV, FI_MULTI_RECV);
  pair.end_work({&g_one, &g_two});
}

TEST(multi_receive_cancelled_with_a_message_in_it_ends_after_that_message, 2) {
  Pair pair;
  pair.b.transport.behaviour.hold_transfers = true;
  std::vector<char> buffer(10000);
  iovec iov{buffer.data(), buffer.size()};
  auto args = Node::receive_args(iov, 0, &g_two);
  args.tagged = _i;
  args.multi = true;
  must(pair.b.engine.post_receive(args));
  const auto message = pattern(5000);
  const iovec from{const_cast<char*>(message.data()), message.size()};
  auto send = Node::send_args(1, from, 0);
  send.tagged = _i;
  must(pair.a.engine.post_send(send));
  for (int i = 0; i < 4; ++i) pair.b.engine.progress();
  ck_assert_int_eq(pair.b.engine.cancel(&g_two), 0);
  ck_assert(pair.b.received.entries.empty());
  pair.b.transport.behaviour.hold_transfers = false;
  pair.run_until_idle();
  ck_assert_int_eq(pair.b.received.take().error, 0);
  const ErrorCompletion cancelled = pair.b.received.take();
  ck_assert_int_eq(cancelled.error, FI_ECANCELED);
  ck_assert_uint_eq(cancelled.flags & FI_MULTI_RECV, FI_MULTI_RECV);
  ck_assert(pair.b.received.entries.empty());
}

/// The buffer stays posted. FI_MULTI_RECV reports its release, and FI_ECANCELED only a cancel by
/// the application.
TEST(message_that_its_sender_gives_up_is_told_from_the_cancel_of_its_buffer) {
  Pair pair;
  pair.b.transport.behaviour.transfer_status = -FI_ECANCELED;
  std::vector<char> buffer(10000);
  iovec iov{buffer.data(), buffer.size()};
  auto args = Node::receive_args(iov, 0, &g_two);
  args.tagged = false;
  args.multi = true;
  must(pair.b.engine.post_receive(args));
  const auto message = pattern(5000);
  const iovec from{const_cast<char*>(message.data()), 4000};
  auto send = Node::send_args(1, from, 0);
  send.tagged = false;
  must(pair.a.engine.post_send(send));
  pair.run_until_idle();
  const ErrorCompletion failed = pair.b.received.take();
  ck_assert_int_eq(failed.error, FI_ECONNABORTED);
  ck_assert_uint_eq(failed.flags & FI_MULTI_RECV, 0);
  ck_assert_ptr_eq(failed.buffer, buffer.data());
  pair.b.transport.behaviour.transfer_status = 0;
  must(pair.a.engine.post_send(send));
  pair.run_until_idle();
  const ErrorCompletion received = pair.b.received.take();
  ck_assert_int_eq(received.error, 0);
  ck_assert_ptr_eq(received.buffer, buffer.data() + 4000);
  ck_assert_int_eq(pair.b.engine.cancel(&g_two), 0);
  const ErrorCompletion cancelled = pair.b.received.take();
  ck_assert_int_eq(cancelled.error, FI_ECANCELED);
  ck_assert_uint_eq(cancelled.flags & FI_MULTI_RECV, FI_MULTI_RECV);
}

/// The buffer holds a message or none.
TEST(directed_multi_receive_of_a_peer_that_dies_is_released_with_the_cause, 2) {
  Pair pair;
  pair.b.transport.behaviour.hold_transfers = true;
  std::vector<char> buffer(10000);
  iovec iov{buffer.data(), buffer.size()};
  auto args = Node::receive_args(iov, 0, &g_two, 0, 0);
  args.multi = true;
  must(pair.b.engine.post_receive(args));
  char byte = 0;
  must(pair.b.receive(&byte, 1, 5));
  must(pair.a.send(1, &byte, 1, 5));
  pair.run_until_idle();
  pair.b.received.entries.clear();
  const auto message = pattern(5000);
  if (_i) {
    must(pair.a.send(1, message.data(), message.size(), 0));
    for (int i = 0; i < 4; ++i) pair.b.engine.progress();
  }
  erdma::fake::Transport::bring_down(pair.b_to_a(), -FI_ECONNRESET, pair.b.engine);
  erdma::fake::Transport::bring_down(pair.a_to_b(), -FI_ECONNRESET, pair.a.engine);
  if (_i) {
    const ErrorCompletion failed = pair.b.received.take();
    ck_assert_int_eq(failed.error, FI_ECONNRESET);
    ck_assert_uint_eq(failed.flags & FI_MULTI_RECV, 0);
  }
  const ErrorCompletion released = pair.b.received.take();
  ck_assert_int_eq(released.error, FI_ECONNRESET);
  ck_assert_uint_eq(released.flags & FI_MULTI_RECV, FI_MULTI_RECV);
  ck_assert(pair.b.received.entries.empty());
}

TEST(multi_receive_tells_where_a_message_without_bytes_would_lie, 4) {
  const bool rendezvous = _i & 1, late = _i & 2;
  Pair pair;
  std::vector<char> buffer(1000);
  iovec pieces[] = {{buffer.data(), 100}, {buffer.data() + 500, 500}};
  auto args = Node::receive_args(pieces[0], 0, &g_two);
  args.iov = pieces;
  args.count = 2;
  args.length = 600;
  args.multi = true;
  if (!late) must(pair.b.engine.post_receive(args));
  const erdma::protocol::wire::ControlHeader told{
      erdma::protocol::wire::Op::budget, 0, 0, 0, 0, 0, 0, rendezvous, 0, 0};
  pair.a_to_b().inject(&told, sizeof(told), nullptr, 0);
  pair.a.engine.progress();
  const auto message = pattern(100);
  must(pair.a.send(1, message.data(), 0, 0));
  must(pair.a.send(1, message.data(), 100, 0));
  must(pair.a.send(1, message.data(), 0, 0));
  pair.run_until_idle();
  if (late) must(pair.b.engine.post_receive(args));
  pair.run_until_idle();
  const char* const expected[] = {buffer.data(), buffer.data(), buffer.data() + 500};
  ck_assert_uint_eq(pair.b.received.entries.size(), 3);
  std::vector<const void*> empty, full;
  for (int i = 0; i < 3; ++i) {
    const ErrorCompletion received = pair.b.received.take();
    (received.length ? full : empty).push_back(received.buffer);
  }
  ck_assert_ptr_eq(full.at(0), expected[1]);
  ck_assert_ptr_eq(empty.at(0), expected[0]);
  ck_assert_ptr_eq(empty.at(1), expected[2]);
  pair.end_work({&g_one, &g_two});
}

TEST(tagged_multi_receive_takes_only_what_matches) {
  Pair pair;
  std::vector<char> buffer(1000);
  iovec iov{buffer.data(), buffer.size()};
  auto args = Node::receive_args(iov, 0x10, &g_one, 0x0F, 0);
  args.multi = true;
  const auto message = pattern(100);
  must(pair.a.send(1, message.data(), 100, 0x11));
  pair.run_until_idle();
  must(pair.b.engine.post_receive(args));
  must(pair.b.send(1, message.data(), 100, 0x12));  // a message of another source
  must(pair.a.send(1, message.data(), 100, 0x20));  // a message with another tag
  must(pair.a.send(1, message.data(), 50, 0x1F));
  pair.run_until_idle();
  ck_assert_uint_eq(pair.b.received.entries.size(), 2);
  const ErrorCompletion first = pair.b.received.take(), second = pair.b.received.take();
  ck_assert_uint_eq(first.tag, 0x11);
  ck_assert_ptr_eq(first.buffer, buffer.data());
  ck_assert_uint_eq(second.tag, 0x1F);
  ck_assert_ptr_eq(second.buffer, buffer.data() + 100);
  ck_assert_uint_eq(second.length, 50);
  ck_assert_uint_eq(second.flags, FI_RECV | FI_TAGGED);
  std::vector<char> other(100);
  for (const uint64_t tag : {0x12u, 0x20u}) must(pair.b.receive(other.data(), 100, tag, &g_two));
  pair.run_until_idle();
  ck_assert_uint_eq(pair.b.received.entries.size(), 2);
  pair.end_work({&g_one, &g_two});
}

/// If min_multi_recv is the longest message that the application expects, no message is truncated.
TEST(multi_receive_cuts_no_message_up_to_its_minimum, 2) {
  Pair pair;
  pair.b.engine.set_min_multi_recv(100);
  std::vector<char> buffers(2 * 350);
  for (int i = 0; i < 2; ++i) {
    iovec iov{buffers.data() + 350 * i, 350};
    auto args = Node::receive_args(iov, 0, i ? &g_two : &g_one);
    args.tagged = _i;
    args.multi = true;
    must(pair.b.engine.post_receive(args));
  }
  const auto message = pattern(100);
  const iovec from{const_cast<char*>(message.data()), 90};
  auto send = Node::send_args(1, from, 0);
  send.tagged = _i;
  for (int i = 0; i < 6; ++i) must(pair.a.engine.post_send(send));
  pair.run_until_idle();
  for (int i = 0; i < 6; ++i) {
    const ErrorCompletion received = pair.b.received.take();
    ck_assert_int_eq(received.error, 0);
    ck_assert_uint_eq(received.length, 90);
    ck_assert_ptr_eq(received.context, i < 3 ? &g_one : &g_two);
    ck_assert_ptr_eq(received.buffer, buffers.data() + (i < 3 ? 0 : 350) + 90 * (i % 3));
    ck_assert_int_eq((received.flags & FI_MULTI_RECV) != 0, i % 3 == 2);
  }
}

TEST(multi_receive_longer_than_the_rest_of_its_buffer_is_an_error_and_the_last, 2) {
  Pair pair;
  pair.b.engine.set_min_multi_recv(10);
  char buffer[150];
  iovec iov{buffer, sizeof(buffer)};
  auto args = Node::receive_args(iov, 0, &g_one);
  args.tagged = _i;
  args.multi = true;
  must(pair.b.engine.post_receive(args));
  const auto message = pattern(100);
  const iovec from{const_cast<char*>(message.data()), 100};
  auto send = Node::send_args(1, from, 0);
  send.tagged = _i;
  for (int i = 0; i < 2; ++i) must(pair.a.engine.post_send(send));
  pair.run_until_idle();
  ck_assert_int_eq(pair.b.received.take().error, 0);
  const ErrorCompletion cut = pair.b.received.take();
  ck_assert_int_eq(cut.error, FI_ETRUNC);
  ck_assert_uint_eq(cut.length, 50);
  ck_assert_uint_eq(cut.overflow, 50);
  ck_assert(cut.flags & FI_MULTI_RECV);
}

/// Messages come in one packet or are fetched.
TEST(multi_receive_reports_its_release_even_if_it_reports_nothing_else, 4) {
  const size_t length = _i & 2 ? 6000 : 100;
  Pair pair;
  pair.b.engine.set_min_multi_recv(length);
  std::vector<char> buffer(2 * length);
  iovec iov{buffer.data(), buffer.size()};
  auto args = Node::receive_args(iov, 0, &g_one);
  args.tagged = _i & 1;
  args.multi = true;
  args.report = false;
  must(pair.b.engine.post_receive(args));
  const auto message = pattern(length);
  const iovec from{const_cast<char*>(message.data()), length};
  auto send = Node::send_args(1, from, 0);
  send.tagged = _i & 1;
  for (int i = 0; i < 2; ++i) must(pair.a.engine.post_send(send));
  pair.run_until_idle();
  ck_assert(!pair.b.received.take().report);
  const ErrorCompletion last = pair.b.received.take();
  ck_assert(last.report && (last.flags & FI_MULTI_RECV));
}

}  // namespace
