#include "fabric/host_range.h"

#include <dlfcn.h>
#include <netdb.h>

#include <climits>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include <rdma/fi_errno.h>

#include "libcheck.h"

using erdma::fabric::HostRange;
using erdma::fabric::to_uri;
using erdma::util::Result;

namespace {

int g_lookups;

/// Replaces /etc/hosts, /etc/services and the name servers, which the test machine may lack.
const std::map<std::string, const char*>& names() {
  static const std::map<std::string, const char*> known = {
      {"here", "127.0.0.1"}, {"node08", "10.2.0.8"}, {"node10", "10.2.0.10"}, {"discard", "9"}};
  return known;
}

/// The number of a name; a number is returned unchanged. Null: the name is unknown.
const char* number_of(const char* name) {
  if (!name || !std::strpbrk(name, "ghijklmnopqrstuvwxyz")) return name;
  const auto found = names().find(name);
  return found == names().end() ? nullptr : found->second;
}

}  // namespace

/// Replaces the C library's function, so that names are the same on every machine.
extern "C" int getaddrinfo(const char* node, const char* service, const addrinfo* hints,
                           addrinfo** found) {
  ++g_lookups;
  static const auto real =
      reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  addrinfo numeric = *hints;
  numeric.ai_flags |= AI_NUMERICHOST | AI_NUMERICSERV;
  const char* number = hints->ai_flags & AI_NUMERICHOST ? node : number_of(node);
  if (node && !number) return EAI_NONAME;
  const char* port = number_of(service);
  if (service && !port) return EAI_SERVICE;
  return real(number, port, &numeric, found);
}

namespace {

struct Case {
  sa_family_t family;
  const char* node;
  size_t nodes;
  const char* service;
  size_t services;
  std::vector<std::string> expected;
};

const std::vector<Case>& ranges() {
  static const std::vector<Case> cases = {
      {AF_INET,
       "10.1.1.1",
       2,
       "5000",
       2,
       {"10.1.1.1:5000", "10.1.1.1:5001", "10.1.1.2:5000", "10.1.1.2:5001"}},
      {AF_INET, "10.1.255.255", 2, "1", 1, {"10.1.255.255:1", "10.2.0.0:1"}},
      {AF_INET, "10.1.1.1", 1, "65535", 1, {"10.1.1.1:65535"}},
      {AF_INET, "10.1.1.1", 1, "discard", 1, {"10.1.1.1:9"}},
      {AF_INET6, "fd00::ffff", 2, "7", 1, {"[fd00::ffff]:7", "[fd00::1:0]:7"}},
      {AF_INET6, "fe80::1%1", 1, "7", 1, {"[fe80::1%1]:7"}},
      {AF_INET, "here", 1, "5000", 2, {"127.0.0.1:5000", "127.0.0.1:5001"}},
      {AF_INET, "node08", 3, "5000", 1, {"10.2.0.8:5000", "unset", "10.2.0.10:5000"}},
      {AF_INET, "10.1.1.1", 1, "0", 1, {"10.1.1.1:0"}},
      {AF_INET, "10.1.1.1", 1, "65534", 2, {"10.1.1.1:65534", "10.1.1.1:65535"}},
      {AF_INET, "n000000000000001", 2, "1", 1, {"unset", "unset"}},
      {AF_INET, "99999999999", 2, "1", 1, {"unset", "unset"}},  // neither a name nor an address
  };
  return cases;
}

const std::vector<Case>& refusals() {
  static const std::vector<Case> cases = {
      {AF_INET, nullptr, 1, "1", 1, {}},
      {AF_INET, "10.1.1.1", 1, nullptr, 1, {}},
      {AF_INET, "10.1.1.1", 0, "1", 1, {}},
      {AF_INET, "10.1.1.1", 1, "1", 0, {}},
      {AF_INET, "10.1.1.1", 1, "65536", 1, {}},
      {AF_INET, "10.1.1.1", 1, "65535", 2, {}},
      {AF_INET, "10.1.1.1", 1, "-1", 1, {}},
      {AF_INET, "10.1.1.1", 1, "", 1, {}},
      {AF_INET, "10.1.1.1", 1, "12x", 1, {}},
      {AF_INET, "10.1.1.1", 1, "99999999999999999999", 1, {}},
      {AF_INET, "10.1.1.1", 1, "no-such-service", 1, {}},
      {AF_INET, "255.255.255.255", 2, "1", 1, {}},
      {AF_INET, "10.1.1.1", SIZE_MAX, "1", 2, {}},
      {AF_INET, "10.1.1.1", size_t{INT_MAX} + 1, "1", 1, {}},
      {AF_INET, "here", 2, "1", 1, {}},
      {AF_INET, "n99999999999999999999", 2, "1", 1, {}},
      {AF_INET, "n0000000000000001", 2, "1", 1, {}},
  };
  return cases;
}

}  // namespace

