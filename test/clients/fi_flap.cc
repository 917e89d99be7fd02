// fi_flap [--command C] [--exchanges N] [--limit S]
// Two processes play ping-pong while the shell command C, in the middle of the run, takes their
// link down and up again. Operations under way may fail, each once. When the link is up again the
// processes must find each other.
#include <sys/wait.h>
#include <unistd.h>

#include "fi_common.h"

using namespace erdma::clients;

namespace {

constexpr uint64_t kAny = ~uint64_t{0};
constexpr size_t kLargest = 100'000;
enum Word { before, after, errors, flapped, over };

size_t length_of(uint64_t number) {
  return number % 3 == 0 ? kLargest : number % 3 == 1 ? 8 : 3000;
}

/// Makes progress until the operation ends or the time is over; then the operation is cancelled.
/// True = it succeeded.
bool settle(Node& node, Op& op, double limit_s) {
  const auto start = Clock::now();
  while (!op.done && seconds_since(start) < limit_s) node.progress();
  if (!op.done) fi_cancel(&node.ep()->fid, &op.context);
  return op.done && op.error == 0;
}

/// A send cannot be cancelled once it is on its way; it ends by itself, once.
bool send(Node& node, Op& op, const void* data, size_t length, fi_addr_t to, uint64_t tag,
          double limit_s) {
  const auto start = Clock::now();
  int rc;
  while ((rc = node.tsend(op, data, length, to, tag)) == -FI_EAGAIN) {
    node.progress();
    if (seconds_since(start) > limit_s) fail("-FI_EAGAIN for %.0f s", limit_s);
  }
  must(rc, "fi_tsend");
  node.wait(op, limit_s);
  REQUIRE(op.completions == 1);
  return op.error == 0;
}

int echo(Board& board, double limit_s) {
  Node node;
  const auto peers = board.meet(node, 1, 2);
  std::vector<std::byte> data(kLargest);
  while (!board.words[over]) {
    Op received, sent;
    node.receive(received, data.data(), data.size(), FI_ADDR_UNSPEC, 0, kAny);
    while (!received.done && !board.words[over]) node.progress();
    if (!received.done) fi_cancel(&node.ep()->fid, &received.context);
    node.wait(received, limit_s);
    REQUIRE(received.completions == 1);
    if (received.error) continue;
    (void)send(node, sent, data.data(), received.length, peers[0], received.tag, limit_s);
  }
  return 0;
}

int play(Board& board, double limit_s) {
  Node node;
  const auto peers = board.meet(node, 0, 2);
  std::vector<std::byte> out(kLargest), in(kLargest);
  for (uint64_t number = 1; !board.words[over]; ++number) {
    const std::span<std::byte> message(out.data(), length_of(number));
    fill(message, number);
    Op received, sent;
    node.receive(received, in.data(), in.size(), FI_ADDR_UNSPEC, number);
    const bool went = send(node, sent, message.data(), message.size(), peers[1], number, limit_s);
    const bool came = settle(node, received, went ? 2 : 0);
    node.wait(received, limit_s);
    REQUIRE(received.completions == 1);
    if (!came) {
      board.words[errors] += 1;
      ::usleep(20'000);
      continue;
    }
    REQUIRE(received.length == message.size());
    REQUIRE(holds({in.data(), received.length}, number));
    board.words[board.words[flapped] ? after : before] += 1;
  }
  return 0;
}

const char* text_option(int argc, char** argv, const std::string& name) {
  for (int i = 1; i + 1 < argc; ++i)
    if (name == argv[i]) return argv[i + 1];
  return nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  const double limit_s = double(option(argc, argv, "--limit", 60));
  const uint64_t wanted = option(argc, argv, "--exchanges", 20);
  const char* command = text_option(argc, argv, "--command");
  Board& board = Board::create();
  const pid_t player = spawn([&] { return play(board, limit_s); });
  const pid_t other = spawn([&] { return echo(board, limit_s); });
  const auto enough = [&](Word word) {
    const auto start = Clock::now();
    while (board.words[word] < wanted && seconds_since(start) < limit_s) {
      ::usleep(1000);
      int status = 0;
      if (::waitpid(player, &status, WNOHANG) == player) fail("the player ended early");
    }
    return board.words[word] >= wanted;
  };
  const bool began = enough(before);
  if (began && command && ::system(command) != 0) fail("%s failed", command);
  board.words[flapped] = 1;
  const bool resumed = enough(after);
  board.words[over] = 1;
  const int failures = reap({player, other}, 2 * limit_s);
  std::printf("fi_flap: %lu exchanges before, %lu failed meanwhile, %lu after\n",
              board.words[before].load(), board.words[errors].load(), board.words[after].load());
  return failures != 0 || !began || !resumed;
}
