#include "fabric/av.h"

#include <arpa/inet.h>

#include <cstring>
#include <string>

#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>

#include "fabric/eq.h"
#include "libcheck.h"

using erdma::fabric::AddressVector;
using erdma::fabric::AvListener;
using erdma::fabric::AvParent;
using erdma::fabric::EventQueue;
using erdma::fabric::make_event_queue;
using erdma::util::DomainLock;
using erdma::util::SocketAddress;

namespace {

sockaddr_in ip4(const char* host, uint16_t port) {
  sockaddr_in raw{};
  raw.sin_family = AF_INET;
  raw.sin_port = htons(port);
  inet_pton(AF_INET, host, &raw.sin_addr);
  return raw;
}

SocketAddress address(const char* host, uint16_t port) {
  const sockaddr_in raw = ip4(host, port);
  return SocketAddress::from_sockaddr(&raw, sizeof(raw));
}

/// Maps 127/8 to 10.0.0.1.
SocketAddress single_host(const SocketAddress& given) {
  return given.loopback() ? address("10.0.0.1", given.port()) : given;
}

/// An AV without a domain; closed by the test or at its end.
struct Fixture {
  explicit Fixture(uint64_t flags = 0, sa_family_t family = AF_INET) {
    av = new AddressVector(AvParent{lock, family, single_host, &open}, flags, nullptr);
  }
  Fixture(const Fixture&) = delete;
  Fixture& operator=(const Fixture&) = delete;
  ~Fixture() {
    if (open.count()) ck_assert_int_eq(fi_close(&av->fid), 0);
    ck_assert_int_eq(open.count(), 0);
  }
  AddressVector& vector() { return AddressVector::from(av); }

  DomainLock lock{erdma::util::LockKind::mutex};
  erdma::fabric::Children open;
  fid_av* av;
};

struct Listener final : AvListener {
  void on_av_insert(uint64_t fi_addr, const SocketAddress& canonical) noexcept override {
    log += "+" + std::to_string(fi_addr) + " " + canonical.to_string().c_str() + " ";
  }
  void on_av_remove(uint64_t fi_addr, const SocketAddress&) noexcept override {
    log += "-" + std::to_string(fi_addr) + " ";
  }
  std::string log;
};

/// fi_av_bind(), which libfabric 2 deprecates.
int bind(fid_av* av, fid_t queue, uint64_t flags) {
  return av->fid.ops->bind(&av->fid, queue, flags);
}

/// fi_av_set_user_id(), if libfabric has it; otherwise the method behind it.
template <typename Ops>
int set_user_id(fid_av* av, const Ops& ops, fi_addr_t fi_addr, fi_addr_t user_id, uint64_t flags) {
  if constexpr (requires { ops.set_user_id; })
    return ops.set_user_id(av, fi_addr, user_id, flags);
  else
    return AddressVector::from(av).set_user_id(fi_addr, user_id, flags);
}
int set_user_id(fid_av* av, fi_addr_t fi_addr, fi_addr_t user_id, uint64_t flags = 0) {
  return set_user_id(av, *av->ops, fi_addr, user_id, flags);
}

TEST(a_user_id_is_reported_in_place_of_the_index) {
  Fixture f;
  const sockaddr_in one = ip4("10.0.0.2", 1), two = ip4("10.0.0.2", 2);
  fi_addr_t fi_addr = 4711;
  ck_assert_int_eq(fi_av_insert(f.av, &one, 1, nullptr, FI_AV_USER_ID, nullptr), -FI_EINVAL);
  ck_assert_int_eq(fi_av_insert(f.av, &one, 1, &fi_addr, FI_AV_USER_ID, nullptr), 1);
  ck_assert_uint_eq(fi_addr, 0);
  ck_assert_int_eq(fi_av_insert(f.av, &two, 1, &fi_addr, 0, nullptr), 1);
  ck_assert_uint_eq(f.vector().fi_addr_of(address("10.0.0.2", 1)), 4711);
  ck_assert_uint_eq(f.vector().fi_addr_of(address("10.0.0.2", 2)), 1);
  ck_assert(f.vector().address_of(0) == address("10.0.0.2", 1));
  ck_assert(!f.vector().address_of(4711).set());
  fi_addr = 0;
  ck_assert_int_eq(fi_av_remove(f.av, &fi_addr, 1, 0), 0);
  ck_assert_int_eq(fi_av_insert(f.av, &one, 1, &fi_addr, 0, nullptr), 1);
  ck_assert_uint_eq(f.vector().fi_addr_of(address("10.0.0.2", 1)), 0);
  ck_assert_int_eq(set_user_id(f.av, 0, 7), -FI_EINVAL);
}

TEST(an_av_of_user_ids_knows_only_those) {
  Fixture f(FI_AV_USER_ID);
  const sockaddr_in one = ip4("10.0.0.2", 1);
  fi_addr_t fi_addr = 4711;
  ck_assert_int_eq(fi_av_insert(f.av, &one, 1, &fi_addr, FI_AV_USER_ID, nullptr), -FI_EINVAL);
  ck_assert_int_eq(fi_av_insert(f.av, &one, 1, &fi_addr, 0, nullptr), 1);
  ck_assert_uint_eq(f.vector().fi_addr_of(address("10.0.0.2", 1)), FI_ADDR_NOTAVAIL);
  ck_assert_int_eq(set_user_id(f.av, fi_addr, 7, FI_MORE), -FI_EBADFLAGS);
  ck_assert_int_eq(set_user_id(f.av, fi_addr + 1, 7), -FI_EINVAL);
  ck_assert_int_eq(set_user_id(f.av, fi_addr, 7), 0);
  ck_assert_uint_eq(f.vector().fi_addr_of(address("10.0.0.2", 1)), 7);
}

}  // namespace

