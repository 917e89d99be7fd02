// fi_kill_stress [--rounds N] [--seed S] [--limit-ms N] [--strict]
// Three processes exchange checked messages of all sizes; one is killed at a random moment. The
// others must see every operation on it end within the limit and go on with each other.
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>

#include "fi_common.h"

using namespace erdma::clients;

namespace {

constexpr int kProcesses = 3;
constexpr size_t kLargest = 512 * 1024;
constexpr uint64_t kFarewell = 20;  ///< messages that survivors exchange after the death
enum Word { condemned, killed, killed_at, slowest_us, exchanged, finished, taken, last_message };

uint64_t now_us() noexcept {
  timespec t{};
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return uint64_t(t.tv_sec) * 1000000 + uint64_t(t.tv_nsec) / 1000;
}

struct Slot {
  Op op;
  std::vector<std::byte> data = std::vector<std::byte>(kLargest);
  uint64_t number = 0;
  bool busy = false;
};

/// The messages between this process and one other, both ways.
class Flow {
 public:
  Flow(Node& node, Board& board, int self, int peer, fi_addr_t address, uint64_t seed)
      : x_node(node),
        x_board(board),
        x_self(self),
        x_peer(peer),
        x_address(address),
        x_seed(seed) {}

  void step() {
    step_out();
    step_in();
  }
  /// The next kFarewell messages are the last ones.
  void announce_end() {
    x_end = x_sent + kFarewell;
    x_board.words[end_word(x_self, x_peer)].store(x_end + 1);
  }
  bool complete() const {
    const uint64_t end = x_board.words[end_word(x_peer, x_self)].load();
    return x_sent == x_end && idle(x_out) && end != 0 && x_received == end - 1;
  }
  void cancel_receives() {
    for (Slot& slot : x_in) {
      if (slot.busy && !slot.op.done) fi_cancel(&x_node.ep()->fid, &slot.op);
    }
  }
  bool all_ended() const {
    auto ended = [](const Slot& slot) { return !slot.busy || slot.op.done.load(); };
    return std::all_of(x_out.begin(), x_out.end(), ended) &&
           std::all_of(x_in.begin(), x_in.end(), ended);
  }
  uint64_t received() const { return x_received; }
  std::string pending() const {
    std::string text;
    auto add = [&](const Slots& slots, const char* what) {
      for (const Slot& slot : slots) {
        if (!slot.busy || slot.op.done) continue;
        const bool out = &slots == &x_out;
        text += std::string(" ") + what + " of " +
                std::to_string(out ? length(x_self, x_peer, slot.number)
                                   : length(x_peer, x_self, slot.number)) +
                " bytes";
      }
    };
    add(x_out, "send");
    add(x_in, "receive");
    return text;
  }

 private:
  using Slots = std::array<Slot, 8>;
  static int end_word(int from, int to) { return last_message + from * kProcesses + to; }
  static bool idle(const Slots& slots) {
    return std::none_of(slots.begin(), slots.end(), [](const Slot& slot) { return slot.busy; });
  }
  bool peer_may_be_dead() const { return x_board.words[condemned] == uint64_t(x_peer) + 1; }
  uint64_t key(int from, int to, uint64_t number) const {
    return x_seed ^ (uint64_t(from + 1) << 56) ^ (uint64_t(to + 1) << 48) ^ number;
  }
  static uint64_t tag(int from, uint64_t number) { return uint64_t(from) << 56 | number; }
  size_t length(int from, int to, uint64_t number) const {
    return Random(key(from, to, number)).length(kLargest);
  }
  void refuse_error(int error, const char* what) const {
    if (!peer_may_be_dead())
      fail("%s process %d, which lives: %s", what, x_peer, fi_strerror(error));
  }

