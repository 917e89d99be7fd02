#include "fabric/local_addresses.h"

#include <arpa/inet.h>

#include "libcheck.h"

using erdma::fabric::LocalAddresses;
using erdma::util::SocketAddress;

namespace {

SocketAddress ipv4(const char* text, uint16_t port) {
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_port = htons(port);
  ck_assert_int_eq(inet_pton(AF_INET, text, &in.sin_addr), 1);
  return SocketAddress::from_sockaddr(&in, sizeof(in));
}

SocketAddress ipv6(const char* text, uint32_t scope = 0) {
  sockaddr_in6 in6{};
  in6.sin6_family = AF_INET6;
  in6.sin6_scope_id = scope;
  ck_assert_int_eq(inet_pton(AF_INET6, text, &in6.sin6_addr), 1);
  return SocketAddress::from_sockaddr(&in6, sizeof(in6));
}

TEST(every_loopback_address_is_local_whatever_its_port) {
  const LocalAddresses local = LocalAddresses::load();
  ck_assert(local.contains(ipv4("127.0.0.1", 0)));
  ck_assert(local.contains(ipv4("127.9.9.9", 4711)));
  ck_assert(local.contains(ipv6("::1")));
}

TEST(an_address_of_documentation_networks_is_not_local) {
  const LocalAddresses local = LocalAddresses::load();
  ck_assert(!local.contains(ipv4("203.0.113.99", 0)));
  ck_assert(!local.contains(ipv6("2001:db8:ffff::99")));
}

TEST(an_unset_address_is_not_local) {
  ck_assert(!LocalAddresses::load().contains(SocketAddress()));
}

TEST(the_primary_address_is_local_and_of_the_family_asked) {
  const LocalAddresses local = LocalAddresses::load();
  for (const sa_family_t family : {sa_family_t{AF_INET}, sa_family_t{AF_INET6}}) {
    const SocketAddress primary = local.primary(family);
    if (!primary.set()) continue;
    ck_assert_int_eq(primary.family(), family);
    ck_assert_int_eq(primary.port(), 0);
    ck_assert(!primary.wildcard());
    ck_assert(local.contains(primary));
  }
}

/// The interface of a NIC has number 2 here, and that of a second NIC has number 7.
TEST(a_link_local_peer_of_another_host_has_the_scope_of_the_nic) {
  const SocketAddress own = ipv6("fe80::1", 2), second = ipv6("fe80::9", 7);
  const LocalAddresses local({ipv6("fd00::1")}, {own, second});
  ck_assert(local.reached_from(own, ipv6("fe80::2", 7)) == ipv6("fe80::2", 2));
  ck_assert(local.reached_from(own, ipv6("fe80::2", 2)) == ipv6("fe80::2", 2));
  ck_assert(local.reached_from(own, second) == second);
  ck_assert(local.reached_from(own, ipv6("fd00::2")) == ipv6("fd00::2"));
  ck_assert(local.reached_from(ipv6("fd00::1"), ipv6("fe80::2", 7)) == ipv6("fe80::2", 7));
}

TEST(without_interfaces_there_is_no_primary_address) {
  const LocalAddresses none;
  ck_assert(!none.primary(AF_INET).set());
  ck_assert(!none.primary(AF_INET6).set());
}

}  // namespace
