// The server's side consists of three processes: one that forks and kills and never calls
// libfabric, a victim for each round, and a survivor. Victim and survivor send back every message
// that they receive and have a window for RMA.
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>

#include "fi_erdma/libfabric.h"
#include "fi_erdma/pair/echo_server.h"
#include "fi_erdma/pair/exchange.h"
#include "fi_erdma/pair/memory.h"
#include "fi_erdma/pair/tests.h"

namespace fi_erdma::pair {
namespace {

// --- the server's side ---

/// A forked echo server.
class Child {
 public:
  Child(const Options& options, const std::string& client) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) fail("socketpair");
    x_pid = spawn([&] {
      ::close(ends[0]);
      Channel parent(ends[1], options.limit_s);
      return serve_echoes(options, client, std::ranges::max(options.sizes), parent);
    });
    ::close(ends[1]);
    x_channel = std::make_unique<Channel>(ends[0], options.limit_s);
  }
  ~Child() { end(SIGKILL); }
  Child(const Child&) = delete;

  std::string contact() { return x_channel->receive(); }
  void signal(int number) const { ::kill(x_pid, number); }
  /// Returns its exit status, or 128 + the signal that killed it.
  int end(int number) {
    if (x_pid <= 0) return 0;
    if (number) ::kill(x_pid, number);
    int status = 0;
    (void)::waitpid(x_pid, &status, 0);
    x_pid = 0;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  int dismiss() {
    x_channel->send("end");
    return end(0);
  }

 private:
  pid_t x_pid = 0;
  std::unique_ptr<Channel> x_channel;
};

int serve(const TestOptions& options, int rounds, Channel& client) {
  const std::string name = client.receive();
  Child survivor(options, name);
  client.send(survivor.contact());
  for (int round = 0; round < rounds; ++round) {
    Child victim(options, name);
    client.send(victim.contact());
    if (client.receive() == "stop") {
      victim.signal(SIGSTOP);
      client.send("stopped");
      (void)client.receive();
    }
    if (options.signal == "KILL") {
      if (const int status = victim.end(SIGKILL); status != 128 + SIGKILL) {
        fail("the victim ended by itself, status %d", status);
      }
    } else {
      victim.signal(SIGSTOP);
    }
    client.send("killed");
    if (client.receive() != "next") fail("the client is another version of this program");
  }
  return survivor.dismiss();
}

// --- the client's side ---

enum class Kind { stuck_send, lonely_receive, send, receive, read, write };
constexpr const char* kNames[] = {
    "send without a receive", "receive without a send", "send", "receive", "read", "write"};

/// One operation on a server, which is posted repeatedly.
class Work {
 public:
  Work(Endpoint& endpoint, const Peer& target, Kind kind, size_t size, uint64_t number)
      : x_endpoint(endpoint),
        x_target(target),
        x_kind(kind),
        x_size(size),
        x_number(number),
        x_buffer(endpoint, size + 1, 0) {
    if (kind == Kind::send) x_buffer.fill(0, size, number);
  }
  /// Returns 0 or a negative fi_errno.
  ssize_t post() {
    x_operation = {};
    x_cancelled = false;
    if (kind() == Kind::receive) x_buffer.fill(0, x_size, ~x_number);
    const ssize_t rc = call();
    x_posted = rc == 0;
    return rc;
  }
  bool pending() const noexcept { return x_posted && !x_operation.done(); }
  bool ended() const noexcept { return x_posted && x_operation.done(); }
  const Operation& operation() const noexcept { return x_operation; }
  Kind kind() const noexcept { return x_kind; }
  size_t size() const noexcept { return x_size; }
  void cancel() {
    x_cancelled = true;
    (void)fi_cancel(&x_endpoint.ep()->fid, &x_operation);
  }
  /// Whether it ended in an error other than that of its own cancel().
  bool failed() const noexcept {
    return x_operation.error && !(x_cancelled && x_operation.error == FI_ECANCELED);
  }
  void check() const {
    if (x_kind != Kind::receive || x_operation.error) return;
    const ptrdiff_t wrong = x_buffer.first_wrong(0, x_size, x_number);
    if (wrong >= 0) fail("an echo of %zu bytes: byte %td is wrong", x_size, wrong);
  }
  void spoil() { x_buffer.spoil(0); }

