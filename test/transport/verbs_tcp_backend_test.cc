#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "fake/captured_log.h"
#include "fake/connection.h"
#include "fake/refused_call.h"
#include "libcheck.h"
#include "transport/verbs/connection_manager.h"
#include "transport/verbs/tcp_backend.h"

/// Tests the back end for ib devices over real sockets, with fake queue pairs.
namespace erdma::test {
namespace {

using namespace transport::verbs;

/// A clock that advances only when a test moves it.
class ManualClock final : public util::Clock {
 public:
  uint64_t now() const noexcept override { return time; }
  uint64_t time = 1'000'000'000;
};

/// Records which queue pairs were connected.
class FakeQueuePairs final : public QueuePairs {
 public:
  ibv_qp* create(uint64_t, ibv_qp_init_attr&) noexcept override {
    all.push_back(std::make_unique<ibv_qp>());
    all.back()->qp_num = ++numbers();
    return all.back().get();
  }
  Path describe(const ibv_qp& queue_pair) noexcept override {
    Path path{};
    std::memcpy(path.data(), &queue_pair.qp_num, sizeof(queue_pair.qp_num));
    return path;
  }
  int join(ibv_qp& queue_pair, const Path&, const Path& peer) noexcept override {
    if (fail_joins && fail_joins--) return -FI_EINVAL;
    uint32_t number = 0;
    std::memcpy(&number, peer.data(), sizeof(number));
    joined[queue_pair.qp_num] = number;
    return 0;
  }
  std::vector<std::unique_ptr<ibv_qp>> all;
  std::map<uint32_t, uint32_t> joined;
  int fail_joins = 0;