TEST(insert_counts_good_addresses_and_marks_bad_ones) {
  Fixture f;
  const sockaddr_in addresses[] = {ip4("10.0.0.1", 9), sockaddr_in{}, ip4("0.0.0.0", 9),
                                   ip4("10.0.0.2", 0), ip4("10.0.0.2", 9)};
  fi_addr_t fi_addr[5] = {7, 7, 7, 7, 7};
  ck_assert_int_eq(fi_av_insert(f.av, addresses, 5, fi_addr, 0, nullptr), 2);
  ck_assert_uint_eq(fi_addr[0], 0);
  for (int i = 1; i <= 3; ++i) ck_assert_uint_eq(fi_addr[i], FI_ADDR_NOTAVAIL);
  ck_assert_uint_eq(fi_addr[4], 1);
}

TEST(insert_reports_each_status_when_asked_to) {
  Fixture f;
  const sockaddr_in addresses[] = {ip4("10.0.0.1", 9), sockaddr_in{}, ip4("10.0.0.2", 0)};
  int status[3] = {-1, 0, 0};
  ck_assert_int_eq(fi_av_insert(f.av, addresses, 3, nullptr, FI_SYNC_ERR, status), 1);
  ck_assert_int_eq(status[0], 0);
  ck_assert_int_eq(status[1], FI_EINVAL);
  ck_assert_int_eq(status[2], FI_EADDRNOTAVAIL);
}

TEST(insert_refuses_bad_arguments) {
  Fixture f;
  const sockaddr_in good = ip4("10.0.0.1", 9);
  fi_addr_t fi_addr = 0;
  ck_assert_int_eq(fi_av_insert(f.av, nullptr, 0, nullptr, 0, nullptr), 0);
  ck_assert_int_eq(fi_av_insert(f.av, nullptr, 1, &fi_addr, 0, nullptr), -FI_EINVAL);
  ck_assert_int_eq(fi_av_insert(f.av, &good, SIZE_MAX, nullptr, 0, nullptr), -FI_EINVAL);
  ck_assert_int_eq(fi_av_insert(f.av, &good, 1, &fi_addr, FI_SYNC_ERR, nullptr), -FI_EINVAL);
  ck_assert_int_eq(fi_av_insert(f.av, &good, 1, &fi_addr, FI_PEEK, nullptr), -FI_EBADFLAGS);
  ck_assert_int_eq(fi_av_insert(f.av, &good, 1, &fi_addr, FI_MORE, nullptr), 1);
}

