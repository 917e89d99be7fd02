// Tests operations that complete at a sink of their own.

#include "libcheck.h"
#include "protocol/one_sided_rig.h"

namespace {

using namespace erdma::test;
using erdma::fake::CompletionSink;
using erdma::protocol::ErrorCompletion;

int g_context;
constexpr size_t kLengths[] = {0, 8, 1024, 1025, 70000};

/// Expects one completion at `sink`, and none at the default sinks.
ErrorCompletion only(Pair& pair, CompletionSink& sink) {
  ck_assert_uint_eq(sink.entries.size(), 1);
  const ErrorCompletion done = sink.take();
  ck_assert_ptr_eq(done.context, &g_context);
  pair.b.sent.entries.clear();
  expect_clean(pair);
  return done;
}

TEST(a_send_completes_there, (2 * int(std::size(kLengths)))) {
  const size_t length = kLengths[_i / 2];
  Pair pair;
  pair.a.transport.behaviour.prefers_read = _i % 2;
  CompletionSink sink;
  const auto message = pattern(length);
  std::vector<char> buffer(length);
  const iovec iov{const_cast<char*>(message.data()), length};
  must(pair.b.receive(buffer.data(), length, 7));
  must(pair.a.engine.post_send(Node::send_args(1, iov, 7, &g_context), sink));
  pair.run_until_idle();
  ck_assert(buffer == message);
  ck_assert_uint_eq(pair.b.received.entries.size(), 1);
  pair.b.received.entries.clear();
  ck_assert_int_eq(only(pair, sink).error, 0);
}

TEST(a_receive_completes_there_early_or_late, (2 * int(std::size(kLengths)))) {
  const size_t length = kLengths[_i / 2];
  Pair pair;
  CompletionSink sink;
  const auto message = pattern(length);
  std::vector<char> buffer(length);
  const iovec iov{buffer.data(), length};
  const auto post = [&] {
    must(pair.a.engine.post_receive(Node::receive_args(iov, 7, &g_context), sink));
  };
  if (_i % 2) post();
  must(pair.b.send(0, message.data(), length, 7));
  pair.run_until_idle();
  if (_i % 2 == 0) post();
  pair.run_until_idle();
  const ErrorCompletion done = only(pair, sink);
  ck_assert_int_eq(done.error, 0);
  ck_assert_uint_eq(done.length, length);
  ck_assert_uint_eq(done.source, 1);
  ck_assert(buffer == message);
}

/// A caller that is refused waits for the end of an operation. There must be one left.
TEST(room_that_comes_with_the_attempt_is_used, 2) {
  erdma::protocol::EngineConfig config = kConfig;
  config.send_limit = 2;
  OneSidedPair pair(64, OneSidedPair::kAll, config);
  auto& behaviour = pair.a.transport.behaviour;
  behaviour.room = 0;
  char bytes[8] = {};
  char taken[3][8];
  for (char(&each)[8] : taken) must(pair.b.receive(each, 8, 7));
  for (int i = 0; i < 2; ++i) must(pair.a.send(1, bytes, 8, 7));
  behaviour.more_room = 8;  // the next poll lets both leave, and they are complete
  CompletionSink sink;
  const iovec iov{bytes, 8};
  const erdma::protocol::wire::Segment segment{uint64_t(pair.memory.data()), OneSidedPair::kKey, 8};
  if (_i)
    must(pair.a.engine.post_one_sided(
        OneSidedNode::args(erdma::protocol::wire::Op::write, 1, &iov, 1, &segment, 1, &g_context),
        &sink));
  else
    must(pair.a.engine.post_send(Node::send_args(1, iov, 7, &g_context), sink));
  pair.run_until_idle();
  ck_assert_int_eq(sink.take().error, 0);
  if (_i) must(pair.a.send(1, bytes, 8, 7));
  pair.run_until_idle();
  ck_assert_uint_eq(pair.b.received.entries.size(), 3);
}

TEST(a_truncated_a_cancelled_and_a_failed_one_too) {
  Pair pair;
  CompletionSink sink;
  char bytes[8];
  const iovec iov{bytes, 8};
  const auto post = [&](uint64_t source) {
    must(pair.a.engine.post_receive(Node::receive_args(iov, 7, &g_context, 0, source), sink));
  };
  post(UINT64_MAX);
  const auto message = pattern(70000);
  must(pair.b.send(0, message.data(), message.size(), 7));
  pair.run_until_idle();
  ck_assert_int_eq(only(pair, sink).error, FI_ETRUNC);
  post(UINT64_MAX);
  must(pair.a.engine.cancel(&g_context));
  ck_assert_int_eq(only(pair, sink).error, FI_ECANCELED);
  post(1);
  must(pair.a.send(1, bytes, 8, 9));
  pair.run_until_idle();
  pair.a.sent.entries.clear();
  pair.a_to_b().failed = -FI_ECONNRESET;
  pair.run_until_idle();
  ck_assert_int_eq(only(pair, sink).error, FI_ECONNRESET);
  pair.a.unreachable = true;
  ck_assert_int_eq(pair.a.engine.post_send(Node::send_args(99, iov, 7, &g_context), sink),
                   -FI_EINVAL);
  must(pair.a.engine.post_send(Node::send_args(2, iov, 7, &g_context), sink));
  ck_assert_int_eq(only(pair, sink).error, FI_EHOSTUNREACH);
  pair.end_work({&g_context});
}

TEST(there_is_no_more_room_than_for_others) {
  erdma::protocol::EngineConfig config = kConfig;
  config.send_limit = 2;
  Pair pair(config);
  CompletionSink sink;
  char bytes[8] = {};
  const iovec iov{bytes, 8};
  pair.a.transport.behaviour.room = 0;
  for (const int expected : {0, 0, -FI_EAGAIN})
    ck_assert_int_eq(pair.a.engine.post_send(Node::send_args(1, iov, 7, &g_context), sink),
                     expected);
  pair.a.transport.behaviour.room = SIZE_MAX;
  pair.run_until_idle();
  ck_assert_uint_eq(sink.entries.size(), 2);
  pair.end_work({&g_context});
}

}  // namespace
