#pragma once

#include <arpa/inet.h>
#include <poll.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include "libcheck.h"

extern "C" int softerdma_control(const char* line);
extern "C" uint64_t softerdma_violations();

/// A test exits after its last assertion without freeing its objects, which are no leaks.
extern "C" inline __attribute__((used, visibility("default"))) const char*
__asan_default_options() {
  return "detect_leaks=0";
}

/// Helpers for tests of the adapter: two devices in one process, with a queue pair each.
namespace softerdma::test {

inline constexpr unsigned kAll = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                 IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
inline constexpr const char* kIp[2] = {"10.8.0.1", "10.8.1.1"};

/// Call this before any other function. Each test is a process of its own.
inline void start(const char* personality) {
  const std::string folder = erdma::test::temporary_path("softerdma-test");
  setenv("SOFTERDMA_DIR", folder.c_str(), 0);  // a child joins its parent
  setenv("SOFTERDMA_PERSONALITY", personality, 1);
  setenv("SOFTERDMA_DEVICES", "erdma_0,ip=10.8.0.1;erdma_1,ip=10.8.1.1", 1);
  setenv("SOFTERDMA_ATOMICS", "1", 1);
  setenv("SOFTERDMA_RETRY_MS", "30", 1);
}

struct Side {
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_cq* cq = nullptr;
  ibv_qp* qp = nullptr;
  std::vector<char> memory = std::vector<char>(1 << 18);
  ibv_mr* mr = nullptr;
  rdma_cm_id* id = nullptr;

  char* data() { return memory.data(); }

  void make_queues(uint32_t send_wr = 16) {
    pd = ibv_alloc_pd(context);
    channel = ibv_create_comp_channel(context);
    cq = ibv_create_cq(context, 64, nullptr, channel, 0);
    mr = (ibv_reg_mr)(pd, data(), memory.size(), static_cast<int>(kAll));
    ck_assert(pd != nullptr && channel != nullptr && cq != nullptr && mr != nullptr);
    init.send_cq = init.recv_cq = cq;
    init.cap = {send_wr, 16, 6, 1, 96};
    init.qp_type = IBV_QPT_RC;
  }

  int receive(uint32_t length, uint64_t wr_id = 1) {
    ibv_sge sge{reinterpret_cast<uint64_t>(data()), length, mr->lkey};
    ibv_recv_wr wr{};
    wr.wr_id = wr_id;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    return ibv_post_recv(qp, &wr, &bad);
  }

  ibv_send_wr request(ibv_wr_opcode opcode, ibv_sge* sge, const Side& peer) const {
    ibv_send_wr wr{};
    wr.wr_id = 7;
    wr.sg_list = sge;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = reinterpret_cast<uint64_t>(peer.memory.data());
    wr.wr.rdma.rkey = peer.mr->rkey;
    return wr;
  }
  ibv_sge piece(uint32_t length, size_t offset = 0) {
    return {reinterpret_cast<uint64_t>(data()) + offset, length, mr->lkey};
  }
  int post(ibv_send_wr wr) {
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(qp, &wr, &bad);
  }
  int send(uint32_t length, const Side& peer, unsigned flags = IBV_SEND_SIGNALED) {
    ibv_sge sge = piece(length);
    ibv_send_wr wr = request(IBV_WR_SEND, &sge, peer);
    wr.send_flags = flags;
    return post(wr);
  }
  /// Waits for the next completion, until the test's time limit.
  ibv_wc wait() {
    ibv_wc wc{};
    while (ibv_poll_cq(cq, 1, &wc) == 0) sched_yield();
    return wc;
  }
  bool quiet() {
    ibv_wc wc{};
    return ibv_poll_cq(cq, 1, &wc) == 0;
  }