TEST(insert_gives_duplicates_their_own_index_and_names_the_lowest) {
  Fixture f;
  const sockaddr_in twice[] = {ip4("10.0.0.1", 9), ip4("127.0.0.1", 9)};
  fi_addr_t fi_addr[2];
  ck_assert_int_eq(fi_av_insert(f.av, twice, 2, fi_addr, 0, nullptr), 2);
  ck_assert_uint_ne(fi_addr[0], fi_addr[1]);
  ck_assert_uint_eq(f.vector().fi_addr_of(address("10.0.0.1", 9)), fi_addr[0]);
  ck_assert(f.vector().address_of(fi_addr[1]) == address("10.0.0.1", 9));
  ck_assert_uint_eq(f.vector().fi_addr_of(address("10.0.0.9", 9)), FI_ADDR_NOTAVAIL);
  ck_assert(!f.vector().address_of(FI_ADDR_UNSPEC).set());
}

TEST(insert_takes_ip6_addresses_in_an_ip6_domain) {
  Fixture f(0, AF_INET6);
  sockaddr_in6 two[2]{};
  for (auto& raw : two) {
    raw.sin6_family = AF_INET6;
    raw.sin6_port = htons(9);
    raw.sin6_addr.s6_addr[15] = uint8_t(&raw - two + 1);
  }
  fi_addr_t fi_addr[2];
  ck_assert_int_eq(fi_av_insert(f.av, two, 2, fi_addr, 0, nullptr), 2);
  sockaddr_in6 found{};
  size_t length = sizeof(found);
  ck_assert_int_eq(fi_av_lookup(f.av, fi_addr[1], &found, &length), 0);
  ck_assert_mem_eq(&found, &two[1], sizeof(found));
}

TEST(lookup_returns_the_address_as_it_was_inserted) {
  Fixture f;
  const sockaddr_in given = ip4("127.0.0.1", 9);
  fi_av_insert(f.av, &given, 1, nullptr, 0, nullptr);
  char found[64] = {};
  size_t length = sizeof(found);
  ck_assert_int_eq(fi_av_lookup(f.av, 0, found, &length), 0);
  ck_assert_uint_eq(length, sizeof(given));
  ck_assert_mem_eq(found, &given, sizeof(given));
}

TEST(lookup_truncates_and_tells_the_size_needed) {
  Fixture f;
  const sockaddr_in given = ip4("10.0.0.1", 9);
  fi_av_insert(f.av, &given, 1, nullptr, 0, nullptr);
  char found[sizeof(given)];
  std::memset(found, 0x55, sizeof(found));
  size_t length = 4;
  ck_assert_int_eq(fi_av_lookup(f.av, 0, found, &length), 0);
  ck_assert_uint_eq(length, sizeof(given));
  ck_assert_mem_eq(found, &given, 4);
  ck_assert_int_eq(found[4], 0x55);
  length = 0;
  ck_assert_int_eq(fi_av_lookup(f.av, 0, nullptr, &length), 0);
  ck_assert_uint_eq(length, sizeof(given));
}

TEST(lookup_refuses_bad_arguments) {
  Fixture f;
  const sockaddr_in given = ip4("10.0.0.1", 9);
  fi_av_insert(f.av, &given, 1, nullptr, 0, nullptr);
  char found[64];
  size_t length = sizeof(found);
  for (const fi_addr_t bad : {fi_addr_t{1}, fi_addr_t{33}, FI_ADDR_UNSPEC})
    ck_assert_int_eq(fi_av_lookup(f.av, bad, found, &length), -FI_EINVAL);
  ck_assert_int_eq(fi_av_lookup(f.av, 0, nullptr, &length), -FI_EINVAL);
  ck_assert_int_eq(fi_av_lookup(f.av, 0, found, nullptr), -FI_EINVAL);
}

