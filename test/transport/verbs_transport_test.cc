#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "libcheck.h"
#include "transport/verbs_rig.h"

namespace {
bool g_fail_allocation = false;  ///< the next allocation fails

}  // namespace

[[gnu::noinline]] void* operator new(size_t bytes) {
  void* memory = std::exchange(g_fail_allocation, false) ? nullptr : std::malloc(bytes);
  if (!memory) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return std::malloc(bytes);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

/// Tests packets, transfers and the ends of connections of two endpoints on a fake NIC.
namespace erdma::test {
namespace {

using transport::Access;
using transport::Link;
using transport::RemoteKey;
using transport::SendHint;

TEST(small_packets_arrive_in_order_both_ways) {
  Two two;
  two.meet();
  for (uint64_t i = 1; i < 2000; ++i) {
    ck_assert_int_eq(two.pair.send(two.pair.a_to_b(), i, &i, sizeof(i)), 0);
    ck_assert_int_eq(two.pair.send(two.pair.b_to_a(), i, &i, sizeof(i)), 0);
  }
  ck_assert(two.pair.poll_until([&] {
    return two.b().sink->packets.size() == 2000 && two.a().sink->packets.size() == 1999;
  }));
  for (uint64_t i = 1; i < 2000; ++i) {
    ck_assert_uint_eq(two.b().sink->packets[i].number(), i);
    ck_assert_uint_eq(two.a().sink->packets[i - 1].number(), i);
  }
}

TEST(receives_grow_for_a_peer_that_would_use_it) {
  Two two;
  two.meet();
  Link& link = two.pair.a_to_b();
  const size_t before = link.limits().eager;
  ck_assert_uint_lt(before, verbs::Options{}.eager_bytes);
  uint64_t sent = 1;
  while (!link.send(numbered(sent), nullptr, 0, 0, SendHint::none)) ++sent;
  while (sent < 200) ck_assert_int_eq(two.pair.send(link, sent++, nullptr, 0), 0);
  ck_assert(two.pair.poll_until([&] { return link.limits().eager > before; }));
  ck_assert_uint_eq(link.limits().eager, verbs::Options{}.eager_bytes);
  for (uint64_t i = 200; i < 400; ++i) {
    const auto bytes = pattern((i * 397) % (link.limits().eager + 1), unsigned(i));
    ck_assert_int_eq(two.pair.send(link, i, bytes.data(), bytes.size()), 0);
    ck_assert(two.pair.poll_until([&] { return two.b().sink->packets.size() == i + 1; }));
    ck_assert(two.b().sink->packets.back().payload == bytes);
  }
}

TEST(receives_grow_once_there_is_memory_for_them) {
  Two two;
  two.meet();
  AsksForRoom asks;
  two.rig.device->set_evictor(&asks);
  Link& link = two.pair.a_to_b();
  const size_t before = link.limits().eager;
  uint64_t sent = 1;
  two.rig.nic.refuse_regions = ENOSPC;
  while (sent < 400) ck_assert_int_eq(two.pair.send(link, sent++, nullptr, 0), 0);
  ck_assert(two.pair.poll_until([&] { return two.b().sink->packets.size() == sent; }));
  ck_assert_uint_ge(asks.count, 1);
  ck_assert_uint_le(asks.count, 5);  // log2(400 / 16) + 1, rounded down
  two.rig.nic.refuse_regions = 0;
  while (sent < 10'000 && link.limits().eager == before)
    ck_assert_int_eq(two.pair.send(link, sent++, nullptr, 0), 0);
  ck_assert_uint_eq(link.limits().eager, verbs::Options{}.eager_bytes);
  const auto bytes = pattern(link.limits().eager, 1);
  ck_assert_int_eq(two.pair.send(link, sent++, bytes.data(), bytes.size()), 0);
  ck_assert(two.pair.poll_until([&] { return two.b().sink->packets.size() == sent; }));
  ck_assert(two.b().sink->packets.back().payload == bytes);
  two.rig.device->set_evictor(nullptr);
}

TEST(two_sides_that_flood_each_other_go_on) {
  Two two;
  two.meet();
  Link& there = two.pair.a_to_b();
  Link& back = two.pair.b_to_a();
  uint64_t sent_a = 0, sent_b = 0;
  for (int round = 0; round < 3000; ++round) {
    while (!there.send(numbered(sent_a), nullptr, 0, 0, SendHint::none)) ++sent_a;
    while (!back.send(numbered(sent_b), nullptr, 0, 0, SendHint::none)) ++sent_b;
    two.pair.poll();
  }
  ck_assert_uint_gt(sent_a, 10'000);
  ck_assert_uint_gt(sent_b, 10'000);
}

/// Shares memory of a with b and returns its remote key.
RemoteKey shared_at_a(Two& two, const iovec* iov, size_t count, size_t length, Access access) {
  RemoteKey remote_key;
  ck_assert_int_eq(two.pair.a_to_b().share(iov, count, length, access, remote_key), 0);
  return remote_key;
}

/// Rows: all memory is registered; the initiator's memory bounces; the target's memory bounces;
/// both.
struct Moves {
  bool bounce, bounced;
};
const Moves kMoves[] = {{false, false}, {true, false}, {false, true}, {true, true}};
constexpr size_t kSizes[] = {1, 100, 4096, 300'001, 3'000'000};

/// Bytes that the counters of both endpoints say were sent in packets or moved by RDMA.
uint64_t counted(Two& two) {
  uint64_t sum = 0;
  for (Side* side : {&two.a(), &two.b()}) {
    const auto& counters = Rig::transport(*side).counters();
    sum += counters.sent_bytes + counters.read_bytes + counters.write_bytes;
  }
  return sum;
}

/// Bytes for which a side could not register its memory.
uint64_t refused(Side& side) {
  const auto& counters = Rig::transport(side).counters();
  ck_assert_uint_eq(counters.refused_always_bytes + counters.refused_short_bytes, 0);
  return counters.refused_room_bytes + counters.refused_memory_bytes;
}

void moves(bool is_read, const Moves& how) {
  Two two;
  two.meet();
  uint64_t moved = counted(two), refused_at_a = 0, refused_at_b = 0;
  for (const size_t size : kSizes) {
    auto source = pattern(size, unsigned(size));
    std::vector<std::byte> target(size);
    auto& at_a = is_read ? source : target;
    auto& at_b = is_read ? target : source;
    const iovec remote[] = {{at_a.data(), size / 3}, {at_a.data() + size / 3, size - size / 3}};
    const iovec local[] = {{at_b.data(), size / 2}, {at_b.data() + size / 2, size - size / 2}};
    two.rig.cache.refuse = how.bounced;
    const RemoteKey remote_key =
        shared_at_a(two, remote, 2, size, is_read ? Access::remote_read : Access::remote_write);
    two.rig.cache.refuse = how.bounce;
    Link& back = two.pair.b_to_a();
    const size_t dones = two.b().sink->dones.size();
    ck_assert_int_eq(is_read ? back.get({remote_key, 0, size}, local, 2, size)
                             : back.put({remote_key, 0, size}, local, 2, size, false),
                     0);
    ck_assert(two.pair.poll_until([&] { return two.b().sink->dones.size() > dones; }));
    ck_assert_int_eq(two.b().sink->dones.back().status, 0);
    ck_assert_uint_eq(two.b().sink->dones.back().token, size);
    ck_assert(source == target);
    two.pair.a_to_b().revoke(remote_key);
    ck_assert_int_eq(two.rig.cache.held, 0);
    ck_assert_uint_eq(counted(two), moved += size);
    // Where the owner could not register its memory, nobody asks the initiator to.
    (how.bounced ? refused_at_a : refused_at_b) += how.bounced || how.bounce ? size : 0;
    ck_assert_uint_eq(refused(two.a()), refused_at_a);
    ck_assert_uint_eq(refused(two.b()), refused_at_b);
  }
}

TEST(read_moves_any_size_however_memory_is_reached, std::size(kMoves)) {
  moves(true, kMoves[_i]);
}

TEST(write_moves_any_size_however_memory_is_reached, std::size(kMoves)) {
  moves(false, kMoves[_i]);
}

TEST(what_is_accessed_directly_is_counted_whatever_its_end_waits_for) {
  Two two;
  two.meet();
  std::vector<std::byte> there(300'001), here(300'001);
  auto memory = two.pair.a_to_b().optional().registrar->open({there.data(), there.size()}, nullptr,
                                                             true, true);
  ck_assert(memory);
  RemoteKey remote_key;
  (*memory)->describe(remote_key);
  uint64_t written = 0, read = 0;
  for (const size_t size : {size_t{1}, size_t{100}, size_t{4096}, here.size()}) {
    const iovec local{here.data(), size};
    for (const int how : {0, 1, 2}) {
      const size_t before = two.b().sink->dones.size();
      ck_assert(two.pair.poll_until([&] {
        Link& back = two.pair.b_to_a();
        return (how == 2 ? back.get({remote_key, 0, size}, &local, 1, size)
                         : back.put({remote_key, 0, size}, &local, 1, size, how == 1)) == 0;
      }));
      ck_assert(two.pair.poll_until([&] { return two.b().sink->dones.size() > before; }));
      ck_assert_int_eq(two.b().sink->dones.back().status, 0);
      (how == 2 ? read : written) += size;
      ck_assert_uint_eq(Rig::transport(two.b()).counters().write_bytes, written);
      ck_assert_uint_eq(Rig::transport(two.b()).counters().read_bytes, read);
    }
  }
}

TEST(packets_that_are_not_sent_inline_are_counted_apart) {
  Two two;
  two.meet();
  const auto& counters = Rig::transport(two.a()).counters();
  const size_t inlined = two.rig.nic.max_inline - verbs::kPacketOverhead;
  const std::vector<std::byte> bytes(inlined + 1);
  uint64_t sent = 0;
  for (const size_t size : {size_t{0}, size_t{8}, inlined}) {
    ck_assert_int_eq(two.pair.send(two.pair.a_to_b(), 1, bytes.data(), size), 0);
    ck_assert_uint_eq(counters.sent_bytes, sent += size);
    ck_assert_uint_eq(counters.fetched_bytes, 0);
  }
  ck_assert_int_eq(two.pair.send(two.pair.a_to_b(), 1, bytes.data(), inlined + 1), 0);
  ck_assert_uint_eq(counters.sent_bytes, sent + inlined + 1);
  ck_assert_uint_eq(counters.fetched_bytes, inlined + 1);
}

TEST(small_packets_pass_while_large_transfers_run) {
  Two two;
  two.meet();
  constexpr size_t kBytes = 64'000'000;
  std::vector<std::byte> source(kBytes), target(kBytes);
  const iovec from{source.data(), kBytes}, to{target.data(), kBytes};
  const RemoteKey remote_key = shared_at_a(two, &from, 1, kBytes, Access::remote_read);
  ck_assert_int_eq(two.pair.b_to_a().get({remote_key, 0, kBytes}, &to, 1, 1), 0);
  for (uint64_t i = 1; i <= 10; ++i)
    ck_assert_int_eq(two.pair.send(two.pair.b_to_a(), i, &i, 8), 0);
  ck_assert(two.pair.poll_until([&] { return two.a().sink->packets.size() == 10; }));
  ck_assert_uint_eq(two.b().sink->dones.size(), 0);
  ck_assert(two.pair.poll_until([&] { return two.b().sink->dones.size() == 1; }));
  two.pair.a_to_b().revoke(remote_key);
}

TEST(a_peer_that_closes_is_told_from_one_that_died) {
  Two two;
  two.meet();
  two.a().transport->shutdown();
  ck_assert(two.until([&] { return two.b().sink->downs.size() == 1; }));
  ck_assert_int_eq(two.b().sink->downs[0].status, -FI_ESHUTDOWN);
  ck_assert_int_eq(two.pair.a_to_b().send(numbered(1), nullptr, 0, 0, SendHint::none),
                   -FI_ESHUTDOWN);
}

TEST(what_was_taken_before_shutdown_is_delivered) {
  Two two;
  two.meet();
  Link& link = two.pair.a_to_b();
  uint64_t sent = 1;
  while (!link.send(numbered(sent), nullptr, 0, 0, sent % 2 ? SendHint::more : SendHint::none))
    ++sent;
  two.a().owned.reset();
  two.a().transport = two.b().transport;
  two.a().sink = two.b().sink;
  ck_assert(two.until([&] { return two.b().sink->downs.size() == 1; }));
  ck_assert_uint_eq(two.b().sink->packets.size(), sent);
  ck_assert_uint_eq(two.b().sink->downs[0].packets_before, sent);
}

constexpr struct {
  ibv_wc_status status;
  int error;
} kStatuses[] = {{IBV_WC_LOC_LEN_ERR, FI_EIO},
                 {IBV_WC_LOC_QP_OP_ERR, FI_EIO},
                 {IBV_WC_LOC_PROT_ERR, FI_EIO},
                 {IBV_WC_WR_FLUSH_ERR, FI_ECONNRESET},
                 {IBV_WC_BAD_RESP_ERR, FI_ECONNRESET},
                 {IBV_WC_LOC_ACCESS_ERR, FI_EIO},
                 {IBV_WC_REM_INV_REQ_ERR, FI_ECONNRESET},
                 {IBV_WC_REM_ACCESS_ERR, FI_ECONNRESET},
                 {IBV_WC_REM_OP_ERR, FI_ECONNRESET},
                 {IBV_WC_RETRY_EXC_ERR, FI_ETIMEDOUT},
                 {IBV_WC_RNR_RETRY_EXC_ERR, FI_ETIMEDOUT},
                 {IBV_WC_RESP_TIMEOUT_ERR, FI_ETIMEDOUT},
                 {IBV_WC_FATAL_ERR, FI_ECONNRESET},
                 {IBV_WC_GENERAL_ERR, FI_ECONNRESET}};

TEST(a_failed_request_ends_the_connection_once_and_the_next_send_connects_anew,
     2 * std::size(kStatuses)) {
  const bool flush = _i % 2;
  Two two;
  two.meet();
  two.rig.nic.flush = flush;
  two.rig.nic.fail_send = 0;
  two.rig.nic.fail_status = kStatuses[_i / 2].status;
  ck_assert_int_eq(two.pair.send(two.pair.a_to_b(), 1, nullptr, 0), 0);
  // If no request is flushed, only the back end reports the end to the other side.
  ck_assert(two.until([&] { return two.a().sink->downs.size() == 1; }));
  ck_assert(two.until([&] { return two.b().sink->downs.size() == 1; }));
  ck_assert_int_eq(two.a().sink->downs[0].status, -kStatuses[_i / 2].error);
  ck_assert_int_eq(two.pair.send(two.pair.a_to_b(), 2, nullptr, 0), 0);
  ck_assert(two.until([&] { return two.b().sink->packets.size() == 2; }));
  ck_assert_uint_eq(two.b().sink->packets[1].number(), 2);
  ck_assert_uint_eq(two.a().sink->downs.size(), 1);
}

TEST(transfers_under_way_end_before_the_link_goes_down, 4) {
  Two two;
  two.meet();
  constexpr size_t kBytes = 8'000'000;
  std::vector<std::byte> source(kBytes), target(kBytes);
  const iovec from{source.data(), kBytes}, to{target.data(), kBytes};
  two.rig.nic.flush = _i & 1;
  two.rig.cache.refuse = _i & 2;
  const RemoteKey remote_key = shared_at_a(two, &from, 1, kBytes, Access::remote_read);
  for (uint64_t token = 1; token <= 5; ++token)
    ck_assert_int_eq(two.pair.b_to_a().get({remote_key, 0, kBytes}, &to, 1, token), 0);
  two.pair.poll();
  two.rig.nic.fail_send = 0;
  ck_assert(two.until([&] { return two.b().sink->downs.size() == 1; }));
  ck_assert_uint_eq(two.b().sink->dones.size(), 5);
  ck_assert_uint_eq(two.b().sink->downs[0].dones_before, 5);
  for (const auto& done : two.b().sink->dones) ck_assert_int_lt(done.status, 0);
  ck_assert(two.until([&] { return two.a().sink->downs.size() == 1; }));
  two.pair.a_to_b().revoke(remote_key);
  ck_assert_int_eq(two.rig.cache.held, 0);
  ck_assert_uint_eq(Rig::transport(two.b()).resources().bounce_blocks(true).in_use(), 0);
}

TEST(a_post_that_finds_no_room_is_tried_again) {
  Two two;
  two.meet();
  Link& link = two.pair.a_to_b();
  ck_assert_int_eq(link.send(numbered(1), nullptr, 0, 0, SendHint::none), 0);
  for (int i = 0; i < 100; ++i) {  // more often than there are credits to lose
    two.rig.nic.post_send_error = -ENOMEM;
    ck_assert_int_eq(link.send(numbered(2), nullptr, 0, 0, SendHint::none), -FI_EAGAIN);
  }
  ck_assert_int_eq(two.pair.send(link, 2, nullptr, 0), 0);
  ck_assert(two.pair.poll_until([&] { return two.b().sink->packets.size() == 3; }));
  ck_assert_uint_eq(two.a().sink->downs.size(), 0);
}

/// The device has less room than it promised. The outstanding requests were not signalled, so
/// nothing will complete.
TEST(a_device_that_finds_no_room_any_more_ends_the_connection) {
  Two two;
  two.meet();
  ck_assert_int_eq(two.pair.a_to_b().send(numbered(1), nullptr, 0, 0, SendHint::none), 0);
  two.rig.nic.refuse_sends = -ENOMEM;
  ck_assert_int_eq(two.pair.a_to_b().send(numbered(2), nullptr, 0, 0, SendHint::none), -FI_EAGAIN);
  for (int i = 0; i < 200'000 && two.a().sink->downs.empty(); ++i) {
    two.a().poll();
    two.rig.clock.time += 100'000;
  }
  two.rig.nic.refuse_sends = 0;
  ck_assert_uint_eq(two.a().sink->downs.size(), 1);
  ck_assert_int_eq(two.a().sink->downs[0].status, -FI_ETIMEDOUT);
}

/// One connection, whose requests do not complete, holds all blocks.
TEST(blocks_of_a_connection_that_ends_go_to_who_waits_for_them) {
  Two two;
  Side other;
  ck_assert(two.rig.open(other, {}, &two.rig.clock));
  two.meet();
  Link& third = **other.transport->link_to(two.b().name);
  ck_assert(two.until([&] {
    other.poll();
    return !third.send(numbered(9), nullptr, 0, 0, SendHint::none);
  }));
  constexpr size_t kBytes = 4'000'000;
  std::vector<std::byte> source(kBytes), target(kBytes);
  const iovec from{source.data(), kBytes}, to{target.data(), kBytes};
  const RemoteKey at_a = shared_at_a(two, &from, 1, kBytes, Access::remote_write);
  RemoteKey at_other;
  ck_assert_int_eq(third.share(&from, 1, kBytes, Access::remote_write, at_other), 0);
  for (int i = 0; i < 8; ++i) two.pair.poll();
  two.rig.cache.refuse = true;
  two.rig.nic.flush = false;
  // There is one slab of blocks, and no memory for another.
  two.rig.nic.hold = true;
  ck_assert_int_eq(two.pair.b_to_a().put({at_a, 0, kBytes}, &to, 1, 1, false), 0);
  two.b().poll();
  two.rig.nic.refuse_regions = ENOMEM;
  transport::verbs::BlockPool& pool = Rig::transport(two.b()).resources().bounce_blocks(false);
  std::vector<transport::verbs::BlockPool::Block> held(1);
  while (pool.acquire(held.back())) held.emplace_back();
  held.pop_back();
  Link& back = **two.b().transport->link_to(other.name);
  const iovec first{target.data(), 100};
  ck_assert_int_eq(back.put({at_other, 0, 100}, &first, 1, 2, false), 0);
  two.b().poll();
  two.pair.b_to_a().fail(-FI_EIO);
  two.b().poll();
  two.rig.clock.time += 25'000'000;
  two.b().poll();  // the connection is drained and ends
  ck_assert_uint_eq(two.b().sink->downs.size(), 1);
  two.rig.nic.hold = false;
  for (int i = 0; i < 10; ++i) two.b().poll();
  ck_assert_uint_eq(two.b().sink->dones.size(), 2);
  ck_assert_uint_eq(two.b().sink->dones[1].token, 2);
  ck_assert_int_eq(two.b().sink->dones[1].status, 0);
  two.rig.nic.refuse_regions = 0;
  for (const auto& block : held) pool.release(block);
  two.pair.a_to_b().revoke(at_a);
  third.revoke(at_other);
}

/// The first allocation for the connection fails. A later poll() opens the mail again.
TEST(a_connection_for_which_there_is_no_memory_comes_later) {
  Two two;
  Link& link = two.pair.a_to_b();
  ck_assert_int_eq(link.send(numbered(1), nullptr, 0, 0, SendHint::none), -FI_EAGAIN);
  g_fail_allocation = true;
  two.a().poll();
  ck_assert(!g_fail_allocation);
  ck_assert_int_eq(two.pair.send(link, 2, nullptr, 0), 0);
  ck_assert(two.until([&] { return two.b().sink->packets.size() == 1; }));
  ck_assert_uint_eq(two.a().sink->downs.size(), 0);
}

TEST(a_post_that_is_refused_ends_the_connection, 4) {
  Two two;
  two.meet();
  Link& link = two.pair.a_to_b();
  two.rig.nic.post_send_error = _i % 2 ? -EIO : EINVAL;
  const SendHint hint = _i / 2 ? SendHint::more : SendHint::none;
  (void)link.send(numbered(1), nullptr, 0, 0, hint);
  ck_assert(two.until([&] { return two.a().sink->downs.size() == 1; }));
  ck_assert_int_eq(two.a().sink->downs[0].status, _i % 2 ? -FI_EIO : -FI_EINVAL);
  ck_assert(two.until([&] { return two.b().sink->downs.size() == 1; }));
}

TEST(a_receive_that_can_not_be_posted_ends_the_connection) {
  Two two;
  two.meet();
  two.rig.nic.post_recv_error = -EIO;
  for (uint64_t i = 1; i < 7; ++i)
    (void)two.pair.a_to_b().send(numbered(i), nullptr, 0, 0, SendHint::none);
  ck_assert(two.until([&] { return two.b().sink->downs.size() == 1; }));
  ck_assert_int_eq(two.b().sink->downs[0].status, -FI_EIO);
}

TEST(a_connection_that_could_not_grow_leaves_the_count_of_grown_ones_as_it_was) {
  Two two;
  two.meet();
  Link& link = two.pair.a_to_b();
  while (!link.send(numbered(1), nullptr, 0, 0, SendHint::none)) {
  }
  for (int i = 0; i < 8; ++i) two.pair.poll();  // there are credits again
  const unsigned& grown = Rig::transport(two.b()).resources().grown;
  ck_assert_uint_eq(grown, 0);
  ck_assert_int_eq(link.send(numbered(2), nullptr, 0, 0, SendHint::none), 0);  // wants more
  two.rig.nic.post_recv_error = -EIO;
  ck_assert(two.until([&] { return two.b().sink->downs.size() == 1; }));
  ck_assert_int_eq(two.b().sink->downs[0].status, -FI_EIO);
  ck_assert_int_eq(two.rig.nic.post_recv_error, 0);
  ck_assert_uint_eq(grown, 0);
}

TEST(a_refused_attempt_is_one_link_down_and_may_be_repeated) {
  Two two;
  two.rig.fabric.refuse = -FI_EHOSTUNREACH;
  Link& link = two.pair.a_to_b();
  ck_assert_int_eq(link.send(numbered(1), nullptr, 0, 0, SendHint::none), -FI_EAGAIN);
  ck_assert(two.until([&] { return two.a().sink->downs.size() == 1; }));
  ck_assert_int_eq(two.a().sink->downs[0].status, -FI_EHOSTUNREACH);
  two.rig.fabric.refuse = 0;
  two.meet();
  ck_assert_uint_eq(two.a().sink->downs.size(), 1);
}

TEST(an_endpoint_may_talk_to_itself) {
  Rig rig;
  Pair pair;
  ck_assert(rig.open(pair.a, {}, &rig.clock));
  pair.b.transport = pair.a.transport;
  pair.b.name = pair.a.name;
  pair.b.sink = pair.a.sink;
  Link& link = pair.a_to_b();
  for (uint64_t i = 0; i < 1000; ++i) ck_assert_int_eq(pair.send(link, i, &i, 8), 0);
  ck_assert(pair.poll_until([&] { return pair.a.sink->packets.size() == 1000; }));
  for (uint64_t i = 0; i < 1000; ++i) ck_assert_uint_eq(pair.a.sink->packets[i].number(), i);
  ck_assert_ptr_eq(pair.a.sink->packets[0].link, &link);
  auto source = pattern(1'000'000, 1);
  std::vector<std::byte> target(source.size());
  const iovec from{source.data(), source.size()}, to{target.data(), target.size()};
  RemoteKey remote_key;
  ck_assert_int_eq(link.share(&from, 1, source.size(), Access::remote_read, remote_key), 0);
  ck_assert_int_eq(link.get({remote_key, 0, source.size()}, &to, 1, 5), 0);
  ck_assert(pair.poll_until([&] { return pair.a.sink->dones.size() == 1; }));
  ck_assert(source == target);
  link.revoke(remote_key);
  ck_assert(rig.nic.violations.empty());
}

/// The half that receives comes up, and may be lost; the one that sends does not come up.
TEST(an_endpoint_that_cannot_send_to_itself_learns_why_at_once, 3) {
  const bool lost = _i > 0, ended = _i > 1;
  Rig rig;
  Side side;
  ck_assert(rig.open(side, {}, &rig.clock));
  FakeConnector& connector = *rig.fabric.find(side.name);
  const auto settle = [&] {
    for (int i = 0; i < 8; ++i) side.poll();
  };
  rig.fabric.hold_active = true;
  Link& link = **side.transport->link_to(side.name);
  ck_assert_int_eq(link.send(numbered(1), nullptr, 0, 0, SendHint::none), -FI_EAGAIN);
  settle();
  ck_assert_uint_eq(Rig::transport(side).connections(), 1);
  ck_assert_str_eq(link.report().state, "connecting");
  if (lost) connector.lose(rig.fabric.wires.back().ids[1], -FI_ECONNRESET);
  if (ended) {
    settle();
    ck_assert_uint_eq(Rig::transport(side).connections(), 0);
    ck_assert_uint_eq(side.sink->downs.size(), 0);
  }
  connector.report({side.name, 1}, -FI_EHOSTUNREACH);
  side.poll();
  if (!ended) {  // the other half still ends, and nothing connects the link meanwhile
    ck_assert_uint_eq(side.sink->downs.size(), 0);
    ck_assert_int_eq(link.send(numbered(1), nullptr, 0, 0, SendHint::none), -FI_EAGAIN);
  }
  settle();
  ck_assert_uint_eq(side.sink->downs.size(), 1);
  ck_assert_int_eq(side.sink->downs[0].status, -FI_EHOSTUNREACH);
  ck_assert(!link.was_up());
  ck_assert_uint_eq(rig.fabric.attempts, 1);
  rig.fabric.hold_active = false;
  ck_assert_int_eq(link.send(numbered(1), nullptr, 0, 0, SendHint::none), -FI_EAGAIN);
  settle();
  ck_assert_int_eq(link.send(numbered(1), nullptr, 0, 0, SendHint::none), 0);
  settle();
  ck_assert_uint_eq(side.sink->packets.size(), 1);
  ck_assert_uint_eq(side.sink->downs.size(), 1);
  ck_assert(rig.nic.violations.empty());
}

/// The half that receives comes up, and is lost, after the attempt has failed.
TEST(an_endpoint_that_cannot_send_to_itself_learns_that_once, 2) {
  Rig rig;
  Side side;
  ck_assert(rig.open(side, {}, &rig.clock));
  FakeConnector& connector = *rig.fabric.find(side.name);
  rig.fabric.hold = rig.fabric.hold_active = true;
  Link& link = **side.transport->link_to(side.name);
  ck_assert_int_eq(link.send(numbered(1), nullptr, 0, 0, SendHint::none), -FI_EAGAIN);
  if (_i)
    link.fail(-FI_EIO);
  else
    connector.report({side.name, 1}, -FI_EHOSTUNREACH), side.poll();
  connector.go_on();
  side.poll();
  ck_assert_uint_eq(side.sink->downs.size(), 1);
  ck_assert_int_eq(side.sink->downs[0].status, _i ? -FI_EIO : -FI_EHOSTUNREACH);
  ck_assert_uint_eq(Rig::transport(side).connections(), 1);
  ck_assert_str_eq(link.report().state, "idle");
  connector.lose(rig.fabric.wires.back().ids[1], -FI_ECONNRESET);
  for (int i = 0; i < 8; ++i) side.poll();
  ck_assert_uint_eq(Rig::transport(side).connections(), 0);
  ck_assert_uint_eq(side.sink->downs.size(), 1);
}

}  // namespace

}  // namespace erdma::test
