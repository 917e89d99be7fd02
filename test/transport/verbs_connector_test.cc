#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fabric/descriptors.h"
#include "fake/captured_log.h"
#include "libcheck.h"
#include "quiet_fork.h"
#include "transport/connector_endpoint.h"
#include "transport/simulated_device.h"
#include "transport/verbs/queue_pairs.h"
#include "transport/verbs/rdma_cm_backend.h"
#include "util/fd.h"
#include "util/process_epoch.h"

/// Tests the connector's thread with its real back ends, on the simulated adapter in both
/// personalities, or on the first active device.
namespace erdma::test {
namespace {

std::unique_ptr<Device> g_device;

Options patient_options(uint64_t timeout_ns = 10'000'000'000) {
  Options options;
  options.connect_timeout_ns = timeout_ns;
  return options;
}

void open_device() {
  setenv("SOFTERDMA_CONNECT_MS", "600", 0);  // how long a connect without an answer lasts
  g_device = open_first_device();
  ck_assert_ptr_nonnull(g_device.get());
}
void close_device() {
  g_device.reset();
}

SUITE(.run = erdma::test::on_simulated_devices);

TEST_CASE(.set_up = open_device, .tear_down = close_device);

TEST(a_connection_carries_packets_both_ways) {
  ConnectorEndpoint a(*g_device), b(*g_device);
  ck_assert_int_eq(a.status, 0);
  ck_assert_int_eq(a.connector->connect(b.name(), 1, false), 0);
  ck_assert(a.wait([&] { return !a.up.empty(); }));
  ck_assert(a.up[0].active);
  ck_assert(a.up[0].peer == b.name());
  ck_assert_uint_eq(a.up[0].terms.credits, ConnectorEndpoint::kReceives);
  ck_assert(a.send_byte(*a.up[0].connection));
  ck_assert(b.wait([&] { return !b.up.empty(); }));
  const ibv_wc got = b.completion(*b.up[0].connection);
  ck_assert_int_eq(got.status, IBV_WC_SUCCESS);
  ck_assert_int_eq(got.opcode, IBV_WC_RECV);
  ck_assert_int_eq(a.completion(*a.up[0].connection).status, IBV_WC_SUCCESS);
  ck_assert(b.send_byte(*b.up[0].connection));
  ck_assert_int_eq(a.completion(*a.up[0].connection).opcode, IBV_WC_RECV);
}

TEST(both_at_once_get_one_connection) {
  for (int round = 0; round < 20; ++round) {
    ConnectorEndpoint a(*g_device), b(*g_device);
    ck_assert_int_eq(a.connector->connect(b.name(), 1, true), 0);
    ck_assert_int_eq(b.connector->connect(a.name(), 1, true), 0);
    ck_assert(a.wait([&] { return !a.up.empty(); }));
    ck_assert(b.wait([&] { return !b.up.empty(); }));
    ConnectorEndpoint &active = a.up[0].active ? a : b, &passive = a.up[0].active ? b : a;
    ck_assert(active.up[0].active && !passive.up[0].active);
    ck_assert(active.send_byte(*active.up[0].connection));
    ck_assert_int_eq(passive.completion(*passive.up[0].connection).status, IBV_WC_SUCCESS);
  }
}

/// With connections there are silent peers to look for.
TEST(the_polling_thread_is_reminded_of_its_clock_from_the_first_connection_on) {
  Options options;
  options.peer_timeout_ns = 600'000'000;
  ConnectorEndpoint a(*g_device, options), b(*g_device, options);
  ck_assert_uint_eq(a.reminders + b.reminders, 0);
  ck_assert_int_eq(a.connector->connect(b.name(), 1, false), 0);
  ck_assert(a.wait([&] { return !a.up.empty(); }));
  ck_assert(a.wait_reminded(3) && b.wait_reminded(3));
}

TEST(an_endpoint_reaches_itself_by_two_connections) {
  ConnectorEndpoint a(*g_device);
  ck_assert_int_eq(a.connector->connect(a.name(), 1, false), 0);
  ck_assert(a.wait([&] { return a.up.size() == 2; }));
  ck_assert_int_ne(a.up[0].active, a.up[1].active);
}

TEST(a_missing_listener_is_refused, 2) {
  ConnectorEndpoint a(*g_device, patient_options(_i ? 100'000'000 : 10'000'000'000));
  util::SocketAddress nobody;
  {
    ConnectorEndpoint gone(*g_device);
    nobody = gone.name();
  }
  ck_assert_int_eq(a.connector->connect(nobody, 5, _i), 0);
  ck_assert(a.wait([&] { return !a.failed.empty(); }));
  ck_assert_int_eq(a.failed[0].status, -FI_ECONNREFUSED);
  ck_assert_uint_eq(a.failed[0].attempt, 5);
  ck_assert(a.wait([&] { return a.alive == 0; }));
}

TEST(a_patient_connect_finds_a_late_listener) {
  ConnectorEndpoint a(*g_device);
  uint16_t port = 0;
  {
    ConnectorEndpoint gone(*g_device);
    port = gone.name().port();
  }
  util::SocketAddress name = a.name();
  name.set_port(port);
  ck_assert_int_eq(a.connector->connect(name, 1, true), 0);
  ConnectorEndpoint b(*g_device, {}, port);
  ck_assert_int_eq(b.status, 0);
  ck_assert(a.wait([&] { return !a.up.empty(); }));
  ck_assert(b.wait([&] { return !b.up.empty(); }));
}

TEST(a_port_in_use_is_refused) {
  ConnectorEndpoint a(*g_device);
  g_log.clear();
  ConnectorEndpoint b(*g_device, {}, a.name().port());
  ck_assert_int_eq(b.status, -FI_EADDRINUSE);
  ck_assert(contains(only_log_line(), "a service of 0 gets a free one"));
}

/// The driver was removed, so that the descriptor of the device's events stays ready for ever.
TEST(an_endpoint_sleeps_although_its_device_was_removed) {
  Options options;
  options.background = false;
  // Such a descriptor is ready with an error, and reading it fails. So it is with a pipe that
  // nobody reads.
  int ends[2];
  ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
  close(ends[0]);
  const int events = g_device->context()->async_fd;
  const util::Fd kept(fcntl(events, F_DUPFD_CLOEXEC, 0));
  ck_assert_int_eq(dup3(ends[1], events, O_CLOEXEC), events);
  close(ends[1]);
  {
    ConnectorEndpoint a(*g_device, options);
    ck_assert_int_eq(a.status, 0);
    int steps = 0;
    while (steps < 100 && a.connector->step()) ++steps;
    ck_assert_int_lt(steps, 100);
  }
  ck_assert_int_eq(dup3(kept.get(), events, O_CLOEXEC), events);
}

TEST(another_key_is_refused) {
  Options one, two;
  one.job_key = "one";
  two.job_key = "two";
  ConnectorEndpoint a(*g_device, one), b(*g_device, two);
  ck_assert_int_eq(a.connector->connect(b.name(), 1, true), 0);
  ck_assert(a.wait([&] { return !a.failed.empty(); }));
  ck_assert_int_eq(a.failed[0].status, -FI_ECONNREFUSED);
  ck_assert(b.up.empty());
}

TEST(the_end_of_a_connection_is_seen_and_a_new_one_made) {
  ConnectorEndpoint a(*g_device), b(*g_device);
  for (int round = 0; round < 10; ++round) {
    ck_assert_int_eq(a.connector->connect(b.name(), 1, false), 0);
    ck_assert(a.wait([&] { return !a.up.empty(); }));
    ck_assert(a.send_byte(*a.up[0].connection));
    ck_assert(b.wait([&] { return !b.up.empty(); }));
    ck_assert_int_eq(b.completion(*b.up[0].connection).status, IBV_WC_SUCCESS);
    ck_assert_int_eq(a.completion(*a.up[0].connection).status, IBV_WC_SUCCESS);
    a.close(0, true);
    ck_assert(b.wait([&] { return !b.lost.empty(); }));
    ck_assert_uint_eq(b.lost[0].connection_id, b.up[0].connection_id);
    const bool orderly = g_device->transport_type() == TransportType::ib;
    ck_assert_int_eq(b.lost[0].status, orderly ? -FI_ESHUTDOWN : -FI_ECONNRESET);
    b.close(0, false);
    b.lost.clear();
  }
}

TEST(an_endpoint_that_ends_is_seen) {
  ConnectorEndpoint b(*g_device);
  {
    ConnectorEndpoint a(*g_device);
    ck_assert_int_eq(a.connector->connect(b.name(), 1, false), 0);
    ck_assert(a.wait([&] { return !a.up.empty(); }));
    ck_assert(b.wait([&] { return !b.up.empty(); }));
  }
  ck_assert(b.wait([&] { return !b.lost.empty(); }));
}

TEST(an_endpoint_ends_while_it_connects) {
  ConnectorEndpoint b(*g_device);
  for (int round = 0; round < 50; ++round) {
    ConnectorEndpoint a(*g_device);
    ck_assert_int_eq(a.connector->connect(b.name(), 1, true), 0);
    usleep(unsigned(round) * 20);  // the endpoint ends at different moments
  }
  while (b.wait_mail(0)) b.up.clear();  // b gives up the queue pairs of these connections
  ConnectorEndpoint c(*g_device);
  ck_assert_int_eq(c.connector->connect(b.name(), 1, false), 0);
  ck_assert(c.wait([&] { return !c.up.empty(); }));
}

TEST(a_closing_endpoint_takes_no_more) {
  ConnectorEndpoint a(*g_device), b(*g_device), c(*g_device);
  ck_assert_int_eq(a.connector->connect(b.name(), 1, false), 0);
  ck_assert(a.wait([&] { return !a.up.empty(); }));
  ck_assert(b.wait([&] { return !b.up.empty(); }));
  b.connector->stop_listening();
  // The connector executes stop_listening() before the connect.
  ck_assert_int_eq(b.connector->connect(c.name(), 1, false), 0);
  ck_assert(b.wait([&] { return b.up.size() == 2; }));
  ConnectorEndpoint d(*g_device);
  ck_assert_int_eq(d.connector->connect(b.name(), 1, false), 0);
  ck_assert(d.wait([&] { return !d.failed.empty(); }));
  ck_assert_int_eq(d.failed[0].status, -FI_ECONNREFUSED);
  ck_assert(a.lost.empty());
}

/// Executes a line of the simulated adapter. Returns false on another adapter.
bool control(const std::string& line) {
  using Control = int (*)(const char*);
  const auto execute = reinterpret_cast<Control>(dlsym(RTLD_DEFAULT, "softerdma_control"));
  return execute && !execute(line.c_str());
}

/// Makes handshakes with a port of the simulated adapter fail. Returns false on another adapter.
bool fault(const char* action, uint16_t port, int times) {
  return control(std::string("connect ") + action + " port=" + std::to_string(port) +
                 " times=" + std::to_string(times));
}

TEST(a_handshake_that_hangs_times_out_and_holds_nobody_up) {
  ConnectorEndpoint a(*g_device, patient_options(300'000'000)), b(*g_device), silent(*g_device);
  util::SocketAddress name = silent.name();
  util::Fd listener;
  if (g_device->transport_type() == TransportType::ib) {
    // The listener takes the connection and says nothing, as the kernel does for a stopped process.
    listener.reset(socket(name.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    name.set_port(0);
    ck_assert_int_eq(bind(listener.get(), name.data(), socklen_t(name.size())), 0);
    ck_assert_int_eq(listen(listener.get(), 5), 0);
    sockaddr_storage bound{};
    socklen_t length = sizeof(bound);
    getsockname(listener.get(), reinterpret_cast<sockaddr*>(&bound), &length);
    name = util::SocketAddress::from_sockaddr(&bound, length);
  } else if (!fault("hang", name.port(), 1)) {
    return;
  }
  ck_assert_int_eq(a.connector->connect(name, 1, true), 0);
  ck_assert_int_eq(a.connector->connect(b.name(), 2, false), 0);
  ck_assert(a.wait([&] { return !a.up.empty(); }));
  ck_assert(a.wait([&] { return !a.failed.empty(); }));
  ck_assert(a.up[0].peer == b.name());
  ck_assert(a.failed[0].peer == name);
  ck_assert_int_eq(a.failed[0].status, -FI_ETIMEDOUT);
}

/// A listener of rdma_cm without peers.
struct LoneListener final : BackendEvents {
  void on_reached(uint64_t) override {}
  void on_request(uint64_t, const util::SocketAddress&, Bytes, const Path&) override {}
  void on_accepted(uint64_t, Bytes, const Path&) override {}
  void on_refused(uint64_t, Bytes) override {}
  void on_established(uint64_t) override {}
  void on_closed(uint64_t, int) override {}
  void on_stranger(const util::SocketAddress&, const char*, bool) override {}
  DeviceQueuePairs queue_pairs{*g_device, 10'000'000'000};
  RdmaCmBackend backend{*g_device, g_device->address(), queue_pairs};
};

/// A bond fails over.
TEST(a_listener_whose_address_moved_is_not_said_to_have_ended) {
  if (g_device->transport_type() == TransportType::ib) return;
  LoneListener lone;
  util::SocketAddress name = g_device->address();
  ck_assert_int_eq(lone.backend.listen(name), 0);
  if (!control("port dev=" + g_device->name() + " moved")) return;
  pollfd event{lone.backend.fd(), POLLIN, 0};
  ck_assert_int_eq(poll(&event, 1, 20'000), 1);
  g_log.clear();
  lone.backend.dispatch(lone);
  for (const LogLine& line : g_log) ck_assert_int_gt(line.level, FI_LOG_WARN);
  ck_assert(contains(only_log_line(), name.host_string().c_str()));
}

TEST(a_reset_or_refusal_now_and_then_is_overcome) {
  ConnectorEndpoint a(*g_device), b(*g_device);
  if (g_device->transport_type() == TransportType::ib || !fault("refuse", b.name().port(), 3))
    return;
  ck_assert_int_eq(a.connector->connect(b.name(), 1, true), 0);
  ck_assert(a.wait([&] { return !a.up.empty(); }));
  ck_assert(a.failed.empty());
}

TEST(many_connect_to_one) {
  ConnectorEndpoint hub(*g_device);
  std::vector<std::unique_ptr<ConnectorEndpoint>> others;
  for (int i = 0; i < 40; ++i) {
    others.push_back(std::make_unique<ConnectorEndpoint>(*g_device));
    ck_assert_int_eq(others.back()->status, 0);
  }
  for (auto& other : others) ck_assert_int_eq(other->connector->connect(hub.name(), 1, true), 0);
  for (auto& other : others) ck_assert(other->wait([&] { return !other->up.empty(); }));
  ck_assert(hub.wait([&] { return hub.up.size() == others.size(); }));
  ck_assert(hub.failed.empty() && hub.lost.empty());
}

// --- Connects without an answer.

/// Returns true if a forked child shares none of the `fds` that are still open.
bool stay_private(const std::map<int, std::string>& fds) {
  std::vector<int> open;
  for (const auto& [fd, target] : descriptors())
    if (fds.contains(fd) && fds.at(fd) == target) open.push_back(fd);
  const pid_t child = quiet_fork();
  if (child == 0) {
    const auto now = descriptors();
    for (const int fd : open)
      if (now.at(fd).rfind("socket:", 0) != 0) _exit(1);
    _exit(0);
  }
  int status = -1;
  return !open.empty() && waitpid(child, &status, 0) == child && status == 0;
}

/// Returns true if all went on and came to an end, although the adapter waits an hour for an
/// answer.
bool go_on_without_an_answer() {
  setenv("SOFTERDMA_CONNECT_MS", "3600000", 1);
  util::register_fork_handler();
  g_device = open_first_device();
  std::map<int, std::string> fds;
  bool good = g_device && g_device->transport_type() == TransportType::iwarp;
  if (good) {
    ConnectorEndpoint b(*g_device), silent(*g_device);
    const auto before = descriptors();
    ConnectorEndpoint a(*g_device, patient_options(100'000'000));
    fds = descriptors();
    std::erase_if(fds, [&](const auto& fd) { return before.contains(fd.first); });
    good = fault("hang", silent.name().port(), 1) &&
           !a.connector->connect(silent.name(), 1, true) &&
           a.wait([&] { return !a.failed.empty(); }) && a.failed[0].status == -FI_ETIMEDOUT &&
           a.alive == 1 && !a.connector->connect(b.name(), 2, false) &&
           a.wait([&] { return !a.up.empty(); });
  }
  g_device.reset();
  return good && stay_private(fds);
}

/// Runs in a child, as resources that wait for the peer stay until the process ends.
TEST(nothing_waits_for_a_peer_that_does_not_answer) {
#ifdef __SANITIZE_THREAD__
  return;  // TSan supports no new threads in a child of a process with threads
#endif
  const bool iwarp = g_device->transport_type() == TransportType::iwarp;
  close_device();
  if (!iwarp) return;
  const pid_t child = fork();
  if (child == 0) _exit(go_on_without_an_answer() ? 0 : 1);
  int status = -1;
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert_int_eq(status, 0);
}

// --- ports that TCP has

/// Leaves rdma_cm 40 ports, of which another program listens at 20.
std::vector<util::Fd> g_sockets;
void take_every_second_port() {
  setenv("SOFTERDMA_FIRST_PORT", "41200", 1);
  setenv("SOFTERDMA_PORTS", "40", 1);
  open_device();
  for (uint16_t port = 41200; port < 41240; port += 2) {
    util::SocketAddress name = g_device->address();
    name.set_port(port);
    util::Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!::bind(socket.get(), name.data(), socklen_t(name.size())) && !::listen(socket.get(), 1))
      g_sockets.push_back(std::move(socket));
    else
      ck_assert_int_eq(errno, EADDRINUSE);  // another socket has the port
  }
}

void give_ports_back() {
  g_sockets.clear();
  close_device();
}

TEST_CASE(.set_up = take_every_second_port, .tear_down = give_ports_back);

TEST(a_connect_finds_a_port_that_no_socket_has) {
  ConnectorEndpoint a(*g_device), b(*g_device);
  ck_assert_int_eq(a.status, 0);
  ck_assert_int_eq(b.status, 0);
  for (uint64_t round = 1; round <= 60; ++round) {
    ck_assert_int_eq(a.connector->connect(b.name(), round, false), 0);
    ck_assert(a.wait([&] { return !a.up.empty() || !a.failed.empty(); }));
    ck_assert_uint_eq(a.failed.size(), 0);
    ck_assert(a.send_byte(*a.up[0].connection));
    ck_assert(b.wait([&] { return !b.up.empty(); }));
    a.close(0, true);
    ck_assert(b.wait([&] { return !b.lost.empty(); }));
    b.lost.clear();
    b.close(0, true);
  }
}

}  // namespace

}  // namespace erdma::test
