#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fake/connection.h"
#include "libcheck.h"
#include "transport/verbs/connection_manager.h"
#include "util/clock.h"
#include "util/socket_address.h"

/// Endpoints whose handshakes use simulated messages. A test decides when each message is
/// delivered, so it can try every order. There is no thread, no socket and no verbs call. Include
/// this header in one file of a program.
namespace erdma::test {

using namespace transport::verbs;

class ManualClock final : public util::Clock {
 public:
  uint64_t now() const noexcept override { return time; }
  uint64_t time = 1'000'000'000;
};

class World;

/// One endpoint: the connection manager, the back end, the factory, and a recorder of the mail for
/// the polling thread.
class Host final : public ConnectionBackend, ConnectionFactory, MailSink {
 public:
  Host(World& world, const util::SocketAddress& name, uint64_t nonce, Options options,
       bool tells_nobody_by_reset);
  ~Host() override {
    if (manager) manager->finish();
    poll();
    manager.reset();  // the manager posts its remaining mail
  }

  void close_connection(uint64_t id, bool orderly) {
    ck_assert_uint_eq(up.erase(id), 1);
    closed.insert(id);
    manager->close(id, orderly);
  }
  /// Takes the mail, and calls close() for each `lost` as the polling thread does.
  void poll();
  void connect(const util::SocketAddress& peer, bool retry_refused = false) {
    manager->connect(peer, ++tokens, retry_refused);
  }
  size_t up_to(const util::SocketAddress& peer) const {
    size_t count = 0;
    for (const auto& [id, mail] : up) count += mail.peer == peer;
    return count;
  }

  World& world;
  ConnectorConfig config{};
  std::unique_ptr<ConnectionManager> manager;
  std::map<uint64_t, Mail> up;
  std::set<uint64_t> closed;  ///< closed by this host; a `lost` may be in the mail already
  std::vector<Mail> failed, lost, mailbox;
  std::vector<uint64_t> greeted;    ///< attempts that sent a hello
  std::atomic<int> alive = 0;       ///< Connections
  int refuse_to_prepare = 0;        ///< number of prepare() calls that fail
  int refuse_queue_pairs = 0;       ///< number of create_queue_pair() calls that fail
  int fail_to_agree = 0;            ///< number of agree() calls that fail
  int busy_ports = 0;               ///< number of greetings that find their own port in use
  int port_error = -FI_EADDRINUSE;  ///< error of such a greeting
  int refuse_to_connect = 0;        ///< status of every connect()
  int crowded = 0;                  ///< number of times peers were turned away
  bool holds_requests = false;      ///< a closed request is destroyed only after on_closed()
  bool resets = false;  ///< a connect to an absent host ends with a reset, not a refusal
  ibv_cq queue{};       ///< completion queue of the connections
  std::vector<const ibv_cq*> failed_queues;
  bool unanswered = false;  ///< a connect reaches a host that answers no hello
  uint64_t tokens = 0;
  uint64_t session = 0;  ///< session that this host agreed to give up
  bool listening = true;

  // Functions of ConnectionBackend.
  int listen(util::SocketAddress&) noexcept override { return 0; }
  void stop_listening() noexcept override { listening = false; }
  int fd() const noexcept override { return -1; }
  void dispatch(BackendEvents&) override {}
  uint64_t next_deadline() const noexcept override { return UINT64_MAX; }
  void expire(BackendEvents&) override {}
  int connect(uint64_t id, const util::SocketAddress& peer) noexcept override;
  ibv_qp* create_queue_pair(uint64_t id, ibv_qp_init_attr&, Path& own) noexcept override {
    static ibv_qp queue_pair;
    if (refuse_queue_pairs > 0 && refuse_queue_pairs--) return nullptr;
    own = path_of(id);
    return &queue_pair;
  }
  int greet(uint64_t id, const HelloBytes& hello) noexcept override;
  int confirm(uint64_t id) noexcept override;
  void refuse(uint64_t id, const HelloPrefix& refusal) noexcept override;
  bool close(uint64_t id, bool orderly) noexcept override;
  void abandon() noexcept override {}

