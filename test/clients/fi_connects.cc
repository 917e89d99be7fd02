// fi_connects taken [--connects N] [--first PORT] [--ports N]
// fi_connects unanswered | crossing [--rounds N] | nobody
// How an endpoint connects to peers over a NIC when the network is against it. Two processes, one
// on each host.
//   taken       half of the ports from which host A connects belong to TCP sockets: each of the
//               connects to N endpoints succeeds (the caller narrows the range of ports)
//   unanswered  packets to the peer are lost (the caller loses them): no call waits, the operation
//               fails, and an endpoint that is closed meanwhile closes soon
//   crossing    both sides connect to each other at once: no call waits, and closing is soon
//   nobody      the peer has left, before the first message or after it: an error soon
// The exit status is 3 if only a limit on a call, on closing or on the time of an error was missed,
// which may be due to a busy host. It is 1 for any other failure.
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "fi_common.h"

using namespace erdma::clients;

namespace {

constexpr double kLongestCall = 0.1;
constexpr double kLongestClose = 2;
constexpr double kLongestError = 2;
/// A third of the limits of the checks (vm/guest_erdma.sh), which run this program up to three
/// times.
constexpr double kLongestRun = 38;
constexpr int kOnlyLate = 3;  ///< exit status
enum Word { here, there, over, late };

/// The longest time that a call of this thread waited. Time in which it ran, or in which others had
/// the processor, does not count: it says more about the machine than about the call.
class Waits {
 public:
  Waits() : x_schedstat(::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)) {}
  ~Waits() { ::close(x_schedstat); }
  Waits(const Waits&) = delete;

  void measure(const std::function<void()>& call) {
    const Sample before = sample();
    call();
    const Sample after = sample();
    x_longest = std::max(x_longest, (after.wall - before.wall) - (after.ran - before.ran) -
                                        (after.queued - before.queued));
  }
  double longest() const noexcept { return x_longest; }

 private:
  struct Sample {
    double wall, ran, queued;
  };

  static double read_clock(clockid_t clock) noexcept {
    timespec t{};
    ::clock_gettime(clock, &t);
    return double(t.tv_sec) + double(t.tv_nsec) / 1e9;
  }
  Sample sample() const noexcept {
    char text[128]{};
    double ran = 0, queued = 0;
    if (::pread(x_schedstat, text, sizeof text - 1, 0) > 0)
      std::sscanf(text, "%lf %lf", &ran, &queued);
    return {read_clock(CLOCK_MONOTONIC), read_clock(CLOCK_THREAD_CPUTIME_ID), queued / 1e9};
  }

  const int x_schedstat;
  double x_longest = 0;
};

void poll(Node& node, Waits& waits, const std::function<bool()>& condition, double limit_s,
          const char* what) {
  const auto start = Clock::now();
  while (!condition()) {
    waits.measure([&] { node.progress(); });
    if (seconds_since(start) > limit_s) fail("waited %.0f s for %s", limit_s, what);
  }
}

/// For what no event tells of; the caller says what that is.
void poll_for(Node& node, Waits& waits, double seconds) {
  const auto start = Clock::now();
  poll(
      node, waits, [&] { return seconds_since(start) > seconds; }, seconds + 60, "nothing");
}

void post(Node& node, Waits& waits, Op& op, fi_addr_t to, uint64_t tag) {
  static const uint64_t word = 7;
  int rc = 0;
  waits.measure([&] { rc = node.tsend(op, &word, sizeof word, to, tag); });
  must(rc, "fi_tsend");
}

double close(Node& node) {
  const auto start = Clock::now();
  node.close_endpoint();
  return seconds_since(start);
}

/// Notes that a time is above its limit, and goes on: any other failure of either side counts more.
void keep_limit(Board& board, double seconds, double limit, const char* what, const char* of_what) {
  if (seconds <= limit) return;
  std::fprintf(stderr, "fi_connects %s: late: %s took %.3f s, more than %.1f s\n", what, of_what,
               seconds, limit);
  board.words[late] = 1;
}