 private:
  ssize_t call() {
    fid_ep* ep = x_endpoint.ep();
    void *at = x_buffer.at(), *desc = x_buffer.desc();
    const fi_addr_t to = x_target.address;
    switch (x_kind) {
      case Kind::stuck_send:
        return fi_tsend(ep, at, x_size, desc, to, kUnheard | x_number, &x_operation);
      case Kind::send:
        return fi_tsend(ep, at, x_size, desc, to, x_number, &x_operation);
      case Kind::lonely_receive:
        return fi_trecv(ep, at, x_size, desc, to, kUnheard | x_number, 0, &x_operation);
      case Kind::receive:
        return fi_trecv(ep, at, x_size, desc, to, x_number, 0, &x_operation);
      case Kind::read:
        return fi_read(ep, at, x_size, desc, to, x_target.remote, x_target.key, &x_operation);
      case Kind::write:
        return fi_write(ep, at, x_size, desc, to, x_target.remote, x_target.key, &x_operation);
    }
    return -FI_EINVAL;
  }

  Endpoint& x_endpoint;
  const Peer x_target;
  const Kind x_kind;
  const size_t x_size;
  const uint64_t x_number;
  Buffer x_buffer;
  Operation x_operation;
  bool x_posted = false, x_cancelled = false;
};

/// Exchanges messages with one echo server, one after the other, and checks them.
class Echoes {
 public:
  Echoes(const Options& options, Endpoint& endpoint, const Peer& target, uint64_t number) {
    for (const size_t size : options.sizes) {
      Pair& pair = x_pairs.emplace_back(endpoint, target, size, number);
      if (options.spoil && size > 0) pair.out.spoil();
      ++number;
    }
  }
  void step() {
    Pair& pair = x_pairs[x_done % x_pairs.size()];
    if (!x_received) x_received = posted(pair.in);
    if (x_received && !x_sent) x_sent = posted(pair.out);
    if (!x_sent || !pair.out.ended() || !pair.in.ended()) return;
    for (const Work* work : {&pair.out, &pair.in}) {
      if (work->operation().error) {
        fail("%s of %zu bytes with a server that lives: %s", kNames[int(work->kind())],
             work->size(), libfabric().error_text(-work->operation().error).c_str());
      }
    }
    pair.in.check();
    x_received = x_sent = false;
    ++x_done;
  }
  uint64_t done() const noexcept { return x_done; }
  bool idle() const noexcept { return !x_received; }

 private:
  struct Pair {
    Pair(Endpoint& endpoint, const Peer& target, size_t size, uint64_t number)
        : out(endpoint, target, Kind::send, size, number),
          in(endpoint, target, Kind::receive, size, number) {}
    Work out, in;
  };
  static bool posted(Work& work) {
    const ssize_t rc = work.post();
    if (rc != -FI_EAGAIN) must(rc, "a server that lives");
    return rc == 0;
  }
  std::deque<Pair> x_pairs;
  bool x_received = false, x_sent = false;
  uint64_t x_done = 0;
};

struct Totals {
  uint64_t operations = 0, errors = 0, meanwhile = 0;
  double slowest_ms = 0;
};

class Client {
 public:
  Client(const TestOptions& options, Channel& channel)
      : x_options(options),
        x_channel(channel),
        x_endpoint(options, FI_TAGGED | FI_RMA | FI_DIRECTED_RECV) {
    channel.send(x_endpoint.name());
    x_survivor = std::make_unique<Echoes>(options, x_endpoint, meet(), next_number());
  }
  void round(bool stopped);
  const Totals& totals() const noexcept { return x_totals; }

 private:
  void drive() {
    x_endpoint.progress();
    if (x_survivor) x_survivor->step();
  }
  Peer meet() {
    const auto contact = from_bytes<Contact>(x_channel.receive([this] { drive(); }));
    return {x_endpoint.insert({contact.name, std::min(contact.name_length, sizeof contact.name)}),
            contact.remote, contact.key};
  }
  uint64_t next_number() { return x_numbers += 1000; }
  void echo(Echoes& echoes, const char* what);
  void post_all(const Peer& victim);
  void repeat();
  void bury(double killed_at, uint64_t errors_before);

