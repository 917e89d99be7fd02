// Access to a shared region: the receiver of a channel drives it, the sender may help.
#include <linux/futex.h>
#include <sys/eventfd.h>

#include <atomic>
#include <cerrno>
#include <iterator>
#include <memory>

#include <rdma/fi_errno.h>

#include "fake/bulk_channel.h"
#include "transport/shm/shared_regions.h"

namespace erdma::transport::shm {
namespace {

constexpr CmaCall kCalls[] = {CmaCall::read, CmaCall::write};

/// The sender shares `there`. The receiver's local memory is `here`.
struct RegionChannel {
  RegionChannel(CmaCall call_, size_t length_, Ways ways = Ways::dual)
      : channel(ways),
        call(call_),
        length(length_),
        there(length_ + 100, 1, 0x11),
        here(length_, 3, 0x22) {
    channel.reader.write.permission = channel.writer.read.permission = Permission::allowed;
    channel.out.shares(&table);
    region = table.share(there.iov[0], call == CmaCall::read, call == CmaCall::write);
    (call == CmaCall::read ? there : here).fill(3);
  }
  void access() {
    ck_assert_int_eq(channel.in.access(call, region, kOffset, here.iov, here.count, length, kToken),
                     0);
  }
  void run_alone() {
    for (int i = 0; i < kManyPolls && channel.in.active(); ++i) channel.in.poll(channel.sink);
  }
  bool arrived() const {
    const auto all = there.flat(), part = here.flat();
    const bool edges = call == CmaCall::read || (all[kOffset - 1] == 0x11 && all.back() == 0x11);
    return edges && std::equal(part.begin(), part.end(), all.begin() + kOffset) &&
           there.gaps_changed(0x11) == 0 && here.gaps_changed(0x22) == 0;
  }
  void expect(int status) {
    assert_done_once(channel.sink, kToken, status);
    ck_assert(!channel.memory.inside);
    if (status == 0) ck_assert(arrived());
  }
  size_t moved_by(const Counters& counters) const {
    return counters.cma_read_bytes + counters.cma_write_bytes;
  }

