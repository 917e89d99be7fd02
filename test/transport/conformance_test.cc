#include "transport/conformance_pairs.h"

/// Checks the rules of transport/transport.h with every transport: shared memory on this host, and
/// the verbs transport on the simulated adapter.
namespace erdma::test {
namespace {

/// Returns the link from a to b after one packet has arrived on it.
Link& met_link(Pair& pair) {
  Link& link = pair.a_to_b();
  ck_assert_int_eq(pair.send(link, 0, nullptr, 0), 0);
  ck_assert(pair.poll_until([&] { return has_packets(pair.b, 1); }));
  return link;
}

TEST_CASE(.timeout = 120, .tear_down = close_device);

TEST(packets_arrive_once_and_in_the_order_of_send, g_factories.size()) {
  Pair pair;
  make(pair, _i);
  Link& link = pair.a_to_b();
  constexpr uint64_t kCount = 3000;
  for (uint64_t i = 0; i < kCount; ++i) ck_assert_int_eq(pair.send(link, i, &i, sizeof(i)), 0);
  ck_assert(pair.poll_until([&] { return has_packets(pair.b, kCount); }));
  for (uint64_t i = 0; i < kCount; ++i) {
    ck_assert_uint_eq(pair.b.sink->packets[i].number(), i);
    ck_assert_mem_eq(pair.b.sink->packets[i].payload.data(), &i, sizeof(i));
  }
  pair.poll();
  ck_assert_uint_eq(pair.b.sink->packets.size(), kCount);
}

TEST(payload_of_any_length_up_to_the_limit_arrives_unchanged, g_factories.size()) {
  Pair pair;
  make(pair, _i);
  Link& link = pair.a_to_b();
  for (uint64_t round = 0, sent = 0; round < 400; ++round) {
    const size_t limit = link.limits().eager;
    const size_t length = round < 40 ? std::min(size_t(round), limit) : (round * 397) % (limit + 1);
    const auto bytes = pattern(length, unsigned(round));
    if (pair.send(link, round, bytes.data(), length)) continue;  // the limit may have shrunk
    ++sent;
    ck_assert(pair.poll_until([&] { return has_packets(pair.b, sent); }));
    const auto& packet = pair.b.sink->packets.back();
    ck_assert_uint_eq(packet.payload.size(), length);
    ck_assert(packet.payload == bytes);
  }
}

TEST(payload_in_several_pieces_is_gathered, g_factories.size()) {
  Pair pair;
  make(pair, _i);
  Link& link = pair.a_to_b();
  const auto bytes = pattern(60, 5);
  std::byte* data = const_cast<std::byte*>(bytes.data());
  const iovec pieces[] = {{data, 1}, {data + 1, 0}, {data + 1, 30}, {data + 31, 29}};
  ck_assert(
      pair.poll_until([&] { return link.send(numbered(1), pieces, 4, 60, SendHint::none) == 0; }));
  ck_assert(pair.poll_until([&] { return has_packets(pair.b, 1); }));
  ck_assert(pair.b.sink->packets[0].payload == bytes);
}

TEST(a_packet_without_payload_arrives, g_factories.size()) {
  Pair pair;
  make(pair, _i);
  Link& link = pair.a_to_b();
  ck_assert(
      pair.poll_until([&] { return link.send(numbered(9), nullptr, 0, 0, SendHint::none) == 0; }));
  ck_assert(pair.poll_until([&] { return has_packets(pair.b, 1); }));
  ck_assert_uint_eq(pair.b.sink->packets[0].number(), 9);
}

TEST(send_makes_no_upcall, g_factories.size()) {
  Pair pair;
  make(pair, _i);
  Link& link = met_link(pair);
  for (int i = 0; i < 4; ++i)
    ck_assert_int_eq(link.send(numbered(1), nullptr, 0, 0, SendHint::none), 0);
  ck_assert_uint_eq(pair.b.sink->packets.size(), 1);
}

TEST(a_full_link_says_again_and_goes_on_after_poll, g_factories.size()) {
  Pair pair;
  make(pair, _i);
  Link& link = pair.a_to_b();
  ck_assert_int_eq(pair.send(link, 0, nullptr, 0), 0);
  const auto bytes = pattern(88, 1);
  const iovec iov{const_cast<std::byte*>(bytes.data()), bytes.size()};
  const uint64_t waited = waits();
  uint64_t sent = 1;
  while (sent < 1'000'000 && !link.send(numbered(sent), &iov, 1, 88, SendHint::none)) ++sent;
  if (sent == 1'000'000) return;  // the transport has no limit
  ck_assert_int_eq(link.send(numbered(sent), &iov, 1, 88, SendHint::none), -FI_EAGAIN);
  ck_assert_uint_eq(waits() - waited, 2);
  ck_assert(pair.poll_until([&] { return has_packets(pair.b, sent); }));
  ck_assert_int_eq(pair.send(link, sent, bytes.data(), 88), 0);
  ck_assert(pair.poll_until([&] { return has_packets(pair.b, sent + 1); }));
  ck_assert_uint_eq(pair.b.sink->packets.back().number(), sent);
}

TEST(both_directions_name_the_peer_by_the_same_link, g_factories.size()) {
  Pair pair;
  make(pair, _i);
  ck_assert_int_eq(pair.send(pair.a_to_b(), 1, nullptr, 0), 0);
  ck_assert(pair.poll_until([&] { return has_packets(pair.b, 1); }));
  Link& back = *pair.b.sink->packets[0].link;
  ck_assert_ptr_eq(&back, &pair.b_to_a());
  ck_assert(back.address() == pair.a.name);
  ck_assert_int_eq(pair.send(back, 2, nullptr, 0), 0);
  const size_t expected = pair.a.sink == pair.b.sink ? 2 : 1;
  ck_assert(pair.poll_until([&] { return has_packets(pair.a, expected); }));
  ck_assert_ptr_eq(pair.a.sink->packets.back().link, &pair.a_to_b());
}

void share_with_b(Pair& pair, const iovec* iov, size_t count, size_t length, Access access,
                  RemoteKey& remote_key) {
  Link& link = pair.a_to_b();
  // A remote key travels in a packet, so the link is connected before the key is used.
  ck_assert(pair.poll_until([&] {
    const int rc = link.share(iov, count, length, access, remote_key);
    ck_assert(rc == 0 || rc == -FI_EAGAIN);
    return rc == 0;
  }));
  const size_t before = pair.b.sink->packets.size();
  ck_assert_int_eq(pair.send(link, 0, remote_key.bytes, remote_key.size), 0);
  ck_assert(pair.poll_until([&] { return has_packets(pair.b, before + 1); }));
  const auto& payload = pair.b.sink->packets.back().payload;
  ck_assert_uint_eq(payload.size(), remote_key.size);
  ck_assert_mem_eq(payload.data(), remote_key.bytes, remote_key.size);
}

constexpr size_t kBulkSizes[] = {1, 4096, 100'001, 3'000'000};

TEST(read_copies_the_shared_memory, g_factories.size()) {
  Pair pair;
  make(pair, _i);
  for (size_t size : kBulkSizes) {
    auto source = pattern(size, unsigned(size));
    std::vector<std::byte> target(size);
    const iovec from[] = {{source.data(), size / 3}, {source.data() + size / 3, size - size / 3}};
    const iovec to{target.data(), size};
    RemoteKey remote_key;
    share_with_b(pair, from, 2, size, Access::remote_read, remote_key);
    const size_t dones = pair.b.sink->dones.size();
    int rc = 0;
    ck_assert(pair.poll_until([&] {
      rc = pair.b_to_a().get({remote_key, 0, size}, &to, 1, size);
      return rc == 0 || rc == transport::kDone;
    }));
    if (rc == 0) {
      ck_assert(pair.poll_until([&] { return pair.b.sink->dones.size() > dones; }));
      ck_assert_uint_eq(pair.b.sink->dones.back().token, size);
      ck_assert_int_eq(pair.b.sink->dones.back().status, 0);
    }
    ck_assert(source == target);
    pair.a_to_b().revoke(remote_key);
  }
}

TEST(write_fills_the_shared_memory, g_factories.size()) {
  Pair pair;
  make(pair, _i);
  for (size_t size : kBulkSizes) {
    auto source = pattern(size, unsigned(size));
    std::vector<std::byte> target(size);
    const iovec from{source.data(), size};
    const iovec to{target.data(), size};
    RemoteKey remote_key;
    share_with_b(pair, &to, 1, size, Access::remote_write, remote_key);
    const size_t dones = pair.b.sink->dones.size();
    ck_assert(pair.poll_until([&] {
      return pair.b_to_a().put({remote_key, 0, size}, &from, 1, size, false) == 0;
    }));
    ck_assert(pair.poll_until([&] { return pair.b.sink->dones.size() > dones; }));
    ck_assert_uint_eq(pair.b.sink->dones.back().token, size);
    ck_assert_int_eq(pair.b.sink->dones.back().status, 0);
    ck_assert(source == target);
    pair.a_to_b().revoke(remote_key);
  }
}

TEST(a_malformed_key_is_refused, g_factories.size()) {
  Pair pair;
  make(pair, _i);
  ck_assert_int_eq(pair.send(pair.a_to_b(), 0, nullptr, 0), 0);
  ck_assert(pair.poll_until([&] { return has_packets(pair.b, 1); }));
  RemoteKey nonsense{};
  nonsense.size = 3;
  std::byte byte{};
  const iovec iov{&byte, 1};
  ck_assert_int_eq(pair.b_to_a().get({nonsense, 0, 1}, &iov, 1, 0), -FI_EINVAL);
  ck_assert_int_eq(pair.b_to_a().put({nonsense, 0, 1}, &iov, 1, 0, false), -FI_EINVAL);
}

TEST(what_no_link_takes_is_refused_and_the_next_is_not, g_factories.size()) {
  Pair pair;
  make(pair, _i);
  Link& link = met_link(pair);
  for (const auto& nobody : {util::SocketAddress(), address_of("127.0.0.1", 0)})
    ck_assert_int_eq(pair.a.transport->link_to(nobody).error(), -FI_EINVAL);
  std::vector<std::byte> bytes(100'000);
  iovec pieces[transport::kMaxIov + 1];
  for (iovec& piece : pieces) piece = {bytes.data(), 10};
  RemoteKey remote_key;
  for (const Access access : {Access::remote_read, Access::remote_write}) {
    ck_assert_int_eq(link.share(pieces, transport::kMaxIov + 1, 10, access, remote_key),
                     -FI_EINVAL);
    ck_assert_int_eq(link.share(pieces, 2, 21, access, remote_key), -FI_EINVAL);
    int shared = -FI_EAGAIN;
    ck_assert(pair.poll_until([&] {
      shared = link.share(pieces, transport::kMaxIov, 40, access, remote_key);
      return shared != -FI_EAGAIN;
    }));
    ck_assert_int_eq(shared, 0);
    link.revoke(remote_key);
  }
  const iovec whole{bytes.data(), bytes.size()};
  const auto send = [&](size_t length) {
    return link.send(numbered(length), &whole, 1, length, SendHint::none);
  };
  // The limit may change with every poll.
  ck_assert_int_eq(send(bytes.size()), -FI_EMSGSIZE);
  ck_assert_int_eq(send(link.limits().eager + 1), -FI_EMSGSIZE);
  ck_assert_int_eq(send(link.limits().eager), 0);
  ck_assert(pair.poll_until([&] { return has_packets(pair.b, 2); }));
  ck_assert_uint_eq(pair.b.sink->packets[1].payload.size(), pair.b.sink->packets[1].number());
}

TEST(who_shut_down_begins_nothing, g_factories.size()) {
  Pair pair;
  make(pair, _i);
  if (pair.a.transport == pair.b.transport) return;
  Link& link = met_link(pair);
  Link& other = **pair.a.transport->link_to(address_of("10.0.0.1", 1));
  pair.a.transport->shutdown();
  std::byte byte{};
  const iovec memory{&byte, 1};
  RemoteKey remote_key;
  ck_assert_int_eq(other.send(numbered(1), nullptr, 0, 0, SendHint::none), -FI_ESHUTDOWN);
  ck_assert_int_eq(link.send(numbered(1), nullptr, 0, 0, SendHint::none), -FI_ESHUTDOWN);
  ck_assert_int_eq(link.share(&memory, 1, 1, Access::remote_read, remote_key), -FI_ESHUTDOWN);
  ck_assert(pair.poll_until([&] { return !pair.b.sink->downs.empty(); }));
  ck_assert_uint_eq(pair.b.sink->packets.size(), 1);
}

TEST(a_write_to_revoked_memory_fails_and_touches_nothing, g_factories.size()) {
  if (!g_factories[size_t(_i)].revokes) return;
  Pair pair;
  make(pair, _i);
  auto source = pattern(1000, 1);
  std::vector<std::byte> target(1000);
  const iovec from{source.data(), 1000};
  const iovec to{target.data(), 1000};
  RemoteKey remote_key;
  share_with_b(pair, &to, 1, 1000, Access::remote_write, remote_key);
  pair.a_to_b().revoke(remote_key);
  ck_assert(pair.poll_until([&] {
    return pair.b_to_a().put({remote_key, 0, 1000}, &from, 1, 7, false) != -FI_EAGAIN;
  }));
  ck_assert(pair.poll_until([&] { return !pair.b.sink->dones.empty(); }));
  ck_assert_int_lt(pair.b.sink->dones[0].status, 0);
  ck_assert(target == std::vector<std::byte>(1000));
}

TEST(shutdown_reaches_the_peer_after_everything_sent, g_factories.size()) {
  Pair pair;
  make(pair, _i);
  if (pair.a.transport == pair.b.transport) return;
  Link& link = met_link(pair);
  uint64_t sent = 1;
  while (sent < 60 && !link.send(numbered(sent), nullptr, 0, 0, SendHint::none)) ++sent;
  pair.a.transport->shutdown();
  ck_assert(pair.poll_until([&] { return !pair.b.sink->downs.empty(); }));
  ck_assert_uint_eq(pair.b.sink->downs[0].packets_before, sent);
  ck_assert_int_eq(pair.b.sink->downs[0].status, -FI_ESHUTDOWN);
  ck_assert_uint_eq(pair.b.sink->downs.size(), 1);
  ck_assert(pair.a.sink->downs.empty());
}

TEST(reads_under_way_end_before_the_link_goes_down, g_factories.size()) {
  Pair pair;
  make(pair, _i);
  if (pair.a.transport == pair.b.transport) return;
  constexpr size_t kBytes = 40'000'000;
  auto source = pattern(kBytes, 1);
  std::vector<std::byte> target(kBytes);
  const iovec from{source.data(), kBytes};
  const iovec to{target.data(), kBytes};
  RemoteKey remote_key;
  share_with_b(pair, &from, 1, kBytes, Access::remote_read, remote_key);
  ck_assert(pair.poll_until([&] {
    return pair.b_to_a().get({remote_key, 0, kBytes}, &to, 1, 3) == 0;
  }));
  pair.poll();
  pair.a.transport->shutdown();
  ck_assert(pair.poll_until([&] { return !pair.b.sink->downs.empty(); }));
  ck_assert_uint_eq(pair.b.sink->dones.size(), 1);
  ck_assert_uint_eq(pair.b.sink->downs[0].dones_before, 1);
  pair.a_to_b().revoke(remote_key);
}

TEST(fail_brings_the_link_down_once_and_delivers_nothing_more, g_factories.size()) {
  Pair pair;
  make(pair, _i);
  if (pair.a.transport == pair.b.transport) return;
  Link& link = met_link(pair);
  ck_assert_int_eq(link.send(numbered(1), nullptr, 0, 0, SendHint::none), 0);
  pair.b_to_a().fail(-FI_ECONNABORTED);
  ck_assert(pair.b.sink->downs.empty());
  ck_assert(pair.poll_until([&] { return !pair.b.sink->downs.empty(); }));
  ck_assert_int_eq(pair.b.sink->downs[0].status, -FI_ECONNABORTED);
  ck_assert_uint_eq(pair.b.sink->packets.size(), 1);
  ck_assert(pair.poll_until([&] { return !pair.a.sink->downs.empty(); }));
  ck_assert_uint_eq(pair.a.sink->downs.size(), 1);
}

TEST(a_connection_that_is_made_again_is_counted_again, g_factories.size()) {
  Pair pair;
  make(pair, _i);
  if (pair.a.transport == pair.b.transport) return;
  Link& link = met_link(pair);
  // Inside a host the thread of the peer connects back by itself, which may take until then.
  ck_assert(pair.poll_until([&] { return pair.b_to_a().report().state == std::string("up"); }));
  ck_assert_int_eq(pair.send(pair.b_to_a(), 0, nullptr, 0), 0);
  ck_assert(pair.poll_until([&] { return has_packets(pair.a, 1); }));
  ck_assert_uint_eq(connects(), 1);
  link.fail(-FI_ECONNABORTED);
  ck_assert(
      pair.poll_until([&] { return !pair.a.sink->downs.empty() && !pair.b.sink->downs.empty(); }));
  ck_assert_int_eq(pair.send(pair.a_to_b(), 1, nullptr, 0), 0);
  ck_assert(pair.poll_until([&] { return has_packets(pair.b, 2); }));
  ck_assert_uint_eq(connects(), 2);
}

TEST(an_armed_transport_wakes_for_a_packet, g_factories.size()) {
  Pair pair;
  make(pair, _i);
  Link& link = met_link(pair);
  if (pair.b.transport->wait_fd() < 0) return;
  ck_assert(pair.poll_until([&] { return pair.b.transport->arm(); }));
  ck_assert_int_eq(link.send(numbered(1), nullptr, 0, 0, SendHint::none), 0);
  pollfd fd{pair.b.transport->wait_fd(), POLLIN, 0};
  ck_assert_int_eq(poll(&fd, 1, 20'000), 1);
  pair.b.transport->disarm();
  ck_assert(pair.poll_until([&] { return has_packets(pair.b, 2); }));
}

TEST(arm_refuses_while_a_packet_waits, g_factories.size()) {
  Pair pair;
  make(pair, _i);
  Link& link = met_link(pair);
  if (pair.b.transport->wait_fd() < 0) return;
  ck_assert_int_eq(link.send(numbered(1), nullptr, 0, 0, SendHint::none), 0);
  ck_assert(!pair.b.transport->arm());
}

}  // namespace

}  // namespace erdma::test
