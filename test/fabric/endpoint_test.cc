#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "fabric/rig.h"

namespace {

using erdma::test::Ask;
using erdma::test::exchange;
using erdma::test::pattern;
using erdma::test::Port;
using erdma::test::Root;

constexpr size_t kLengths[] = {0, 1, 24, 25, 88, 89, 4096, 16384, 16385, 65536, 1 << 20, 5 << 20};

TEST(endpoints_of_one_domain_exchange_messages_of_every_size, std::size(kLengths)) {
  Root root;
  Port a(root), b(root);
  const fi_addr_t to_b = a.insert(b), to_a = b.insert(a);
  exchange(a, b, to_b, kLengths[_i]);
  exchange(b, a, to_a, kLengths[_i]);
}

TEST(endpoint_talks_to_itself, std::size(kLengths)) {
  Root root;
  Port a(root);
  exchange(a, a, a.insert(a), kLengths[_i]);
}

TEST(endpoints_of_two_domains_exchange_messages) {
  Root one, two;
  Port a(one), b(two);
  exchange(a, b, a.insert(b), 100000);
}

TEST(all_send_forms_arrive_with_their_data_and_flags) {
  Root root;
  Port a(root), b(root);
  const fi_addr_t to = a.insert(b);
  const auto message = pattern(300);
  std::vector<char> buffer(300);
  fi_context context, receive;
  const iovec parts[2] = {{const_cast<char*>(message.data()), 100},
                          {const_cast<char*>(message.data()) + 100, 200}};
  const auto check = [&](uint64_t flags, uint64_t data, bool completes) {
    const fi_cq_tagged_entry entry = b.wait(&a);
    ck_assert_uint_eq(entry.flags, flags);
    ck_assert_uint_eq(entry.data, data);
    ck_assert_uint_eq(entry.len, 300);
    ck_assert(buffer == message);
    std::fill(buffer.begin(), buffer.end(), 0);
    fi_cq_tagged_entry none;
    if (completes) {
      ck_assert_ptr_eq(a.wait(&b).op_context, &context);
    }
    ck_assert_int_eq(fi_cq_read(a.cq, &none, 1), -FI_EAGAIN);
  };
  const auto post = [&] {
    ck_assert_int_eq(fi_recv(b.ep, buffer.data(), 300, nullptr, FI_ADDR_UNSPEC, &receive), 0);
  };
  const auto tpost = [&] {
    ck_assert_int_eq(fi_trecv(b.ep, buffer.data(), 300, nullptr, FI_ADDR_UNSPEC, 5, 0, &receive),
                     0);
  };
  constexpr uint64_t kMsg = FI_RECV | FI_MSG, kTag = FI_RECV | FI_TAGGED;
  constexpr uint64_t kData = 0x1122334455667788u;
  fi_msg msg{parts, nullptr, 2, to, &context, kData};
  fi_msg_tagged tmsg{parts, nullptr, 2, to, 5, 0, &context, kData};

  post();
  ck_assert_int_eq(fi_send(a.ep, message.data(), 300, nullptr, to, &context), 0);
  check(kMsg, 0, true);
  post();
  ck_assert_int_eq(fi_sendv(a.ep, parts, nullptr, 2, to, &context), 0);
  check(kMsg, 0, true);
  post();
  ck_assert_int_eq(fi_sendmsg(a.ep, &msg, FI_REMOTE_CQ_DATA | FI_FENCE), 0);
  check(kMsg | FI_REMOTE_CQ_DATA, kData, true);
  post();
  ck_assert_int_eq(fi_sendmsg(a.ep, &msg, FI_INJECT | FI_DELIVERY_COMPLETE), 0);
  check(kMsg, 0, true);
  post();
  ck_assert_int_eq(fi_sendmsg(a.ep, &msg, FI_MORE | FI_TRANSMIT_COMPLETE), 0);
  check(kMsg, 0, true);
  post();
  ck_assert_int_eq(fi_inject(a.ep, message.data(), 300, to), 0);
  check(kMsg, 0, false);
  post();
  ck_assert_int_eq(fi_senddata(a.ep, message.data(), 300, nullptr, kData, to, &context), 0);
  check(kMsg | FI_REMOTE_CQ_DATA, kData, true);
  post();
  ck_assert_int_eq(fi_injectdata(a.ep, message.data(), 300, kData, to), 0);
  check(kMsg | FI_REMOTE_CQ_DATA, kData, false);
  tpost();
  ck_assert_int_eq(fi_tsendv(a.ep, parts, nullptr, 2, to, 5, &context), 0);
  check(kTag, 0, true);
  tpost();
  ck_assert_int_eq(fi_tsendmsg(a.ep, &tmsg, FI_REMOTE_CQ_DATA), 0);
  check(kTag | FI_REMOTE_CQ_DATA, kData, true);
  tpost();
  ck_assert_int_eq(fi_tinject(a.ep, message.data(), 300, to, 5), 0);
  check(kTag, 0, false);
  tpost();
  ck_assert_int_eq(fi_tsenddata(a.ep, message.data(), 300, nullptr, kData, to, 5, &context), 0);
  check(kTag | FI_REMOTE_CQ_DATA, kData, true);
  tpost();
  ck_assert_int_eq(fi_tinjectdata(a.ep, message.data(), 300, kData, to, 5), 0);
  check(kTag | FI_REMOTE_CQ_DATA, kData, false);
}

TEST(receive_forms_scatter_and_filter_by_source) {
  Root root;
  Port a(root), b(root), c(root);
  const fi_addr_t a_to_c = a.insert(c), b_to_c = b.insert(c);
  const fi_addr_t from_a = c.insert(a), from_b = c.insert(b);
  char first[10] = {}, second[20] = {}, other[30] = {};
  const iovec parts[2] = {{first, 10}, {second, 20}};
  fi_context one, two;
  ck_assert_int_eq(fi_trecvv(c.ep, parts, nullptr, 2, from_b, 1, 0xff, &one), 0);
  fi_msg_tagged msg{};
  const iovec whole{other, 30};
  msg.msg_iov = &whole;
  msg.iov_count = 1;
  msg.addr = from_a;
  msg.tag = 3;
  msg.context = &two;
  ck_assert_int_eq(fi_trecvmsg(c.ep, &msg, 0), 0);
  const auto message = pattern(30);
  fi_context sent;
  ck_assert_int_eq(fi_tsend(a.ep, message.data(), 30, nullptr, a_to_c, 3, &sent), 0);
  ck_assert_int_eq(fi_tsend(b.ep, message.data(), 30, nullptr, b_to_c, 3, &sent), 0);
  fi_cq_tagged_entry entry;
  fi_addr_t source = FI_ADDR_NOTAVAIL;
  bool seen[2] = {};
  for (int i = 0; i < 2;) {
    const ssize_t rc = fi_cq_readfrom(c.cq, &entry, 1, &source);
    a.progress(), b.progress();
    if (rc == -FI_EAGAIN) continue;
    ck_assert_int_eq(rc, 1);
    ck_assert_uint_eq(source, entry.op_context == &one ? from_b : from_a);
    seen[entry.op_context == &one] = true;
    ++i;
  }
  ck_assert(seen[0] && seen[1]);
  ck_assert_int_eq(std::memcmp(first, message.data(), 10), 0);
  ck_assert_int_eq(std::memcmp(second, message.data() + 10, 20), 0);
  ck_assert_int_eq(std::memcmp(other, message.data(), 30), 0);
  a.wait(), b.wait();
}

/// fi_msg(3): the flag permits a receive to complete early, which no receive does here.
TEST(a_receive_may_be_for_what_is_transmitted, 2) {
  Root root;
  Port a(root), b(root);
  const fi_addr_t to = a.insert(b);
  const auto message = pattern(_i ? 200'000 : 8);
  std::vector<char> buffer(message.size());
  const iovec iov{buffer.data(), buffer.size()};
  fi_context context;
  fi_msg msg{&iov, nullptr, 1, FI_ADDR_UNSPEC, &context, 0};
  fi_msg_tagged tmsg{&iov, nullptr, 1, FI_ADDR_UNSPEC, 5, 0, &context, 0};
  for (const bool tagged : {false, true}) {
    std::fill(buffer.begin(), buffer.end(), '-');
    constexpr uint64_t kFlags = FI_TRANSMIT_COMPLETE | FI_COMPLETION;
    ck_assert_int_eq(tagged ? fi_trecvmsg(b.ep, &tmsg, kFlags) : fi_recvmsg(b.ep, &msg, kFlags), 0);
    ck_assert_int_eq(tagged
                         ? fi_tsend(a.ep, message.data(), message.size(), nullptr, to, 5, nullptr)
                         : fi_send(a.ep, message.data(), message.size(), nullptr, to, nullptr),
                     0);
    const fi_cq_tagged_entry entry = b.wait(&a);
    ck_assert_ptr_eq(entry.op_context, &context);
    ck_assert_uint_eq(entry.len, message.size());
    ck_assert(buffer == message);
    a.wait(&b);
  }
  uint64_t flags = FI_RECV | FI_TRANSMIT_COMPLETE;
  ck_assert_int_eq(fi_control(&b.ep->fid, FI_SETOPSFLAG, &flags), 0);
  exchange(a, b, to, message.size());
}

TEST(multi_receive_releases_its_buffer_by_min_multi_recv) {
  Root root;
  Port a(root), b(root);
  const fi_addr_t to = a.insert(b);
  size_t least = 0, length = sizeof(least);
  ck_assert_int_eq(fi_getopt(&b.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, &length),
                   0);
  least = 64;
  ck_assert_int_eq(
      fi_setopt(&b.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof(least)), 0);
  char buffer[256];
  const iovec iov{buffer, sizeof(buffer)};
  fi_context context;
  fi_msg msg{&iov, nullptr, 1, FI_ADDR_UNSPEC, &context, 0};
  ck_assert_int_eq(fi_recvmsg(b.ep, &msg, FI_MULTI_RECV), 0);
  for (int i = 0; i < 4; ++i) {
    char word[50];
    std::memset(word, 'a' + i, sizeof(word));
    ck_assert_int_eq(fi_inject(a.ep, word, sizeof(word), to), 0);
    const fi_cq_tagged_entry entry = b.wait(&a);
    ck_assert_uint_eq(entry.len, 50);
    ck_assert_int_eq(*static_cast<char*>(entry.buf), 'a' + i);
    ck_assert_int_eq((entry.flags & FI_MULTI_RECV) != 0, i == 3);
  }
}

TEST(selective_completion_reports_only_what_was_asked_for) {
  Root root;
  Port a(root, FI_WAIT_NONE, FI_SELECTIVE_COMPLETION), b(root);
  const fi_addr_t to = a.insert(b);
  char in[2], out = 'o';
  fi_context context;
  for (char& each : in) fi_recv(b.ep, &each, 1, nullptr, FI_ADDR_UNSPEC, &context);
  const iovec iov{&out, 1};
  fi_msg msg{&iov, nullptr, 1, to, &context, 0};
  ck_assert_int_eq(fi_sendmsg(a.ep, &msg, 0), 0);
  b.wait(&a);
  fi_cq_tagged_entry entry;
  ck_assert_int_eq(fi_cq_read(a.cq, &entry, 1), -FI_EAGAIN);
  ck_assert_int_eq(fi_sendmsg(a.ep, &msg, FI_COMPLETION), 0);
  b.wait(&a);
  a.wait(&b);
}

TEST(peek_claim_and_discard_work_through_the_api) {
  Root root;
  Port a(root), b(root);
  const fi_addr_t to = a.insert(b);
  fi_context context;
  fi_msg_tagged msg{};
  msg.addr = FI_ADDR_UNSPEC;
  msg.tag = 9;
  msg.context = &context;
  ck_assert_int_eq(fi_trecvmsg(b.ep, &msg, FI_PEEK), 0);
  const fi_cq_err_entry miss = b.wait_error();
  ck_assert_int_eq(miss.err, FI_ENOMSG);
  ck_assert_ptr_eq(miss.op_context, &context);
  char out = 'o', in = 0;
  ck_assert_int_eq(fi_tinject(a.ep, &out, 1, to, 9), 0);
  ssize_t rc = 0;
  do {
    ck_assert_int_eq(fi_trecvmsg(b.ep, &msg, FI_PEEK | FI_CLAIM), 0);
    fi_cq_tagged_entry entry;
    rc = fi_cq_read(b.cq, &entry, 1);
    if (rc == -FI_EAVAIL) {
      fi_cq_err_entry error{};
      fi_cq_readerr(b.cq, &error, 0);
    }
    a.progress();
  } while (rc != 1);
  const iovec iov{&in, 1};
  msg.msg_iov = &iov;
  msg.iov_count = 1;
  ck_assert_int_eq(fi_trecvmsg(b.ep, &msg, FI_CLAIM), 0);
  ck_assert_uint_eq(b.wait(&a).len, 1);
  ck_assert_int_eq(in, 'o');
  ck_assert_int_eq(fi_trecvmsg(b.ep, &msg, FI_PEEK | FI_CLAIM | FI_DISCARD), -FI_EINVAL);
}

/// fi_tagged(3), FI_DISCARD: the input buffers and their length are ignored.
TEST(a_peek_or_discard_ignores_the_buffers, 2) {
  Root root;
  Port a(root), b(root);
  const fi_addr_t to = a.insert(b);
  fi_context context;
  const iovec huge[2] = {{nullptr, SIZE_MAX}, {nullptr, SIZE_MAX}};
  fi_msg_tagged msg{huge, nullptr, 2, FI_ADDR_UNSPEC, 9, 0, &context, 0};
  if (_i) {
    msg.msg_iov = nullptr;
    msg.iov_count = SIZE_MAX;
  }
  const auto peek_until_found = [&](uint64_t flags) {
    fi_cq_tagged_entry entry;
    fi_cq_err_entry miss{};
    ck_assert_int_eq(fi_tinject(a.ep, "o", 1, to, 9), 0);
    for (;;) {
      ck_assert_int_eq(fi_trecvmsg(b.ep, &msg, FI_PEEK | flags), 0);
      if (fi_cq_read(b.cq, &entry, 1) == 1) return;
      fi_cq_readerr(b.cq, &miss, 0);
      a.progress();
    }
  };
  peek_until_found(FI_DISCARD);
  peek_until_found(FI_CLAIM);
  ck_assert_int_eq(fi_trecvmsg(b.ep, &msg, FI_CLAIM), _i ? -FI_EINVAL : -FI_EMSGSIZE);
  ck_assert_int_eq(fi_trecvmsg(b.ep, &msg, FI_CLAIM | FI_DISCARD), 0);
  ck_assert_uint_eq(b.wait(&a).len, 1);
}

TEST(cancel_ends_a_receive_with_ecanceled) {
  Root root;
  Port a(root);
  char in;
  fi_context context;
  fi_recv(a.ep, &in, 1, nullptr, FI_ADDR_UNSPEC, &context);
  ck_assert_int_eq(fi_cancel(&a.ep->fid, &context), 0);
  ck_assert_int_eq(a.wait_error().err, FI_ECANCELED);
  ck_assert_int_eq(fi_cancel(&a.ep->fid, &context), -FI_ENOENT);
}

TEST(truncated_message_is_an_error_with_olen, 2) {
  Root root;
  Port a(root), b(root);
  const fi_addr_t to = a.insert(b);
  const auto message = pattern(_i == 0 ? 100 : 100000);
  char in[60];
  fi_context context;
  fi_trecv(b.ep, in, sizeof(in), nullptr, FI_ADDR_UNSPEC, 1, 0, &context);
  while (fi_tsend(a.ep, message.data(), message.size(), nullptr, to, 1, &context) == -FI_EAGAIN)
    a.progress();
  const fi_cq_err_entry error = b.wait_error(&a);
  ck_assert_int_eq(error.err, FI_ETRUNC);
  ck_assert_uint_eq(error.len, 60);
  ck_assert_uint_eq(error.olen, message.size() - 60);
  ck_assert_uint_eq(error.tag, 1);
  a.wait(&b);
}

TEST(peer_on_another_host_is_an_error_completion) {
  Root root;
  Port a(root);
  sockaddr_in other{};
  other.sin_family = AF_INET;
  other.sin_port = htons(4000);
  inet_pton(AF_INET, "192.0.2.1", &other.sin_addr);
  fi_addr_t address;
  ck_assert_int_eq(fi_av_insert(a.av, &other, 1, &address, 0, nullptr), 1);
  char out = 'o';
  fi_context context;
  ck_assert_int_eq(fi_send(a.ep, &out, 1, nullptr, address, &context), 0);
  const fi_cq_err_entry error = a.wait_error();
  ck_assert_int_eq(error.err, FI_EHOSTUNREACH);
  ck_assert_ptr_eq(error.op_context, &context);
}

TEST(absent_peer_is_an_error_completion) {
  setenv("FI_ERDMA_CONNECT_TIMEOUT", "50", 1);
  Root root;
  Port a(root);
  std::vector<char> name = a.name();
  reinterpret_cast<sockaddr_in*>(name.data())->sin_port = htons(1);
  fi_addr_t address;
  ck_assert_int_eq(fi_av_insert(a.av, name.data(), 1, &address, 0, nullptr), 1);
  char out = 'o';
  fi_context context;
  ck_assert_int_eq(fi_send(a.ep, &out, 1, nullptr, address, &context), 0);
  ck_assert_int_eq(a.wait_error().err, FI_ECONNREFUSED);
}

/// An endpoint whose context is `context`, and the address of a peer that does not exist.
struct Lonely {
  explicit Lonely(void* context) {
    setenv("FI_ERDMA_CONNECT_TIMEOUT", "50", 1);
    ck_assert_int_eq(fi_endpoint(root.domain, root.info, &ep, context), 0);
    fi_cntr_attr attr{};
    ck_assert_int_eq(fi_cntr_open(root.domain, &attr, &cntr, nullptr), 0);
    ck_assert_int_eq(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV), 0);
    ck_assert_int_eq(fi_ep_bind(ep, &cntr->fid, FI_SEND), 0);
    ck_assert_int_eq(fi_ep_bind(ep, &av->fid, 0), 0);
    ck_assert_int_eq(fi_enable(ep), 0);
    char name[64];
    size_t length = sizeof name;
    ck_assert_int_eq(fi_getname(&ep->fid, name, &length), 0);
    reinterpret_cast<sockaddr_in*>(name)->sin_port = htons(1);
    ck_assert_int_eq(fi_av_insert(av, name, 1, &nobody, 0, nullptr), 1);
  }
  ~Lonely() {
    for (fid_t fid : {&ep->fid, &cq->fid, &cntr->fid, &av->fid}) ck_assert_int_eq(fi_close(fid), 0);
  }
  /// The result of fi_cq_read() once the operation has failed.
  ssize_t await_failure() {
    fi_cq_tagged_entry entry;
    while (fi_cntr_readerr(cntr) == 0) (void)fi_cq_read(cq, &entry, 1);
    return fi_cq_read(cq, &entry, 1);
  }
  Root root;
  fid_cq* cq = root.open_cq();
  fid_av* av = root.open_av();
  fid_cntr* cntr = nullptr;
  fid_ep* ep = nullptr;
  fi_addr_t nobody = FI_ADDR_UNSPEC;
};

TEST(a_failed_inject_is_reported_with_the_context_of_the_endpoint) {
  int context = 0;
  Lonely lonely(&context);
  ck_assert_int_eq(fi_inject(lonely.ep, "x", 1, lonely.nobody), 0);
  ck_assert_int_eq(lonely.await_failure(), -FI_EAVAIL);
  fi_cq_err_entry error{};
  ck_assert_int_eq(fi_cq_readerr(lonely.cq, &error, 0), 1);
  ck_assert_ptr_eq(error.op_context, &context);
  ck_assert_int_eq(error.err, FI_ECONNREFUSED);
}

TEST(a_failed_inject_without_any_context_only_counts) {
  Lonely lonely(nullptr);
  ck_assert_int_eq(fi_tinject(lonely.ep, "x", 1, lonely.nobody, 7), 0);
  ck_assert_int_eq(lonely.await_failure(), -FI_EAGAIN);
  ck_assert_uint_eq(fi_cntr_readerr(lonely.cntr), 1);
}

TEST(addresses_of_both_families_name_endpoints, 2) {
  Ask ask;
  ask.addr_format = _i == 0 ? FI_SOCKADDR_IN : FI_SOCKADDR_IN6;
  Root root(ask);
  Port a(root), b(root);
  ck_assert_uint_eq(a.name().size(), _i == 0 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
  exchange(a, b, a.insert(b), 1000);
}

TEST(loopback_address_reaches_the_endpoint_with_that_port) {
  Root root;
  Port a(root), b(root);
  std::vector<char> name = b.name();
  inet_pton(AF_INET, "127.0.0.1", &reinterpret_cast<sockaddr_in*>(name.data())->sin_addr);
  fi_addr_t to;
  ck_assert_int_eq(fi_av_insert(a.av, name.data(), 1, &to, 0, nullptr), 1);
  exchange(a, b, to, 1000);
}

TEST(a_changed_source_address_is_refused) {
  Root root;
  fid_ep* ep = nullptr;
  fi_info* info = fi_dupinfo(root.info);
  auto* address = static_cast<sockaddr_in*>(info->src_addr);
  address->sin_addr.s_addr = htonl(0xC0000201);  // 192.0.2.1 is never assigned
  ck_assert_int_eq(fi_endpoint(root.domain, info, &ep, nullptr), -FI_EADDRNOTAVAIL);
  address->sin_family = AF_UNIX;
  ck_assert_int_eq(fi_endpoint(root.domain, info, &ep, nullptr), -FI_EINVAL);
  address->sin_family = AF_INET;
  address->sin_addr.s_addr = htonl(INADDR_ANY);
  ck_assert_int_eq(fi_endpoint(root.domain, info, &ep, nullptr), 0);
  ck_assert_int_eq(fi_close(&ep->fid), 0);
  info->src_addrlen = 3;
  ck_assert_int_eq(fi_endpoint(root.domain, info, &ep, nullptr), -FI_EINVAL);
  fi_freeinfo(info);
}

TEST(operation_flags_that_do_not_exist_are_refused) {
  Root root;
  Port a(root);
  uint64_t flags = FI_TRANSMIT | FI_COMPLETION | FI_INJECT;
  ck_assert_int_eq(fi_control(&a.ep->fid, FI_SETOPSFLAG, &flags), 0);
  for (const uint64_t wrong : {FI_TRANSMIT | FI_MULTI_RECV, FI_RECV | FI_INJECT,
                               FI_TRANSMIT | FI_REMOTE_CQ_DATA, FI_RECV | uint64_t(1) << 63}) {
    flags = wrong;
    ck_assert_int_eq(fi_control(&a.ep->fid, FI_SETOPSFLAG, &flags), -FI_EBADFLAGS);
  }
  flags = FI_TRANSMIT;
  ck_assert_int_eq(fi_control(&a.ep->fid, FI_GETOPSFLAG, &flags), 0);
  ck_assert_uint_eq(flags, FI_COMPLETION | FI_INJECT);
}

/// fi_endpoint(3): fi_control modifies the flags of an alias. They are not those of its endpoint.
TEST(operation_flags_of_an_alias_can_be_set) {
  Root root;
  Port a(root), b(root);
  const fi_addr_t to = a.insert(b);
  fid_ep* alias = nullptr;
  ck_assert_int_eq(fi_ep_alias(a.ep, &alias, FI_TRANSMIT | FI_COMPLETION), 0);
  const auto get = [](fid_ep* ep, uint64_t direction) {
    uint64_t flags = direction;
    ck_assert_int_eq(fi_control(&ep->fid, FI_GETOPSFLAG, &flags), 0);
    return flags;
  };
  const auto set = [](fid_ep* ep, uint64_t flags) {
    return fi_control(&ep->fid, FI_SETOPSFLAG, &flags);
  };
  ck_assert_uint_eq(get(alias, FI_TRANSMIT), FI_COMPLETION);
  ck_assert_uint_eq(get(alias, FI_RECV), 0);
  std::vector<char> bytes(5000);
  ck_assert_int_eq(set(alias, FI_TRANSMIT | FI_INJECT), 0);
  ck_assert_uint_eq(get(alias, FI_TRANSMIT), FI_INJECT);
  ck_assert_uint_eq(get(a.ep, FI_TRANSMIT), 0);
  ck_assert_int_eq(fi_send(alias, bytes.data(), 5000, nullptr, to, nullptr), -FI_EMSGSIZE);
  ck_assert_int_eq(set(a.ep, FI_TRANSMIT | FI_DELIVERY_COMPLETE), 0);
  ck_assert_uint_eq(get(alias, FI_TRANSMIT), FI_INJECT);

  ck_assert_int_eq(set(alias, FI_TRANSMIT | FI_TRIGGER), 0);
  ck_assert_int_eq(fi_inject(alias, bytes.data(), 8, to), -FI_EOPNOTSUPP);
  ck_assert_int_eq(set(alias, FI_TRANSMIT), 0);
  ck_assert_int_eq(fi_inject(alias, bytes.data(), 8, to), 0);
  ck_assert_int_eq(set(alias, FI_RECV | FI_MULTI_RECV), 0);
  ck_assert_uint_eq(get(alias, FI_RECV), FI_MULTI_RECV);
  ck_assert_uint_eq(get(alias, FI_TRANSMIT), 0);

  for (const uint64_t wrong :
       {FI_TRANSMIT | FI_MULTI_RECV, FI_RECV | FI_INJECT, FI_TRANSMIT | FI_REMOTE_CQ_DATA})
    ck_assert_int_eq(set(alias, wrong), -FI_EBADFLAGS);
  for (const uint64_t no_direction : {0ull, FI_TRANSMIT | FI_RECV})
    ck_assert_int_eq(set(alias, no_direction), -FI_EINVAL);
  for (const int command : {FI_GETOPSFLAG, FI_SETOPSFLAG})
    ck_assert_int_eq(fi_control(&alias->fid, command, nullptr), -FI_EINVAL);
  ck_assert_uint_eq(get(alias, FI_RECV), FI_MULTI_RECV);
  ck_assert_int_eq(fi_control(&alias->fid, FI_ENABLE, nullptr), -FI_ENOSYS);
  ck_assert_int_eq(fi_close(&alias->fid), 0);
}

/// The endpoint's queue has selective completion, which is known to the alias once it is enabled.
TEST(operation_flags_of_an_alias_can_be_set_before_it_is_enabled) {
  Root root;
  Port a(root), b(root);
  fid_ep *ep = nullptr, *alias = nullptr;
  ck_assert_int_eq(fi_endpoint(root.domain, root.info, &ep, nullptr), 0);
  ck_assert_int_eq(fi_ep_alias(ep, &alias, FI_TRANSMIT), 0);
  uint64_t flags = FI_TRANSMIT | FI_COMPLETION;
  ck_assert_int_eq(fi_control(&alias->fid, FI_SETOPSFLAG, &flags), 0);
  const uint64_t directions = FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION;
  ck_assert_int_eq(fi_ep_bind(ep, &a.cq->fid, directions), 0);
  ck_assert_int_eq(fi_ep_bind(ep, &a.av->fid, 0), 0);
  ck_assert_int_eq(fi_enable(ep), 0);
  const fi_addr_t to = a.insert(b);
  char bytes[8] = {};
  fi_context silent, reported;
  for (fi_context* const context : {&silent, &reported}) {
    ck_assert_int_eq(fi_recv(b.ep, bytes, 8, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
    fid_ep* const by = context == &silent ? ep : alias;
    ck_assert_int_eq(fi_send(by, bytes, 8, nullptr, to, context), 0);
    b.wait(&a);
  }
  ck_assert_ptr_eq(a.wait(&b).op_context, &reported);
  ck_assert_int_eq(fi_close(&alias->fid), 0);
  ck_assert_int_eq(fi_close(&ep->fid), 0);
}

TEST(a_source_is_called_what_the_user_calls_it) {
  Root root;
  Port a(root), b(root);
  const fi_addr_t to = a.insert(b);
  constexpr fi_addr_t kName = 0x123456789abc;
  char bytes[8] = {};
  for (const bool known : {false, true}) {
    fi_addr_t source = kName;
    if (known)
      ck_assert_int_eq(fi_av_insert(b.av, a.name().data(), 1, &source, FI_AV_USER_ID, nullptr), 1);
    const fi_addr_t from = known ? source : FI_ADDR_UNSPEC;
    ck_assert_int_eq(fi_recv(b.ep, bytes, 8, nullptr, from, nullptr), 0);
    ck_assert_int_eq(fi_inject(a.ep, bytes, 8, to), 0);
    fi_cq_tagged_entry entry;
    fi_addr_t reported = 0;
    while (fi_cq_readfrom(b.cq, &entry, 1, &reported) == -FI_EAGAIN) a.progress();
    ck_assert_uint_eq(reported, known ? kName : FI_ADDR_NOTAVAIL);
  }
}

}  // namespace