  const TestOptions& x_options;
  Channel& x_channel;
  Endpoint x_endpoint;
  std::unique_ptr<Echoes> x_survivor;
  std::deque<Work> x_work;
  uint64_t x_numbers = 0;
  Totals x_totals;
};

/// Sends each size once more.
void Client::echo(Echoes& echoes, const char* what) {
  const uint64_t until = echoes.done() + x_options.sizes.size();
  x_endpoint.until(
      [&] {
        echoes.step();
        return echoes.done() >= until && echoes.idle();
      },
      what);
}

void Client::post_all(const Peer& victim) {
  x_work.clear();
  uint64_t number = next_number();
  for (const size_t size : x_options.sizes) {
    ++number;
    for (const Kind kind : {Kind::lonely_receive, Kind::receive, Kind::send, Kind::read,
                            Kind::write, Kind::stuck_send}) {
      Work& work = x_work.emplace_back(x_endpoint, victim, kind, size, number);
      ssize_t rc = -FI_EAGAIN;
      for (int i = 0; i < 1000 && rc == -FI_EAGAIN; ++i) {
        if (i) drive();
        rc = work.post();
      }
      // A full queue to a stopped server is expected.
      if (rc != -FI_EAGAIN) must(rc, kNames[int(kind)]);
    }
  }
}

/// Posts completed reads and writes again, so that some are always in flight.
void Client::repeat() {
  for (Work& work : x_work) {
    const bool again = work.kind() == Kind::read || work.kind() == Kind::write;
    if (!again || !work.ended()) continue;
    ++x_totals.operations;
    if (work.operation().error) ++x_totals.errors;
    (void)work.post();
  }
}

void Client::bury(double killed_at, uint64_t errors_before) {
  for (Work& work : x_work) {
    const bool receive = work.kind() == Kind::receive || work.kind() == Kind::lonely_receive;
    if (receive && work.pending()) work.cancel();  // without a message they would never end
  }
  const double limit = killed_at + x_options.limit_ms / 1000;
  const uint64_t before = x_survivor->done();
  for (const Work& work : x_work) {
    while (work.pending()) {
      drive();
      if (now_s() > limit) {
        fail("%.0f ms after the server's death: %s of %zu bytes has not ended", x_options.limit_ms,
             kNames[int(work.kind())], work.size());
      }
    }
  }
  for (const Work& work : x_work) {
    if (!work.ended()) continue;
    work.check();
    ++x_totals.operations;
    x_totals.errors += work.failed();
    x_totals.slowest_ms = std::max(x_totals.slowest_ms, (work.operation().at_s - killed_at) * 1000);
  }
  if (x_totals.errors == errors_before) fail("nothing was pending when the server died");
  x_totals.meanwhile += x_survivor->done() - before;
}

void Client::round(bool stopped) {
  const Peer victim = meet();
  {
    Echoes echoes(x_options, x_endpoint, victim, next_number());
    echo(echoes, "echoes of the server that will die");
  }
  auto drive_all = [this] {
    drive();
    repeat();
  };
  if (stopped) {
    x_channel.send("stop");
    (void)x_channel.receive([this] { drive(); });
  }
  post_all(victim);
  const uint64_t errors_before = x_totals.errors;
  const double killed_at = now_s();
  x_channel.send("kill");
  (void)x_channel.receive(drive_all);
  bury(killed_at, errors_before);
  echo(*x_survivor, "echoes of the server that lives");
  x_channel.send("next");
}

constexpr int kRounds = 4;

int death_side(const TestOptions& options, int rounds, Side side, Channel& channel) {
  if (side == Side::server) return serve(options, rounds, channel);
  Client client(options, channel);
  for (int round = 0; round < rounds; ++round) client.round(round % 2 != 0);
  const Totals& totals = client.totals();
  std::printf("%d servers killed: %" PRIu64 " operations on them, %" PRIu64
              " ended in an error, each in one completion, the slowest %.1f ms after the order to "
              "kill; another server sent %" PRIu64 " messages back meanwhile\n",
              rounds, totals.operations, totals.errors, totals.slowest_ms, totals.meanwhile);
  return kPassed;
}

}  // namespace

int test_peer_death(TestOptions options) {
  if (options.sizes.empty()) options.sizes = {0, 8, 4096, 65536, 1 << 20};
  const int rounds = options.iterations ? options.iterations : kRounds;
  const std::string task = "test peer-death: " + std::to_string(rounds) + " times SIG" +
                           options.signal + ", " + sizes_text(options);
  return run_sides(task, options, [&](Side side, Channel& channel) {
    return death_side(options, rounds, side, channel);
  });
}

}  // namespace fi_erdma::pair
