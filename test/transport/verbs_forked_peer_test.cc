#include <sys/socket.h>
#include <sys/wait.h>

#include <csignal>

#include "transport/simulated_device.h"
#include "transport/verbs_fault_rig.h"

/// A process dies while its child lives on. The child holds copies of every descriptor, so no
/// socket closes, and only the heartbeat shows the death.
namespace erdma::test {
namespace {

struct Letter {
  sockaddr_in name{};
  pid_t child = 0;
};

/// An endpoint of this process with one peer, which is fi_addr 1.
struct Endpoint {
  Endpoint(int index, int a_socket) : node(index, options(), true, names), socket(a_socket) {
    Letter letter;
    std::memcpy(&letter.name, names.names[0].data(), sizeof(letter.name));
    ck_assert_int_eq(write(socket, &letter, sizeof(letter)), sizeof(letter));
    ck_assert_int_eq(read(socket, &letter, sizeof(letter)), sizeof(letter));
    names.names.push_back(util::SocketAddress::from_sockaddr(&letter.name, sizeof(letter.name)));
  }
  static verbs::Options options() {
    verbs::Options options;
    options.peer_timeout_ns = 500'000'000;
    return options;
  }
  void send() {
    protocol::SendArgs args{};
    args.destination = 1;
    args.iov = &iov;
    args.count = 1;
    args.length = sizeof(byte);
    args.tagged = args.report = args.until_delivered = true;
    int rc = 0;
    while ((rc = node.engine->post_send(args)) == -FI_EAGAIN) node.engine->progress();
    ck_assert_int_eq(rc, 0);
  }
  void receive() {
    protocol::ReceiveArgs args{};
    args.iov = &iov;
    args.count = 1;
    args.length = sizeof(byte);
    args.source = 1;
    args.tagged = args.report = true;
    ck_assert_int_eq(node.engine->post_receive(args), 0);
  }
  /// Waits for the next completion and returns its error. Only the test's time limit ends the wait.
  int wait(fake::CompletionSink& sink) {
    while (sink.entries.empty()) {
      node.engine->progress();
      sched_yield();
    }
    return sink.take().error;
  }

  Names names;
  Node node;
  int socket;
  char byte = 0;
  iovec iov{&byte, sizeof(byte)};
};

/// Answers one message, forks a child, and dies.
[[noreturn]] void be_the_peer(int socket) {
  Endpoint peer(1, socket);
  peer.receive();
  if (peer.wait(peer.node.received)) _exit(1);
  peer.send();
  if (peer.wait(peer.node.sent)) _exit(1);
  Letter letter;
  letter.child = fork();
  if (letter.child == 0) {
    // The child lives until the test ends in any way, as its descriptors then close.
    char byte;
    (void)!read(socket, &byte, 1);
    _exit(0);
  }
  if (write(socket, &letter, sizeof(letter)) != sizeof(letter)) _exit(1);
  raise(SIGKILL);
  _exit(1);
}

SUITE(.run = erdma::test::on_simulated_devices);

TEST(a_death_is_noticed_although_a_child_holds_the_descriptors) {
  std::string devices;
  for (int i = 0; i < 2; ++i)
    devices += "erdma_" + std::to_string(i) + ",ip=" + ip_of(i).host_string() + ",retry_ms=100;";
  setenv("SOFTERDMA_DEVICES", devices.c_str(), 1);
  setenv("SOFTERDMA_DIR", temporary_path("softerdma-forked").c_str(), 1);
  int sockets[2];
  ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets), 0);
  const pid_t dead = fork();
  if (dead == 0) {
    close(sockets[0]);
    be_the_peer(sockets[1]);
  }
  close(sockets[1]);
  Endpoint endpoint(0, sockets[0]);
  endpoint.send();
  ck_assert_int_eq(endpoint.wait(endpoint.node.sent), 0);
  endpoint.receive();
  ck_assert_int_eq(endpoint.wait(endpoint.node.received), 0);
  Letter letter;
  ck_assert_int_eq(read(sockets[0], &letter, sizeof(letter)), sizeof(letter));
  int status = 0;
  ck_assert_int_eq(waitpid(dead, &status, 0), dead);
  ck_assert(WIFSIGNALED(status));
  ck_assert_int_eq(kill(letter.child, 0), 0);
  endpoint.receive();
  const int error = endpoint.wait(endpoint.node.received);
  ck_assert_msg(error == FI_ETIMEDOUT || error == FI_ECONNRESET, "%s", fi_strerror(error));
  ck_assert_int_eq(kill(letter.child, 0), 0);
  close(sockets[0]);
}

}  // namespace

}  // namespace erdma::test