TEST(range_counts_ports_before_hosts, ranges().size()) {
  const Case& c = ranges()[size_t(_i)];
  Result<HostRange> range = HostRange::resolve(c.family, c.node, c.nodes, c.service, c.services);
  ck_assert_int_eq(range.error(), 0);
  ck_assert_uint_eq(range->size(), c.expected.size());
  for (size_t i = 0; i < c.expected.size(); ++i) {
    const std::string text = range->at(i).to_string();
    ck_assert_msg(text == c.expected[i], "%s, not %s", text.c_str(), c.expected[i].c_str());
  }
}

TEST(range_refuses_what_cannot_be_counted, refusals().size()) {
  const Case& c = refusals()[size_t(_i)];
  Result<HostRange> range = HostRange::resolve(c.family, c.node, c.nodes, c.service, c.services);
  ck_assert_int_eq(range.error(), -FI_EINVAL);
}

TEST(range_counts_as_many_hosts_as_an_int) {
  Result<HostRange> range = HostRange::resolve(AF_INET, "1.0.0.0", INT_MAX, "1", 1);
  ck_assert_int_eq(range.error(), 0);
  ck_assert_uint_eq(range->size(), INT_MAX);
  const std::string last = range->at(INT_MAX - 1).to_string();
  ck_assert_str_eq(last.c_str(), "128.255.255.254:1");
}

/// One lookup tests whether the first name is numeric, and each name needs one more.
TEST(range_looks_up_no_more_names_than_it_has) {
  g_lookups = 0;
  ck_assert_int_eq(HostRange::resolve(AF_INET, "node08", 3, "5000", 2).error(), 0);
  ck_assert_int_eq(g_lookups, 4);
}

TEST(range_leaves_unset_a_host_that_does_not_resolve) {
  Result<HostRange> range = HostRange::resolve(AF_INET, "node09", 1, "5000", 1);
  ck_assert_int_eq(range.error(), 0);
  ck_assert_uint_eq(range->size(), 1);
  ck_assert(!range->at(0).set());
}

TEST(range_leaves_unset_a_number_of_the_other_family) {
  Result<HostRange> range = HostRange::resolve(AF_INET6, "10.1.1.1", 1, "5000", 1);
  ck_assert_int_eq(range.error(), 0);
  ck_assert(!range->at(0).set());
}

TEST(uri_reads_back_what_it_prints) {
  for (const auto& [family, uri] :
       {std::pair{sa_family_t{AF_INET}, "fi_sockaddr_in://10.0.0.1:5000"},
        std::pair{sa_family_t{AF_INET6}, "fi_sockaddr_in6://[fd00::1]:5000"}}) {
    Result<HostRange> range = HostRange::resolve_uri(family, uri);
    ck_assert_int_eq(range.error(), 0);
    const std::string text = to_uri(range->at(0));
    ck_assert_str_eq(text.c_str(), uri);
  }
}

TEST(uri_is_refused_when_it_is_of_another_form) {
  for (const char* uri : {"", "10.0.0.1:1", "fi_sockaddr_in6://[::1]:1", "fi_sockaddr_in://",
                          "fi_sockaddr_in://10.0.0.1", "fi_sockaddr_in://10.0.0.1:x1y"})
    ck_assert_int_eq(HostRange::resolve_uri(AF_INET, uri).error(), -FI_EINVAL);
  ck_assert_int_eq(HostRange::resolve_uri(AF_INET, nullptr).error(), -FI_EINVAL);
  ck_assert(to_uri({}).empty());
}