 private:
  static Path path_of(uint64_t id) noexcept {
    Path path{};
    std::memcpy(path.data(), &id, sizeof(id));
    return path;
  }
  void request(uint64_t id, const HelloBytes& hello);
  void accept(uint64_t id, const HelloBytes& welcome);
  std::unique_ptr<Connection> prepare(ibv_qp_init_attr& attr) noexcept override {
    if (refuse_to_prepare && refuse_to_prepare--) return nullptr;
    attr.send_cq = &queue;
    return std::make_unique<Connection>(alive);
  }
  size_t connections() const noexcept override { return size_t(alive); }
  void queue_failed(const ibv_cq* cq) noexcept override { failed_queues.push_back(cq); }
  int adopt(Connection&, ibv_qp*) noexcept override { return 0; }
  void fill_terms(const util::SocketAddress&, Terms& terms) noexcept override {
    terms.credits = 8;
    terms.receive_bytes = 2048;
    terms.heartbeat_address = 0x7000'0000'1000;
    terms.heartbeat_rkey = 0x1234;
    terms.resumes = session;
  }
  uint64_t continues(const util::SocketAddress&) noexcept override { return session; }
  int agree(Connection&, const Terms&, bool) noexcept override {
    return fail_to_agree && fail_to_agree-- ? -FI_ECONNRESET : 0;
  }
  void post(Mail mail) noexcept override { mailbox.push_back(std::move(mail)); }
};

class World {
 public:
  using Step = std::function<void()>;

  /// Messages of one connection to one side arrive in order. Other messages arrive in any order.
  void send(uint64_t queue, Step step) { x_queues[queue].push_back(std::move(step)); }

  size_t choices() const { return x_queues.size(); }
  void deliver(size_t choice) {
    auto queue = std::next(x_queues.begin(), ptrdiff_t(choice));
    Step step = std::move(queue->second.front());
    queue->second.pop_front();
    if (queue->second.empty()) x_queues.erase(queue);
    step();
  }
  void deliver_all() {
    while (choices()) deliver(0);
  }
  /// Delivers messages and advances the clock until nothing is left to do.
  void settle() {
    for (int rounds = 0; rounds < 10'000; ++rounds) {
      deliver_all();
      for (auto& [name, host] : hosts) host->poll();
      if (choices()) continue;
      uint64_t next = UINT64_MAX;
      for (auto& [name, host] : hosts) next = std::min(next, host->manager->next_deadline());
      if (next == UINT64_MAX) return;
      clock.time = std::max(clock.time, next);
      for (auto& [name, host] : hosts) host->manager->expire();
    }
    ck_abort_msg("the world does not come to rest");
  }

  Host& add(const char* ip, uint64_t nonce, Options options = {},
            bool tells_nobody_by_reset = true) {
    const util::SocketAddress name = address_of(ip, 5000);
    auto& host = hosts[name.to_string()];
    host = std::make_unique<Host>(*this, name, nonce, std::move(options), tells_nobody_by_reset);
    return *host;
  }
  void remove(Host& host) { hosts.erase(host.config.name.to_string()); }
  Host* find(const util::SocketAddress& name) {
    const auto found = hosts.find(name.to_string());
    return found == hosts.end() ? nullptr : found->second.get();
  }
  /// The other end of a connection. An empty name means that this end is gone.
  struct End {
    util::SocketAddress host;
    uint64_t id = 0;
  };
  std::map<uint64_t, End> other;  ///< ends by id, which is unique
  ManualClock clock;

 private:
  std::map<uint64_t, std::deque<Step>> x_queues;