  void step_out() {
    for (Slot& slot : x_out) {
      if (slot.busy && slot.op.done) {
        slot.busy = false;
        if (slot.op.error) refuse_error(slot.op.error, "send to");
      }
      if (slot.busy || x_sent == x_end) continue;
      slot.number = x_sent;
      const size_t bytes = length(x_self, x_peer, slot.number);
      fill({slot.data.data(), bytes}, key(x_self, x_peer, slot.number));
      const int rc = x_node.tsend(slot.op, slot.data.data(), bytes, x_address, tag(x_self, x_sent));
      if (rc == -FI_EAGAIN) return;
      if (rc != 0) return refuse_error(-rc, "fi_tsend to");
      slot.busy = true;
      ++x_sent;
    }
  }
  void step_in() {
    const uint64_t end = x_board.words[end_word(x_peer, x_self)].load();
    for (Slot& slot : x_in) {
      if (slot.busy && slot.op.done) take(slot);
      if (slot.busy || (end != 0 && x_posted >= end - 1)) continue;
      slot.number = x_posted;
      const int rc =
          x_node.trecv(slot.op, slot.data.data(), kLargest, x_address, tag(x_peer, slot.number));
      if (rc == -FI_EAGAIN) return;
      if (rc != 0) return refuse_error(-rc, "fi_trecv from");
      slot.busy = true;
      ++x_posted;
    }
  }
  void take(Slot& slot) {
    slot.busy = false;
    if (slot.op.error) return refuse_error(slot.op.error, "receive from");
    REQUIRE(slot.op.length == length(x_peer, x_self, slot.number));
    if (!holds({slot.data.data(), slot.op.length}, key(x_peer, x_self, slot.number))) {
      fail("message %lu from process %d: wrong data", slot.number, x_peer);
    }
    ++x_received;
    ++x_board.words[taken];
  }

