// fi_auto [--messages N]
// FI_PROGRESS_AUTO: the receiver posts its receives and then only sleeps, outside libfabric.
// Messages with FI_DELIVERY_COMPLETE must complete at the sender, and be there when the receiver
// wakes.
#include <unistd.h>

#include <memory>

#include "fi_common.h"

using namespace erdma::clients;

namespace {

constexpr size_t kLargest = 1 << 20;
enum Word { ready, delivered, checked };

size_t length(uint64_t number) {
  return Random(number).length(kLargest);
}

int send_all(Board& board, uint64_t messages) {
  Node node({.progress = FI_PROGRESS_AUTO, .op_flags = FI_DELIVERY_COMPLETE});
  const auto to = board.meet(node, 0, 2);
  node.wait_until([&] { return board.words[ready] == 1; }, "the receiver");
  std::vector<std::byte> data(kLargest);
  for (uint64_t number = 0; number < messages; ++number) {
    Op op;
    fill({data.data(), length(number)}, number);
    node.send(op, data.data(), length(number), to[1], number);
    node.wait(op, 30);
    must(-op.error, "send");
  }
  board.words[delivered] = 1;
  node.wait_until([&] { return board.words[checked] == 1; }, "the receiver's check");
  return 0;
}

int receive_all(Board& board, uint64_t messages) {
  Node node({.progress = FI_PROGRESS_AUTO});
  board.meet(node, 1, 2);
  auto ops = std::make_unique<Op[]>(messages);
  std::vector<std::vector<std::byte>> data(messages);
  for (uint64_t number = 0; number < messages; ++number) {
    data[number].resize(length(number));
    node.receive(ops[number], data[number].data(), data[number].size(), FI_ADDR_UNSPEC, number);
  }
  board.words[ready] = 1;
  const auto start = Clock::now();
  while (board.words[delivered] == 0 && seconds_since(start) < 60) ::usleep(1000);
  REQUIRE(board.words[delivered] == 1);
  for (uint64_t number = 0; number < messages; ++number) {
    REQUIRE(holds(data[number], number));  // the bytes are there before the completion is read
    node.wait(ops[number], 10);
    REQUIRE(ops[number].error == 0 && ops[number].length == length(number));
  }
  board.words[checked] = 1;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t messages = option(argc, argv, "--messages", 200);
  Board& board = Board::create();
  const pid_t sender = spawn([&] { return send_all(board, messages); });
  const pid_t receiver = spawn([&] { return receive_all(board, messages); });
  const int failures = reap({sender, receiver}, 90);
  std::printf("fi_auto: %lu messages delivered to a process that slept\n", messages);
  return failures != 0;
}
