#include "transport/shm/short_reads.h"

#include <utility>

#include <rdma/fi_errno.h>

#include "fake/bulk_channel.h"
#include "fake/shared_core.h"
#include "libcheck.h"

/// Tests messages that a receiver reads by one call, without a ticket.
namespace erdma::transport::shm {
namespace {

/// Shared memory, and memory for its bytes.
struct Shared {
  Channel& channel;
  Pieces from, to;
  size_t length;
  RemoteKey key;

  Shared(Channel& of, size_t bytes, size_t froms = 3, size_t tos = 2, bool timed = false)
      : channel(of), from(bytes, froms, 0x11), to(bytes, tos, 0x22), length(bytes) {
    from.fill(7);
    ck_assert_int_eq(channel.out.share(from.iov, from.count, length, key, timed), 0);
    channel.shared_keys.push_back(key);
  }
  int read() { return channel.in.read_short(key, to.iov, to.count, length); }
  bool arrived() const { return from.flat() == to.flat() && to.gaps_changed(0x22) == 0; }
};

constexpr size_t kLengths[] = {1, 4096, 16 * kKiB + 5, ShortReads::kLongest};

TEST(a_short_message_is_read_by_one_call, std::size(kLengths)) {
  Channel channel(Ways::read_only);
  Shared shared(channel, kLengths[_i]);
  ck_assert_int_eq(shared.read(), kDone);
  ck_assert(shared.arrived());
  ck_assert_uint_eq(channel.calls.read.calls, 1);
  ck_assert_uint_eq(channel.in_counters.cma_read_bytes, shared.length);
  ck_assert(!channel.in.active());
  for (const Ticket& ticket : channel.page().ticket) ck_assert_uint_eq(ticket.state, 0);
}

TEST(the_sender_is_told_how_long_the_read_took_if_it_asks, 2) {
  Channel channel(Ways::read_only);
  Shared asked(channel, 4096, 3, 2, true), other(channel, 4096);
  Shared& read = _i ? asked : other;
  ck_assert_int_eq(read.read(), kDone);
  ck_assert(read.arrived());
  ck_assert_uint_eq(channel.out.read_time(asked.key) > 0, _i);
  ck_assert_uint_eq(channel.out.read_time(other.key), 0);
}

struct SharedCoreCase {
  bool shared;
  size_t length;
  bool at_once;
};
constexpr SharedCoreCase kSharedCoreCases[] = {
    {true, ShortReads::kLongestOnSharedCore, true},
    {true, ShortReads::kLongestOnSharedCore + 1, false},
    {false, ShortReads::kLongest + 1, false},
};

TEST(a_longer_message_is_read_at_once_where_the_core_is_shared, std::size(kSharedCoreCases)) {
  const SharedCoreCase& c = kSharedCoreCases[_i];
  Channel channel(Ways::dual);
  if (c.shared) share(channel.in_core);
  Shared shared(channel, c.length);
  ck_assert_int_eq(shared.read(), c.at_once ? int(kDone) : -FI_EAGAIN);
  ck_assert_uint_eq(channel.calls.read.calls, c.at_once);
  ck_assert(!c.at_once || shared.arrived());
}

/// A generation has 16 bits. Whoever reads what is shared now must not take it for revoked, however
/// much was shared before that the receiver was not told of.
TEST(memory_shared_after_any_number_of_others_can_be_read) {
  Channel channel(Ways::read_only);
  Pieces from(64, 1, 0x11), to(64, 1, 0x22);
  from.fill(7);
  unsigned told = 0;
  uint16_t last = 0;
  for (unsigned i = 0; i < 3 * 65536; ++i) {
    RemoteKey key;
    ck_assert_int_eq(channel.out.share(from.iov, 1, 64, key), 0);
    ck_assert_int_eq(channel.in.read_short(key, to.iov, 1, 64), kDone);
    channel.out.revoke(key, i == 0 ? BulkOut::Receiver::may_read : BulkOut::Receiver::done);
    told += std::exchange(last, uint16_t(channel.page().revoked[0])) != channel.page().revoked[0];
    ck_assert(channel.out.shared() == BulkOut::Shared::nothing);
  }
  ck_assert(from.flat() == to.flat());
  ck_assert_uint_ge(told, 3 * 8);
  ck_assert_uint_le(told, 3 * 64);
}

/// A receiver that asks for help after it has reported its end breaks the rules. Odd rows: it has
/// asked before, too.
TEST(nothing_moves_out_of_memory_whose_receiver_is_done, 2 * std::size(kWays)) {
  Channel channel(kWays[_i / 2]);
  Shared shared(channel, kMiB);
  ck_assert_int_eq(channel.in.start(shared.key, shared.to.iov, shared.to.count, kMiB, 1), 0);
  channel.in.poll(channel.sink);
  if (_i % 2) channel.out.poll();
  channel.out.revoke(shared.key, BulkOut::Receiver::done);
  const Counters before = channel.out_counters;
  for (int i = 0; i < 100; ++i) channel.out.poll();
  ck_assert_uint_eq(channel.out_counters.cma_write_bytes, before.cma_write_bytes);
  ck_assert_uint_eq(channel.out_counters.bounce_out_bytes, before.bounce_out_bytes);
  ck_assert(!channel.out.ready() && !channel.out.active());  // both sides may sleep
  ck_assert(channel.in.quiesce());
  channel.in.cancel(channel.sink, -FI_ECANCELED);
}

struct Obstacle {
  const char* what;
  Ways ways;
  size_t length;
  void (*make)(Shared&);
};
constexpr Obstacle kObstacles[] = {
    {"a long message", Ways::dual, ShortReads::kLongest + 1, [](Shared&) {}},
    {"no permission", Ways::write_only, 4096, [](Shared&) {}},
    {"copies that are chosen", Ways::chosen, 4096, [](Shared&) {}},
    {"memory that is revoked", Ways::dual, 4096,
     [](Shared& shared) { shared.channel.out.revoke(shared.key); }},
    {"a revocation during the call", Ways::dual, 4096,
     [](Shared& shared) {
       shared.channel.calls.read.meanwhile = [&shared] { shared.channel.out.revoke(shared.key); };
     }},
    {"a sender that has left", Ways::dual, 4096,
     [](Shared& shared) { shared.channel.memory.left = true; }},
    {"a sender that leaves during the call", Ways::dual, 4096,
     [](Shared& shared) {
       shared.channel.calls.read.meanwhile = [&shared] { shared.channel.memory.left = true; };
     }},
    {"a refused call", Ways::dual, 4096,
     [](Shared& shared) {
       shared.channel.calls.read.first = 1;
       shared.channel.calls.read.last = fake::CmaCalls::kForever;
       shared.channel.calls.read.error = EPERM;
     }},
    {"memory that is not there", Ways::dual, 4096,
     [](Shared& shared) { shared.channel.calls.read.unmapped = shared.from.iov[1].iov_base; }},
};

/// Nothing is reported then: a transfer finds out what the matter is.
TEST(what_cannot_be_read_at_once_is_left_to_a_transfer, std::size(kObstacles)) {
  const Obstacle& c = kObstacles[_i];
  Channel channel(c.ways);
  Shared shared(channel, c.length);
  c.make(shared);
  ck_assert_msg(shared.read() == -FI_EAGAIN, "%s", c.what);
  ck_assert_uint_eq(channel.in_counters.cma_read_bytes, 0);
  ck_assert_uint_eq(channel.in_counters.cma_refusals, 0);
}

/// The peer has executed another program, which has memory at the same address.
TEST(bytes_of_another_process_are_not_delivered) {
  Channel channel(Ways::read_only);
  fake::identify(channel.reader).nonce ^= 1;
  Shared shared(channel, 4096);
  ck_assert_int_eq(shared.read(), -FI_EAGAIN);
}

TEST(an_invalid_key_is_refused) {
  Channel channel(Ways::read_only);
  Shared shared(channel, 4096);
  ck_assert_int_eq(channel.in.read_short(shared.key, shared.to.iov, shared.to.count, 4097),
                   -FI_EINVAL);
  ck_assert_int_eq(channel.in.read_short(shared.key, shared.to.iov, kMaxIov + 1, 4096), -FI_EINVAL);
  const iovec nowhere{nullptr, 4096};
  ck_assert_int_eq(channel.in.read_short(shared.key, &nowhere, 1, 4096), -FI_EINVAL);
  ck_assert_int_eq(channel.in.read_short(RemoteKey{}, shared.to.iov, shared.to.count, 4096),
                   -FI_EINVAL);
  for (const unsigned count : {0x80u, 0x81u, 0x85u}) {  // the key has three pieces
    RemoteKey wrong = shared.key;
    wrong.bytes[1] = std::byte(count);
    ck_assert_int_eq(channel.in.read_short(wrong, shared.to.iov, shared.to.count, 4096),
                     -FI_EINVAL);
  }
  ck_assert_uint_eq(channel.calls.read.calls, 0);
}

}  // namespace
}  // namespace erdma::transport::shm