void judge(Board& board, const char* what, const Waits& waits, double closed) {
  std::printf("fi_connects %s: the longest wait of a call %.1f ms, fi_close %.0f ms\n", what,
              waits.longest() * 1e3, closed * 1e3);
  keep_limit(board, waits.longest(), kLongestCall, what, "a call");
  keep_limit(board, closed, kLongestClose, what, "fi_close");
}

// --- taken

/// Every second port of the range gets a socket that listens.
void take_ports(unsigned first, unsigned count) {
  for (unsigned port = first; port < first + count; port += 2) {
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_port = htons(uint16_t(port));
    if (::bind(socket, reinterpret_cast<sockaddr*>(&any), sizeof any) || ::listen(socket, 1))
      fail("port %u: %s", port, std::strerror(errno));
  }
}

/// Each endpoint of the peer is new, so the state that TCP keeps of the connects before is of other
/// ports.
int connect_to_all(Board& board, uint64_t connects, unsigned first, unsigned ports) {
  take_ports(first, ports);
  Node node;
  for (uint64_t i = 1; i <= connects; ++i) {
    node.wait_until([&] { return board.words[there] == i; }, "the other side");
    Op op;
    const uint64_t word = i;
    node.send(op, &word, sizeof word, node.insert(board.name(1)), i);
    node.wait(op);
    if (op.error) fail("connect %lu: %s", i, fi_strerror(op.error));
    board.words[here] = i;
  }
  std::printf("fi_connects taken: %lu connects\n", connects);
  return 0;
}

int be_all(Board& board, uint64_t connects) {
  Node node;
  for (uint64_t i = 1; i <= connects; ++i) {
    Op op;
    uint64_t word = 0;
    node.receive(op, &word, sizeof word, FI_ADDR_UNSPEC, i);
    board.publish(1, node.name());
    board.words[there] = i;
    node.wait(op);
    must(-op.error, "receive");
    node.wait_until([&] { return board.words[here] == i; }, "the other side");
    node.close_endpoint();
    if (i < connects) node.open_endpoint();
  }
  return 0;
}

// --- unanswered

int call_in_vain(Board& board) {
  Node node;
  const auto to = board.meet(node, 0, 2);
  Waits waits;
  Op first, second;
  const auto start = Clock::now();
  post(node, waits, first, to[1], 1);
  poll(
      node, waits, [&] { return first.done.load(); }, 30, "an error");
  std::printf("fi_connects unanswered: %s after %.1f s\n", fi_strerror(first.error),
              seconds_since(start));
  if (!first.error) fail("the packets were not lost");
  // No event tells that the driver is done with the first connect, for which calls might wait.
  poll_for(node, waits, 0.5);
  post(node, waits, second, to[1], 2);
  // No event tells that the second connect is under way, as it is to be when the endpoint closes.
  poll_for(node, waits, 0.5);
  judge(board, "unanswered", waits, close(node));
  board.words[over] = 1;
  return 0;
}

int hear_nothing(Board& board) {
  Node node;
  (void)board.meet(node, 1, 2);
  node.wait_until([&] { return board.words[over] == 1; }, "the other side");
  return 0;
}

// --- crossing

void await_other(Board& board, Node& node, int who, uint64_t step) {
  board.words[who ? there : here] = step;
  node.wait_until([&] { return board.words[who ? here : there] >= step; }, "the other side");
}

