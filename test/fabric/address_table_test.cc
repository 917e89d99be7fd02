#include "fabric/address_table.h"

#include <arpa/inet.h>
#include <malloc.h>

#include <cstring>
#include <map>
#include <random>

#include <rdma/fi_errno.h>

#include "libcheck.h"

using erdma::fabric::AddressTable;
using erdma::util::SocketAddress;

namespace {

SocketAddress ip4(uint32_t host, uint16_t port) {
  sockaddr_in raw{};
  raw.sin_family = AF_INET;
  raw.sin_port = htons(port);
  raw.sin_addr.s_addr = htonl(host);
  return SocketAddress::from_sockaddr(&raw, sizeof(raw));
}

SocketAddress ip6(uint64_t host, uint16_t port, uint32_t scope = 0) {
  sockaddr_in6 raw{};
  raw.sin6_family = AF_INET6;
  raw.sin6_port = htons(port);
  raw.sin6_scope_id = scope;
  raw.sin6_addr.s6_addr[0] = 0xfd;
  std::memcpy(&raw.sin6_addr.s6_addr[8], &host, sizeof(host));
  return SocketAddress::from_sockaddr(&raw, sizeof(raw));
}

SocketAddress as_is(const SocketAddress& address) {
  return address;
}

/// Maps 127/8 to 10.0.0.1.
SocketAddress single_host(const SocketAddress& address) {
  return address.loopback() ? ip4(0x0a000001, address.port()) : address;
}

/// Bytes that malloc has in use, including its overhead. 0 under a sanitizer.
size_t allocated() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

constexpr uint32_t kLoopback = 0x7f000001;
constexpr uint32_t kHost = 0x0a000001;
constexpr uint32_t kOther = 0x0a000002;

}  // namespace

TEST(table_gives_indices_in_order) {
  AddressTable table(AF_INET, as_is);
  for (uint16_t i = 0; i < 1000; ++i) ck_assert_int_eq(table.insert(ip4(kHost, i)), i);
  ck_assert_uint_eq(table.size(), 1000);
  for (uint16_t i = 0; i < 1000; ++i) {
    ck_assert(table.inserted(i) == ip4(kHost, i));
    ck_assert_uint_eq(table.find(ip4(kHost, i)), i);
  }
}

TEST(table_keeps_every_part_of_an_ip6_address) {
  AddressTable table(AF_INET6, as_is);
  ck_assert_int_eq(table.insert(ip6(7, 1, 3)), 0);
  ck_assert(table.inserted(0) == ip6(7, 1, 3));
  ck_assert_uint_eq(table.find(ip6(7, 1, 3)), 0);
  ck_assert_uint_eq(table.find(ip6(7, 1, 4)), UINT64_MAX);
}

TEST(table_refuses_another_family) {
  AddressTable table(AF_INET, as_is);
  ck_assert_int_eq(table.insert(ip6(1, 1)), -FI_EINVAL);
  ck_assert_int_eq(table.insert(SocketAddress()), -FI_EINVAL);
  ck_assert_uint_eq(table.find(ip6(1, 1)), UINT64_MAX);
  ck_assert_uint_eq(table.size(), 0);
}

TEST(table_finds_nothing_at_an_index_never_given) {
  AddressTable table(AF_INET, as_is);
  ck_assert(!table.inserted(0).set());
  ck_assert_uint_eq(table.find(ip4(kHost, 1)), UINT64_MAX);
  table.insert(ip4(kHost, 1));
  for (const uint64_t index : {uint64_t{1}, uint64_t{300}, uint64_t{1} << 32, UINT64_MAX}) {
    ck_assert(!table.inserted(index).set());
    ck_assert(!table.canonical(index).set());
    ck_assert(!table.remove(index));
  }
}

TEST(table_reuses_the_lowest_free_index) {
  AddressTable table(AF_INET, as_is);
  for (uint16_t i = 0; i < 600; ++i) table.insert(ip4(kHost, i));
  for (const uint64_t index : {500u, 3u, 70u}) ck_assert(table.remove(index));
  ck_assert(!table.remove(3));
  ck_assert_int_eq(table.insert(ip4(kOther, 1)), 3);
  ck_assert_int_eq(table.insert(ip4(kOther, 2)), 70);
  ck_assert_int_eq(table.insert(ip4(kOther, 3)), 500);
  ck_assert_int_eq(table.insert(ip4(kOther, 4)), 600);
  ck_assert_uint_eq(table.find(ip4(kHost, 3)), UINT64_MAX);
}

