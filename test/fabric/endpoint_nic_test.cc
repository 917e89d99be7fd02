// Endpoints of a domain on a NIC: the simulated adapter, in both of its personalities.
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include <infiniband/verbs.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_rma.h>

#include "fabric/av.h"
#include "fabric/rig.h"
#include "fake/captured_log.h"
#include "transport/simulated_device.h"
#include "util/socket_address.h"
#include "watched_memory.h"

// For wait sets, which libfabric 2 deprecates.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace {

using namespace erdma::test;
using erdma::util::SocketAddress;

constexpr int kSharedMemoryPermitted = 11;  // FI_OPT_SHARED_MEMORY_PERMITTED of newer headers

void on_nic() {
  g_device = "erdma_0";
  unsetenv("FI_ERDMA_SHM");
  setenv("FI_LOG_LEVEL", "info", 1);
  provider();
  const std::lock_guard log_guard(erdma::test::g_log_mutex);
  g_log.clear();
}

/// The sum of a number in the lines that transports log when they are closed.
size_t logged(const char* what) {
  size_t sum = 0;
  const std::lock_guard log_guard(erdma::test::g_log_mutex);
  for (const LogLine& line : g_log) {
    const size_t at = line.text.find(what);
    if (at == std::string::npos) continue;
    const size_t begin = line.text.find_last_not_of("0123456789", at - 2) + 1;
    sum += std::stoul(line.text.substr(begin));
  }
  return sum;
}
size_t nic_bytes() {
  return logged(" bytes in packets") + logged(" by RDMA READ") + logged(" by RDMA WRITE");
}
size_t shm_bytes() {
  return logged(" bytes through rings");
}

SocketAddress name_of(const Port& port) {
  const std::vector<char> bytes = port.name();
  return SocketAddress::from_sockaddr(bytes.data(), bytes.size());
}

