#include "transport/self/self_transport.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include <rdma/fi_errno.h>

#include "libcheck.h"
#include "transport/conformance.h"

/// Tests the link of an endpoint to itself: how many packets it holds, and what it refuses.
namespace erdma::test {
namespace {

using transport::Access;
using transport::kMaxIov;
using transport::RemoteKey;
using transport::SendHint;

struct Alone {
  transport::self::SelfTransport transport{address_of("127.0.0.1", 7)};
  transport::Link& link = **transport.link_to(address_of("127.0.0.1", 7));
  RecordingSink sink;

  int send(uint64_t number) {
    const iovec empty{nullptr, 0};
    return link.send(numbered(number), &empty, 1, 0, SendHint::none);
  }
};

TEST(a_full_loop_takes_more_once_it_was_polled) {
  Alone alone;
  ck_assert(alone.transport.arm());
  for (uint64_t i = 0; i < 256; ++i) ck_assert_int_eq(alone.send(i), 0);
  ck_assert_int_eq(alone.send(256), -FI_EAGAIN);
  ck_assert(!alone.transport.arm());
  ck_assert_int_eq(alone.transport.poll(alone.sink), 256);
  ck_assert_uint_eq(alone.sink.packets.size(), 256);
  for (uint64_t i = 0; i < 256; ++i) ck_assert_uint_eq(alone.sink.packets[i].number(), i);
  ck_assert_int_eq(alone.send(257), 0);
  ck_assert_int_eq(alone.transport.poll(alone.sink), 1);
  ck_assert_int_eq(alone.transport.poll(alone.sink), 0);
}

TEST(another_endpoint_is_not_reached) {
  Alone alone;
  for (const auto& other : {address_of("127.0.0.1", 8), address_of("127.0.0.2", 7)})
    ck_assert_int_eq(alone.transport.link_to(other).error(), -FI_EHOSTUNREACH);
}

TEST(memory_has_as_many_pieces_as_a_message_and_is_moved_whole) {
  Alone alone;
  std::vector<std::byte> there = pattern(100, 1), here(100);
  iovec pieces[kMaxIov + 1], local[kMaxIov + 1];
  for (size_t i = 0; i <= kMaxIov; ++i) {
    pieces[i] = {there.data() + 20 * i, 20};
    local[i] = {here.data() + 20 * i, 20};
  }
  RemoteKey key;
  ck_assert_int_eq(alone.link.share(pieces, kMaxIov + 1, 100, Access::remote_read, key),
                   -FI_EINVAL);
  const size_t length = 20 * kMaxIov;
  ck_assert_int_eq(alone.link.share(pieces, kMaxIov, length, Access::remote_read, key), 0);
  ck_assert_int_eq(alone.link.get({key, 0, length + 1}, local, kMaxIov + 1, 5), -FI_EINVAL);
  ck_assert_int_eq(alone.link.put({key, 0, length + 1}, local, kMaxIov + 1, 5, true), -FI_EINVAL);
  ck_assert(alone.transport.arm());
  ck_assert_int_eq(alone.link.get({key, 0, length}, local, kMaxIov, 6), 0);
  ck_assert_int_eq(alone.transport.poll(alone.sink), 1);
  ck_assert(std::equal(here.begin(), here.begin() + long(length), there.begin()));
  std::reverse(here.begin(), here.begin() + long(length));
  ck_assert_int_eq(alone.link.put({key, 0, length}, local, kMaxIov, 7, true), 0);
  ck_assert_int_eq(alone.transport.poll(alone.sink), 1);
  ck_assert(std::equal(here.begin(), here.begin() + long(length), there.begin()));
  ck_assert_uint_eq(alone.sink.dones.size(), 2);
  ck_assert_uint_eq(alone.sink.dones[1].token, 7);
  ck_assert_int_eq(alone.sink.dones[1].status, 0);
  ck_assert_int_eq(alone.link.revoke(key), 0);
}

TEST(a_failed_link_delivers_nothing_more_and_is_up_again_once_that_is_told) {
  Alone alone;
  std::byte from{}, to{};
  const iovec there{&from, 1}, here{&to, 1};
  RemoteKey key;
  ck_assert_int_eq(alone.link.share(&there, 1, 1, Access::remote_read, key), 0);
  ck_assert_int_eq(alone.send(1), 0);
  ck_assert_int_eq(alone.link.get({key, 0, 1}, &here, 1, 5), 0);
  alone.link.fail(-FI_ECONNABORTED);
  ck_assert(!alone.transport.arm());
  ck_assert_int_eq(alone.transport.poll(alone.sink), 2);
  ck_assert(alone.sink.packets.empty());
  ck_assert_uint_eq(alone.sink.downs.size(), 1);
  ck_assert_int_eq(alone.sink.downs[0].status, -FI_ECONNABORTED);
  ck_assert_uint_eq(alone.sink.downs[0].dones_before, 1);
  ck_assert(alone.transport.arm());
  ck_assert_int_eq(alone.send(2), 0);
  ck_assert_int_eq(alone.transport.poll(alone.sink), 1);
  ck_assert_uint_eq(alone.sink.packets[0].number(), 2);
}

/// The receiver of the report sends, reads, writes, and fails the link again.
TEST(a_link_that_goes_down_takes_nothing_before_that_is_told) {
  struct Eager final : transport::NullSink {
    void on_packet(transport::Link&, const std::byte*, const std::byte*, size_t) noexcept override {
      ++packets;
    }
    void on_done(uint64_t token, int) noexcept override {
      ck_assert_uint_eq(token, 5);
      ck_assert_int_eq(alone.send(1), -FI_EAGAIN);
      ck_assert_int_eq(alone.link.get({key, 0, 1}, &local, 1, 6), -FI_EAGAIN);
      ck_assert_int_eq(alone.link.put({key, 0, 1}, &local, 1, 7, true), -FI_EAGAIN);
      alone.link.fail(-FI_ENOMEM);
    }
    void on_link_down(transport::Link&, int why) noexcept override {
      ++downs;
      status = why;
      ck_assert_int_eq(alone.send(2), 0);
    }
    Alone alone;
    RemoteKey key;
    std::byte byte{};
    const iovec local{&byte, 1};
    int packets = 0, downs = 0, status = 0;
  } sink;
  Alone& alone = sink.alone;
  ck_assert_int_eq(alone.link.share(&sink.local, 1, 1, Access::remote_read, sink.key), 0);
  ck_assert_int_eq(alone.link.get({sink.key, 0, 1}, &sink.local, 1, 5), 0);
  alone.link.fail(-FI_ECONNABORTED);
  ck_assert_int_eq(alone.transport.poll(sink), 2);
  ck_assert_int_eq(sink.packets, 0);
  while (!alone.transport.arm()) alone.transport.poll(sink);
  ck_assert_int_eq(sink.packets, 1);
  ck_assert_int_eq(sink.downs, 1);
  ck_assert_int_eq(sink.status, -FI_ECONNABORTED);
}

/// The receiver of a packet fails the link.
TEST(a_link_that_fails_while_it_delivers_stops_at_once) {
  struct Failing final : transport::NullSink {
    void on_packet(transport::Link& link, const std::byte*, const std::byte*,
                   size_t) noexcept override {
      ++packets;
      link.fail(-FI_ENOMEM);
    }
    void on_link_down(transport::Link&, int) noexcept override { ++downs; }
    int packets = 0, downs = 0;
  } sink;
  Alone alone;
  for (uint64_t i = 0; i < 3; ++i) ck_assert_int_eq(alone.send(i), 0);
  while (!alone.transport.arm()) alone.transport.poll(sink);
  ck_assert_int_eq(sink.packets, 1);
  ck_assert_int_eq(sink.downs, 1);
}

TEST(a_key_of_another_transport_names_nothing_here) {
  Alone alone;
  std::byte byte{};
  const iovec local{&byte, 1};
  RemoteKey right, other;
  ck_assert_int_eq(alone.link.share(&local, 1, 1, Access::remote_read, right), 0);
  other.put(transport::KeyHead{transport::KeyKind::region, 0, 0, 1});
  RemoteKey cut = right;
  --cut.size;
  RemoteKey pieces = right;  // the key has more pieces than are allowed
  transport::KeyHead head;
  std::memcpy(&head, pieces.bytes, sizeof(head));
  head.count = uint8_t(kMaxIov + 1);
  std::memcpy(pieces.bytes, &head, sizeof(head));
  for (const RemoteKey& wrong : {other, cut, pieces}) {
    ck_assert_int_eq(alone.link.get({wrong, 0, 1}, &local, 1, 1), -FI_EINVAL);
    ck_assert_int_eq(alone.link.put({wrong, 0, 1}, &local, 1, 1, true), -FI_EINVAL);
  }
  ck_assert_int_eq(alone.transport.poll(alone.sink), 0);
  ck_assert(alone.sink.dones.empty());
}

}  // namespace
}  // namespace erdma::test
