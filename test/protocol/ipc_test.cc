// Tests memory that a receiver may be unable to read; then its sender writes.

#include "libcheck.h"
#include "protocol/one_sided_rig.h"
#include "protocol/pair.h"

namespace {

using namespace erdma::test;
using erdma::protocol::ErrorCompletion;

constexpr size_t kLength = 70'000;

/// Node a offers memory. Node b takes offers or refuses them.
struct Offering : Pair {
  explicit Offering(bool taken) {
    a.transport.behaviour.offers = true;
    b.transport.behaviour.takes_offers = taken;
  }
};

}  // namespace

TEST(offer_is_read_where_it_can_be_else_its_sender_writes, 4) {
  const bool taken = _i & 1, early = _i & 2;
  Offering pair(taken);
  const auto message = pattern(kLength);
  std::vector<char> buffer(kLength);
  if (early) must(pair.b.receive(buffer.data(), kLength, 7));
  must(pair.a.send(1, message.data(), kLength, 7));
  pair.run_until_idle();
  if (!early) must(pair.b.receive(buffer.data(), kLength, 7));
  pair.run_until_idle();
  ck_assert(buffer == message);
  ck_assert_int_eq(pair.a.sent.take().error, 0);
  const ErrorCompletion received = pair.b.received.take();
  ck_assert_int_eq(received.error, 0);
  ck_assert_uint_eq(received.length, kLength);
  ck_assert_uint_eq(pair.a.transport.offers_made, 1);
  ck_assert_uint_eq(pair.a.transport.offers_refused, taken ? 0 : 1);
  expect_clean(pair);
}

TEST(refused_offer_is_truncated_as_any_message) {
  Offering pair(false);
  const auto message = pattern(kLength);
  std::vector<char> buffer(kLength, '-');
  must(pair.b.receive(buffer.data(), 50'000, 7));
  must(pair.a.send(1, message.data(), kLength, 7));
  pair.run_until_idle();
  ck_assert_int_eq(pair.a.sent.take().error, 0);
  ck_assert_int_eq(pair.b.received.take().error, FI_ETRUNC);
  ck_assert(std::equal(buffer.begin(), buffer.begin() + 50'000, message.begin()));
  ck_assert_int_eq(buffer[50'000], '-');
  expect_clean(pair);
}

/// After a refusal, the grant or the write waits for room, and is not lost.
TEST(refusal_waits_for_room) {
  Offering pair(false);
  pair.b.transport.behaviour.share_refusal = -FI_EAGAIN;
  pair.a.transport.behaviour.transfer_refusal = -FI_EAGAIN;
  const auto message = pattern(kLength);
  std::vector<char> buffer(kLength);
  must(pair.b.receive(buffer.data(), kLength, 7));
  must(pair.a.send(1, message.data(), kLength, 7));
  pair.run_until_idle();
  pair.b.transport.behaviour.share_refusal = 0;
  pair.run_until_idle();
  ck_assert(pair.b.received.entries.empty());
  pair.a.transport.behaviour.transfer_refusal = 0;
  pair.run_until_idle();
  ck_assert(buffer == message);
  ck_assert_int_eq(pair.a.sent.take().error, 0);
  ck_assert_int_eq(pair.b.received.take().error, 0);
  expect_clean(pair);
}

TEST(refused_offer_that_can_not_be_written_ends_in_errors) {
  Offering pair(false);
  pair.a.transport.behaviour.transfer_status = -FI_EIO;
  const auto message = pattern(kLength);
  std::vector<char> buffer(kLength);
  must(pair.b.receive(buffer.data(), kLength, 7));
  must(pair.a.send(1, message.data(), kLength, 7));
  pair.run_until_idle();
  ck_assert_int_eq(pair.a.sent.take().error, FI_EIO);
  ck_assert_int_eq(pair.b.received.take().error, FI_EIO);
  expect_clean(pair);
}

/// The link ends before the offer is read, or after it was refused.
TEST(end_of_the_link_ends_what_was_offered, 2) {
  const bool refused = _i;
  Offering pair(!refused);
  pair.a.transport.behaviour.hold_transfers = pair.b.transport.behaviour.hold_transfers = true;
  const auto message = pattern(kLength);
  std::vector<char> buffer(kLength);
  must(pair.b.receive(buffer.data(), kLength, 7));
  must(pair.a.send(1, message.data(), kLength, 7));
  pair.run_until_idle();
  ck_assert(pair.a.sent.entries.empty() && pair.b.received.entries.empty());
  pair.a_to_b().failed = pair.b_to_a().failed = -FI_ECONNRESET;
  pair.run_until_idle();
  ck_assert_int_eq(pair.a.sent.take().error, FI_ECONNRESET);
  ck_assert_int_ne(pair.b.received.take().error, 0);
  expect_clean(pair);
}

/// The target of a one-sided operation cannot report that it cannot read the memory.
TEST(one_sided_operations_offer_nothing) {
  OneSidedPair pair;
  pair.a.transport.behaviour.offers = true;
  pair.b.transport.behaviour.takes_offers = false;
  const auto bytes = pattern(kLength);
  must(pair.initiator.write(1, bytes.data(), kLength, pair.memory.data(), OneSidedPair::kKey));
  pair.run_until_idle();
  ck_assert_int_eq(pair.initiator.writes.take().error, 0);
  ck_assert(std::equal(bytes.begin(), bytes.end(), pair.memory.begin()));
  ck_assert_uint_eq(pair.a.transport.offers_made, 0);
  ck_assert_uint_gt(pair.a.transport.keys_made, 0);
}