  Node& x_node;
  Board& x_board;
  const int x_self, x_peer;
  const fi_addr_t x_address;
  const uint64_t x_seed;
  uint64_t x_sent = 0, x_posted = 0, x_received = 0, x_end = ~uint64_t{0};
  Slots x_out, x_in;
};

/// The name of the dead process may be missing; then there is no flow to it.
std::vector<std::optional<Flow>> start_flows(Node& node, Board& board, int self, uint64_t seed) {
  board.publish(self, node.name());
  std::vector<std::optional<Flow>> flows(kProcesses);
  for (int peer = 0; peer < kProcesses; ++peer) {
    if (peer == self) continue;
    node.wait_until(
        [&] { return board.published(peer) || board.words[condemned] == uint64_t(peer) + 1; },
        "the other processes");
    if (board.published(peer)) {
      flows[size_t(peer)].emplace(node, board, self, peer, node.insert(board.name(peer)), seed);
    }
  }
  return flows;
}

void step_all(Node& node, std::vector<std::optional<Flow>>& flows, int except = -1) {
  node.progress();
  for (int peer = 0; peer < int(flows.size()); ++peer) {
    if (peer != except && flows[size_t(peer)]) flows[size_t(peer)]->step();
  }
}

void bury(Node& node, Board& board, std::vector<std::optional<Flow>>& flows, int dead,
          uint64_t limit_us) {
  std::optional<Flow>& flow = flows[size_t(dead)];
  if (!flow) return;
  flow->cancel_receives();
  while (!flow->all_ended()) {
    step_all(node, flows, dead);
    const uint64_t waited = now_us() - board.words[killed_at];
    if (waited > limit_us) {
      fail("after %lu us not ended on the dead process:%s", waited, flow->pending().c_str());
    }
  }
  uint64_t waited = now_us() - board.words[killed_at], known = board.words[slowest_us];
  while (waited > known && !board.words[slowest_us].compare_exchange_weak(known, waited)) {
  }
}

int take_part(Board& board, int self, uint64_t seed, uint64_t limit_us) {
  Node node({.caps = FI_TAGGED | FI_DIRECTED_RECV});
  auto flows = start_flows(node, board, self, seed);
  while (board.words[killed] == 0) step_all(node, flows);

  const int dead = int(board.words[killed]) - 1;
  bury(node, board, flows, dead, limit_us);
  Flow& other = *flows[size_t(kProcesses - self - dead)];
  other.announce_end();
  const auto start = Clock::now();
  while (!other.complete()) {
    step_all(node, flows, dead);
    if (seconds_since(start) > 20) fail("the survivors' exchange stands still");
  }
  other.cancel_receives();
  node.wait_until([&] { return other.all_ended(); }, "cancelled receives", 5);
  board.words[exchanged] += other.received();
  board.words[finished] += 1;
  node.wait_until([&] { return board.words[finished] == kProcesses - 1; }, "the other survivor");
  return 0;
}

/// The victim dies while it starts, while it connects, or after a random amount of traffic.
void pick_moment(Board& board, Random& random) {
  const uint64_t kind = random.below(4);
  const auto start = Clock::now();
  auto await = [&](auto condition) {
    while (!condition() && seconds_since(start) < 20) ::usleep(50);
  };
  if (kind == 0) {
    ::usleep(useconds_t(random.below(15000)));
    return;
  }
  for (int i = 0; i < kProcesses; ++i) await([&] { return board.published(i); });
  const uint64_t messages = random.below(kind == 1 ? 4 : 400);
  await([&] { return board.words[taken] >= messages; });
  ::usleep(useconds_t(random.below(1000)));
}

struct Totals {
  std::vector<uint64_t> slowest_us;  ///< the slowest operation of each round
  uint64_t exchanged = 0;
};

/// The time in milliseconds within which `part` of the rounds ended.
double share(const std::vector<uint64_t>& sorted_us, double part) {
  const auto at = size_t(part * double(sorted_us.size()));
  return sorted_us.empty() ? 0 : double(sorted_us[std::min(at, sorted_us.size() - 1)]) / 1000;
}

int round(uint64_t seed, uint64_t limit_us, Totals& totals) {
  static Board& board = Board::create();
  new (&board) Board{};
  Random random(seed);
  pid_t children[kProcesses];
  for (int i = 0; i < kProcesses; ++i) {
    children[i] = spawn([&, i] { return take_part(board, i, seed, limit_us); });
  }
  pick_moment(board, random);
  const int victim = int(random.below(kProcesses));
  board.words[condemned] = uint64_t(victim) + 1;
  ::kill(children[victim], SIGKILL);
  board.words[killed_at] = now_us();
  board.words[killed] = uint64_t(victim) + 1;

  std::vector<pid_t> survivors;
  for (int i = 0; i < kProcesses; ++i) {
    if (i != victim) survivors.push_back(children[i]);
  }
  int failures = reap(survivors, 60);
  int status = 0;
  ::waitpid(children[victim], &status, 0);
  if (!WIFSIGNALED(status)) {
    std::fprintf(stderr, "the victim ended by itself\n");
    ++failures;
  }
  totals.slowest_us.push_back(board.words[slowest_us].load());
  totals.exchanged += board.words[exchanged];
  return failures;
}

int litter(const char* directory, const std::vector<std::string>& before) {
  std::vector<std::string> fresh;
  const auto after = entries(directory);
  std::set_difference(after.begin(), after.end(), before.begin(), before.end(),
                      std::back_inserter(fresh));
  for (const auto& name : fresh) std::printf("# left behind: %s/%s\n", directory, name.c_str());
  return int(fresh.size());
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t rounds = option(argc, argv, "--rounds", 200);
  const uint64_t seed = option(argc, argv, "--seed", 1);
  const uint64_t limit_us = option(argc, argv, "--limit-ms", 1000) * 1000;
  const auto shm = entries("/dev/shm"), tmp = entries("/tmp");
  Totals totals;
  for (uint64_t i = 0; i < rounds; ++i) {
    if (round(seed * 1000003 + i, limit_us, totals) != 0) {
      std::fprintf(stderr, "round %lu of seed %lu failed\n", i, seed);
      return 1;
    }
  }
  const int left = litter("/dev/shm", shm) + litter("/tmp", tmp);
  auto& ends = totals.slowest_us;
  std::sort(ends.begin(), ends.end());
  std::printf(
      "fi_kill_stress: %lu rounds, slowest end of an operation on the dead %.1f ms (half of the "
      "rounds %.1f, 90%% %.1f, 99%% %.1f), survivors exchanged %lu checked messages, %d files left "
      "behind\n",
      rounds, share(ends, 1), share(ends, 0.5), share(ends, 0.9), share(ends, 0.99),
      totals.exchanged, left);
  // Only --strict (private /dev/shm and /tmp) can tell this test's files from others'.
  return left != 0 && has_flag(argc, argv, "--strict") ? 1 : 0;
}
