// fi_unexpected [--messages N] [--limit-mib M] [--seed S] [--sends]
// N messages arrive where no receive is posted. Then all are received, by tag, in random order. The
// memory of both sides must not grow by more than the limit. Most messages are injected; with
// --sends each is a send.
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "fi_common.h"

using namespace erdma::clients;

namespace {

enum Word { posted, all_posted, received, sender_growth, receiver_growth, rounds };
constexpr size_t kLargest = 64;
constexpr size_t kWindow = 1024;

size_t length(uint64_t number) {
  return number * 7 % (kLargest + 1);
}
uint64_t tag(uint64_t number) {
  return number * 0x9e3779b97f4a7c15u;
}

int send_all(Board& board, uint64_t messages, uint64_t every) {
  Node node;
  const auto to = board.meet(node, 0, 2);
  std::byte data[kLargest];
  std::vector<Op> ops(messages / every + 1);
  std::vector<std::byte> kept((messages / every + 1) * kLargest, std::byte{1});
  const size_t before = status_kib("VmRSS:");
  for (uint64_t number = 0; number < messages; ++number) {
    const bool inject = number % every != 0;
    Op& op = ops[number / every];
    std::byte* bytes = inject ? data : &kept[number / every * kLargest];
    fill({bytes, length(number)}, number);
    ssize_t rc;
    while ((rc = inject
                     ? fi_tinject(node.ep(), bytes, length(number), to[1], tag(number))
                     : node.tsend(op, bytes, length(number), to[1], tag(number))) == -FI_EAGAIN) {
      node.progress();
    }
    must(int(rc), "send");
    if (number % 64 == 0) node.progress();
    board.words[posted] = number + 1;
  }
  board.words[all_posted] = 1;
  node.wait_until([&] { return board.words[received] == messages; }, "the receiver", 240);
  for (uint64_t i = 0; i * every < messages; ++i) {
    node.wait(ops[i]);
    must(-ops[i].error, "send");
  }
  board.words[sender_growth] = status_kib("VmHWM:") - before + 1;
  return 0;
}

/// Receives the messages numbered [first, last) in random order.
void receive_some(Node& node, Board& board, uint64_t first, uint64_t last, Random& random) {
  std::vector<uint64_t> order(last - first);
  std::iota(order.begin(), order.end(), first);
  random.shuffle(order);
  struct Slot {
    Op op;
    std::byte data[kLargest];
  };
  auto window = std::make_unique<Slot[]>(kWindow);
  auto take = [&](size_t i) {
    Slot& slot = window[i % kWindow];
    node.wait(slot.op, 60);
    must(-slot.op.error, "receive");
    REQUIRE(slot.op.length == length(order[i]) && slot.op.tag == tag(order[i]));
    REQUIRE(holds({slot.data, slot.op.length}, order[i]));
    board.words[received] += 1;
  };
  for (size_t i = 0; i < order.size(); ++i) {
    if (i >= kWindow) take(i - kWindow);
    Slot& slot = window[i % kWindow];
    node.receive(slot.op, slot.data, kLargest, FI_ADDR_UNSPEC, tag(order[i]));
  }
  for (size_t i = order.size() < kWindow ? 0 : order.size() - kWindow; i < order.size(); ++i)
    take(i);
}

int receive_all(Board& board, uint64_t messages, uint64_t seed) {
  Node node;
  board.meet(node, 1, 2);
  const size_t before = status_kib("VmRSS:");
  Random random(seed);
  uint64_t done = 0;
  while (done < messages) {
    // Makes progress until all messages have arrived, or until the sender has been refused for a
    // while.
    uint64_t seen = board.words[posted];
    auto changed = Clock::now();
    while (!board.words[all_posted] && seconds_since(changed) < 0.02) {
      node.progress();
      if (board.words[posted] != seen) {
        seen = board.words[posted];
        changed = Clock::now();
      }
    }
    const uint64_t last = board.words[posted];
    receive_some(node, board, done, last, random);
    done = last;
    board.words[rounds] += 1;
  }
  board.words[receiver_growth] = status_kib("VmHWM:") - before + 1;
  node.wait_until([&] { return board.words[sender_growth] != 0; }, "the sender", 60);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t messages = option(argc, argv, "--messages", 1000000);
  const uint64_t limit_kib = option(argc, argv, "--limit-mib", 256) * 1024;
  const uint64_t seed = option(argc, argv, "--seed", 1);
  Board& board = Board::create();
  const uint64_t every = has_flag(argc, argv, "--sends") ? 1 : 16;
  const pid_t sender = spawn([&] { return send_all(board, messages, every); });
  const pid_t receiver = spawn([&] { return receive_all(board, messages, seed); });
  int failures = reap({sender, receiver}, 280);
  const uint64_t growth =
      std::max(board.words[sender_growth].load(), board.words[receiver_growth].load());
  std::printf(
      "fi_unexpected: %lu of %lu messages matched, in %lu rounds; memory grew by %lu MiB in "
      "the receiver, by %lu MiB in the sender\n",
      board.words[received].load(), messages, board.words[rounds].load(),
      board.words[receiver_growth] / 1024, board.words[sender_growth] / 1024);
  if (growth > limit_kib) {
    std::fprintf(stderr, "fi_unexpected: more than %lu MiB\n", limit_kib / 1024);
    ++failures;
  }
  return failures != 0;
}
