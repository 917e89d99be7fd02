// fi_stop_stress [--seconds S] [--seed S] [--messages N]
// A receiver is stopped (SIGSTOP) while rings and windows fill up. Slow is not dead: the sender
// must see no error, and after SIGCONT every message must arrive whole and in order.
#include <signal.h>
#include <unistd.h>

#include <deque>
#include <memory>

#include "fi_common.h"

using namespace erdma::clients;

namespace {

constexpr size_t kLargest = 1 << 20;
constexpr size_t kWindow = 64;
enum Word { received, stopped, continued, sent_while_stopped, refused_while_stopped };

uint64_t key(uint64_t seed, uint64_t number) {
  return seed << 32 | number;
}
size_t length(uint64_t seed, uint64_t number) {
  return Random(key(seed, number)).length(kLargest);
}

struct Message {
  Op op;
  std::vector<std::byte> data;
  uint64_t number = 0;
};

void retire(std::deque<std::unique_ptr<Message>>& window) {
  while (!window.empty() && window.front()->op.done) {
    if (window.front()->op.error) fail("send: %s", fi_strerror(window.front()->op.error));
    window.pop_front();
  }
}

int send_all(Board& board, uint64_t seed, uint64_t messages) {
  Node node;
  const auto to = board.meet(node, 0, 2);
  std::deque<std::unique_ptr<Message>> window;
  for (uint64_t number = 0; number < messages;) {
    node.progress();
    retire(window);
    // While the receiver sleeps the provider limits the window; 4096 bounds the memory of this
    // test.
    if (window.size() >= 4096) continue;
    auto message = std::make_unique<Message>();
    message->data.resize(length(seed, number));
    fill(message->data, key(seed, number));
    int rc;
    while ((rc = node.tsend(message->op, message->data.data(), message->data.size(), to[1], 7)) ==
           -FI_EAGAIN) {
      node.progress();
      if (board.words[stopped] && !board.words[continued]) board.words[refused_while_stopped] += 1;
    }
    must(rc, "fi_tsend");
    if (board.words[stopped] && !board.words[continued]) board.words[sent_while_stopped] += 1;
    window.push_back(std::move(message));
    ++number;
  }
  while (!window.empty()) {
    node.progress();
    retire(window);
  }
  node.wait_until([&] { return board.words[received] == messages; }, "the receiver", 120);
  return 0;
}

int receive_all(Board& board, uint64_t seed, uint64_t messages) {
  Node node;
  const auto from = board.meet(node, 1, 2);
  std::vector<Message> window(kWindow);
  auto post = [&](uint64_t number) {
    Message& message = window[number % kWindow];
    message.data.resize(kLargest);
    node.receive(message.op, message.data.data(), kLargest, FI_ADDR_UNSPEC, 7);
  };
  for (uint64_t number = 0; number < kWindow; ++number) post(number);
  for (uint64_t number = 0; number < messages; ++number) {
    Message& message = window[number % kWindow];
    node.wait(message.op, 120);
    must(-message.op.error, "receive");
    REQUIRE(message.op.length == length(seed, number));
    REQUIRE(holds({message.data.data(), message.op.length}, key(seed, number)));
    board.words[received] += 1;
    if (number + kWindow < messages) post(number + kWindow);
  }
  node.wait_until([&] { return board.words[continued] == 1; }, "the end", 120);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t seconds = option(argc, argv, "--seconds", 3);
  const uint64_t seed = option(argc, argv, "--seed", 1);
  const uint64_t messages = option(argc, argv, "--messages", 6000);
  Board& board = Board::create();
  const pid_t sender = spawn([&] { return send_all(board, seed, messages); });
  const pid_t receiver = spawn([&] { return receive_all(board, seed, messages); });
  const auto start = Clock::now();
  while (board.words[received] < 300 && seconds_since(start) < 20) ::usleep(100);
  ::kill(receiver, SIGSTOP);
  board.words[stopped] = 1;
  ::usleep(useconds_t(seconds * 1000000));
  board.words[continued] = 1;
  ::kill(receiver, SIGCONT);
  const int failures = reap({sender, receiver}, 120);
  std::printf(
      "fi_stop_stress: receiver stopped for %lu s; %lu sends accepted and %lu refused with "
      "-FI_EAGAIN meanwhile; %lu of %lu messages arrived whole and in order\n",
      seconds, board.words[sent_while_stopped].load(), board.words[refused_while_stopped].load(),
      board.words[received].load(), messages);
  return failures != 0;
}