void exchange_all_ways(Port& a, Port& b) {
  const fi_addr_t to_b = a.insert(b), to_a = b.insert(a);
  for (const size_t length : {size_t{0}, size_t{8}, size_t{3000}, size_t{100'000}}) {
    exchange(a, b, to_b, length);
    exchange(b, a, to_a, length);
  }
}

SUITE(.run = erdma::test::on_simulated_devices);

TEST_CASE(.set_up = on_nic);

TEST(local_peers_share_memory_under_the_name_of_the_nic) {
  {
    Root root;
    Port a(root), b(root);
    const SocketAddress source =
        SocketAddress::from_sockaddr(root.info->src_addr, root.info->src_addrlen);
    ck_assert(name_of(a).same_host(source) && name_of(a).port() != 0);
    ck_assert(!(name_of(a) == name_of(b)));
    exchange_all_ways(a, b);
    exchange(a, a, a.insert(a), 5000);
  }
  ck_assert_uint_gt(shm_bytes(), 0);
  ck_assert_uint_eq(nic_bytes(), 0);
}

TEST(a_domain_on_a_nic_that_has_gone_says_so) {
  const Root root;
  fi_info* const info = get_info();
  std::free(info->src_addr);
  info->src_addr = nullptr;
  info->src_addrlen = 0;
  std::free(info->domain_attr->name);
  info->domain_attr->name = strdup("erdma_9");
  fid_domain* domain = nullptr;
  ck_assert_int_eq(fi_domain(root.fabric, info, &domain, nullptr), -FI_EADDRNOTAVAIL);
  const std::lock_guard log_guard(erdma::test::g_log_mutex);
  const std::string& line = g_log.back().text;
  ck_assert_msg(contains(line, "erdma_9: there is no IPv4 address on a NIC"), "%s", line.c_str());
  fi_freeinfo(info);
}

/// The loopback interface is not the host's first one, if the host has another.
TEST(a_wildcard_source_means_the_address_of_the_nic) {
  setenv("SOFTERDMA_DEVICES", "erdma_0,ip=127.0.0.1", 1);
  fi_info* const info = get_info();
  const SocketAddress nic = SocketAddress::from_sockaddr(info->src_addr, info->src_addrlen);
  auto* const source = static_cast<sockaddr_in*>(info->src_addr);
  source->sin_addr.s_addr = htonl(INADDR_ANY);
  Root root(info);
  Port a(root), b(root);
  ck_assert(name_of(a).same_host(nic) && name_of(b).same_host(nic));
  exchange_all_ways(a, b);
}

/// An info for a domain whose NIC has a link-local address. The host need not have it before an
/// endpoint is enabled.
fi_info* link_local_info(uint32_t scope) {
  ibv_gid gid{};
  {
    const auto device = open_first_device();
    ck_assert_int_eq(ibv_query_gid(device->context(), 1, 0, &gid), 0);
  }
  // On ib the first GID has this prefix, and the address must be a GID. On iWARP it may be any.
  gid.raw[0] = 0xfe;
  gid.raw[1] = 0x80;
  const SocketAddress own = SocketAddress::from_ip(AF_INET6, gid.raw, 0, scope);
  fi_info* const info = get_info();
  std::free(info->src_addr);
  info->src_addr = std::malloc(own.size());
  std::memcpy(info->src_addr, own.data(), own.size());
  info->src_addrlen = own.size();
  info->addr_format = FI_SOCKADDR_IN6;
  return info;
}

/// The scope that the peer published is the number of an interface of its host.
TEST(a_link_local_peer_has_the_scope_of_the_domain) {
  Root root(link_local_info(2));
  fid_av* const av = root.open_av();
  in6_addr ip{};
  ck_assert_int_eq(inet_pton(AF_INET6, "fe80::2", &ip), 1);
  const SocketAddress published = SocketAddress::from_ip(AF_INET6, &ip, 5000, 7);
  const SocketAddress reached = SocketAddress::from_ip(AF_INET6, &ip, 5000, 2);
  fi_addr_t index = FI_ADDR_NOTAVAIL;
  ck_assert_int_eq(fi_av_insert(av, published.data(), 1, &index, 0, nullptr), 1);
  const auto& vector = erdma::fabric::AddressVector::from(av);
  ck_assert(vector.address_of(index) == reached);
  ck_assert_uint_eq(vector.fi_addr_of(reached), index);
  ck_assert_int_eq(fi_close(&av->fid), 0);
}

/// Calls on an endpoint whose peer is `to`, and their errors.
char g_delayed[8] = "delayed";
const iovec g_delayed_iov{g_delayed, 8};
const struct {
  ssize_t error;
  ssize_t (*call)(fid_ep* ep, fi_addr_t to);
} kRefusedCalls[] = {
    {-FI_EBADFLAGS,
     [](fid_ep* ep, fi_addr_t to) {
       const fi_msg_tagged msg{&g_delayed_iov, nullptr, 1, to, 7, 0, nullptr, 0};
       return fi_tsendmsg(ep, &msg, FI_PEEK);
     }},
    {-FI_EINVAL,
     [](fid_ep* ep, fi_addr_t to) {
       const fi_msg_rma read{&g_delayed_iov, nullptr, 1, to, nullptr, 1, nullptr, 0};
       return fi_readmsg(ep, &read, 0);
     }},
    {-FI_EINVAL,
     [](fid_ep* ep, fi_addr_t to) {
       return fi_tsend(ep, g_delayed, 8, nullptr, to + 9, 7, nullptr);
     }},
    {-FI_EINVAL,
     [](fid_ep* ep, fi_addr_t to) { return fi_tsend(ep, nullptr, 8, nullptr, to, 7, nullptr); }},
    {-FI_EINVAL, [](fid_ep* ep, fi_addr_t to) { return fi_tinject(ep, nullptr, 8, to, 7); }},
    {-FI_EINVAL,
     [](fid_ep* ep, fi_addr_t to) { return fi_tsendv(ep, nullptr, nullptr, 1, to, 7, nullptr); }},
    {-FI_EINVAL, [](fid_ep* ep, fi_addr_t) { return fi_sendmsg(ep, nullptr, 0); }},
    {-FI_EINVAL,
     [](fid_ep* ep, fi_addr_t to) {
       const fi_msg msg{&g_delayed_iov, nullptr, 1, to, nullptr, 0};
       return fi_sendmsg(ep, &msg, FI_TRIGGER);
     }},
    {-FI_EINVAL,
     [](fid_ep* ep, fi_addr_t) {
       return fi_recv(ep, nullptr, 8, nullptr, FI_ADDR_UNSPEC, nullptr);
     }},
    {-FI_EINVAL,
     [](fid_ep* ep, fi_addr_t) {
       return fi_recvv(ep, nullptr, nullptr, 1, FI_ADDR_UNSPEC, nullptr);
     }},
    {-FI_EBADFLAGS,
     [](fid_ep* ep, fi_addr_t) {
       const fi_msg_tagged msg{&g_delayed_iov, nullptr, 1, FI_ADDR_UNSPEC, 7, 0, nullptr, 0};
       return fi_trecvmsg(ep, &msg, FI_INJECT);
     }},
    {-FI_EINVAL,
     [](fid_ep* ep, fi_addr_t) {
       const fi_msg_tagged msg{&g_delayed_iov, nullptr, 1, FI_ADDR_UNSPEC, 7, 0, nullptr, 0};
       return fi_trecvmsg(ep, &msg, FI_PEEK | FI_CLAIM | FI_DISCARD);
     }},
    {-FI_EINVAL,
     [](fid_ep* ep, fi_addr_t to) { return fi_write(ep, nullptr, 8, nullptr, to, 0, 1, nullptr); }},
    {-FI_EINVAL,
     [](fid_ep* ep, fi_addr_t to) { return fi_readv(ep, nullptr, nullptr, 1, to, 0, 1, nullptr); }},
    {-FI_EINVAL,
     [](fid_ep* ep, fi_addr_t to) { return fi_inject_write(ep, nullptr, 8, to, 0, 1); }},
    {-FI_EOPNOTSUPP,
     [](fid_ep* ep, fi_addr_t to) {
       return fi_atomic(ep, g_delayed, 1, nullptr, to, 0, 1, FI_UINT64, FI_CSWAP, nullptr);
     }},
    {-FI_EOPNOTSUPP,
     [](fid_ep* ep, fi_addr_t to) {
       return fi_inject_atomic(ep, g_delayed, 1, to, 0, 1, FI_UINT64, FI_CSWAP);
     }},
    {-FI_EBADFLAGS,
     [](fid_ep* ep, fi_addr_t) {
       const fi_msg_atomic msg{};
       return fi_atomicmsg(ep, &msg, FI_REMOTE_CQ_DATA);
     }},
    {-FI_EINVAL, [](fid_ep* ep, fi_addr_t) { return fi_atomicmsg(ep, nullptr, 0); }},
};

/// The peer alone makes progress after the refusal (fi_msg(3), FI_MORE).
TEST(a_delayed_message_leaves_with_a_refused_call, std::size(kRefusedCalls)) {
  setenv("FI_ERDMA_SHM", "off", 1);
  Root root;
  Port a(root), b(root);
  const fi_addr_t to = a.insert(b);
  exchange(a, b, to, 8);
  char received[8] = {};
  fi_context receive;
  const fi_msg_tagged msg{&g_delayed_iov, nullptr, 1, to, 7, 0, nullptr, 0};
  ck_assert_int_eq(fi_trecv(b.ep, received, 8, nullptr, FI_ADDR_UNSPEC, 7, 0, &receive), 0);
  ck_assert_int_eq(fi_tsendmsg(a.ep, &msg, FI_MORE), 0);
  ck_assert_int_eq(kRefusedCalls[_i].call(a.ep, to), kRefusedCalls[_i].error);
  ck_assert_ptr_eq(b.wait().op_context, &receive);
  ck_assert_str_eq(received, "delayed");
}

TEST_CASE(.set_up = on_nic, .offered = can_watch_memory);

TEST(without_shared_memory_local_peers_and_itself_use_the_nic) {
  setenv("FI_ERDMA_SHM", "off", 1);
  {
    Root root;
    Port a(root), b(root);
    exchange_all_ways(a, b);
    exchange(a, a, a.insert(a), 5000);
    exchange(a, a, a.insert(a), 100'000);
    bool permitted = true;
    size_t length = sizeof(permitted);
    ck_assert_int_eq(
        fi_getopt(&a.ep->fid, FI_OPT_ENDPOINT, kSharedMemoryPermitted, &permitted, &length), 0);
    ck_assert(!permitted);
  }
  ck_assert_uint_eq(shm_bytes(), 0);
  ck_assert_uint_gt(nic_bytes(), 100'000);
}

/// Its longest region holds less than the provider's memory for packets usually has.
TEST(messages_move_through_an_adapter_with_short_regions) {
  setenv("SOFTERDMA_MAX_MR_SIZE", "64K", 1);
  setenv("FI_ERDMA_SHM", "off", 1);
  Root root;
  Port a(root), b(root);
  exchange_all_ways(a, b);
}

/// A new connection has small receives, which do not hold every message that may be injected. The
/// application makes no further call after the inject.
TEST(what_is_injected_arrives_without_its_sender, 3) {
  const size_t length = std::array<size_t, 3>{8, 1024, 4096}[size_t(_i)];
  setenv("FI_ERDMA_SHM", "off", 1);
  Root root;
  Port a(root), b(root);
  const fi_addr_t to_b = a.insert(b);
  exchange(a, b, to_b, 8);
  exchange(b, a, b.insert(a), 8);
  const auto message = pattern(length);
  std::vector<char> buffer(length);
  ck_assert_int_eq(fi_trecv(b.ep, buffer.data(), length, nullptr, FI_ADDR_UNSPEC, 7, 0, nullptr),
                   0);
  ck_assert_int_eq(fi_tinject(a.ep, message.data(), length, to_b, 7), 0);
  ck_assert_uint_eq(b.wait().len, length);
  ck_assert(buffer == message);
}

TEST_CASE(.set_up = on_nic);

TEST(an_endpoint_may_forgo_shared_memory) {
  {
    Root root;
    Port b(root);
    fid_ep* ep = nullptr;
    fid_cq* cq = root.open_cq();
    fid_av* av = root.open_av();
    ck_assert_int_eq(fi_endpoint(root.domain, root.info, &ep, nullptr), 0);
    bool no = false;
    const auto set = [&] {
      return fi_setopt(&ep->fid, FI_OPT_ENDPOINT, kSharedMemoryPermitted, &no, sizeof(no));
    };
    ck_assert_int_eq(set(), 0);
    ck_assert_int_eq(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV), 0);
    ck_assert_int_eq(fi_ep_bind(ep, &av->fid, 0), 0);
    ck_assert_int_eq(fi_enable(ep), 0);
    ck_assert_int_eq(set(), 0);
    no = true;
    ck_assert_int_eq(set(), -FI_EOPBADSTATE);
    // The other endpoint, which tries shared memory first, reaches this one too.
    char name[64];
    size_t length = sizeof(name);
    ck_assert_int_eq(fi_getname(&ep->fid, name, &length), 0);
    fi_addr_t to = FI_ADDR_NOTAVAIL;
    ck_assert_int_eq(fi_av_insert(b.av, name, 1, &to, 0, nullptr), 1);
    char byte = 'x', got = 0;
    ck_assert_int_eq(fi_trecv(ep, &got, 1, nullptr, FI_ADDR_UNSPEC, 1, 0, &got), 0);
    ck_assert_int_eq(fi_tsend(b.ep, &byte, 1, nullptr, to, 1, &byte), 0);
    fi_cq_tagged_entry entry{};
    while (fi_cq_read(cq, &entry, 1) != 1) b.progress();
    ck_assert_int_eq(got, 'x');
    ck_assert_ptr_eq(b.wait().op_context, &byte);
    ck_assert_int_eq(fi_close(&ep->fid), 0);
    ck_assert_int_eq(fi_close(&cq->fid), 0);
    ck_assert_int_eq(fi_close(&av->fid), 0);
  }
  size_t warnings = 0;
  {
    const std::lock_guard log_guard(erdma::test::g_log_mutex);
    for (const LogLine& line : g_log)
      warnings += contains(line.text, "cannot be reached through shared memory");
  }
  ck_assert_uint_eq(warnings, 1);
  ck_assert_uint_gt(nic_bytes(), 0);
}

/// Whatever the receiver's mode, an answer takes the path of the message.
TEST(peers_of_which_one_has_no_shared_memory_talk_both_ways, 2) {
  setenv("FI_ERDMA_CONNECT_TIMEOUT", "300", 1);
  Root with;
  Port a(with);
  setenv("FI_ERDMA_SHM", "off", 1);
  Root without;
  Port b(without);
  exchange_all_ways(_i == 0 ? a : b, _i == 0 ? b : a);
}

/// The line about an unreachable peer names the path that failed.
TEST(a_peer_that_the_nic_does_not_reach_is_not_said_to_lack_shared_memory) {
  setenv("FI_ERDMA_SHM", "off", 1);
  setenv("FI_ERDMA_CONNECT_TIMEOUT", "300", 1);
  Root root;
  Port port(root);
  fi_addr_t gone = FI_ADDR_NOTAVAIL;
  {
    Port other(root);
    gone = port.insert(other);
  }
  ck_assert_int_eq(fi_tsend(port.ep, "x", 1, nullptr, gone, 7, nullptr), 0);
  ck_assert_int_ne(port.wait_error().err, 0);
  const std::lock_guard log_guard(g_log_mutex);
  const auto said = [](const char* what) {
    return std::count_if(g_log.begin(), g_log.end(),
                         [&](const LogLine& line) { return contains(line.text, what); });
  };
  ck_assert_int_gt(said(" is lost ("), 0);
  ck_assert_int_eq(said("through shared memory"), 0);
}

TEST(a_name_that_shared_memory_has_already_is_refused) {
  fi_info* info = get_info();
  auto* source = static_cast<sockaddr_in*>(info->src_addr);
  source->sin_port = htons(29'999);
  const SocketAddress name = SocketAddress::from_sockaddr(source, sizeof(*source));
  sockaddr_un taken{};
  taken.sun_family = AF_UNIX;
  const std::string text = "erdma/" + std::string(name.to_string());
  std::memcpy(taken.sun_path + 1, text.data(), text.size());
  const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
  ck_assert_int_eq(bind(socket, reinterpret_cast<sockaddr*>(&taken),
                        socklen_t(offsetof(sockaddr_un, sun_path) + 1 + text.size())),
                   0);
  Root root;
  fid_cq* cq = root.open_cq();
  fid_av* av = root.open_av();
  fid_ep* ep = nullptr;
  ck_assert_int_eq(fi_endpoint(root.domain, info, &ep, nullptr), 0);
  ck_assert_int_eq(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV), 0);
  ck_assert_int_eq(fi_ep_bind(ep, &av->fid, 0), 0);
  ck_assert_int_eq(fi_enable(ep), -FI_EADDRINUSE);
  ::close(socket);
  ck_assert_int_eq(fi_enable(ep), 0);
  ck_assert_int_eq(fi_close(&ep->fid), 0);
  ck_assert_int_eq(fi_close(&cq->fid), 0);
  ck_assert_int_eq(fi_close(&av->fid), 0);
  fi_freeinfo(info);
}

TEST(a_thread_asleep_is_woken_by_the_nic) {
  setenv("FI_ERDMA_SHM", "off", 1);
  Root receiving({.threading = FI_THREAD_SAFE}), sending({.threading = FI_THREAD_SAFE});
  Port a(receiving, FI_WAIT_FD), b(sending);
  const fi_addr_t to = b.insert(a);
  uint64_t got = 0;
  for (uint64_t i = 1; i <= 20; ++i) {
    ck_assert_int_eq(fi_trecv(a.ep, &got, sizeof(got), nullptr, FI_ADDR_UNSPEC, i, 0, &got), 0);
    std::thread sender([&] {
      ck_assert_int_eq(fi_tsend(b.ep, &i, sizeof(i), nullptr, to, i, &i), 0);
      b.wait();
    });
    fi_cq_tagged_entry entry{};
    ck_assert_int_eq(fi_cq_sread(a.cq, &entry, 1, nullptr, -1), 1);
    ck_assert_uint_eq(got, i);
    sender.join();
  }
}

TEST(a_thread_that_waits_for_a_set_is_woken_by_the_nic) {
  setenv("FI_ERDMA_SHM", "off", 1);
  Root receiving({.threading = FI_THREAD_SAFE}), sending({.threading = FI_THREAD_SAFE});
  fi_wait_attr wait_attr{};
  wait_attr.wait_obj = FI_WAIT_UNSPEC;
  fi_cq_attr cq_attr{};
  cq_attr.format = FI_CQ_FORMAT_TAGGED;
  cq_attr.wait_obj = FI_WAIT_SET;
  ck_assert_int_eq(fi_wait_open(receiving.fabric, &wait_attr, &cq_attr.wait_set), 0);
  {
    Port a(receiving, cq_attr), b(sending);
    const fi_addr_t to = b.insert(a);
    uint64_t got = 0;
    for (uint64_t i = 1; i <= 20; ++i) {
      ck_assert_int_eq(fi_trecv(a.ep, &got, sizeof(got), nullptr, FI_ADDR_UNSPEC, i, 0, &got), 0);
      std::thread sender([&] {
        ck_assert_int_eq(fi_tsend(b.ep, &i, sizeof(i), nullptr, to, i, &i), 0);
        b.wait();
      });
      fi_cq_tagged_entry entry{};
      while (fi_cq_read(a.cq, &entry, 1) == -FI_EAGAIN)
        ck_assert_int_eq(fi_wait(cq_attr.wait_set, -1), 0);
      ck_assert_uint_eq(got, i);
      sender.join();
    }
  }
  ck_assert_int_eq(fi_close(&cq_attr.wait_set->fid), 0);
}

TEST(another_job_is_turned_away, 2) {
  setenv("FI_ERDMA_SHM", "off", 1);
  setenv("FI_ERDMA_JOB_KEY", "one", 1);
  Root one;
  Port a(one);
  setenv("FI_ERDMA_JOB_KEY", _i == 0 ? "two" : "one", 1);
  Root two;
  Port b(two);
  const fi_addr_t to = a.insert(b);
  if (_i == 1) return exchange(a, b, to, 8);
  char byte = 'x';
  ck_assert_int_eq(fi_tsend(a.ep, &byte, 1, nullptr, to, 1, &byte), 0);
  const fi_cq_err_entry error = a.wait_error(&b);
  ck_assert_int_eq(error.err, FI_ECONNREFUSED);
  ck_assert_ptr_eq(error.op_context, &byte);
}

}  // namespace