  static constexpr uint64_t kOffset = 37, kToken = 5;
  SharedRegions table;
  Channel channel;
  CmaCall call;
  size_t length;
  Pieces there, here;
  SharedRegion region{};
};

TEST(the_receiver_needs_nobody, std::size(kCalls)) {
  for (const size_t length : {size_t{1}, 100 * kKiB, 3 * kMiB + 5}) {
    RegionChannel region(kCalls[_i], length);
    region.access();
    region.run_alone();
    region.expect(0);
    ck_assert_uint_eq(region.moved_by(region.channel.in_counters), length);
    ck_assert_uint_eq(region.channel.in_counters.region_bytes, length);
  }
}

TEST(a_sender_that_polls_helps, std::size(kCalls)) {
  RegionChannel region(kCalls[_i], 4 * kMiB);
  region.access();
  region.channel.run();
  region.expect(0);
  ck_assert_int_gt(region.channel.memory.asked, 0);
  ck_assert_uint_gt(region.moved_by(region.channel.in_counters), 0);
  ck_assert_uint_gt(region.moved_by(region.channel.out_counters), 0);
  ck_assert(!region.channel.out.active());
}

/// Who polls a sender only while it is active must not forget one that waits for an empty slot.
TEST(a_sender_that_has_filled_all_slots_stays_active) {
  RegionChannel region(CmaCall::read, 2 * kMiB, Ways::chosen);
  Channel& channel = region.channel;
  region.access();
  channel.in.poll(channel.sink);
  while (channel.out.poll() > 0) continue;
  ck_assert(channel.out.active());
  for (int i = 0; i < kManyPolls && channel.in.active(); ++i) {
    channel.in.poll(channel.sink);
    if (channel.out.active()) channel.out.poll();
  }
  region.expect(0);
  ck_assert_uint_eq(channel.in_counters.bounce_in_bytes, region.length);
  ck_assert(!channel.out.active());
}

/// CMA cannot reach the memory of the message, and the sender does not poll.
TEST(a_read_does_not_wait_for_slots_that_the_sender_must_fill) {
  RegionChannel region(CmaCall::read, kMiB);
  Channel& channel = region.channel;
  channel.memory.affordable = true;
  channel.out.poll();
  channel.calls.read = {1, 1, EFAULT};
  Message message(channel, 4 * kMiB);
  await_bounce(channel);
  region.access();
  for (int i = 0; i < kManyPolls && channel.sink.done.empty(); ++i) channel.in.poll(channel.sink);
  region.expect(0);
  channel.run();
  assert_done_once(channel.sink, message.token, 0);
  ck_assert(message.arrived());
}

TEST(a_sender_that_fails_is_done_without, std::size(kCalls)) {
  RegionChannel region(kCalls[_i], 4 * kMiB);
  fake::CmaCalls::Plan& plan =
      region.call == CmaCall::read ? region.channel.calls.write : region.channel.calls.read;
  plan.first = 1;
  plan.last = fake::CmaCalls::kForever;
  plan.error = EFAULT;
  region.access();
  region.channel.run();
  region.expect(0);
  ck_assert_uint_eq(plan.calls, 1);
}

TEST(a_sender_that_reads_a_stranger_takes_no_further_part) {
  RegionChannel region(CmaCall::write, 4 * kMiB);
  ++fake::identify(region.channel.writer).nonce;
  region.access();
  region.channel.run();
  region.expect(0);
  ck_assert_uint_eq(region.channel.calls.read.calls, 1);
}

TEST(a_sender_helps_only_with_what_it_shared, std::size(kCalls)) {
  RegionChannel region(kCalls[_i], 2 * kMiB);
  // A hostile receiver asks for the other direction.
  region.call = kCalls[1 - _i];
  region.access();
  region.channel.in.poll(region.channel.sink);
  ck_assert(region.channel.out.ready());
  for (int i = 0; i < 3; ++i) region.channel.out.poll();
  region.channel.run();
  assert_done_once(region.channel.sink, RegionChannel::kToken, -EPROTO);
  ck_assert_uint_eq(region.moved_by(region.channel.out_counters), 0);
}

TEST(what_can_not_be_reached_is_told, std::size(kCalls)) {
  RegionChannel region(kCalls[_i], kMiB);
  fake::CmaCalls::Plan& plan =
      region.call == CmaCall::read ? region.channel.calls.read : region.channel.calls.write;
  plan.first = 2;
  plan.last = fake::CmaCalls::kForever;
  plan.error = EFAULT;
  region.access();
  region.run_alone();
  region.expect(-FI_EOPNOTSUPP);
}

TEST(an_access_that_lacks_memory_can_be_tried_later, std::size(kCalls)) {
  RegionChannel region(kCalls[_i], kMiB);
  fake::CmaCalls::Plan& plan =
      region.call == CmaCall::read ? region.channel.calls.read : region.channel.calls.write;
  plan = {2, fake::CmaCalls::kForever, ENOMEM};
  region.access();
  region.run_alone();
  region.expect(-FI_EBUSY);
}

/// The peer has executed another program, which the pidfd does not report. That program has memory
/// where the region was, and none where the nonce was.
TEST(a_read_of_another_program_has_not_succeeded) {
  for (const bool mapped : {false, true}) {
    RegionChannel region(CmaCall::read, 64 * kKiB);
    CmaPeer& reader = region.channel.reader;
    fake::identify(reader, own_cma_identity(), eventfd(0, EFD_CLOEXEC), &region.channel.clock);
    fake::CmaCalls::Plan& plan = region.channel.calls.read;
    plan = {1, 1, 0, region.length};
    if (!mapped) plan.unmapped = remote_address(reader.identity().nonce_address);
    region.access();
    region.run_alone();
    region.expect(mapped ? 0 : -FI_EBUSY);
    ck_assert_uint_eq(plan.calls, 2);
  }
}

/// A write is proven by the life of its target. A target that ended during it has no memory any
/// more that lacks the bytes.
TEST(a_write_into_memory_of_a_peer_that_shows_its_life_has_succeeded) {
  enum { lives, is_replaced, ends };
  for (const int fate : {lives, is_replaced, ends}) {
    RegionChannel region(CmaCall::write, kKiB);
    CmaPeer& peer = region.channel.reader;
    std::atomic<uint32_t> life = 1;
    CmaIdentity& identity = fake::identify(
        peer, own_cma_identity(), eventfd(fate != lives, EFD_CLOEXEC), &region.channel.clock);
    if (fate == is_replaced) ++identity.nonce;
    if (fate == ends) region.channel.calls.read = {1, fake::CmaCalls::kForever, ESRCH};
    peer.life = &life;
    region.channel.calls.write.meanwhile = [&] { life = fate == lives ? 1 : FUTEX_OWNER_DIED; };
    region.access();
    region.run_alone();
    region.expect(fate == is_replaced ? -FI_EBUSY : 0);
  }
}

TEST(a_revocation_ends_it, std::size(kCalls)) {
  RegionChannel region(kCalls[_i], 3 * kMiB);
  region.channel.memory.permitted = 2;
  region.access();
  region.run_alone();
  region.expect(-FI_EBUSY);
  // A sender that is moving a chunk learns of the revocation as well.
  RegionChannel other(kCalls[_i], 3 * kMiB);
  other.access();
  other.channel.in.poll(other.channel.sink);
  other.channel.out.poll();
  other.channel.out.taken_back(other.table.revoke(other.region));
  const auto there = other.there.flat(), here = other.here.flat();
  for (int i = 0; i < 3; ++i) other.channel.out.poll();
  ck_assert(other.there.flat() == there);
  ck_assert(other.here.flat() == here);
  other.run_alone();
  other.expect(-FI_EBUSY);
}

/// The owner waits for a peer that is inside, so the bytes were moved in time. An owner that sees
/// the last byte may leave at once.
TEST(what_was_moved_before_the_owner_left_has_succeeded, std::size(kCalls)) {
  RegionChannel region(kCalls[_i], 64 * kKiB);
  fake::CmaCalls::Plan& plan =
      region.call == CmaCall::read ? region.channel.calls.read : region.channel.calls.write;
  plan.meanwhile = [&] { region.channel.memory.left = true; };
  region.access();
  region.run_alone();
  region.expect(0);
}

/// An owner that revokes memory does not wait for peers that are outside it. Therefore a peer that
/// has heard of the revocation does not go on with a transfer that it began before.
TEST(a_revocation_that_was_heard_ends_it, std::size(kCalls)) {
  RegionChannel region(kCalls[_i], 3 * kMiB);
  region.access();
  region.channel.in.poll(region.channel.sink);
  const size_t moved = region.moved_by(region.channel.in_counters);
  ck_assert_uint_gt(moved, 0);
  ++region.channel.memory.heard;
  region.run_alone();
  region.expect(-FI_EBUSY);
  ck_assert_uint_eq(region.moved_by(region.channel.in_counters), moved);
}

/// The sender has taken a chunk and not reported it as moved, so it may still be writing.
TEST(a_revocation_ends_it_when_nobody_writes_any_more) {
  RegionChannel region(CmaCall::read, 3 * kMiB);
  fake::CmaCalls::Plan& plan = region.channel.calls.write;
  plan.meanwhile = [&] {
    region.channel.memory.permitted = 0;
    for (int i = 0; i < 10; ++i) region.channel.in.poll(region.channel.sink);
    ck_assert(region.channel.sink.order.empty());
  };
  region.access();
  region.channel.in.poll(region.channel.sink);
  while (plan.calls == 0) region.channel.out.poll();
  region.channel.run();
  region.expect(-FI_EBUSY);
}

TEST(what_finds_no_place_in_the_table_is_accessed_without_help, std::size(kCalls)) {
  SharedRegions full;
  std::byte byte{};
  for (uint32_t i = 0; i < kMaxSharedRegions; ++i)
    ck_assert_uint_ne(full.share({&byte, 1}, true, true).head.index, kUnhelped);
  RegionChannel region(kCalls[_i], 4 * kMiB);
  region.region = full.share(region.there.iov[0], true, true);
  ck_assert_uint_eq(region.region.head.index, kUnhelped);
  region.access();
  region.channel.run();
  region.expect(0);
  ck_assert_uint_eq(region.moved_by(region.channel.out_counters), 0);
}

}  // namespace

}  // namespace erdma::transport::shm
