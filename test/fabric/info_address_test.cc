#include "fabric/info_address.h"

#include <arpa/inet.h>
#include <stdlib.h>

#include <string>

#include "fabric/info_query.h"
#include "fake/captured_log.h"
#include "fake/devices.h"

using erdma::fabric::find_infos;
using erdma::fabric::Host;
using erdma::fabric::InfoPtr;
using erdma::fabric::LocalAddresses;
using namespace erdma::test;

namespace {

void put_ipv4(void*& member, size_t& length, const char* text, uint16_t port) {
  auto* in = static_cast<sockaddr_in*>(calloc(1, sizeof(sockaddr_in)));
  in->sin_family = AF_INET;
  in->sin_port = htons(port);
  ck_assert_int_eq(inet_pton(AF_INET, text, &in->sin_addr), 1);
  member = in;
  length = sizeof(*in);
}

SUITE(.once = define);

TEST_CASE(.set_up = set_up);

TEST(the_source_is_an_address_of_this_host_with_port_0) {
  InfoPtr info;
  ck_assert_int_eq(query(kVersion, nullptr, info), 0);
  ck_assert(source_of(*info).set());
  ck_assert(!source_of(*info).wildcard());
  ck_assert_int_eq(source_of(*info).port(), 0);
}

TEST(a_node_with_fi_source_is_the_source) {
  InfoPtr info;
  ck_assert_int_eq(query(kVersion, nullptr, info, "127.0.0.1", "5001", FI_SOURCE), 0);
  check_text(source_of(*info).to_string(), "127.0.0.1:5001");
  ck_assert_ptr_null(info->dest_addr);
}

TEST(a_service_with_fi_source_is_a_port_of_the_primary_address) {
  InfoPtr plain, info;
  ck_assert_int_eq(query(kVersion, nullptr, plain), 0);
  ck_assert_int_eq(query(kVersion, nullptr, info, nullptr, "5001", FI_SOURCE), 0);
  ck_assert(source_of(*info).same_host(source_of(*plain)));
  ck_assert_int_eq(source_of(*info).port(), 5001);
}

/// As in a pod that has only IPv6.
TEST(a_service_with_fi_source_leaves_the_family_open) {
  const LocalAddresses only_ipv6({host_address("2001:db8::1")},
                                 {host_address("127.0.0.1"), host_address("::1")});
  const Host host{erdma::fabric::read_settings(&g_provider), only_ipv6, {}};
  for (const char* service : {static_cast<const char*>(nullptr), "5001"}) {
    fi_info* found = nullptr;
    const uint64_t flags = service ? FI_SOURCE : 0;
    ck_assert_int_eq(find_infos({kVersion, nullptr, service, flags, nullptr}, host, &found), 0);
    const InfoPtr info(found);
    ck_assert_uint_eq(info->addr_format, FI_SOCKADDR_IN6);
    check_text(source_of(*info).host_string(), "2001:db8::1");
    ck_assert_int_eq(source_of(*info).port(), service ? 5001 : 0);
  }
}

TEST(a_wildcard_with_fi_source_has_the_family_of_its_text) {
  InfoPtr info;
  ck_assert_int_eq(query(kVersion, nullptr, info, "::", "5001", FI_SOURCE), 0);
  ck_assert_uint_eq(info->addr_format, FI_SOCKADDR_IN6);
  ck_assert(!source_of(*info).wildcard());
}

TEST(a_node_without_fi_source_is_the_destination) {
  InfoPtr info;
  ck_assert_int_eq(query(kVersion, nullptr, info, "127.0.0.1", "5001", FI_NUMERICHOST), 0);
  check_text(destination_of(*info).to_string(), "127.0.0.1:5001");
  ck_assert_int_eq(source_of(*info).family(), AF_INET);
}

TEST(an_ipv6_node_makes_the_answer_ipv6) {
  InfoPtr info;
  ck_assert_int_eq(query(kVersion, nullptr, info, "::1", "5001", FI_NUMERICHOST), 0);
  ck_assert_int_eq(info->addr_format, FI_SOCKADDR_IN6);
  ck_assert_int_eq(destination_of(*info).family(), AF_INET6);
  ck_assert_int_eq(source_of(*info).family(), AF_INET6);
}

struct FormatCase {
  uint32_t asked;
  uint32_t answer;
};

const FormatCase kFormats[] = {
    {FI_SOCKADDR_IN, FI_SOCKADDR_IN},
    {FI_SOCKADDR_IN6, FI_SOCKADDR_IN6},
};

TEST(the_address_format_asked_is_that_of_the_source, std::size(kFormats)) {
  InfoPtr hints = make_hints();
  hints->addr_format = kFormats[_i].asked;
  InfoPtr info;
  ck_assert_int_eq(query(kVersion, hints.get(), info), 0);
  ck_assert_uint_eq(info->addr_format, kFormats[_i].answer);
  ck_assert_int_eq(source_of(*info).family(),
                   kFormats[_i].answer == FI_SOCKADDR_IN ? AF_INET : AF_INET6);
}

TEST(any_socket_address_means_the_same_as_no_format) {
  InfoPtr hints = make_hints();
  hints->addr_format = FI_SOCKADDR;
  InfoPtr plain, info;
  ck_assert_int_eq(query(kVersion, nullptr, plain), 0);
  ck_assert_int_eq(query(kVersion, hints.get(), info), 0);
  ck_assert_uint_eq(info->addr_format, plain->addr_format);
}

TEST(a_name_of_the_wrong_family_is_no_data) {
  InfoPtr hints = make_hints();
  hints->addr_format = FI_SOCKADDR_IN;
  InfoPtr info;
  ck_assert_int_eq(query(kVersion, hints.get(), info, "::1", "5001"), -FI_ENODATA);
  ck_assert(contains(only_log_line(), "::1"));
}

TEST(a_name_that_does_not_resolve_is_no_data) {
  InfoPtr info;
  ck_assert_int_eq(query(kVersion, nullptr, info, "g00n13s", nullptr, FI_NUMERICHOST), -FI_ENODATA);
  ck_assert(contains(only_log_line(), "g00n13s"));
}

TEST(fi_source_of_nothing_is_invalid) {
  InfoPtr info;
  ck_assert_int_eq(query(kVersion, nullptr, info, nullptr, nullptr, FI_SOURCE), -FI_EINVAL);
  ck_assert(contains(only_log_line(), "FI_SOURCE"));
}

TEST(a_source_of_another_host_is_no_data) {
  InfoPtr info;
  ck_assert_int_eq(query(kVersion, nullptr, info, "203.0.113.99", "1", FI_SOURCE), -FI_ENODATA);
  ck_assert(contains(only_log_line(), "203.0.113.99"));
}

TEST(addresses_in_the_hints_are_kept) {
  InfoPtr hints = make_hints();
  hints->addr_format = FI_SOCKADDR_IN;
  put_ipv4(hints->src_addr, hints->src_addrlen, "127.0.0.1", 5001);
  put_ipv4(hints->dest_addr, hints->dest_addrlen, "203.0.113.99", 5002);
  InfoPtr info;
  ck_assert_int_eq(query(kVersion, hints.get(), info), 0);
  check_text(source_of(*info).to_string(), "127.0.0.1:5001");
  check_text(destination_of(*info).to_string(), "203.0.113.99:5002");
}

TEST(a_wildcard_source_becomes_the_primary_address_with_its_port) {
  InfoPtr hints = make_hints();
  hints->addr_format = FI_SOCKADDR_IN;
  InfoPtr plain, info;
  ck_assert_int_eq(query(kVersion, hints.get(), plain), 0);
  put_ipv4(hints->src_addr, hints->src_addrlen, "0.0.0.0", 5001);
  ck_assert_int_eq(query(kVersion, hints.get(), info), 0);
  ck_assert(source_of(*info).same_host(source_of(*plain)));
  ck_assert_int_eq(source_of(*info).port(), 5001);
}

TEST(a_hinted_address_of_another_format_or_length_is_no_data) {
  for (const uint32_t format : {uint32_t{FI_SOCKADDR_IN6}, uint32_t{FI_SOCKADDR_IN}}) {
    InfoPtr hints = make_hints();
    hints->addr_format = format;
    put_ipv4(hints->src_addr, hints->src_addrlen, "127.0.0.1", 1);
    if (format == FI_SOCKADDR_IN) hints->src_addrlen = 7;
    InfoPtr info;
    ck_assert_int_eq(query(kVersion, hints.get(), info), -FI_ENODATA);
    ck_assert(contains(only_log_line(), "src_addr"));
  }
}

}  // namespace
