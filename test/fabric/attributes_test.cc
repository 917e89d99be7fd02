// The sizes and limits that fi_getinfo(3) reports are true: each limit can be used completely, and
// one more is refused. On shared memory and on the simulated adapter. docs/attributes.md lists the
// test of each attribute.
#include <sys/resource.h>

#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "fabric/info_offer.h"
#include "fabric/one_sided_rig.h"
#include "transport/simulated_device.h"

namespace {

using namespace erdma::test;

void set_up() {
  if (!g_on_devices) return;
  g_device = "erdma_0";
  setenv("FI_ERDMA_SHM", "off", 1);
}

/// Raises the limit of descriptors, so that memory is the only limit.
void lift_descriptor_limit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// --- tx_attr, rx_attr, ep_attr -------------------------------------------------------------------

SUITE(.run = here_and_on_devices);

TEST_CASE(.set_up = set_up);

TEST(inject_size_bytes_are_taken_at_once_and_no_more) {
  OneSidedPorts ports;
  const size_t size = ports.root.info->tx_attr->inject_size;
  ck_assert_uint_eq(ports.root.info->tx_attr->inject_size, 4096);
  auto message = pattern(size + 1);
  const auto expected = message;
  std::vector<char> in(2 * size);
  fid_ep* const ep = ports.a.ep;
  const iovec iov{message.data(), size}, longer{message.data(), size + 1};
  const fi_msg msg{&iov, nullptr, 1, ports.address, nullptr, 0};
  const fi_msg too_long{&longer, nullptr, 1, ports.address, nullptr, 0};
  const uint64_t key = ports.region.key();
  ck_assert_int_eq(fi_inject(ep, message.data(), size + 1, ports.address), -FI_EMSGSIZE);
  ck_assert_int_eq(fi_tinject(ep, message.data(), size + 1, ports.address, 1), -FI_EMSGSIZE);
  ck_assert_int_eq(fi_sendmsg(ep, &too_long, FI_INJECT), -FI_EMSGSIZE);
  ck_assert_int_eq(fi_inject_write(ep, message.data(), size + 1, ports.address, ports.at(0), key),
                   -FI_EMSGSIZE);
  for (size_t i = 0; i < 2; ++i) {
    char* const part = in.data() + size * i;
    ck_assert_int_eq(fi_recv(ports.b.ep, part, size, nullptr, FI_ADDR_UNSPEC, part), 0);
  }
  const auto spoil = [&] { std::fill(message.begin(), message.end(), 'x'); };
  const auto restore = [&] { message = expected; };
  post(ports, [&] { return fi_inject(ep, message.data(), size, ports.address); });
  spoil(), restore();
  post(ports, [&] { return fi_sendmsg(ep, &msg, FI_INJECT); });
  spoil(), restore();
  post(ports,
       [&] { return fi_inject_write(ep, message.data(), size, ports.address, ports.at(0), key); });
  spoil();
  ports.expect(FI_SEND | FI_MSG, nullptr);  // completion of fi_sendmsg()
  // In either order: at first a packet of a NIC is too short for such a message, but it grows.
  for (size_t i = 0; i < 2; ++i) {
    const fi_cq_tagged_entry received = ports.b.wait(&ports.a);
    ck_assert_uint_eq(received.len, size);
    ck_assert_int_eq(std::memcmp(received.op_context, expected.data(), size), 0);
  }
  while (std::memcmp(ports.memory.data(), expected.data(), size) != 0) {
    ports.a.progress();
    ports.b.progress();
  }
}

TEST(max_msg_size_is_what_a_size_can_be_and_more_is_refused) {
  OneSidedPorts ports;
  const size_t most = ports.root.info->ep_attr->max_msg_size;
  ck_assert_uint_eq(most, SSIZE_MAX);
  char byte;
  ck_assert_int_eq(fi_send(ports.a.ep, &byte, most + 1, nullptr, ports.address, nullptr),
                   -FI_EMSGSIZE);
  ck_assert_int_eq(fi_tsend(ports.a.ep, &byte, most + 1, nullptr, ports.address, 1, nullptr),
                   -FI_EMSGSIZE);
  ck_assert_int_eq(fi_recv(ports.b.ep, &byte, most + 1, nullptr, FI_ADDR_UNSPEC, nullptr),
                   -FI_EMSGSIZE);
  ck_assert_int_eq(fi_write(ports.a.ep, &byte, most + 1, nullptr, ports.address, ports.at(0),
                            ports.region.key(), nullptr),
                   -FI_EMSGSIZE);
}

/// A buffer of the largest message size is posted, and cancelled.
TEST(a_receive_has_room_for_max_msg_size) {
  OneSidedPorts ports;
  char byte;
  const size_t most = ports.root.info->ep_attr->max_msg_size;
  const iovec whole{&byte, most}, more[] = {{&byte, most}, {&byte, 1}};
  fid_ep* const ep = ports.b.ep;
  ck_assert_int_eq(fi_recv(ep, &byte, most, nullptr, FI_ADDR_UNSPEC, &byte), 0);
  ck_assert_int_eq(fi_cancel(&ep->fid, &byte), 0);
  ck_assert_int_eq(fi_recvv(ep, &whole, nullptr, 1, FI_ADDR_UNSPEC, &byte), 0);
  ck_assert_int_eq(fi_cancel(&ep->fid, &byte), 0);
  ck_assert_int_eq(fi_recvv(ep, more, nullptr, 2, FI_ADDR_UNSPEC, &byte), -FI_EMSGSIZE);
  for (int i = 0; i < 2; ++i) ck_assert_int_eq(ports.b.wait_error().err, FI_ECANCELED);
}

TEST(iov_limits_are_reached_and_not_passed) {
  OneSidedPorts ports;
  const fi_info& info = *ports.root.info;
  const size_t limit = info.tx_attr->iov_limit;
  ck_assert_uint_eq(info.rx_attr->iov_limit, limit);
  ck_assert_uint_eq(info.tx_attr->rma_iov_limit, limit);
  ck_assert_uint_eq(info.domain_attr->mr_iov_limit, limit);
  auto message = pattern(10 * (limit + 1));
  std::vector<char> in(message.size());
  std::vector<iovec> from, to;
  std::vector<fi_rma_iov> remote;
  for (size_t i = 0; i <= limit; ++i) {
    from.push_back({message.data() + 10 * i, 10});
    to.push_back({in.data() + 10 * i, 10});
    remote.push_back({ports.at(100 * i), 10, ports.region.key()});
  }
  fid_ep* const ep = ports.a.ep;
  ck_assert_int_eq(fi_sendv(ep, from.data(), nullptr, limit + 1, ports.address, nullptr),
                   -FI_EINVAL);
  ck_assert_int_eq(fi_recvv(ports.b.ep, to.data(), nullptr, limit + 1, FI_ADDR_UNSPEC, nullptr),
                   -FI_EINVAL);
  ck_assert_int_eq(fi_recvv(ports.b.ep, to.data(), nullptr, limit, FI_ADDR_UNSPEC, nullptr), 0);
  post(ports, [&] { return fi_sendv(ep, from.data(), nullptr, limit, ports.address, nullptr); });
  ck_assert_uint_eq(ports.b.wait(&ports.a).len, 10 * limit);
  ck_assert_int_eq(std::memcmp(in.data(), message.data(), 10 * limit), 0);
  ports.expect(FI_SEND | FI_MSG, nullptr);
  fi_msg_rma rma{from.data(), nullptr, limit, ports.address, remote.data(), limit + 1, nullptr, 0};
  ck_assert_int_eq(fi_writemsg(ep, &rma, 0), -FI_EINVAL);
  rma.rma_iov_count = limit;
  post(ports, [&] { return fi_writemsg(ep, &rma, FI_DELIVERY_COMPLETE); });
  ports.expect(FI_WRITE | FI_RMA, nullptr);
  for (size_t i = 0; i < limit; ++i)
    ck_assert_int_eq(std::memcmp(ports.memory.data() + 100 * i, message.data() + 10 * i, 10), 0);
  fid_mr* mr = nullptr;
  ck_assert_int_eq(
      fi_mr_regv(ports.root.domain, to.data(), limit + 1, kRemote, 0, 0, 0, &mr, nullptr),
      -FI_EINVAL);
  ck_assert_int_eq(fi_mr_regv(ports.root.domain, to.data(), limit, kRemote, 0, 0, 0, &mr, nullptr),
                   0);
  ck_assert_int_eq(fi_close(&mr->fid), 0);
}

/// The peer makes no progress meanwhile. The provider must not refuse an operation for that reason.
TEST(as_many_operations_as_size_says_can_be_under_way) {
  OneSidedPorts ports;
  const size_t sends = ports.root.info->tx_attr->size, receives = ports.other.info->rx_attr->size;
  ck_assert_uint_ge(sends, 256);
  std::vector<uint64_t> out(sends), in(receives);
  for (size_t i = 0; i < receives; ++i)
    ck_assert_int_eq(fi_trecv(ports.b.ep, &in[i], 8, nullptr, FI_ADDR_UNSPEC, i, 0, &in[i]), 0);
  for (size_t i = 0; i < sends; ++i) {
    out[i] = i;
    ck_assert_int_eq(fi_tsend(ports.a.ep, &out[i], 8, nullptr, ports.address, i, &out[i]), 0);
  }
  for (size_t i = 0; i < std::min(sends, receives); ++i) ports.b.wait(&ports.a);
  for (size_t i = 0; i < sends; ++i) ports.a.wait(&ports.b);
  for (size_t i = 0; i < std::min(sends, receives); ++i) ck_assert_uint_eq(in[i], i);
}

TEST(every_bit_of_a_tag_counts_and_can_be_ignored) {
  OneSidedPorts ports;
  ck_assert_uint_eq(ports.root.info->ep_attr->mem_tag_format, 0xAAAA'AAAA'AAAA'AAAA);
  char any[2];
  for (int bit = 0; bit < 64; ++bit) {
    const uint64_t tag = uint64_t{1} << bit;
    fid_ep* const b = ports.b.ep;
    ck_assert_int_eq(fi_trecv(b, nullptr, 0, nullptr, FI_ADDR_UNSPEC, 0, 0, &any[0]), 0);
    ck_assert_int_eq(fi_trecv(b, nullptr, 0, nullptr, FI_ADDR_UNSPEC, 0, tag, &any[1]), 0);
    post(ports, [&] { return fi_tinject(ports.a.ep, nullptr, 0, ports.address, tag); });
    const fi_cq_tagged_entry entry = ports.b.wait(&ports.a);
    ck_assert_ptr_eq(entry.op_context, &any[1]);
    ck_assert_uint_eq(entry.tag, tag);
    post(ports, [&] { return fi_tinject(ports.a.ep, nullptr, 0, ports.address, 0); });
    ck_assert_ptr_eq(ports.b.wait(&ports.a).op_context, &any[0]);
  }
}

TEST(remote_data_has_cq_data_size_bytes) {
  OneSidedPorts ports;
  ck_assert_uint_eq(ports.root.info->domain_attr->cq_data_size, 8);
  const uint64_t data = 0xFEDC'BA98'7654'3210;
  char byte = 1;
  ck_assert_int_eq(fi_recv(ports.b.ep, nullptr, 0, nullptr, FI_ADDR_UNSPEC, nullptr), 0);
  post(ports, [&] { return fi_injectdata(ports.a.ep, nullptr, 0, data, ports.address); });
  ck_assert_uint_eq(ports.b.wait(&ports.a).data, data);
  post(ports, [&] {
    return fi_inject_writedata(ports.a.ep, &byte, 1, ~data, ports.address, ports.at(0),
                               ports.region.key());
  });
  const fi_cq_tagged_entry entry = ports.b.wait(&ports.a);
  ck_assert_uint_eq(entry.data, ~data);
  ck_assert_uint_eq(entry.flags & FI_REMOTE_CQ_DATA, FI_REMOTE_CQ_DATA);
}

// --- mode, mr_mode, mr_key_size ------------------------------------------------------------------

/// Contexts are arbitrary numbers, and buffers are not registered.
TEST(no_mode_asks_anything_of_contexts_or_local_memory) {
  OneSidedPorts ports;
  const fi_info& info = *ports.root.info;
  ck_assert_uint_eq(info.mode | info.tx_attr->mode | info.rx_attr->mode | info.domain_attr->mode,
                    0);
  ck_assert_int_eq(info.domain_attr->mr_mode & FI_MR_LOCAL, 0);
  void* const number = reinterpret_cast<void*>(uintptr_t{3});
  auto bytes = pattern(100'000);
  post(ports, [&] {
    return fi_read(ports.a.ep, bytes.data(), bytes.size(), nullptr, ports.address, ports.at(1000),
                   ports.region.key(), number);
  });
  ports.expect(FI_READ | FI_RMA, number);
  ck_assert_int_eq(std::memcmp(bytes.data(), ports.memory.data() + 1000, bytes.size()), 0);
  ck_assert_int_eq(fi_recv(ports.b.ep, bytes.data(), 8, nullptr, FI_ADDR_UNSPEC, number), 0);
  post(ports, [&] { return fi_send(ports.a.ep, "message", 8, nullptr, ports.address, number); });
  ck_assert_ptr_eq(ports.b.wait(&ports.a).op_context, number);
  ports.expect(FI_SEND | FI_MSG, number);
}

TEST_CASE(.set_up = set_up, .offered = not_on_devices);

TEST(keys_fill_mr_key_size_bytes) {
  Root root(one_sided_ask());
  ck_assert_uint_eq(root.info->domain_attr->mr_key_size, 8);
  char bytes[64];
  uint64_t all = 0;
  for (int i = 0; i < 64; ++i) {
    const Region region(root, bytes, sizeof(bytes));
    ck_assert_uint_ne(region.key(), FI_KEY_NOTAVAIL);
    all |= region.key();
  }
  ck_assert_uint_ne(all >> 56, 0);
}

// --- domain_attr: how many of each ---------------------------------------------------------------

template <typename Open>
void open_all(size_t count, Open open) {
  std::vector<fid_t> objects(count);
  for (size_t i = 0; i < count; ++i) {
    objects[i] = open(i);
    ck_assert_msg(objects[i], "object %zu of %zu", i + 1, count);
  }
  for (fid_t object : objects) ck_assert_int_eq(fi_close(object), 0);
}

TEST(as_many_queues_counters_and_regions_as_promised_can_be_open) {
  Root root(one_sided_ask());
  const fi_domain_attr& attr = *root.info->domain_attr;
  fi_cq_attr small{};
  small.size = 1;
  open_all(attr.cq_cnt, [&](size_t) { return &root.open_cq(small)->fid; });
  open_all(attr.cntr_cnt, [&](size_t) -> fid_t {
    fid_cntr* cntr = nullptr;
    return fi_cntr_open(root.domain, nullptr, &cntr, nullptr) ? nullptr : &cntr->fid;
  });
  char byte;
  open_all(attr.mr_cnt, [&](size_t) -> fid_t {
    fid_mr* mr = nullptr;
    const int rc = fi_mr_reg(root.domain, &byte, 1, FI_REMOTE_READ, 0, 0, 0, &mr, nullptr);
    return rc ? nullptr : &mr->fid;
  });
}

/// All endpoints are enabled, on one shared receive context.
TEST(as_many_endpoints_as_promised_can_be_enabled) {
  lift_descriptor_limit();
  Root root;
  const fi_domain_attr& attr = *root.info->domain_attr;
  ck_assert_uint_eq(attr.max_ep_srx_ctx, attr.ep_cnt);
  ck_assert_uint_eq(attr.tx_ctx_cnt, attr.ep_cnt);
  ck_assert_uint_eq(attr.rx_ctx_cnt, attr.ep_cnt);
  fid_ep* srx = nullptr;
  ck_assert_int_eq(fi_srx_context(root.domain, root.info->rx_attr, &srx, nullptr), 0);
  fid_cq* const cq = root.open_cq();
  fid_av* const av = root.open_av();
  root.info->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
  open_all(attr.ep_cnt, [&](size_t) -> fid_t {
    fid_ep* ep = nullptr;
    ck_assert_int_eq(fi_endpoint(root.domain, root.info, &ep, nullptr), 0);
    ck_assert_int_eq(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV), 0);
    ck_assert_int_eq(fi_ep_bind(ep, &av->fid, 0), 0);
    ck_assert_int_eq(fi_ep_bind(ep, &srx->fid, 0), 0);
    return fi_enable(ep) ? nullptr : &ep->fid;
  });
  for (fid_t object : {&srx->fid, &cq->fid, &av->fid}) ck_assert_int_eq(fi_close(object), 0);
}

TEST(a_counter_counts_up_to_the_largest_number) {
  Root root;
  fid_cntr* cntr = nullptr;
  ck_assert_int_eq(fi_cntr_open(root.domain, nullptr, &cntr, nullptr), 0);
  ck_assert_int_eq(fi_cntr_set(cntr, UINT64_MAX - 1), 0);
  ck_assert_int_eq(fi_cntr_add(cntr, 1), 0);
  ck_assert_uint_eq(fi_cntr_read(cntr), UINT64_MAX);
  ck_assert_int_eq(fi_cntr_seterr(cntr, UINT64_MAX), 0);
  ck_assert_uint_eq(fi_cntr_readerr(cntr), UINT64_MAX);
  ck_assert_int_eq(fi_close(&cntr->fid), 0);
  [](const auto& attr) {  // of newer headers
    if constexpr (requires { attr.max_cntr_value; }) {
      ck_assert_uint_eq(attr.max_cntr_value, UINT64_MAX);
      ck_assert_uint_eq(attr.max_err_cntr_value, UINT64_MAX);
    }
  }(*root.info->domain_attr);
}

TEST_CASE(.set_up = set_up);

TEST(nothing_is_advertised_that_there_is_not) {
  Root root;
  const fi_info& info = *root.info;
  ck_assert_uint_eq(info.domain_attr->max_ep_tx_ctx, 1);
  ck_assert_uint_eq(info.domain_attr->max_ep_rx_ctx, 1);
  ck_assert_uint_eq(info.domain_attr->max_ep_stx_ctx, 0);
  ck_assert_uint_eq(info.domain_attr->max_err_data, 0);
  ck_assert_uint_eq(info.domain_attr->tclass, 0);
  ck_assert_uint_eq(info.tx_attr->tclass, 0);
  ck_assert_uint_eq(info.tx_attr->comp_order, 0);
  ck_assert_uint_eq(info.rx_attr->comp_order, 0);
  ck_assert_uint_eq(info.ep_attr->msg_prefix_size, 0);
  ck_assert_int_eq(info.domain_attr->resource_mgmt, FI_RM_ENABLED);
  fid_ep* ep = nullptr;
  fid_stx* stx = nullptr;
  ck_assert_int_eq(fi_scalable_ep(root.domain, root.info, &ep, nullptr), -FI_ENOSYS);
  ck_assert_int_eq(fi_stx_context(root.domain, nullptr, &stx, nullptr), -FI_ENOSYS);
}

TEST_CASE(.set_up = set_up, .offered = not_on_devices);

TEST(both_types_of_address_vector_can_be_opened) {
  for (const fi_av_type type : {FI_AV_MAP, FI_AV_TABLE}) {
    Ask ask;
    ask.av_type = type;
    ask.addr_format = FI_SOCKADDR_IN;
    Root root(ask);
    ck_assert_int_eq(root.info->domain_attr->av_type, type);
    fi_av_attr attr{};
    attr.type = type;
    fid_av* av = nullptr;
    ck_assert_int_eq(fi_av_open(root.domain, &attr, &av, nullptr), 0);
    for (fi_addr_t i = 0; i < 3; ++i) {
      fi_addr_t address = FI_ADDR_NOTAVAIL;
      sockaddr_in peer{};
      peer.sin_family = AF_INET;
      peer.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      peer.sin_port = htons(uint16_t(5000 + i));
      ck_assert_int_eq(fi_av_insert(av, &peer, 1, &address, 0, nullptr), 1);
      if (type == FI_AV_TABLE) ck_assert_uint_eq(address, i);
    }
    ck_assert_int_eq(fi_close(&av->fid), 0);
  }
}

}  // namespace
