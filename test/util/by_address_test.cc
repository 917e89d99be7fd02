#include "util/by_address.h"

#include <arpa/inet.h>

#include <memory>
#include <set>

#include "libcheck.h"

namespace erdma::util {
namespace {

SocketAddress numbered(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(0x7f000001);
  return SocketAddress::from_sockaddr(&address, sizeof(address));
}

struct Named {
  explicit Named(uint16_t port) : address(numbered(port)) {}
  const SocketAddress address;
};

TEST(each_object_is_found_by_its_address_and_stays_where_it_is) {
  ByAddress<Named> objects;
  ck_assert_ptr_null(objects.find(numbered(1)));
  std::set<Named*> all;
  for (uint16_t port = 1; port <= 1000; ++port) {
    ck_assert_ptr_null(objects.find(numbered(port)));
    all.insert(&objects.add(std::make_unique<Named>(port)));
  }
  ck_assert_uint_eq(all.size(), 1000);
  for (uint16_t port = 1; port <= 1000; ++port) {
    Named* const found = objects.find(numbered(port));
    ck_assert_ptr_nonnull(found);
    ck_assert(found->address == numbered(port));
    ck_assert(all.contains(found));
  }
  ck_assert_ptr_null(objects.find(numbered(1001)));
}

TEST(all_are_visited_once, 20) {
  ByAddress<Named> objects;
  for (int i = 0; i < _i; ++i) objects.add(std::make_unique<Named>(uint16_t(100 + i)));
  std::set<Named*> seen;
  for (Named* const object : objects) ck_assert(seen.insert(object).second);
  ck_assert_int_eq(int(seen.size()), _i);
}

}  // namespace
}  // namespace erdma::util