TEST(table_finds_the_lowest_of_duplicates_after_each_removal) {
  AddressTable table(AF_INET, as_is);
  table.insert(ip4(kOther, 1));  // 0
  for (int i = 1; i <= 4; ++i) ck_assert_int_eq(table.insert(ip4(kHost, 1)), i);
  table.remove(2);
  ck_assert_uint_eq(table.find(ip4(kHost, 1)), 1);
  table.remove(1);
  ck_assert_uint_eq(table.find(ip4(kHost, 1)), 3);
  table.remove(0);
  ck_assert_int_eq(table.insert(ip4(kHost, 1)), 0);
  ck_assert_uint_eq(table.find(ip4(kHost, 1)), 0);
  ck_assert_int_eq(table.insert(ip4(kHost, 1)), 1);
  for (const uint64_t index : {0u, 1u, 3u}) table.remove(index);
  ck_assert_uint_eq(table.find(ip4(kHost, 1)), 4);
  table.remove(4);
  ck_assert_uint_eq(table.find(ip4(kHost, 1)), UINT64_MAX);
}

TEST(table_takes_aliases_for_one_address_and_returns_each_as_inserted) {
  AddressTable table(AF_INET, single_host);
  table.insert(ip4(kLoopback, 9));
  table.insert(ip4(kHost, 9));
  ck_assert_uint_eq(table.find(ip4(kHost, 9)), 0);
  ck_assert(table.inserted(0) == ip4(kLoopback, 9));
  ck_assert(table.canonical(0) == ip4(kHost, 9));
  table.remove(0);
  ck_assert_uint_eq(table.find(ip4(kHost, 9)), 1);
}

TEST(table_agrees_with_a_map_through_random_operations, 3) {
  std::minstd_rand random(unsigned(_i) + 1);
  AddressTable table(AF_INET, single_host);
  std::map<uint64_t, SocketAddress> expected;
  for (int step = 0; step < 20000; ++step) {
    const auto port = uint16_t(random() % 64);
    const SocketAddress address =
        ip4(random() % 2 ? kLoopback + uint32_t(random() % 3) : kOther, port);
    if (random() % 5 < 3) {
      uint64_t lowest = 0;
      while (expected.count(lowest)) ++lowest;
      ck_assert_int_eq(table.insert(address), int64_t(lowest));
      expected[lowest] = address;
    } else {
      const uint64_t index = random() % (expected.size() + 2);
      ck_assert_int_eq(table.remove(index), expected.erase(index));
    }
    if (step % 64) continue;
    const SocketAddress key = single_host(address);
    uint64_t found = UINT64_MAX;
    for (const auto& [index, held] : expected)
      if (found == UINT64_MAX && single_host(held) == key) found = index;
    ck_assert_uint_eq(table.find(key), found);
    ck_assert_uint_eq(table.size(), expected.size());
    size_t equal = 0;
    for (const auto& [index, held] : expected) equal += table.inserted(index) == held;
    ck_assert_uint_eq(equal, expected.size());
    // Bounded, since a large table would make the check above slow.
    if (expected.size() > 400)
      for (uint64_t index = 0; index < 1000; ++index)
        if (index % 3) ck_assert_int_eq(table.remove(index), expected.erase(index));
  }
}

TEST(table_holds_a_million_addresses_in_64_bytes_each, 2) {
  constexpr uint32_t kMillion = 1'000'000;
  const bool six = _i == 1;
  const size_t before = allocated();
  AddressTable table(six ? AF_INET6 : AF_INET, as_is);
  uint32_t in_order = 0;
  for (uint32_t i = 0; i < kMillion; ++i) {
    const auto port = uint16_t(1 + i % 64);
    in_order += table.insert(six ? ip6(i / 64, port) : ip4(kHost + i / 64, port)) == i;
    // Checked at every size.
    if (i >= 10000 && i % 1000 == 0) ck_assert_uint_le(allocated() - before, 64 * size_t(i));
  }
  ck_assert_uint_eq(in_order, kMillion);
  ck_assert_uint_le(allocated() - before, 64 * size_t(kMillion));
  ck_assert_uint_le(table.memory_usage(), 64 * size_t(kMillion));
  for (uint32_t i = 0; i < kMillion; i += 997) {
    const auto port = uint16_t(1 + i % 64);
    ck_assert_uint_eq(table.find(six ? ip6(i / 64, port) : ip4(kHost + i / 64, port)), i);
  }
}