int cross(Board& board, int who, uint64_t rounds) {
  Waits waits;
  double closed = 0;
  for (uint64_t round = 1; round <= rounds; ++round) {
    Node node;
    board.publish(who, node.name());
    await_other(board, node, who, 4 * round);
    const fi_addr_t to = node.insert(board.name(1 - who));
    Op out, in;
    uint64_t word = 0;
    node.receive(in, &word, sizeof word, to, round);
    await_other(board, node, who, 4 * round + 1);
    post(node, waits, out, to, round);
    poll(
        node, waits, [&] { return out.done && in.done; }, 30, "the messages");
    must(-out.error, "send");
    must(-in.error, "receive");
    await_other(board, node, who, 4 * round + 2);
    closed = std::max(closed, close(node));
  }
  judge(board, "crossing", waits, closed);
  return 0;
}

// --- nobody

void fail_soon(Board& board, Node& node, fi_addr_t to, const char* what) {
  Waits waits;
  Op op;
  const auto start = Clock::now();
  post(node, waits, op, to, 2);
  poll(
      node, waits, [&] { return op.done.load(); }, 30, "an error");
  const double seconds = seconds_since(start);
  std::printf("fi_connects nobody: %s: %s after %.2f s\n", what, fi_strerror(op.error), seconds);
  if (op.error != FI_ECONNREFUSED) fail("%s: the error is not the right one", what);
  judge(board, "nobody", waits, 0);
  keep_limit(board, seconds, kLongestError, "nobody", what);
}

int look_for_them(Board& board) {
  {
    Node node;
    node.wait_until([&] { return board.words[there] == 1; }, "the other side");
    fail_soon(board, node, node.insert(board.name(1)), "a peer that was never there");
  }
  Node node;
  board.words[here] = 1;
  node.wait_until([&] { return board.words[there] == 2; }, "the other side");
  const fi_addr_t to = node.insert(board.name(1));
  Op op;
  const uint64_t word = 1;
  node.send(op, &word, sizeof word, to, 1);
  node.wait(op);
  must(-op.error, "send");
  node.wait_until([&] { return board.words[there] == 3; }, "the other side");
  // No event tells that the peer's goodbye has been read. A message that is posted before fails
  // with its connection, and this test is of one that needs a new connection.
  Waits ignored;
  poll_for(node, ignored, 0.3);
  fail_soon(board, node, to, "a peer that has left");
  return 0;
}

int leave(Board& board) {
  {
    const Node node;
    board.publish(1, node.name());
  }
  board.words[there] = 1;
  const auto start = Clock::now();
  while (board.words[here] != 1) {
    if (seconds_since(start) > 30) fail("waited 30 s for the other side");
    ::usleep(1000);
  }
  {
    Node node;
    Op op;
    uint64_t word = 0;
    node.receive(op, &word, sizeof word, FI_ADDR_UNSPEC, 1);
    board.publish(1, node.name());
    board.words[there] = 2;
    node.wait(op);
    must(-op.error, "receive");
  }
  board.words[there] = 3;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const uint64_t connects = option(argc, argv, "--connects", 60);
  const uint64_t rounds = option(argc, argv, "--rounds", 3);
  const auto first = unsigned(option(argc, argv, "--first", 40'000));
  const auto ports = unsigned(option(argc, argv, "--ports", 40));
  Board& board = Board::create();
  std::function<int()> a, b;
  if (mode == "taken") {
    a = [&] { return connect_to_all(board, connects, first, ports); };
    b = [&] { return be_all(board, connects); };
  } else if (mode == "unanswered") {
    a = [&] { return call_in_vain(board); };
    b = [&] { return hear_nothing(board); };
  } else if (mode == "crossing") {
    a = [&] { return cross(board, 0, rounds); };
    b = [&] { return cross(board, 1, rounds); };
  } else if (mode == "nobody") {
    a = [&] { return look_for_them(board); };
    b = [&] { return leave(board); };
  } else {
    fail("usage: fi_connects taken|unanswered|crossing|nobody");
  }
  const pid_t caller = spawn(a);
  const pid_t callee = spawn(b);
  const int failed = reap({caller, callee}, kLongestRun);
  return !failed && board.words[late] ? kOnlyLate : failed;
}
