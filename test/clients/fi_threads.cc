// fi_threads [--messages N] [--threads T] [--seed S]
// FI_THREAD_SAFE: T threads of each of two processes send, receive, cancel and read the one
// completion queue of one endpoint, all at once.
#include <array>
#include <memory>
#include <thread>

#include "fi_common.h"

using namespace erdma::clients;

namespace {

constexpr size_t kLargest = 128 * 1024;
constexpr size_t kWindow = 8;
enum Word { finished };

struct Slot {
  Op op;
  std::vector<std::byte> data = std::vector<std::byte>(kLargest);
};

/// One thread's conversation with its twin in the other process.
class Talk {
 public:
  Talk(Node& node, fi_addr_t peer, int self, uint64_t thread, uint64_t messages, uint64_t seed)
      : x_node(node),
        x_peer(peer),
        x_self(self),
        x_thread(thread),
        x_messages(messages),
        x_seed(seed) {}

  void run() {
    for (uint64_t i = 0; i < x_messages + kWindow; ++i) {
      if (i >= kWindow) finish(i - kWindow);
      if (i < x_messages) begin(i);
    }
    // A receive that nothing matches can be cancelled while other threads poll.
    Op& op = x_in[0].op;
    x_node.receive(op, x_in[0].data.data(), kLargest, FI_ADDR_UNSPEC, ~x_thread);
    must(int(fi_cancel(&x_node.ep()->fid, &op)), "fi_cancel");
    x_node.wait(op);
    REQUIRE(op.error == FI_ECANCELED);
  }

 private:
  uint64_t key(int from, uint64_t i) const {
    return (x_seed << 48) + (uint64_t(from) << 40) + (x_thread << 32) + i;
  }
  uint64_t tag(int from, uint64_t i) const { return uint64_t(from) << 60 | x_thread << 40 | i; }
  void begin(uint64_t i) {
    Slot &in = x_in[i % kWindow], &out = x_out[i % kWindow];
    x_node.receive(in.op, in.data.data(), kLargest, FI_ADDR_UNSPEC, tag(1 - x_self, i));
    const size_t bytes = Random(key(x_self, i)).length(kLargest);
    fill({out.data.data(), bytes}, key(x_self, i));
    x_node.send(out.op, out.data.data(), bytes, x_peer, tag(x_self, i));
  }
  void finish(uint64_t i) {
    Slot &in = x_in[i % kWindow], &out = x_out[i % kWindow];
    x_node.wait(in.op);
    x_node.wait(out.op);
    REQUIRE(in.op.error == 0 && out.op.error == 0);
    REQUIRE(in.op.completions == 1 && out.op.completions == 1);
    REQUIRE(in.op.length == Random(key(1 - x_self, i)).length(kLargest));
    REQUIRE(holds({in.data.data(), in.op.length}, key(1 - x_self, i)));
  }

  Node& x_node;
  const fi_addr_t x_peer;
  const int x_self;
  const uint64_t x_thread, x_messages, x_seed;
  std::array<Slot, kWindow> x_in, x_out;
};

int take_part(Board& board, int self, uint64_t threads, uint64_t messages, uint64_t seed) {
  Node node({.threading = FI_THREAD_SAFE});
  const auto addresses = board.meet(node, self, 2);
  std::vector<std::thread> running;
  for (uint64_t t = 0; t < threads; ++t) {
    running.emplace_back([&, t] {
      auto talk =
          std::make_unique<Talk>(node, addresses[size_t(1 - self)], self, t, messages, seed);
      talk->run();
    });
  }
  for (auto& thread : running) thread.join();
  board.words[finished] += 1;
  node.wait_until([&] { return board.words[finished] == 2; }, "the other process");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t messages = option(argc, argv, "--messages", 3000);
  const uint64_t threads = option(argc, argv, "--threads", 4);
  const uint64_t seed = option(argc, argv, "--seed", 1);
  Board& board = Board::create();
  const pid_t a = spawn([&] { return take_part(board, 0, threads, messages, seed); });
  const pid_t b = spawn([&] { return take_part(board, 1, threads, messages, seed); });
  const int failures = reap({a, b}, 120);
  std::printf("fi_threads: %lu threads in each of 2 processes, %lu checked messages\n", threads,
              2 * threads * messages);
  return failures != 0;
}