TEST(remove_forgets_the_address_and_frees_its_index) {
  Fixture f;
  const sockaddr_in two[] = {ip4("10.0.0.1", 9), ip4("10.0.0.2", 9)};
  fi_addr_t fi_addr[2];
  fi_av_insert(f.av, two, 2, fi_addr, 0, nullptr);
  ck_assert_int_eq(fi_av_remove(f.av, &fi_addr[0], 1, 0), 0);
  char found[64];
  size_t length = sizeof(found);
  ck_assert_int_eq(fi_av_lookup(f.av, fi_addr[0], found, &length), -FI_EINVAL);
  fi_addr_t again = 7;
  ck_assert_int_eq(fi_av_insert(f.av, &two[0], 1, &again, 0, nullptr), 1);
  ck_assert_uint_eq(again, fi_addr[0]);
}

TEST(remove_refuses_what_is_not_there_but_removes_the_rest) {
  Fixture f;
  const sockaddr_in two[] = {ip4("10.0.0.1", 9), ip4("10.0.0.2", 9)};
  fi_addr_t fi_addr[2];
  fi_av_insert(f.av, two, 2, fi_addr, 0, nullptr);
  fi_addr_t bad = FI_ADDR_UNSPEC;
  ck_assert_int_eq(fi_av_remove(f.av, &bad, 1, 0), -FI_EINVAL);
  ck_assert_int_eq(fi_av_remove(f.av, nullptr, 1, 0), -FI_EINVAL);
  ck_assert_int_eq(fi_av_remove(f.av, nullptr, 0, 0), 0);
  ck_assert_int_eq(fi_av_remove(f.av, fi_addr, 1, FI_MORE), -FI_EINVAL);
  ck_assert_int_eq(fi_av_remove(f.av, fi_addr, 1, 0), 0);
  ck_assert_int_eq(fi_av_remove(f.av, fi_addr, 2, 0), -FI_EINVAL);
  ck_assert_uint_eq(f.vector().fi_addr_of(address("10.0.0.2", 9)), FI_ADDR_NOTAVAIL);
}

TEST(insertsvc_takes_a_host_and_a_service) {
  Fixture f;
  fi_addr_t fi_addr = 7;
  ck_assert_int_eq(fi_av_insertsvc(f.av, "10.0.0.7", "5000", &fi_addr, 0, nullptr), 1);
  ck_assert(f.vector().address_of(fi_addr) == address("10.0.0.7", 5000));
}

TEST(insertsvc_takes_a_printed_address_alone) {
  Fixture f;
  fi_addr_t fi_addr = 7;
  const char* uri = "fi_sockaddr_in://10.0.0.7:5000";
  ck_assert_int_eq(fi_av_insertsvc(f.av, uri, nullptr, &fi_addr, 0, nullptr), 1);
  ck_assert(f.vector().address_of(fi_addr) == address("10.0.0.7", 5000));
}

TEST(insertsym_inserts_every_port_of_every_host) {
  Fixture f;
  fi_addr_t fi_addr[4];
  ck_assert_int_eq(fi_av_insertsym(f.av, "10.0.0.1", 2, "5000", 2, fi_addr, 0, nullptr), 4);
  ck_assert(f.vector().address_of(fi_addr[1]) == address("10.0.0.1", 5001));
  ck_assert(f.vector().address_of(fi_addr[3]) == address("10.0.0.2", 5001));
}

