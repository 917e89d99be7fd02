#include "util/socket_address.h"

#include <arpa/inet.h>

#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

#include "libcheck.h"

using erdma::util::AddressText;
using erdma::util::SocketAddress;

namespace {

SocketAddress ip4(const char* host, uint16_t port) {
  sockaddr_in raw{};
  raw.sin_family = AF_INET;
  raw.sin_port = htons(port);
  inet_pton(AF_INET, host, &raw.sin_addr);
  return SocketAddress::from_sockaddr(&raw, sizeof(raw));
}

unsigned g_allocations = 0;

SocketAddress ip6(const char* host, uint16_t port, uint32_t scope = 0) {
  sockaddr_in6 raw{};
  raw.sin6_family = AF_INET6;
  raw.sin6_port = htons(port);
  raw.sin6_scope_id = scope;
  inet_pton(AF_INET6, host, &raw.sin6_addr);
  return SocketAddress::from_sockaddr(&raw, sizeof(raw));
}

// ck_assert_str_eq would keep a pointer into a temporary.
void assert_text(const std::string& text, const char* expected) {
  ck_assert_msg(text == expected, "%s instead of %s", text.c_str(), expected);
}

}  // namespace

void* operator new(size_t bytes) {
  ++g_allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

TEST(an_address_is_the_same_from_its_ip_port_and_scope) {
  for (const SocketAddress& address : {ip4("10.1.2.3", 5000), ip6("fe80::1", 7, 3), ip6("::", 0)}) {
    ck_assert_uint_eq(address.ip().size(), address.family() == AF_INET ? 4 : 16);
    ck_assert_uint_eq(address.size(), SocketAddress::size_of(address.family()));
    ck_assert(SocketAddress::from_ip(address.family(), address.ip().data(), address.port(),
                                     address.scope()) == address);
  }
  ck_assert_uint_eq(ip6("fe80::1", 7, 3).scope(), 3);
  ck_assert_uint_eq(ip4("10.1.2.3", 5000).scope(), 0);
  ck_assert(SocketAddress().ip().empty());
  ck_assert_uint_eq(SocketAddress::size_of(AF_UNIX), 0);
}

/// Functions that must not throw log addresses when memory is exhausted.
TEST(the_text_of_an_address_takes_no_memory) {
  const SocketAddress longest = ip6("fe80:1111:2222:3333:4444:5555:6666:7777", 65535, UINT32_MAX);
  static_assert(noexcept(longest.to_string()));
  const unsigned before = g_allocations;
  const AddressText text = longest.to_string();
  ck_assert_uint_eq(g_allocations, before);
  assert_text(text, "[fe80:1111:2222:3333:4444:5555:6666:7777%4294967295]:65535");
}

TEST(address_is_unset_by_default) {
  const SocketAddress address;
  ck_assert(!address.set());
  ck_assert_uint_eq(address.size(), 0);
  assert_text(address.to_string(), "unset");
  ck_assert(address == SocketAddress());
}

TEST(address_is_unset_when_the_sockaddr_is_too_short) {
  sockaddr_in6 raw{};
  raw.sin6_family = AF_INET6;
  ck_assert(!SocketAddress::from_sockaddr(&raw, sizeof(raw) - 1).set());
  raw.sin6_family = AF_INET;
  ck_assert(!SocketAddress::from_sockaddr(&raw, sizeof(sockaddr_in) - 1).set());
  ck_assert(!SocketAddress::from_sockaddr(&raw, 1).set());
  ck_assert(!SocketAddress::from_sockaddr(nullptr, sizeof(raw)).set());
}

TEST(address_is_unset_when_the_family_is_another) {
  sockaddr_storage raw{};
  raw.ss_family = AF_UNIX;
  ck_assert(!SocketAddress::from_sockaddr(&raw, sizeof(raw)).set());
}

TEST(address_prints_host_and_port) {
  assert_text(ip4("10.0.0.1", 5000).to_string(), "10.0.0.1:5000");
  assert_text(ip4("10.0.0.1", 5000).host_string(), "10.0.0.1");
  assert_text(ip6("fe80::1", 5000, 2).to_string(), "[fe80::1%2]:5000");
  assert_text(ip6("::1", 65535).to_string(), "[::1]:65535");
}

TEST(address_gives_back_the_sockaddr) {
  const SocketAddress address = ip6("2001:db8::7", 9, 3);
  ck_assert_uint_eq(address.size(), sizeof(sockaddr_in6));
  sockaddr_in6 raw{};
  std::memcpy(&raw, address.data(), address.size());
  ck_assert_uint_eq(raw.sin6_port, htons(9));
  ck_assert_uint_eq(raw.sin6_scope_id, 3);
  ck_assert_uint_eq(ip4("1.2.3.4", 5).size(), sizeof(sockaddr_in));
}

TEST(address_ignores_padding_and_flow_label) {
  sockaddr_in raw4{};
  raw4.sin_family = AF_INET;
  raw4.sin_port = htons(7);
  inet_pton(AF_INET, "10.0.0.1", &raw4.sin_addr);
  std::memset(raw4.sin_zero, 0xff, sizeof(raw4.sin_zero));
  ck_assert(SocketAddress::from_sockaddr(&raw4, sizeof(raw4)) == ip4("10.0.0.1", 7));

  sockaddr_in6 raw6{};
  raw6.sin6_family = AF_INET6;
  raw6.sin6_port = htons(7);
  raw6.sin6_flowinfo = 99;
  inet_pton(AF_INET6, "::1", &raw6.sin6_addr);
  const SocketAddress labelled = SocketAddress::from_sockaddr(&raw6, sizeof(raw6));
  ck_assert(labelled == ip6("::1", 7));
  ck_assert_uint_eq(labelled.hash(), ip6("::1", 7).hash());
}

TEST(addresses_are_equal_only_when_all_parts_are) {
  ck_assert(ip4("10.0.0.1", 1) == ip4("10.0.0.1", 1));
  ck_assert(!(ip4("10.0.0.1", 1) == ip4("10.0.0.1", 2)));
  ck_assert(!(ip4("10.0.0.1", 1) == ip4("10.0.0.2", 1)));
  ck_assert(!(ip6("fe80::1", 1, 1) == ip6("fe80::1", 1, 2)));
  ck_assert(!(ip4("127.0.0.1", 1) == ip6("::ffff:127.0.0.1", 1)));
  ck_assert(!(ip4("10.0.0.1", 1) == SocketAddress()));
}

TEST(address_is_on_the_same_host_whatever_the_port) {
  ck_assert(ip4("10.0.0.1", 1).same_host(ip4("10.0.0.1", 2)));
  ck_assert(!ip4("10.0.0.1", 1).same_host(ip4("10.0.0.2", 1)));
  ck_assert(!ip4("0.0.0.0", 1).same_host(ip6("::", 1)));
}

TEST(link_local_addresses_of_one_link_have_one_scope) {
  const SocketAddress own = ip6("fe80::1", 1, 2);
  ck_assert(ip6("fe80::2", 5, 7).with_scope_of(own) == ip6("fe80::2", 5, 2));
  ck_assert(ip6("fe80::2", 5).with_scope_of(own) == ip6("fe80::2", 5, 2));
  ck_assert(ip6("fe80::2", 5, 7).with_scope_of(ip6("fd00::1", 1)) == ip6("fe80::2", 5, 7));
  ck_assert(ip6("fe80::2", 5, 7).with_scope_of(ip4("169.254.0.1", 1)) == ip6("fe80::2", 5, 7));
  for (const SocketAddress& other : {ip6("fd00::2", 5), ip4("169.254.0.2", 5), SocketAddress()})
    ck_assert(other.with_scope_of(own) == other);
}

struct Kind {
  SocketAddress address;
  bool wildcard;
  bool loopback;
};

TEST(address_knows_wildcard_and_loopback) {
  const Kind kinds[] = {
      {ip4("0.0.0.0", 1), true, false},          {ip6("::", 1), true, false},
      {ip4("127.0.0.1", 1), false, true},        {ip4("127.255.1.2", 1), false, true},
      {ip4("128.0.0.1", 1), false, false},       {ip6("::1", 1), false, true},
      {ip6("::ffff:127.0.0.9", 1), false, true}, {ip6("::ffff:10.0.0.9", 1), false, false},
      {ip6("fe80::1", 1), false, false},         {SocketAddress(), false, false},
  };
  for (const Kind& kind : kinds) {
    ck_assert_msg(kind.address.wildcard() == kind.wildcard, "%s", kind.address.to_string().c_str());
    ck_assert_msg(kind.address.loopback() == kind.loopback, "%s", kind.address.to_string().c_str());
  }
}

TEST(address_takes_another_port) {
  SocketAddress address = ip6("::1", 1);
  address.set_port(40000);
  ck_assert_uint_eq(address.port(), 40000);
  ck_assert(address == ip6("::1", 40000));
}

TEST(hash_differs_when_only_the_port_does) {
  unsigned collisions = 0;
  const uint64_t first = ip4("10.0.0.1", 0).hash();
  for (uint16_t port = 1; port < 1000; ++port)
    collisions += uint32_t(ip4("10.0.0.1", port).hash()) == uint32_t(first);
  ck_assert_uint_eq(collisions, 0);
}