 private:
  static uint32_t& numbers() {
    static uint32_t last = 0;
    return last;
  }
};

class Node final : ConnectionFactory, MailSink {
 public:
  explicit Node(const Options& options = {}, uint16_t port = 0) {
    config.options = options;
    config.name = address_of("127.0.0.1", port);
    config.factory = this;
    config.mail = this;
    config.clock = &clock;
    backend = std::make_unique<TcpBackend>(config.name, 10'000'000'000, queue_pairs, clock);
    listening = backend->listen(config.name);
    static uint64_t nonces = 0;
    manager = std::make_unique<ConnectionManager>(config, ++nonces, *backend);
  }
  ~Node() { manager->finish(); }
  const util::SocketAddress& name() const { return config.name; }

  void step() {
    backend->dispatch(*manager);
    backend->expire(*manager);
    manager->expire();
  }

  ConnectorConfig config{};
  ManualClock clock;
  FakeQueuePairs queue_pairs;
  std::unique_ptr<TcpBackend> backend;
  std::unique_ptr<ConnectionManager> manager;
  std::vector<Mail> up, failed, lost;
  std::atomic<int> alive = 0;
  int listening = -1;

 private:
  std::unique_ptr<Connection> prepare(ibv_qp_init_attr&) noexcept override {
    return std::make_unique<Connection>(alive);
  }
  void queue_failed(const ibv_cq*) noexcept override {}
  size_t connections() const noexcept override { return size_t(alive); }
  int adopt(Connection&, ibv_qp*) noexcept override { return 0; }
  void fill_terms(const util::SocketAddress&, Terms& terms) noexcept override {
    terms.credits = 8;
    terms.receive_bytes = 2048;
  }
  uint64_t continues(const util::SocketAddress&) noexcept override { return 0; }
  int agree(Connection&, const Terms&, bool) noexcept override { return 0; }
  void post(Mail mail) noexcept override {
    if (mail.type == Mail::Type::up)
      up.push_back(std::move(mail));
    else if (mail.type == Mail::Type::failed)
      failed.push_back(std::move(mail));
    else if (mail.type == Mail::Type::lost)
      lost.push_back(std::move(mail));
  }
};

/// Serves the nodes until `done`. Returns false after 20 s.
bool serve(std::initializer_list<Node*> nodes, const std::function<bool()>& done) {
  for (int i = 0; i < 20'000 && !done(); ++i) {
    std::vector<pollfd> fds;
    for (Node* node : nodes) fds.push_back({node->backend->fd(), POLLIN, 0});
    poll(fds.data(), fds.size(), 1);
    for (Node* node : nodes) node->step();
  }
  return done();
}

bool connect_nodes(Node& from, Node& to) {
  const size_t before = to.up.size();
  from.manager->connect(to.name(), 1, false);
  return serve({&from, &to}, [&] { return !from.up.empty() && to.up.size() > before; });
}

/// A socket of a stranger.
util::Fd stranger(const Node& node) {
  util::Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ck_assert_int_eq(connect(fd.get(), node.name().data(), socklen_t(node.name().size())), 0);
  return fd;
}

/// Serves until the other side has closed `fd`, and returns the text that it sent before.
std::string last_words(Node& node, const util::Fd& fd) {
  std::string words;
  const bool closed = serve({&node}, [&] {
    char buffer[256];
    const ssize_t bytes = recv(fd.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
    if (bytes > 0) words.append(buffer, size_t(bytes));
    return bytes == 0 || (bytes < 0 && errno != EAGAIN);
  });
  ck_assert(closed);
  return words;
}

Refusal refusal_in(const std::string& words) {
  return decode_refusal(std::as_bytes(std::span(words)));
}

TEST(two_nodes_join_their_queue_pairs) {
  Node a, b;
  ck_assert_int_eq(a.listening, 0);
  ck_assert(connect_nodes(a, b));
  const auto [one, two] = *a.queue_pairs.joined.begin();
  ck_assert_uint_eq(b.queue_pairs.joined[two], one);
  ck_assert(a.up[0].active && !b.up[0].active);
  ck_assert(b.up[0].peer == a.name());
}

int option(int fd, int level, int name) {
  int value = 0;
  socklen_t bytes = sizeof(value);
  return getsockopt(fd, level, name, &value, &bytes) ? -1 : value;
}

/// For a limit of 10 s, the kernel begins to probe after half of it, and probes three times within
/// the other half.
TEST(a_peer_that_is_silent_is_asked_before_its_time_is_over) {
  Node a, b;
  ck_assert(connect_nodes(a, b));
  int connections = 0;
  for (int fd = 3; fd < 1024; ++fd) {
    sockaddr_in peer{};
    socklen_t bytes = sizeof(peer);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &bytes) || peer.sin_family != AF_INET)
      continue;
    ++connections;
    ck_assert_int_eq(option(fd, SOL_SOCKET, SO_KEEPALIVE), 1);
    ck_assert_int_eq(option(fd, IPPROTO_TCP, TCP_NODELAY), 1);
    ck_assert_int_eq(option(fd, IPPROTO_TCP, TCP_KEEPIDLE), 5);
    ck_assert_int_eq(option(fd, IPPROTO_TCP, TCP_KEEPINTVL), 1);
    ck_assert_int_eq(option(fd, IPPROTO_TCP, TCP_KEEPCNT), 3);
    ck_assert_int_eq(option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), 10'000);
  }
  ck_assert_int_eq(connections, 2);
}

TEST(an_endpoint_connects_to_itself) {
  Node a;
  a.manager->connect(a.name(), 1, false);
  ck_assert(serve({&a}, [&] { return a.up.size() == 2; }));
  const auto [one, two] = *a.queue_pairs.joined.begin();
  ck_assert_uint_eq(a.queue_pairs.joined[two], one);
}

TEST(a_connection_that_ended_gets_no_queue_pair) {
  Node a;
  ibv_qp_init_attr attr{};
  Path own{};
  ck_assert_ptr_null(a.backend->create_queue_pair(12'345, attr, own));
  ck_assert(a.queue_pairs.all.empty());
}

TEST(simultaneous_connects_leave_one) {
  Node a, b;
  a.manager->connect(b.name(), 1, false);
  b.manager->connect(a.name(), 1, false);
  ck_assert(serve({&a, &b}, [&] { return !a.up.empty() && !b.up.empty(); }));
  ck_assert_uint_eq(a.up.size(), 1);
  ck_assert_uint_eq(b.up.size(), 1);
  ck_assert_int_ne(a.up[0].active, b.up[0].active);
  ck_assert_int_eq(a.alive, 1);
  ck_assert_int_eq(b.alive, 1);
}

TEST(a_port_in_use_is_reported) {
  Node a;
  Node b({}, a.name().port());
  ck_assert_int_eq(b.listening, -FI_EADDRINUSE);
}

TEST(a_missing_listener_is_refused) {
  Node a;
  uint16_t port = 0;
  { port = Node().name().port(); }
  a.manager->connect(address_of("127.0.0.1", port), 7, false);
  ck_assert(serve({&a}, [&] { return !a.failed.empty(); }));
  ck_assert_int_eq(a.failed[0].status, -FI_ECONNREFUSED);
  ck_assert_uint_eq(a.failed[0].attempt, 7);
}

/// Counts the upcalls, and closes nothing.
struct Counted final : BackendEvents {
  void on_reached(uint64_t) override { ++reached; }
  void on_request(uint64_t, const util::SocketAddress&, Bytes, const Path&) override {}
  void on_accepted(uint64_t, Bytes, const Path&) override {}
  void on_refused(uint64_t, Bytes) override { ++refused; }
  void on_established(uint64_t) override {}
  void on_closed(uint64_t, int) override { ++closed; }
  void on_stranger(const util::SocketAddress&, const char*, bool) override {}
  int reached = 0, refused = 0, closed = 0;
};

TEST(a_refusal_is_told_once) {
  ManualClock clock;
  FakeQueuePairs queue_pairs;
  TcpBackend backend(address_of("127.0.0.1", 0), 1'000'000'000, queue_pairs, clock);
  uint16_t port = 0;
  { port = Node().name().port(); }
  ck_assert_int_eq(backend.connect(1, address_of("127.0.0.1", port)), 0);
  Counted events;
  while (!events.refused) {
    pollfd ready{backend.fd(), POLLIN, 0};
    poll(&ready, 1, 20'000);
    backend.dispatch(events);
  }
  for (int i = 0; i < 3; ++i) backend.dispatch(events);
  ck_assert_int_eq(events.refused, 1);
  ck_assert_int_eq(events.reached + events.closed, 0);
}

TEST(without_a_descriptor_for_its_events_nothing_listens) {
  fake::refuse_call(SYS_epoll_create1, EMFILE);
  const Node a;
  ck_assert_int_eq(a.listening, -FI_EMFILE);
}

/// Writes `text` to a file of /proc. Returns false if that is not permitted.
bool put(const char* file, const char* text) {
  const util::Fd fd(open(file, O_WRONLY | O_CLOEXEC));
  return fd && write(fd.get(), text, strlen(text)) == ssize_t(strlen(text));
}

/// A network of its own, in which only this port is chosen. Returns false if that is not permitted.
bool enter_network_of(const char* port) {
  if (unshare(CLONE_NEWNET) && unshare(CLONE_NEWUSER | CLONE_NEWNET)) return false;
  ifreq loopback{};
  strcpy(loopback.ifr_name, "lo");
  loopback.ifr_flags = IFF_UP;
  const util::Fd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return !ioctl(fd.get(), SIOCSIFFLAGS, &loopback) &&
         put("/proc/sys/net/ipv4/ip_local_port_range", (std::string(port) + " " + port).c_str());
}

/// TCP connects a socket to itself if it chooses the port to which it connects.
TEST(a_socket_that_is_connected_to_itself_found_nobody) {
  if (!enter_network_of("40000")) return;
  Node a({}, 30'000);
  ck_assert_int_eq(a.listening, 0);
  g_log.clear();
  a.manager->connect(address_of("127.0.0.1", 40'000), 1, true);
  ck_assert(serve({&a}, [&] { return a.manager->next_deadline() < a.clock.time + 1'000'000'000; }));
  ck_assert(a.failed.empty());  // a listener may appear
  ck_assert(a.queue_pairs.all.empty());
  ck_assert(g_log.empty());
}

TEST(a_patient_connect_waits_for_the_listener) {
  Node a;
  uint16_t port = 0;
  { port = Node().name().port(); }
  a.manager->connect(address_of("127.0.0.1", port), 1, true);
  for (int tries = 0; tries < 5; ++tries) {
    ck_assert(
        serve({&a}, [&] { return a.manager->next_deadline() < a.clock.time + 1'000'000'000; }));
    a.clock.time = a.manager->next_deadline();
    a.step();
  }
  ck_assert(a.failed.empty());
  Node b({}, port);
  ck_assert_int_eq(b.listening, 0);
  ck_assert(serve({&a, &b}, [&] {
    a.clock.time += 1'000'000;
    return !a.up.empty() && !b.up.empty();
  }));
}

TEST(an_address_without_route_is_unreachable) {
  Node a;
  a.manager->connect(address_of("255.255.255.255", 9), 1, false);
  ck_assert(a.failed.empty());  // there may be a route soon
  ck_assert(serve({&a}, [&] {
    a.clock.time += 1'000'000'000;
    return !a.failed.empty();
  }));
  ck_assert_int_eq(a.failed[0].status, -FI_EHOSTUNREACH);
}

/// More descriptors would not help.
TEST(an_own_address_that_is_gone_is_named_as_the_cause) {
  ManualClock clock;
  FakeQueuePairs queue_pairs;
  TcpBackend backend(address_of("203.0.113.77", 0), 1'000'000'000, queue_pairs, clock);
  g_log.clear();
  ck_assert_int_eq(backend.connect(1, address_of("203.0.113.78", 9)), -FI_EADDRNOTAVAIL);
  ck_assert_uint_eq(g_log.size(), 1);
  ck_assert(contains(g_log[0].text, "203.0.113.77"));
  ck_assert(!contains(g_log[0].text, "ulimit -n"));
}

TEST(garbage_is_told_so_and_closed) {
  Node a;
  const util::Fd fd = stranger(a);
  g_log.clear();
  ck_assert_int_eq(write(fd.get(), "GET / HTTP/1.1\r\n\r\n", 18), 18);
  ck_assert(refusal_in(last_words(a, fd)) == Refusal::garbage);
  ck_assert(contains(only_log_line(), "did not send a hello"));
}

TEST(another_version_is_told_so_whatever_its_length) {
  Node a;
  const util::Fd fd = stranger(a);
  HelloPrefix prefix = encode_prefix(HelloKind::hello);
  prefix.version = 9;
  g_log.clear();
  ck_assert_int_eq(write(fd.get(), &prefix, sizeof(prefix)), sizeof(prefix));
  ck_assert(refusal_in(last_words(a, fd)) == Refusal::version);
  ck_assert(contains(only_log_line(), "another version"));
}

TEST(a_port_scan_costs_a_line) {
  Node a;
  g_log.clear();
  { const util::Fd fd = stranger(a); }
  ck_assert(serve({&a}, [&] { return !g_log.empty(); }));
  ck_assert(contains(only_log_line(), "hung up"));
}

TEST(a_truncated_hello_costs_a_line) {
  Node a;
  g_log.clear();
  {
    const util::Fd fd = stranger(a);
    const HelloPrefix prefix = encode_prefix(HelloKind::hello);
    ck_assert_int_eq(write(fd.get(), &prefix, sizeof(prefix)), sizeof(prefix));
  }
  ck_assert(serve({&a}, [&] { return !g_log.empty(); }));
  ck_assert_int_eq(g_log[0].level, FI_LOG_WARN);
  ck_assert(contains(only_log_line(), "hung up"));
}

TEST(a_hello_in_single_bytes_is_read) {
  Node a;
  const util::Fd fd = stranger(a);
  Hello hello;
  hello.terms = {address_of("127.0.0.1", 99), 5, 8, 2048};
  const HelloBytes bytes = encode(hello, JobKey(""), {}, name_bytes(a.name()));
  char frame[sizeof(HelloBytes) + sizeof(Path)] = {};
  std::memcpy(frame, &bytes, sizeof(bytes));
  for (const char& byte : frame) {
    ck_assert_int_eq(write(fd.get(), &byte, 1), 1);
    serve({&a}, [&] { return true; });
    a.step();
  }
  ck_assert(serve({&a}, [&] { return a.alive == 1; }));
  const HelloPrefix confirm = encode_prefix(HelloKind::confirm);
  ck_assert_int_eq(write(fd.get(), &confirm, sizeof(confirm)), sizeof(confirm));
  ck_assert(serve({&a}, [&] { return a.up.size() == 1; }));
}

TEST(who_says_nothing_is_closed_after_a_while) {
  Node a;
  const util::Fd fd = stranger(a);
  ck_assert(serve({&a}, [&] { return a.backend->next_deadline() != UINT64_MAX; }));
  g_log.clear();
  a.clock.time += TcpBackend::kHelloTime;
  ck_assert(last_words(a, fd).empty());
  ck_assert(contains(only_log_line(), "said nothing"));
}

TEST(a_flood_of_half_open_connections_keeps_nobody_out) {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = std::min<rlim_t>(files.rlim_max, 4096);
  setrlimit(RLIMIT_NOFILE, &files);
  Node a, b;
  std::vector<util::Fd> flood;
  for (size_t i = 0; i < TcpBackend::kMaxHalfOpen + 100; ++i) {
    flood.push_back(stranger(a));
    a.step();
    ++a.clock.time;
  }
  ck_assert(connect_nodes(b, a));
  ck_assert(last_words(a, flood[0]).empty());
}

TEST(without_descriptors_the_listener_rests_and_recovers) {
  Node a;
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  const rlimit before = files;
  const util::Fd fd = stranger(a);
  files.rlim_cur = rlim_t(fd.get() + 1);
  ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &files), 0);
  g_log.clear();
  ck_assert(serve({&a}, [&] { return !g_log.empty(); }));
  ck_assert(contains(only_log_line(), "ulimit -n"));
  a.step();
  ck_assert(g_log.empty());  // no busy loop
  setrlimit(RLIMIT_NOFILE, &before);
  a.clock.time = a.backend->next_deadline();
  Node b;
  ck_assert(connect_nodes(b, a));
}

TEST(a_connect_waits_for_a_descriptor) {
  Node a, b;
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  const rlimit before = files;
  files.rlim_cur = rlim_t(b.backend->fd());
  ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &files), 0);
  g_log.clear();
  a.manager->connect(b.name(), 1, false);
  ck_assert(contains(only_log_line(), "ulimit -n"));
  ck_assert(a.failed.empty());
  setrlimit(RLIMIT_NOFILE, &before);
  a.clock.time = a.manager->next_deadline();
  ck_assert(serve({&a, &b}, [&] { return !a.up.empty() && !b.up.empty(); }));
}

/// More descriptors would not help.
TEST(a_lack_of_memory_while_accepting_is_not_blamed_on_descriptors) {
  Node a;
  const util::Fd fd = stranger(a);
  fake::refuse_call(SYS_accept4, ENOMEM);
  g_log.clear();
  ck_assert(serve({&a}, [&] { return !g_log.empty(); }));
  const std::string line = only_log_line();
  ck_assert(contains(line, fi_strerror(ENOMEM)));
  ck_assert(!contains(line, "ulimit -n"));
}

/// accept(2) tells it at the connection that it concerns, which is gone.
TEST(a_connection_that_the_network_lost_before_it_was_accepted_says_nothing_of_the_listener) {
  Node a;
  const util::Fd fd = stranger(a);
  g_log.clear();
  fake::refuse_call(SYS_accept4, EHOSTUNREACH);
  a.step();
  ck_assert(g_log.empty());
  ck_assert_uint_eq(a.backend->next_deadline(), UINT64_MAX);  // the listener does not rest
}

TEST(an_orderly_close_is_told_from_a_death, 2) {
  Node a, b;
  ck_assert(connect_nodes(a, b));
  a.manager->close(a.up[0].connection_id, _i == 0);
  ck_assert(serve({&a, &b}, [&] { return !b.lost.empty(); }));
  ck_assert_int_eq(b.lost[0].status, _i == 0 ? -FI_ESHUTDOWN : -FI_ECONNRESET);
  ck_assert_uint_eq(b.lost[0].connection_id, b.up[0].connection_id);
}

TEST(an_endpoint_that_ends_is_seen) {
  Node b;
  {
    Node a;
    ck_assert(connect_nodes(a, b));
  }
  ck_assert(serve({&b}, [&] { return !b.lost.empty(); }));
}

TEST(a_queue_pair_that_does_not_join_fails_the_attempt, 2) {
  Node a, b;
  (_i ? a : b).queue_pairs.fail_joins = 1;
  a.manager->connect(b.name(), 1, false);
  ck_assert(serve({&a, &b}, [&] {
    a.clock.time += 1'000'000;
    return !a.up.empty() || !a.failed.empty();
  }));
  if (_i) ck_assert_int_eq(a.failed[0].status, -FI_EINVAL);
  ck_assert(serve({&a, &b}, [&] { return a.alive == b.alive; }));
}

TEST(what_comes_after_the_handshake_ends_the_connection) {
  Node a;
  const util::Fd fd = stranger(a);
  Hello hello;
  hello.terms = {address_of("127.0.0.1", 99), 5, 8, 2048};
  struct {
    HelloBytes hello;
    Path path;
    HelloPrefix confirm;
    char more[8];
  } all{encode(hello, JobKey(""), {}, name_bytes(a.name())),
        {},
        encode_prefix(HelloKind::confirm),
        "garbage"};
  ck_assert_int_eq(write(fd.get(), &all, sizeof(all)), sizeof(all));
  ck_assert(serve({&a}, [&] { return !a.lost.empty(); }));
  ck_assert_int_eq(a.lost[0].status, -FI_ECONNRESET);
  a.manager->close(a.lost[0].connection_id, false);
  (void)last_words(a, fd);
}

TEST(two_hundred_connects_at_once_all_succeed) {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  Node hub;
  std::vector<std::unique_ptr<Node>> others;
  for (int i = 0; i < 200; ++i) {
    others.push_back(std::make_unique<Node>());
    (i % 2 ? hub : *others.back())
        .manager->connect(i % 2 ? others.back()->name() : hub.name(), 1, false);
  }
  ck_assert(serve({&hub}, [&] {
    for (auto& other : others) other->step();
    return hub.up.size() == 200;
  }));
  ck_assert(serve({&hub}, [&] {
    for (auto& other : others) other->step();
    return std::ranges::all_of(others, [](auto& other) { return other->up.size() == 1; });
  }));
}

}  // namespace

}  // namespace erdma::test
