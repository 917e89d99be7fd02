// Tests connections of the standard personality with both ends in one process.
#include <dlfcn.h>
#include <netdb.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "softerdma/rig.h"

using namespace softerdma::test;

extern "C" const char* softerdma_leave();

/// Waits until `fd` is readable.
int poll_in(int fd) {
  pollfd readable{fd, POLLIN, 0};
  return poll(&readable, 1, 10'000);
}

/// Replaces getaddrinfo() of the C library, as the tests use no host names.
extern "C" int getaddrinfo(const char* node, const char* service, const addrinfo* hints,
                           addrinfo** found) {
  static const auto real =
      reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  addrinfo numeric = *hints;
  numeric.ai_flags |= AI_NUMERICHOST | AI_NUMERICSERV;
  return real(node, service, &numeric, found);
}

SUITE(.counted = false);

TEST(localhost_is_known_where_nobody_names_hosts) {
  start("standard");
  rdma_addrinfo hints{};
  hints.ai_port_space = RDMA_PS_TCP;
  rdma_addrinfo* found = nullptr;
  ck_assert_int_eq(rdma_getaddrinfo("localhost", "7471", &hints, &found), 0);
  const auto* address = reinterpret_cast<const sockaddr_in*>(found->ai_dst_addr);
  ck_assert_uint_eq(address->sin_addr.s_addr, htonl(INADDR_LOOPBACK));
  ck_assert_uint_eq(address->sin_port, htons(7471));
  rdma_freeaddrinfo(found);
  ck_assert_int_eq(rdma_getaddrinfo("elsewhere", "7471", &hints, &found), EAI_NONAME);
}

/// A bond fails over.
TEST(address_that_moves_is_told_at_each_id_of_its_device) {
  Connection c;
  c.establish();
  ck_assert_int_eq(softerdma_control("port dev=erdma_1 moved"), 0);
  std::vector<rdma_cm_id*> told;
  for (int events = 0; events < 2; ++events) {
    const Event event = next_event(c.channels[1]);
    ck_assert_int_eq(event.type, RDMA_CM_EVENT_ADDR_CHANGE);
    told.push_back(event.id);
  }
  ck_assert_ptr_eq(told[0], c.listener);
  ck_assert_ptr_eq(told[1], c.sides[1].id);
  pollfd other{c.channels[0]->fd, POLLIN, 0};
  ck_assert_int_eq(poll(&other, 1, 0), 0);
  ck_assert_int_eq(c.sides[1].receive(8), 0);
  ck_assert_int_eq(c.sides[0].send(8, c.sides[1]), 0);
  ck_assert_int_eq(c.sides[1].wait().status, IBV_WC_SUCCESS);
}

TEST(connection_carries_private_data_and_messages) {
  Connection c;
  c.establish();
  ck_assert_int_eq(c.sides[1].receive(8), 0);
  ck_assert_int_eq(c.sides[0].send(8, c.sides[1]), 0);
  ck_assert_int_eq(c.sides[1].wait().status, IBV_WC_SUCCESS);
  ck_assert_int_eq(c.sides[0].receive(8), 0);
  ck_assert_int_eq(c.sides[1].send(8, c.sides[0]), 0);
  ck_assert_int_eq(c.sides[0].wait().status, IBV_WC_SUCCESS);  // completion of the send
  ck_assert_uint_eq(softerdma_violations(), 0);
}

TEST(passive_side_that_speaks_first_loses_the_connection) {
  Connection c;
  c.establish();
  ck_assert_int_eq(c.sides[0].receive(8), 0);
  ck_assert_int_eq(c.sides[1].send(8, c.sides[0]), 0);
  ck_assert_int_eq(c.sides[1].wait().status, IBV_WC_GENERAL_ERR);
  ck_assert_int_eq(next_event(c.channels[0]).type, RDMA_CM_EVENT_DISCONNECTED);
  ck_assert_int_eq(next_event(c.channels[1]).type, RDMA_CM_EVENT_DISCONNECTED);
  ck_assert_uint_eq(softerdma_violations(), 1);
}

TEST(passive_side_may_speak_first_where_the_option_says_so) {
  setenv("SOFTERDMA_PASSIVE_FIRST", "1", 1);
  Connection c;
  c.establish();
  ck_assert_int_eq(c.sides[0].receive(8), 0);
  ck_assert_int_eq(c.sides[1].send(8, c.sides[0]), 0);
  ck_assert_int_eq(c.sides[1].wait().status, IBV_WC_SUCCESS);
  ck_assert_uint_eq(softerdma_violations(), 0);
}

TEST(read_sink_needs_remote_write) {
  Connection c;
  c.establish();
  Side& side = c.sides[0];
  ibv_mr* local = (ibv_reg_mr)(side.pd, side.data(), 4096, IBV_ACCESS_LOCAL_WRITE);
  ibv_sge sge = side.piece(64);
  sge.lkey = local->lkey;
  ck_assert_int_eq(side.post(side.request(IBV_WR_RDMA_READ, &sge, c.sides[1])), 0);
  ck_assert_int_eq(side.wait().status, IBV_WC_LOC_ACCESS_ERR);
  ck_assert_int_eq(next_event(c.channels[1]).type, RDMA_CM_EVENT_DISCONNECTED);
}

/// eRDMA's driver reports a missing listener as a reset, siw as a refusal.
TEST(missing_listener_rejects_without_data, 2) {
  setenv("SOFTERDMA_REFUSED", _i ? "1" : "0", 1);
  Connection c;
  c.listen();
  c.call(7472);
  Event event = next_event(c.channels[0]);
  ck_assert_int_eq(event.type, RDMA_CM_EVENT_REJECTED);
  ck_assert_int_eq(event.status, _i ? -ECONNREFUSED : -ECONNRESET);
  ck_assert_uint_eq(event.data.size(), 0);
}

/// Each of two hosts has a port mapper or none. If only the listener's host has one, the listener
/// is not found.
TEST(port_mapper_of_the_listener_alone_hides_its_port, 4) {
  start("standard");
  const bool mine = _i & 1, theirs = _i & 2;
  int ready[2], done[2];
  ck_assert_int_eq(pipe(ready), 0);
  ck_assert_int_eq(pipe(done), 0);
  const pid_t child = fork();
  setenv("SOFTERDMA_PORT_MAPPER", (child ? mine : theirs) ? "1" : "0", 1);
  Connection c;
  char byte = 0;
  if (child == 0) {
    c.listen();
    ck_assert_int_eq(write(ready[1], "x", 1), 1);
    _exit(read(done[0], &byte, 1) == 1 && poll_in(c.channels[1]->fd) == !(theirs && !mine) ? 0 : 1);
  }
  ck_assert_int_eq(read(ready[0], &byte, 1), 1);
  c.channels[0] = rdma_create_event_channel();
  c.call();
  if (theirs && !mine) ck_assert_int_eq(next_event(c.channels[0]).type, RDMA_CM_EVENT_REJECTED);
  ck_assert_int_eq(write(done[1], "x", 1), 1);
  int status = 0;
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert_int_eq(status, 0);
}

/// Starts with addresses that this host has.
void start_in_tcp() {
  start("standard");
  setenv("SOFTERDMA_DEVICES", "erdma_0,ip=127.0.0.2;erdma_1,ip=127.0.0.3", 1);
  setenv("SOFTERDMA_TCP", "1", 1);
}

/// Scripts wait for the name before they start a client.
TEST(a_name_tells_that_an_id_listens) {
  start("standard");
  const std::string name =
      std::getenv("SOFTERDMA_DIR") + std::string("/listen.10.8.0.1.7475.listens");
  rdma_event_channel* const channel = rdma_create_event_channel();
  rdma_cm_id* listener = nullptr;
  ck_assert_int_eq(rdma_create_id(channel, &listener, nullptr, RDMA_PS_TCP), 0);
  sockaddr_in at = address("10.8.0.1", 7475);
  ck_assert_int_eq(rdma_bind_addr(listener, reinterpret_cast<sockaddr*>(&at)), 0);
  ck_assert_int_ne(access(name.c_str(), F_OK), 0);
  ck_assert_int_eq(rdma_listen(listener, 4), 0);
  ck_assert_int_eq(access(name.c_str(), F_OK), 0);
  ck_assert_int_eq(rdma_destroy_id(listener), 0);
  ck_assert_int_ne(access(name.c_str(), F_OK), 0);
}

/// A host of compat mode sees that its connection is closed as soon as it sends.
TEST(listener_of_standard_mode_hangs_up_in_tcp) {
  start_in_tcp();
  rdma_event_channel* const channel = rdma_create_event_channel();
  rdma_cm_id* listener = nullptr;
  ck_assert_int_eq(rdma_create_id(channel, &listener, nullptr, RDMA_PS_TCP), 0);
  sockaddr_in at = address("127.0.0.3", 0);
  ck_assert_int_eq(rdma_bind_addr(listener, reinterpret_cast<sockaddr*>(&at)), 0);
  ck_assert_int_eq(rdma_listen(listener, 4), 0);
  at.sin_port = listener->route.addr.src_sin.sin_port;
  const int caller = socket(AF_INET, SOCK_STREAM, 0);
  ck_assert_int_eq(connect(caller, reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
  ck_assert_int_eq(send(caller, "hello", 5, 0), 5);
  ck_assert_int_eq(poll_in(caller), 1);
  char byte = 0;
  ck_assert_int_le(recv(caller, &byte, 1, 0), 0);
  ck_assert_int_eq(rdma_destroy_id(listener), 0);
}

/// A host of compat mode receives the beginning of each connection of standard mode.
TEST(connect_of_standard_mode_is_heard_in_tcp) {
  start_in_tcp();
  sockaddr_in at = address("127.0.0.3", 0);
  socklen_t length = sizeof at;
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  ck_assert_int_eq(bind(listener, reinterpret_cast<sockaddr*>(&at), length), 0);
  ck_assert_int_eq(listen(listener, 4), 0);
  ck_assert_int_eq(getsockname(listener, reinterpret_cast<sockaddr*>(&at), &length), 0);
  Connection c;
  c.channels[0] = rdma_create_event_channel();
  c.call(ntohs(at.sin_port), "127.0.0.3", "127.0.0.3");
  const Event event = next_event(c.channels[0]);
  ck_assert_int_eq(event.type, RDMA_CM_EVENT_REJECTED);
  ck_assert_int_eq(event.status, -ECONNRESET);
  char begin[16];
  ck_assert_int_eq(recv(accept(listener, nullptr, nullptr), begin, 16, MSG_WAITALL), 16);
  ck_assert_int_eq(memcmp(begin, "MPA ID Req Frame", 16), 0);
}

TEST(rejection_carries_its_data) {
  Connection c;
  c.listen();
  c.call();
  Event request = next_event(c.channels[1]);
  ck_assert_int_eq(rdma_reject(request.id, "no", 2), 0);
  Event event = next_event(c.channels[0]);
  ck_assert_int_eq(event.type, RDMA_CM_EVENT_REJECTED);
  ck_assert_int_eq(event.status, -ECONNRESET);
  ck_assert_str_eq(event.data.c_str(), "no");
}

TEST(nobody_at_the_address_is_unreachable) {
  setenv("SOFTERDMA_CONNECT_MS", "20", 1);
  Connection c;
  c.listen();
  c.call(7471, "10.8.7.7");
  Event event = next_event(c.channels[0]);
  ck_assert_int_eq(event.type, RDMA_CM_EVENT_UNREACHABLE);
  ck_assert_int_eq(event.status, -ETIMEDOUT);
}

TEST(hanging_handshake_is_unreachable) {
  setenv("SOFTERDMA_CONNECT_MS", "20", 1);
  setenv("SOFTERDMA_FAULT", "connect hang", 1);
  Connection c;
  c.listen();
  c.call();
  ck_assert_int_eq(next_event(c.channels[0]).type, RDMA_CM_EVENT_UNREACHABLE);
}

/// A refused connection looks like one to an unused port.
TEST(fault_refuses_the_nth_connection_of_a_port, 2) {
  setenv("SOFTERDMA_REFUSED", _i ? "1" : "0", 1);
  setenv("SOFTERDMA_FAULT", "connect refuse port=7472;connect refuse port=7471 n=2 times=2", 1);
  Connection c;
  c.listen();
  for (const bool refused : {false, true, true, false}) {
    c.call();
    if (!refused) {
      c.accept();
      continue;
    }
    const Event event = next_event(c.channels[0]);
    ck_assert_int_eq(event.type, RDMA_CM_EVENT_REJECTED);
    ck_assert_int_eq(event.status, _i ? -ECONNREFUSED : -ECONNRESET);
    ck_assert_uint_eq(event.data.size(), 0);
  }
}

TEST(backlog_is_exact, 2) {
  setenv("SOFTERDMA_REFUSED", _i ? "1" : "0", 1);
  Connection c;
  c.listen(1);
  c.call();
  ck_assert_int_eq(next_event(c.channels[1]).type, RDMA_CM_EVENT_CONNECT_REQUEST);
  c.call();
  const Event event = next_event(c.channels[0]);
  ck_assert_int_eq(event.type, RDMA_CM_EVENT_REJECTED);
  ck_assert_int_eq(event.status, -ECONNRESET);
}

TEST(address_in_use_is_said_at_once) {
  Connection c;
  c.listen();
  rdma_cm_id* second = nullptr;
  ck_assert_int_eq(rdma_create_id(c.channels[1], &second, nullptr, RDMA_PS_TCP), 0);
  sockaddr_in here = address(kIp[1], 7471);
  ck_assert_int_eq(rdma_bind_addr(second, reinterpret_cast<sockaddr*>(&here)), -1);
  ck_assert_int_eq(errno, EADDRINUSE);
  ck_assert_int_eq(rdma_destroy_id(c.listener), 0);
  ck_assert_int_eq(rdma_bind_addr(second, reinterpret_cast<sockaddr*>(&here)), 0);
}

TEST(listener_that_goes_refuses_what_nobody_has_heard_of, 2) {
  setenv("SOFTERDMA_REFUSED", _i ? "1" : "0", 1);
  Connection c;
  c.listen();
  c.call();
  ck_assert_int_eq(poll_in(c.channels[1]->fd), 1);  // the request has arrived
  ck_assert_int_eq(rdma_destroy_id(c.listener), 0);
  Event event = next_event(c.channels[0]);
  ck_assert_int_eq(event.type, RDMA_CM_EVENT_REJECTED);
  ck_assert_int_eq(event.status, -ECONNRESET);
  ck_assert_int_eq(rdma_destroy_id(c.sides[0].id), 0);
  const char* held = softerdma_leave();
  ck_assert(held == nullptr || strstr(held, "rdma_cm") == nullptr);
}

/// Requests that arrive while the listener refuses the first ones are answered, too. All threads
/// share a core, so that the adapter's thread runs whenever the caller of rdma_destroy_id() is
/// interrupted.
TEST(listener_that_goes_leaves_nobody_without_an_answer, 8) {
  constexpr size_t kCalls = 200;
  cpu_set_t core;
  CPU_ZERO(&core);
  CPU_SET(sched_getcpu(), &core);
  sched_setaffinity(0, sizeof core, &core);
  Connection c;
  c.listen(kCalls);
  std::vector<rdma_cm_id*> ids;
  for (size_t i = 0; i < kCalls; ++i) {
    c.prepare();
    ids.push_back(c.sides[0].id);
  }
  rdma_conn_param param{};
  for (size_t i = 0; i < kCalls / 2; ++i) ck_assert_int_eq(rdma_connect(ids[i], &param), 0);
  std::thread others([&] {
    ck_assert_int_eq(poll_in(c.channels[0]->fd), 1);
    for (size_t i = kCalls / 2; i < kCalls; ++i) ck_assert_int_eq(rdma_connect(ids[i], &param), 0);
  });
  ck_assert_int_eq(poll_in(c.channels[1]->fd), 1);
  ck_assert_int_eq(rdma_destroy_id(c.listener), 0);
  others.join();
  for (size_t i = 0; i < kCalls; ++i)
    ck_assert_int_eq(next_event(c.channels[0]).type, RDMA_CM_EVENT_REJECTED);
  for (rdma_cm_id* id : ids) ck_assert_int_eq(rdma_destroy_id(id), 0);
  const char* held = softerdma_leave();
  ck_assert(held == nullptr || strstr(held, "rdma_cm") == nullptr);
}

TEST(disconnect_reaches_both_sides) {
  Connection c;
  c.establish();
  ck_assert_int_eq(c.sides[1].receive(8, 3), 0);
  ck_assert_int_eq(rdma_disconnect(c.sides[0].id), 0);
  ck_assert_int_eq(next_event(c.channels[0]).type, RDMA_CM_EVENT_DISCONNECTED);
  ck_assert_int_eq(next_event(c.channels[1]).type, RDMA_CM_EVENT_DISCONNECTED);
  ck_assert_int_eq(c.sides[1].wait().status, IBV_WC_WR_FLUSH_ERR);
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  ck_assert_int_eq(ibv_query_qp(c.sides[0].qp, &attr, IBV_QP_STATE, &init), 0);
  ck_assert_int_eq(attr.qp_state, IBV_QPS_SQD);
}

TEST(killed_peer_ends_the_connection) {
  Connection c;
  start("standard");
  setenv("SOFTERDMA_CONNECT_MS", "5000", 1);
  int ready[2];
  ck_assert_int_eq(pipe(ready), 0);
  pid_t child = fork();
  if (child == 0) {
    c.listen();
    ck_assert_int_eq(write(ready[1], "x", 1), 1);
    Event event = next_event(c.channels[1]);
    c.sides[1].id = event.id;
    c.sides[1].context = event.id->verbs;
    c.sides[1].make_queues();
    ck_assert_int_eq(rdma_create_qp(event.id, c.sides[1].pd, &c.sides[1].init), 0);
    ck_assert_int_eq(rdma_accept(event.id, nullptr), 0);
    for (;;) pause();
  }
  char byte = 0;
  ck_assert_int_eq(read(ready[0], &byte, 1), 1);
  c.channels[0] = rdma_create_event_channel();
  c.call();
  ck_assert_int_eq(next_event(c.channels[0]).type, RDMA_CM_EVENT_ESTABLISHED);
  ck_assert_int_eq(c.sides[0].receive(8), 0);
  kill(child, SIGKILL);
  ck_assert_int_eq(next_event(c.channels[0]).type, RDMA_CM_EVENT_DISCONNECTED);
  ck_assert_int_eq(c.sides[0].wait().status, IBV_WC_WR_FLUSH_ERR);
  ck_assert_int_eq(waitpid(child, nullptr, 0), child);
}