 public:
  std::map<std::string, std::unique_ptr<Host>> hosts;  ///< destroyed first, as hosts send messages
};

inline Host::Host(World& a_world, const util::SocketAddress& name, uint64_t nonce, Options options,
                  bool tells_nobody_by_reset)
    : ConnectionBackend(tells_nobody_by_reset), world(a_world) {
  config.options = std::move(options);
  config.name = name;
  config.factory = this;
  config.mail = this;
  config.clock = &world.clock;
  config.udp_table = "/nowhere";  // a simulated NIC of another test may run a port mapper
  manager = std::make_unique<ConnectionManager>(config, nonce, *this);
}

inline void Host::poll() {
  while (!mailbox.empty()) {
    Mail mail = std::move(mailbox.front());
    mailbox.erase(mailbox.begin());
    switch (mail.type) {
      case Mail::Type::up:
        ck_assert_ptr_nonnull(mail.connection.get());
        up.emplace(mail.connection_id, std::move(mail));
        break;
      case Mail::Type::failed:
        failed.push_back(std::move(mail));
        break;
      case Mail::Type::lost:
        ck_assert_uint_eq(up.erase(mail.connection_id) + closed.count(mail.connection_id), 1);
        manager->close(mail.connection_id, false);
        lost.push_back(std::move(mail));
        break;
      case Mail::Type::crowded:
        ++crowded;
        break;
      case Mail::Type::dispose:
      case Mail::Type::leave_open:
        break;
    }
  }
}

/// Sends `action` to one end. It is dropped if the connection was closed or the host is gone.
inline void to(World& world, const World::End& end, std::function<void(Host&)> action) {
  world.send(end.id, [&world, end, action = std::move(action)] {
    Host* host = world.find(end.host);
    if (host && world.other.contains(end.id)) action(*host);
  });
}

inline int Host::connect(uint64_t id, const util::SocketAddress& peer) noexcept {
  if (refuse_to_connect) return refuse_to_connect;
  world.other[id] = {peer, 0};
  to(world, {config.name, id}, [id, peer](Host& self) {
    Host* host = self.world.find(peer);
    if ((host && host->listening) || self.resets || self.unanswered)
      self.manager->on_reached(id);
    else
      self.manager->on_refused(id, {});
  });
  return 0;
}

inline int Host::greet(uint64_t id, const HelloBytes& hello) noexcept {
  const bool passive = world.other[id].id;
  if (!passive && busy_ports > 0 && busy_ports--) return port_error;
  passive ? accept(id, hello) : request(id, hello);
  return 0;
}

inline void Host::request(uint64_t id, const HelloBytes& hello) {
  greeted.push_back(id);
  const World::End me{config.name, id}, peer{world.other[id].host, next_connection_id()};
  world.other[id] = peer;
  world.other[peer.id] = me;
  if (unanswered) return;
  world.send(peer.id, [&world = world, me, peer, hello, path = path_of(id)] {
    Host* host = world.find(peer.host);
    if (host && host->listening)
      host->manager->on_request(peer.id, me.host, std::as_bytes(std::span(&hello, 1)), path);
    else
      to(world, me, [me](Host& self) {
        self.resets ? self.manager->on_closed(me.id, -FI_ECONNRESET)
                    : self.manager->on_refused(me.id, {});
      });
  });
}

inline void Host::accept(uint64_t id, const HelloBytes& welcome) {
  to(world, world.other[id], [welcome, path = path_of(id), peer = world.other[id].id](Host& host) {
    host.manager->on_accepted(peer, std::as_bytes(std::span(&welcome, 1)), path);
  });
}

inline int Host::confirm(uint64_t id) noexcept {
  to(world, world.other[id],
     [peer = world.other[id].id](Host& host) { host.manager->on_established(peer); });
  return 0;
}

inline void Host::refuse(uint64_t id, const HelloPrefix& refusal) noexcept {
  const auto found = world.other.find(id);
  if (found == world.other.end()) return;
  const World::End peer = found->second;
  world.other.erase(found);
  to(world, peer, [refusal, peer](Host& host) {
    host.manager->on_refused(peer.id, std::as_bytes(std::span(&refusal, 1)));
  });
}

inline bool Host::close(uint64_t id, bool orderly) noexcept {
  const auto found = world.other.find(id);
  if (found == world.other.end()) return false;
  const World::End peer = found->second;
  world.other.erase(found);
  if (!peer.id) return false;
  to(world, peer, [peer, orderly](Host& host) {
    host.manager->on_closed(peer.id, orderly ? -FI_ESHUTDOWN : -FI_ECONNRESET);
  });
  return holds_requests;
}

inline constexpr const char* kA = "10.0.0.1";  // the smaller of the two names
inline constexpr const char* kB = "10.0.0.2";

inline util::SocketAddress name_a() {
  return address_of(kA, 5000);
}
inline util::SocketAddress name_b() {
  return address_of(kB, 5000);
}

/// Fails unless the connections that are up at `a` and `b` are the ends of one connection, and no
/// other exists.
inline void expect_joined(World& world, Host& a, Host& b) {
  ck_assert_uint_eq(a.up_to(b.config.name), 1);
  ck_assert_uint_eq(b.up_to(a.config.name), 1);
  ck_assert_uint_eq(world.other[a.up.begin()->first].id, b.up.begin()->first);
  ck_assert_int_eq(a.alive, 1);
  ck_assert_int_eq(b.alive, 1);
  ck_assert_int_ne(a.up.begin()->second.active, b.up.begin()->second.active);
}

/// What refuses the connects of `a` for a while does not end its attempt.
inline void expect_joined_later(World& world, Host& a, Host& b) {
  for (int tries = 0; tries < 5; ++tries) {
    world.clock.time = a.manager->next_deadline();
    a.manager->expire();
  }
  a.poll();
  ck_assert_uint_eq(a.failed.size(), 0);
  a.refuse_to_connect = 0;
  world.settle();
  expect_joined(world, a, b);
}

/// Starts to listen at b after `attempts` attempts of `a`, and fails unless they connect.
inline void expect_joined_once_it_listens(World& world, Host& a, int attempts) {
  for (int i = 0; i < attempts; ++i) {
    world.deliver_all();
    world.clock.time = a.manager->next_deadline();
    a.manager->expire();
  }
  Host& b = world.add(kB, 2);
  world.settle();
  expect_joined(world, a, b);
  ck_assert(a.failed.empty());
}

}  // namespace erdma::test
