#include "fi_erdma/pair/sides.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "fi_erdma/descriptor.h"
#include "fi_erdma/paper.h"
#include "libcheck.h"

using fi_erdma::Descriptor;
using fi_erdma::Paper;
using fi_erdma::pair::Channel;
using fi_erdma::pair::Options;
using fi_erdma::pair::run_alone;
using fi_erdma::pair::run_sides;
using fi_erdma::pair::Side;
using fi_erdma::pair::spawn;

namespace pair = fi_erdma::pair;

namespace {

/// A TCP socket of 127.0.0.1 at a port that the kernel chose.
struct Bound {
  Bound() : socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(at);
    ck_assert_int_eq(bind(socket.get(), address(), length), 0);
    ck_assert_int_eq(getsockname(socket.get(), address(), &length), 0);
  }
  sockaddr* address() { return reinterpret_cast<sockaddr*>(&at); }
  std::string port() const { return std::to_string(ntohs(at.sin_port)); }

  sockaddr_in at{};
  Descriptor socket;
};

/// Its status, and what it said to people.
struct Ended {
  explicit Ended(const std::function<int()>& body)
      : x_child(spawn([&] {
          x_said.take_output();
          return body();
        })) {}
  int status() {
    int status = 0;
    ck_assert_int_eq(waitpid(x_child, &status, 0), x_child);
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
  }
  std::string said() const { return x_said.read(); }
  void says(const char* text) const {
    ck_assert_msg(said().find(text) != std::string::npos, "%s", said().c_str());
  }

 private:
  const Paper x_said;
  const pid_t x_child;
};

Options served(const std::string& port) {
  Options options;
  options.serve = true;
  options.port = port;
  options.source = "127.0.0.1";
  return options;
}
Options visiting(const std::string& port, double limit_s = 60) {
  Options options;
  options.peer = "127.0.0.1";
  options.port = port;
  options.limit_s = limit_s;
  return options;
}

int pass(Side, Channel&) {
  return pair::kPassed;
}

TEST(a_side_that_cannot_print_what_it_found_has_failed) {
  const auto print_nowhere = [] {
    dup2(open("/dev/full", O_WRONLY | O_CLOEXEC), STDOUT_FILENO);
    std::printf("every byte was checked\n");
    return int(pair::kPassed);
  };
  ck_assert_int_eq(run_alone(print_nowhere), pair::kUnwritten);
  ck_assert_int_eq(
      run_sides("print", Options(),
                [&](Side side, Channel&) { return side == Side::client ? print_nowhere() : 0; }),
      pair::kUnwritten);
}

TEST(the_death_of_a_side_is_a_failure_also_where_the_other_one_lacks_something) {
  const auto end = [](Side side, Channel&) -> int {
    if (side == Side::server) _exit(pair::kNotTried);
    signal(SIGABRT, SIG_DFL);
    abort();
  };
  Ended both([&] { return run_sides("end", Options(), end); });
  ck_assert_int_eq(both.status(), pair::kFailed);
  both.says("a side died: Aborted");
  ck_assert_int_eq(run_alone([]() -> int { signal(SIGABRT, SIG_DFL), abort(); }), pair::kFailed);
}

TEST(sides_that_were_asked_the_same_go_on) {
  const std::string port = Bound().port();
  Ended server([&] { return run_sides("bench of 8 bytes", served(port), pass); });
  Ended client([&] { return run_sides("bench of 8 bytes", visiting(port), pass); });
  ck_assert_int_eq(client.status(), pair::kPassed);
  ck_assert_int_eq(server.status(), pair::kPassed);
}

TEST(sides_that_were_asked_different_things_say_what) {
  const std::string port = Bound().port();
  Ended server([&] { return run_sides("bench of 8 bytes", served(port), pass); });
  Ended client([&] { return run_sides("bench of 9 bytes", visiting(port), pass); });
  for (Ended* const side : {&server, &client}) {
    ck_assert_int_eq(side->status(), pair::kFailed);
    side->says("bench of 8 bytes'");
    side->says("bench of 9 bytes'");
  }
}

TEST(what_a_stranger_says_is_not_shown_to_a_terminal) {
  Bound at;
  ck_assert_int_eq(listen(at.socket.get(), 1), 0);
  Ended client([&] { return run_sides("bench", visiting(at.port()), pass); });
  const int stranger = accept4(at.socket.get(), nullptr, nullptr, SOCK_CLOEXEC);
  ck_assert_int_ge(stranger, 0);
  {
    Channel channel(stranger, 60);
    channel.send("\x1b[2J\n" + std::string(2000, 'x') + "end");
    (void)channel.receive();
  }
  ck_assert_int_eq(client.status(), pair::kFailed);
  client.says("'.[2J.xxx");
  client.says("bench'");
  ck_assert(client.said().find('\x1b') == std::string::npos);
}

