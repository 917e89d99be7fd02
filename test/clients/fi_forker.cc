// fi_forker [--no-child-use]
// An application that forks while its endpoint is open, as Python and MPI launchers do: system(),
// and a child that talks through an endpoint of its own. The parent's endpoint must keep working;
// the child's use of the parent's endpoint must be an error, not a crash.
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "fi_common.h"

using namespace erdma::clients;

namespace {

constexpr size_t kBytes = 300000;  // large enough for every protocol's large path
enum Word { finished, child_result, child_known, child_served };
constexpr uint64_t kChildTag = 1000;

/// The peer sends every message back to its sender.
void echo(Node& node, fi_addr_t partner, uint64_t tag) {
  std::vector<std::byte> data(kBytes);
  Op in, out;
  node.receive(in, data.data(), kBytes, FI_ADDR_UNSPEC, tag);
  node.wait(in, 30);
  must(-in.error, "echo receive");
  node.send(out, data.data(), in.length, partner, tag);
  node.wait(out, 30);
  must(-out.error, "echo send");
}

void talk(Node& node, fi_addr_t peer, uint64_t tag, size_t bytes) {
  std::vector<std::byte> data(bytes), back(bytes);
  fill(data, tag);
  Op in, out;
  node.receive(in, back.data(), bytes, FI_ADDR_UNSPEC, tag);
  node.send(out, data.data(), bytes, peer, tag);
  node.wait(out, 30);
  node.wait(in, 30);
  must(-out.error, "send");
  must(-in.error, "receive");
  REQUIRE(in.length == bytes && holds(back, tag));
}

int serve(Board& board) {
  Node node;
  const auto from = board.meet(node, 1, 2);
  for (uint64_t tag = 0; tag < 40; ++tag) echo(node, from[0], tag);
  node.wait_until([&] { return board.published(2); }, "the forked child");
  const fi_addr_t child = node.insert(board.name(2));
  for (uint64_t tag = 0; tag < 10; ++tag) echo(node, child, kChildTag + tag);
  for (uint64_t tag = 40; tag < 60; ++tag) echo(node, from[0], tag);
  node.wait_until([&] { return board.words[finished] == 1; }, "the end");
  return 0;
}

/// Uses the parent's endpoint. Returns 1 if every call was refused, 2 if at least one was accepted.
/// After a crash, the board is unchanged.
int misuse(Node& parents, fi_addr_t peer) {
  char byte = 0;
  Op op;
  const int send = parents.tsend(op, &byte, 1, peer, 1);
  Op other;
  const int receive = parents.trecv(other, &byte, 1, FI_ADDR_UNSPEC, 1);
  fi_cq_tagged_entry entry;
  const ssize_t read = fi_cq_read(parents.cq(), &entry, 1);
  std::printf("# child on its parent's endpoint: send %d (%s), receive %d, cq read %zd\n", send,
              send ? fi_strerror(-send) : "accepted", receive, read);
  std::fflush(stdout);
  return send != 0 && send != -FI_EAGAIN && receive != 0 && read != 1 ? 1 : 2;
}

int run_child(Board& board, Node& parents, fi_addr_t peer, bool use) {
  if (use) board.words[child_result] = uint64_t(misuse(parents, peer));
  {
    Node own;
    const fi_addr_t to = own.insert(board.name(1));
    board.publish(2, own.name());
    for (uint64_t tag = 0; tag < 10; ++tag) talk(own, to, kChildTag + tag, tag % 2 ? kBytes : 100);
  }
  return 0;
}

int application(Board& board, bool use) {
  Node node;
  const auto to = board.meet(node, 0, 2);
  for (uint64_t tag = 0; tag < 20; ++tag) talk(node, to[1], tag, tag % 2 ? kBytes : 100);
  REQUIRE(::system("true") == 0);
  for (uint64_t tag = 20; tag < 40; ++tag) talk(node, to[1], tag, tag % 2 ? kBytes : 100);

  std::fflush(nullptr);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  // exit(), as a script does it, so that handlers of libraries run in the child too.
  if (child == 0) ::exit(run_child(board, node, to[1], use));
  const auto start = Clock::now();
  int status = 0;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    node.progress();
    if (seconds_since(start) > 40) fail("the forked child does not end");
  }
  if (status != 0) fail("the forked child: wait status %#x", unsigned(status));
  for (uint64_t tag = 40; tag < 60; ++tag) talk(node, to[1], tag, tag % 2 ? kBytes : 100);
  board.words[finished] = 1;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const bool use = !has_flag(argc, argv, "--no-child-use");
  Board& board = Board::create();
  const pid_t peer = spawn([&] { return serve(board); });
  const pid_t app = spawn([&] { return application(board, use); });
  int failures = reap({app, peer}, 60);
  if (use && board.words[child_result] != 1) {
    std::fprintf(stderr, "fi_forker: the child could use its parent's endpoint\n");
    ++failures;
  }
  std::printf("fi_forker: system() and a talking child, then 20 more messages of the parent\n");
  return failures != 0;
}