  ibv_qp_init_attr init{};
};

inline void open_devices(Side (&sides)[2]) {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  ck_assert_int_eq(count, 2);
  for (int i = 0; i < 2; ++i) sides[i].context = ibv_open_device(list[i]);
  ibv_free_device_list(list);
}

inline void modify(Side& side, ibv_qp_state state, const Side& peer) {
  ibv_qp_attr attr{};
  attr.qp_state = state;
  attr.port_num = 1;
  attr.dest_qp_num = peer.qp->qp_num;
  ibv_gid_entry entries[16];
  ssize_t count = ibv_query_gid_table(peer.context, entries, 16, 0);
  ck_assert_int_ge(static_cast<int>(count), 2);
  attr.ah_attr.grh.dgid = entries[count - 1].gid;
  count = ibv_query_gid_table(side.context, entries, 16, 0);
  attr.ah_attr.grh.sgid_index = static_cast<uint8_t>(entries[count - 1].gid_index);
  attr.ah_attr.is_global = 1;
  int mask = IBV_QP_STATE | (state == IBV_QPS_RTR ? IBV_QP_AV | IBV_QP_DEST_QPN : 0);
  ck_assert_int_eq(ibv_modify_qp(side.qp, &attr, mask), 0);
}

/// Two queue pairs of this process in compat mode, connected by hand.
inline void connect_compat(Side (&sides)[2], uint32_t send_wr = 16) {
  start("compat");
  open_devices(sides);
  for (Side& side : sides) {
    side.make_queues(send_wr);
    side.qp = ibv_create_qp(side.pd, &side.init);
    ck_assert_ptr_nonnull(side.qp);
  }
  for (ibv_qp_state state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) {
    modify(sides[0], state, sides[1]);
    modify(sides[1], state, sides[0]);
  }
}

inline sockaddr_in address(const char* ip, uint16_t port) {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(port);
  inet_pton(AF_INET, ip, &a.sin_addr);
  return a;
}

struct Event {
  rdma_cm_event_type type;
  int status;
  rdma_cm_id* id;
  std::string data;
};
inline Event next_event(rdma_event_channel* channel) {
  rdma_cm_event* event = nullptr;
  ck_assert_int_eq(rdma_get_cm_event(channel, &event), 0);
  rdma_conn_param& conn = event->param.conn;
  Event copy{event->event, event->status, event->id, {}};
  if (conn.private_data != nullptr) {
    copy.data.assign(static_cast<const char*>(conn.private_data), conn.private_data_len);
  }
  rdma_ack_cm_event(event);
  return copy;
}

/// A connection in standard mode. Side 0 connects, side 1 listens.
struct Connection {
  Side sides[2];
  rdma_event_channel* channels[2] = {};
  rdma_cm_id* listener = nullptr;

  void listen(int backlog = 4) {
    start("standard");
    for (auto& channel : channels) channel = rdma_create_event_channel();
    ck_assert_int_eq(rdma_create_id(channels[1], &listener, nullptr, RDMA_PS_TCP), 0);
    sockaddr_in here = address(kIp[1], 7471);
    ck_assert_int_eq(rdma_bind_addr(listener, reinterpret_cast<sockaddr*>(&here)), 0);
    ck_assert_int_eq(rdma_listen(listener, backlog), 0);
  }
  void call(uint16_t port = 7471, const char* ip = kIp[1], const char* own = kIp[0]) {
    prepare(port, ip, own);
    rdma_conn_param param{};
    param.private_data = "hello";
    param.private_data_len = 5;
    ck_assert_int_eq(rdma_connect(sides[0].id, &param), 0);
  }
  /// Prepares everything up to rdma_connect().
  void prepare(uint16_t port = 7471, const char* ip = kIp[1], const char* own = kIp[0]) {
    Side& side = sides[0];
    ck_assert_int_eq(rdma_create_id(channels[0], &side.id, nullptr, RDMA_PS_TCP), 0);
    sockaddr_in from = address(own, 0);
    sockaddr_in to = address(ip, port);
    ck_assert_int_eq(rdma_resolve_addr(side.id, reinterpret_cast<sockaddr*>(&from),
                                       reinterpret_cast<sockaddr*>(&to), 1000),
                     0);
    ck_assert_int_eq(next_event(channels[0]).type, RDMA_CM_EVENT_ADDR_RESOLVED);
    ck_assert_int_eq(rdma_resolve_route(side.id, 1000), 0);
    ck_assert_int_eq(next_event(channels[0]).type, RDMA_CM_EVENT_ROUTE_RESOLVED);
    make(side);
  }
  void accept() {
    Event event = next_event(channels[1]);
    ck_assert_int_eq(event.type, RDMA_CM_EVENT_CONNECT_REQUEST);
    ck_assert_str_eq(event.data.c_str(), "hello");
    sides[1].id = event.id;
    make(sides[1]);
    ck_assert_int_eq(rdma_accept(sides[1].id, nullptr), 0);
    ck_assert_int_eq(next_event(channels[1]).type, RDMA_CM_EVENT_ESTABLISHED);
    ck_assert_int_eq(next_event(channels[0]).type, RDMA_CM_EVENT_ESTABLISHED);
  }
  void establish() {
    listen();
    call();
    accept();
  }

 private:
  static void make(Side& side) {
    side.context = side.id->verbs;
    side.make_queues();
    ck_assert_int_eq(rdma_create_qp(side.id, side.pd, &side.init), 0);
    side.qp = side.id->qp;
  }
};

}  // namespace softerdma::test
