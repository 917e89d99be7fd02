// fi_close_inflight [--rounds N] [--seed S]
// An endpoint is closed with sends (eager and large) and receives in flight. No completion may come
// after that, all other objects close, and the peer lives on and talks to the next endpoint.
#include <unistd.h>

#include <memory>

#include "fi_common.h"

using namespace erdma::clients;

namespace {

enum Word { generation, met, verified };
constexpr size_t kBytes = 256 * 1024;

void burst(Node& node, fi_addr_t to, Random& random, Op* ops, std::vector<std::byte>& data) {
  for (int i = 0; i < 64; ++i) {
    const size_t bytes = random.length(kBytes);
    const uint64_t kind = random.below(3);
    // No receive has tag 500; receives with tag 501 stay unmatched.
    int rc = kind == 0 ? node.trecv(ops[i], data.data(), bytes, FI_ADDR_UNSPEC, 501)
                       : node.tsend(ops[i], data.data(), bytes, to, 500);
    if (rc != -FI_EAGAIN) must(rc, "post");
    if (kind == 2) node.progress();
  }
  while (node.progress() > 0) {
  }
}

void one_life(Board& board, uint64_t round, Random& random) {
  auto ops = std::make_unique<Op[]>(64);
  std::vector<std::byte> data(kBytes);
  Node node;
  board.publish(0, node.name());
  board.words[generation] = round + 1;
  const fi_addr_t to = node.insert(board.name(1));
  node.wait_until([&] { return board.words[met] == round + 1; }, "the peer");
  Op hello;
  char byte = char(round);
  node.send(hello, &byte, 1, to, round);
  node.wait(hello);
  must(-hello.error, "hello");
  node.wait_until([&] { return board.words[verified] == round + 1; }, "the peer's receive");
  burst(node, to, random, ops.get(), data);
  int before[64];
  for (int i = 0; i < 64; ++i) before[i] = ops[size_t(i)].completions;
  node.close_endpoint();
  for (int i = 0; i < 2000; ++i) node.progress();
  for (int i = 0; i < 64; ++i) {
    if (ops[size_t(i)].completions != before[i]) fail("round %lu: a completion after close", round);
  }
}

int close_all(Board& board, uint64_t rounds, uint64_t seed) {
  while (!board.published(1)) ::usleep(100);
  Random random(seed);
  for (uint64_t round = 0; round < rounds; ++round) one_life(board, round, random);
  return 0;
}

int stay(Board& board, uint64_t rounds) {
  Node node;
  board.publish(1, node.name());
  for (uint64_t round = 0; round < rounds; ++round) {
    Op op;
    char byte = 0;
    node.receive(op, &byte, 1, FI_ADDR_UNSPEC, round);
    node.wait_until([&] { return board.words[generation] == round + 1; }, "the next endpoint");
    node.insert(board.name(0));
    board.words[met] = round + 1;
    node.wait(op);
    must(-op.error, "hello");
    REQUIRE(byte == char(round));
    board.words[verified] = round + 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t rounds = option(argc, argv, "--rounds", 50);
  const uint64_t seed = option(argc, argv, "--seed", 1);
  Board& board = Board::create();
  const pid_t closer = spawn([&] { return close_all(board, rounds, seed); });
  const pid_t peer = spawn([&] { return stay(board, rounds); });
  const int failures = reap({closer, peer}, 100);
  std::printf("fi_close_inflight: %lu endpoints closed with operations in flight\n", rounds);
  return failures != 0;
}