TEST(insertsym_refuses_bad_arguments) {
  Fixture f;
  fi_addr_t fi_addr;
  ck_assert_int_eq(fi_av_insertsvc(f.av, nullptr, "1", &fi_addr, 0, nullptr), -FI_EINVAL);
  ck_assert_int_eq(fi_av_insertsvc(f.av, nullptr, nullptr, &fi_addr, 0, nullptr), -FI_EINVAL);
  ck_assert_int_eq(fi_av_insertsvc(f.av, "10.0.0.1", nullptr, &fi_addr, 0, nullptr), -FI_EINVAL);
  ck_assert_int_eq(fi_av_insertsym(f.av, "10.0.0.1", 0, "1", 1, &fi_addr, 0, nullptr), 0);
  ck_assert_int_eq(fi_av_insertsym(f.av, "10.0.0.1", 1, "1", 0, &fi_addr, 0, nullptr), 0);
  ck_assert_int_eq(fi_av_insertsym(f.av, "10.0.0.1", SIZE_MAX, "1", 9, &fi_addr, 0, nullptr),
                   -FI_EINVAL);
  ck_assert_int_eq(fi_av_insertsym(f.av, "10.0.0.1", 1, "1", 1, &fi_addr, FI_PEEK, nullptr),
                   -FI_EBADFLAGS);
}

TEST(straddr_prints_as_libfabric_does) {
  Fixture f;
  const sockaddr_in given = ip4("10.0.0.1", 5000);
  const std::string expected = "fi_sockaddr_in://10.0.0.1:5000";
  char text[64];
  size_t length = sizeof(text);
  ck_assert_ptr_eq(fi_av_straddr(f.av, &given, text, &length), text);
  ck_assert_str_eq(text, expected.c_str());
  ck_assert_uint_eq(length, expected.size() + 1);
}

TEST(straddr_truncates_and_tells_the_size_needed) {
  Fixture f;
  const sockaddr_in given = ip4("10.0.0.1", 5000);
  char text[8];
  std::memset(text, 'x', sizeof(text));
  size_t length = 5;
  fi_av_straddr(f.av, &given, text, &length);
  ck_assert_str_eq(text, "fi_s");
  ck_assert_int_eq(text[5], 'x');
  ck_assert_uint_eq(length, 31);
  length = 0;
  ck_assert_ptr_null(fi_av_straddr(f.av, &given, nullptr, &length));
  ck_assert_uint_eq(length, 31);
}

TEST(straddr_refuses_bad_arguments) {
  Fixture f;
  const sockaddr_in given = ip4("10.0.0.1", 5000);
  const sockaddr_storage other{};
  char text[64];
  size_t length = sizeof(text);
  ck_assert_ptr_null(fi_av_straddr(f.av, nullptr, text, &length));
  ck_assert_ptr_null(fi_av_straddr(f.av, &given, text, nullptr));
  ck_assert_ptr_null(fi_av_straddr(f.av, &other, text, &length));
}

TEST(listener_hears_of_each_change_in_canonical_form) {
  Fixture f;
  Listener listener;
  f.vector().attach(listener);
  const sockaddr_in two[] = {ip4("127.0.0.1", 9), ip4("10.0.0.2", 9)};
  fi_addr_t fi_addr[2];
  fi_av_insert(f.av, two, 2, fi_addr, 0, nullptr);
  fi_av_remove(f.av, fi_addr, 1, 0);
  fi_av_remove(f.av, fi_addr, 1, 0);
  ck_assert_str_eq(listener.log.c_str(), "+0 10.0.0.1:9 +1 10.0.0.2:9 -0 ");
  f.vector().detach(listener);
  fi_av_insert(f.av, two, 1, fi_addr, 0, nullptr);
  ck_assert_str_eq(listener.log.c_str(), "+0 10.0.0.1:9 +1 10.0.0.2:9 -0 ");
}

TEST(close_is_refused_while_an_endpoint_listens) {
  Fixture f;
  Listener listener;
  f.vector().attach(listener);
  ck_assert_int_eq(fi_close(&f.av->fid), -FI_EBUSY);
  f.vector().detach(listener);
  ck_assert_int_eq(fi_close(&f.av->fid), 0);
  ck_assert_int_eq(f.open.count(), 0);
}

