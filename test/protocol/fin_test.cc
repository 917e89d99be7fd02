// Tests the fin, the last packet of a delivery, for which the sender waits.
#include "protocol/pair.h"

namespace {

using erdma::fake::Transport;
using namespace erdma::test;

int g_one, g_two;

/// The receive has completed, once.
void expect_received(Pair& pair, size_t length) {
  const auto done = pair.b.received.take();
  ck_assert_int_eq(done.error, 0);
  ck_assert_ptr_eq(done.context, &g_two);
  ck_assert_uint_eq(done.length, length);
  ck_assert(pair.b.received.entries.empty());
  pair.end_work({&g_one, &g_two});
}

/// An application that has all its completions may stop calling progress. The sender waits for the
/// fin, so the receive must not complete before the fin has left.
TEST(receive_completes_once_the_link_has_taken_its_fin, 3) {
  Pair pair;
  if (_i == 2)
    pair.a.transport.behaviour.prefers_read = pair.b.transport.behaviour.prefers_read = false;
  const auto message = pattern(5000);
  std::vector<char> got(5000);
  iovec iov{const_cast<char*>(message.data()), message.size()};
  erdma::protocol::SendArgs args = Node::send_args(1, iov, 7, &g_one);
  args.until_delivered = _i == 2;
  pair.a.transport.behaviour.hold_transfers = pair.b.transport.behaviour.hold_transfers = true;
  must(pair.b.receive(got.data(), got.size(), 7, &g_two));
  must(pair.a.engine.post_send(args));
  pair.run_until_idle();
  pair.b.transport.behaviour.room = 0;
  pair.a.transport.behaviour.hold_transfers = pair.b.transport.behaviour.hold_transfers = false;
  pair.run_until_idle();
  ck_assert(got == message);
  ck_assert(pair.b.received.entries.empty());
  if (_i == 1) {
    Transport::bring_down(pair.b.transport.link(pair.a.transport.name), -FI_ECONNRESET,
                          pair.b.engine);
  } else {
    pair.b.transport.behaviour.room = 1000;
    pair.run_until_idle();
    ck_assert_ptr_eq(pair.a.sent.take().context, &g_one);
  }
  expect_received(pair, 5000);
}

/// The same for a message of one packet whose sender waits for the delivery, posted or unexpected.
TEST(receive_of_a_short_message_completes_once_the_link_has_taken_its_fin, 2) {
  Pair pair;
  const auto message = pattern(50);
  std::vector<char> got(50);
  iovec iov{const_cast<char*>(message.data()), message.size()};
  erdma::protocol::SendArgs args = Node::send_args(1, iov, 7, &g_one);
  args.until_delivered = true;
  if (_i == 0) must(pair.b.receive(got.data(), got.size(), 7, &g_two));
  pair.b.transport.behaviour.room = 0;
  must(pair.a.engine.post_send(args));
  pair.run_until_idle();
  if (_i == 1) must(pair.b.receive(got.data(), got.size(), 7, &g_two));
  pair.run_until_idle();
  ck_assert(got == message);
  ck_assert(pair.b.received.entries.empty());
  pair.b.transport.behaviour.room = 1000;
  pair.run_until_idle();
  ck_assert_ptr_eq(pair.a.sent.take().context, &g_one);
  expect_received(pair, 50);
}

}  // namespace
