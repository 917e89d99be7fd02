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

SocketAddress ipv6(const char* text) {
  sockaddr_in6 in6{};
  in6.sin6_family = AF_INET6;
  ck_assert_int_eq(inet_pton(AF_INET6, text, &in6.sin6_addr), 1);
  return SocketAddress::from_sockaddr(&in6, sizeof(in6));
}

START_TEST(every_loopback_address_is_local_whatever_its_port) {
  const LocalAddresses local = LocalAddresses::load();
  ck_assert(local.contains(ipv4("127.0.0.1", 0)));
  ck_assert(local.contains(ipv4("127.9.9.9", 4711)));
  ck_assert(local.contains(ipv6("::1")));
}
END_TEST

START_TEST(an_address_of_documentation_networks_is_not_local) {
  const LocalAddresses local = LocalAddresses::load();
  ck_assert(!local.contains(ipv4("203.0.113.99", 0)));
  ck_assert(!local.contains(ipv6("2001:db8:ffff::99")));
}
END_TEST

START_TEST(an_unset_address_is_not_local) {
  ck_assert(!LocalAddresses::load().contains(SocketAddress()));
}
END_TEST

START_TEST(the_primary_address_is_local_and_of_the_family_asked) {
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
END_TEST

START_TEST(without_interfaces_there_is_no_primary_address) {
  const LocalAddresses none;
  ck_assert(!none.primary(AF_INET).set());
  ck_assert(!none.primary(AF_INET6).set());
}
END_TEST

Suite* make_suite() {
  Suite* suite = suite_create("local_addresses");
  TCase* tcase = tcase_create("local_addresses");
  tcase_add_test(tcase, every_loopback_address_is_local_whatever_its_port);
  tcase_add_test(tcase, an_address_of_documentation_networks_is_not_local);
  tcase_add_test(tcase, an_unset_address_is_not_local);
  tcase_add_test(tcase, the_primary_address_is_local_and_of_the_family_asked);
  tcase_add_test(tcase, without_interfaces_there_is_no_primary_address);
  suite_add_tcase(suite, tcase);
  return suite;
}

}  // namespace

int main() {
  SRunner* runner = srunner_create(make_suite());
  srunner_run_all(runner, CK_ENV);
  const int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? 1 : 0;
}