/// Connected to a side that serves, as soon as it listens.
Descriptor come(const std::string& port) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  at.sin_port = htons(uint16_t(std::stoi(port)));
  for (;;) {
    const int stranger = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (!connect(stranger, reinterpret_cast<sockaddr*>(&at), sizeof(at)))
      return Descriptor(stranger);
    ck_assert_int_eq(errno, ECONNREFUSED);
    close(stranger);
    sched_yield();
  }
}

/// Until the other end is closed, too, which is when it was turned away.
void be_turned_away(const Descriptor& stranger) {
  ck_assert_int_eq(shutdown(stranger.get(), SHUT_WR), 0);
  char bytes[512];
  while (recv(stranger.get(), bytes, sizeof(bytes), 0) > 0) continue;
}

TEST(strangers_keep_no_side_from_the_other_one_and_are_few_in_a_second) {
  constexpr unsigned kStrangers = 12, kTold = 8, kMostInASecond = 10;
  const std::string port = Bound().port();
  Ended server([&] { return run_sides("bench", served(port), pass); });
  const double begin = pair::now_s();
  for (unsigned i = 0; i < kStrangers; ++i) {
    const Descriptor stranger = come(port);
    // Half a length, a length of which not all comes, one that is too long, and words.
    const char* const words[] = {"GE", "\x09\0\0\0half", "GET / HTTP/1.0\r\n", "\x04\0\0\0work"};
    const size_t lengths[] = {2, 8, 16, 8};
    (void)send(stranger.get(), words[i % 4], lengths[i % 4], MSG_NOSIGNAL);
    be_turned_away(stranger);
  }
  Ended client([&] { return run_sides("bench", visiting(port), pass); });
  ck_assert_int_eq(client.status(), pair::kPassed);
  ck_assert_int_eq(server.status(), pair::kPassed);
  ck_assert_double_ge(pair::now_s() - begin, double(kStrangers) / kMostInASecond);
  unsigned told = 0;
  const std::string said = server.said(), line = "127.0.0.1 came, and is not the other side";
  for (size_t at = 0; (at = said.find(line, at)) != said.npos; ++at) ++told;
  ck_assert_uint_eq(told, kTold);
}

TEST(a_stranger_that_says_nothing_is_not_the_other_side) {
  const std::string port = Bound().port();
  Options options = served(port);
  options.limit_s = 0.5;
  Ended server([&] { return run_sides("bench", options, pass); });
  const Descriptor stranger = come(port);
  ck_assert_int_eq(server.status(), pair::kNotTried);
  server.says("nobody came within 0.5 s, but for 1 who are not the other side");
  server.says("said nothing");
}

/// Each byte comes in time, and all of them never would.
TEST(a_stranger_that_says_a_byte_now_and_then_is_given_up_after_the_limit) {
  Bound at;
  ck_assert_int_eq(listen(at.socket.get(), 1), 0);
  Ended client([&] { return run_sides("bench", visiting(at.port(), 0.1), pass); });
  const int stranger = accept4(at.socket.get(), nullptr, nullptr, SOCK_CLOEXEC);
  ck_assert_int_ge(stranger, 0);
  const uint32_t length = 1000;
  ck_assert_int_eq(send(stranger, &length, sizeof(length), MSG_NOSIGNAL), sizeof(length));
  for (uint32_t i = 1; i < length && send(stranger, "x", 1, MSG_NOSIGNAL) == 1; ++i) usleep(10'000);
  close(stranger);
  ck_assert_int_eq(client.status(), pair::kFailed);
  client.says("said half of something");
}

/// The kernel drops what comes to a queue that is full, as a firewall does.
TEST(a_host_that_does_not_answer_is_given_up_after_the_limit) {
  Bound at;
  ck_assert_int_eq(listen(at.socket.get(), 0), 0);
  std::vector<int> queued;
  for (int i = 0; i < 4; ++i) {
    // The first one fills the queue, and is there when the call returns.
    queued.push_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | (i ? SOCK_NONBLOCK : 0), 0));
    (void)connect(queued.back(), at.address(), sizeof(at.at));
  }
  Ended client([&] { return run_sides("bench", visiting(at.port(), 0.1), pass); });
  ck_assert_int_eq(client.status(), pair::kFailed);
  client.says("connect to 127.0.0.1 port ");
  client.says("timed out");
  for (const int socket : queued) close(socket);
}

}  // namespace
