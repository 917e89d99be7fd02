#include "fake/scarce_memory.h"
#include "transport/verbs_rig.h"

/// Memory that runs out in the calls of an endpoint on a fake NIC.
namespace erdma::test {
namespace {

using fake::without_each_allocation;
using transport::Access;
using transport::RemoteKey;
using transport::SendHint;

TEST(a_transfer_without_memory_is_not_begun) {
  Two two;
  two.meet();
  std::vector<std::byte> from = pattern(10'000, 1), to(from.size());
  const iovec source{from.data(), from.size()}, target{to.data(), to.size()};
  RemoteKey key;
  two.rig.cache.refuse = true;  // what stands for the device would lack memory, too
  int shares = 0, gets = 0;
  const auto share = [&] {
    return two.pair.a_to_b().share(&source, 1, from.size(), Access::remote_read, key);
  };
  ck_assert_int_eq(without_each_allocation(-FI_ENOMEM, share, &shares), 0);
  const auto get = [&] { return two.pair.b_to_a().get({key, 0, from.size()}, &target, 1, 7); };
  ck_assert_int_eq(without_each_allocation(-FI_EAGAIN, get, &gets), 0);
  ck_assert(two.until([&] { return !two.b().sink->dones.empty(); }));
  ck_assert_uint_eq(two.b().sink->dones.size(), 1);
  ck_assert_int_eq(two.b().sink->dones[0].status, 0);
  ck_assert(from == to);
  ck_assert(shares > 0 && gets > 0);
  two.pair.a_to_b().revoke(key);
}

TEST(a_peer_that_cannot_be_kept_is_told) {
  Two two;
  const auto know = [&] { return two.a().transport->link_to(address_of("10.0.0.1", 9)).error(); };
  int failures = 0;
  ck_assert_int_eq(without_each_allocation(-FI_ENOMEM, know, &failures), 0);
  ck_assert_int_gt(failures, 0);
  sockaddr_in6 other{};
  other.sin6_family = AF_INET6;
  other.sin6_port = htons(1);
  other.sin6_addr.s6_addr[15] = 1;
  const auto ip6 = util::SocketAddress::from_sockaddr(&other, sizeof(other));
  ck_assert_int_eq(two.a().transport->link_to(ip6).error(), -FI_EINVAL);
}

/// Beyond the limit of connections a link waits, which takes memory.
TEST(a_link_that_cannot_wait_for_its_turn_says_so) {
  verbs::Options options;
  options.max_connections = 2;
  Two two(options);
  two.meet();
  two.rig.fabric.hold = true;
  const auto connect = [&](uint16_t port) {
    transport::Link& link = **two.a().transport->link_to(address_of("10.0.0.1", port));
    return link.send(numbered(1), nullptr, 0, 0, SendHint::none);
  };
  ck_assert_int_eq(connect(8), -FI_EAGAIN);
  ck_assert(bool(two.a().transport->link_to(address_of("10.0.0.1", 9))));
  fake::run_short(0);
  ck_assert_int_eq(fake::counted([&] { return connect(9); }), -FI_ENOMEM);
  ck_assert(fake::replenish());
  ck_assert_int_eq(connect(9), -FI_EAGAIN);
}

}  // namespace
}  // namespace erdma::test