TEST(insert_reports_through_the_bound_event_queue) {
  fi_eq_attr attr{};
  attr.wait_obj = FI_WAIT_UNSPEC;
  auto queue = make_event_queue(&attr, FI_VERSION(1, 17), {}, nullptr);
  ck_assert_int_eq(queue.error(), 0);
  fid_eq* eq = *queue;
  {
    Fixture f(FI_EVENT);
    const sockaddr_in two[] = {ip4("10.0.0.1", 9), sockaddr_in{}};
    fi_addr_t fi_addr[2];
    int context = 0;
    ck_assert_int_eq(fi_av_insert(f.av, two, 2, fi_addr, 0, &context), -FI_ENOEQ);
    ck_assert_int_eq(bind(f.av, &eq->fid, 0), 0);
    ck_assert_int_eq(fi_close(&eq->fid), -FI_EBUSY);
    ck_assert_int_eq(fi_av_insert(f.av, two, 2, fi_addr, FI_SYNC_ERR, &context), -FI_EBADFLAGS);
    ck_assert_int_eq(fi_av_insert(f.av, two, 2, fi_addr, 0, &context), 0);
    ck_assert_uint_eq(fi_addr[1], FI_ADDR_NOTAVAIL);

    uint32_t event = 0;
    fi_eq_entry entry{};
    fi_eq_err_entry error{};
    ck_assert_int_eq(fi_eq_read(eq, &event, &entry, sizeof(entry), 0), -FI_EAVAIL);
    ck_assert_int_eq(fi_eq_readerr(eq, &error, 0), sizeof(error));
    ck_assert_ptr_eq(error.fid, &f.av->fid);
    ck_assert_ptr_eq(error.context, &context);
    ck_assert_uint_eq(error.data, 1);
    ck_assert_int_eq(error.err, FI_EINVAL);
    ck_assert_int_eq(fi_eq_sread(eq, &event, &entry, sizeof(entry), -1, 0), sizeof(entry));
    ck_assert_uint_eq(event, FI_AV_COMPLETE);
    ck_assert_ptr_eq(entry.fid, &f.av->fid);
    ck_assert_ptr_eq(entry.context, &context);
    ck_assert_uint_eq(entry.data, 1);

    ck_assert_int_eq(fi_av_insert(f.av, nullptr, 0, nullptr, 0, &context), 0);
    ck_assert_int_eq(fi_eq_read(eq, &event, &entry, sizeof(entry), 0), sizeof(entry));
    ck_assert_uint_eq(entry.data, 0);
  }
  ck_assert_int_eq(fi_close(&eq->fid), 0);
}

TEST(bind_refuses_all_but_one_event_queue_on_an_event_av) {
  fi_eq_attr attr{};
  auto queue = make_event_queue(&attr, FI_VERSION(1, 17), {}, nullptr);
  fid_eq* eq = *queue;
  {
    Fixture plain;
    ck_assert_int_eq(bind(plain.av, &eq->fid, 0), -FI_EINVAL);
    Fixture f(FI_EVENT);
    ck_assert_int_eq(bind(f.av, nullptr, 0), -FI_EINVAL);
    ck_assert_int_eq(bind(f.av, &plain.av->fid, 0), -FI_EINVAL);
    ck_assert_int_eq(bind(f.av, &eq->fid, FI_WRITE), -FI_EINVAL);
    ck_assert_int_eq(bind(f.av, &eq->fid, 0), 0);
    ck_assert_int_eq(bind(f.av, &eq->fid, 0), -FI_EINVAL);
  }
  ck_assert_int_eq(fi_close(&eq->fid), 0);
}

TEST(every_entry_point_is_there) {
  Fixture f;
  ck_assert_int_eq(f.av->ops->av_set(f.av, nullptr, nullptr, nullptr), -FI_ENOSYS);
  ck_assert_int_eq(fi_control(&f.av->fid, FI_GETWAIT, nullptr), -FI_ENOSYS);
  ck_assert_uint_eq(f.av->ops->size, sizeof(fi_ops_av));
  ck_assert_uint_eq(f.av->fid.ops->size, sizeof(fi_ops));
}
