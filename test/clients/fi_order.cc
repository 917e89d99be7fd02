// fi_order [--messages N] [--batches N] [--seed S] [--sleep]
// Part one: FI_ORDER_SAS of one tag over all lengths. Part two: batches of messages with few tags
// from two endpoints against a model of the queues: receives posted before and after arrival, from
// one source or any, masked tags, peek, peek and claim, discard.
#include <algorithm>
#include <array>
#include <deque>
#include <memory>

#include "fi_common.h"

using namespace erdma::clients;

namespace {

constexpr size_t kLargest = 1 << 20;
constexpr uint64_t kMarker = 0xffff;  // a tag that no masked receive covers (bit 15 counts)
enum Word { received, batch_ready, batch_sent, batch_checked, step_done };

size_t length(uint64_t key) {
  return Random(key).length(kLargest);
}
uint64_t order_key(uint64_t seed, uint64_t i) {
  return seed << 40 | i;
}

// ---- part one

void send_in_order(Node& node, fi_addr_t to, uint64_t messages, uint64_t seed) {
  struct Slot {
    Op op;
    std::vector<std::byte> data = std::vector<std::byte>(kLargest);
  };
  std::vector<Slot> window(16);
  for (uint64_t i = 0; i < messages + window.size(); ++i) {
    Slot& slot = window[i % window.size()];
    if (i >= window.size()) {
      node.wait(slot.op);
      must(-slot.op.error, "send");
    }
    if (i >= messages) continue;
    fill({slot.data.data(), length(order_key(seed, i))}, order_key(seed, i));
    node.send(slot.op, slot.data.data(), length(order_key(seed, i)), to, 1);
  }
}

void receive_in_order(Node& node, uint64_t messages, uint64_t seed) {
  struct Slot {
    Op op;
    std::vector<std::byte> data = std::vector<std::byte>(kLargest);
  };
  std::vector<Slot> window(16);
  for (uint64_t i = 0; i < messages + window.size(); ++i) {
    Slot& slot = window[i % window.size()];
    if (i >= window.size()) {
      node.wait(slot.op);
      const uint64_t key = order_key(seed, i - window.size());
      must(-slot.op.error, "receive");
      if (slot.op.length != length(key)) fail("message %lu overtaken", i - window.size());
      REQUIRE(holds({slot.data.data(), slot.op.length}, key));
    }
    // Sometimes the receiver waits, so that messages arrive before their receives.
    for (int idle = Random(i).below(64) == 0 ? 2000 : 0; idle > 0; --idle) node.progress();
    if (i < messages) node.receive(slot.op, slot.data.data(), kLargest, FI_ADDR_UNSPEC, 1);
  }
}

// ---- part two

struct Message {
  int source = 0;  ///< number of the sender's endpoint, 0 or 1
  uint64_t tag = 0;
  uint64_t key = 0;
};

struct Pattern {
  int source = -1;  ///< number of the source; -1: any
  uint64_t tag = 0, ignore = 0;
  bool covers(const Message& m) const {
    return (source < 0 || source == m.source) && ((m.tag ^ tag) & ~ignore) == 0;
  }
};

/// Both sides compute the same batch: first the messages of endpoint 0, then those of endpoint 1.
std::vector<Message> batch_of(uint64_t seed, uint64_t batch) {
  Random random(seed * 7919 + batch);
  std::vector<Message> messages;
  for (int source = 0; source < 2; ++source) {
    for (uint64_t n = random.below(40); n > 0; --n) {
      messages.push_back({source, random.below(6), random.next()});
    }
  }
  return messages;
}

Pattern random_pattern(Random& random) {
  Pattern pattern;
  pattern.source = int(random.below(3)) - 1;
  pattern.tag = random.below(6);
  const uint64_t kind = random.below(4);
  pattern.ignore = kind == 0 ? 7 : kind == 1 ? 1 : 0;
  return pattern;
}

void send_batch(std::array<Node*, 2> nodes, std::array<fi_addr_t, 2> to, Board& board,
                const std::vector<Message>& messages, uint64_t batch) {
  auto both = [&] {
    nodes[0]->progress();
    nodes[1]->progress();
  };
  std::vector<std::vector<std::byte>> data;
  auto ops = std::make_unique<Op[]>(messages.size() + 2);
  size_t posted = 0;
  for (int source = 0; source < 2; ++source) {
    Node& node = *nodes[size_t(source)];
    for (const Message& m : messages) {
      if (m.source != source) continue;
      fill(data.emplace_back(length(m.key)), m.key);
      node.send(ops[posted++], data.back().data(), data.back().size(), to[size_t(source)], m.tag);
    }
    // The marker tells the receiver that all of this endpoint's messages have arrived.
    node.send(ops[posted++], nullptr, 0, to[size_t(source)], kMarker - uint64_t(source));
    while (board.words[step_done] <= batch * 2 + uint64_t(source)) both();
  }
  for (size_t i = 0; i < posted; ++i) {
    while (!ops[i].done) both();
    must(-ops[i].error, "send");
  }
  while (board.words[batch_checked] <= batch) both();
}

/// The receiver, and its model of one batch.
class Checker {
 public:
  Checker(Node& node, std::array<fi_addr_t, 2> sources, std::vector<Message> messages,
          uint64_t seed)
      : x_node(node), x_sources(sources), x_unexpected(std::move(messages)), x_random(seed) {}

  /// Receives posted before anything was sent take their messages in the order of arrival.
  void post_early() {
    for (uint64_t n = x_random.below(20); n > 0; --n) {
      Receive& receive = x_receives.emplace_back();
      receive.pattern = random_pattern(x_random);
      post(receive);
    }
    std::vector<Message> left;
    for (const Message& m : x_unexpected) {
      auto match = std::find_if(x_receives.begin(), x_receives.end(), [&](const Receive& r) {
        return !r.matched && r.pattern.covers(m);
      });
      if (match == x_receives.end()) {
        left.push_back(m);
      } else {
        match->matched = true;
        match->message = m;
      }
    }
    x_unexpected = std::move(left);
  }
  void await_marker(int source) {
    Op op;
    char nothing;
    x_node.receive(op, &nothing, 0, x_sources[size_t(source)], kMarker - uint64_t(source));
    x_node.wait(op);
    must(-op.error, "marker");
  }
  void exercise() {
    for (int n = 0; n < 60; ++n) {
      switch (x_random.below(4)) {
        case 0:
          post_late();
          break;
        case 1:
          peek(0);
          break;
        case 2:
          peek(FI_CLAIM);
          break;
        default:
          peek(FI_DISCARD);
          break;
      }
    }
  }
  void drain() {
    while (!x_unexpected.empty()) post_late(Pattern{-1, 0, 7});
    for (Receive& receive : x_receives) {
      if (!receive.matched) must(int(fi_cancel(&x_node.ep()->fid, &receive.op)), "fi_cancel");
      x_node.wait(receive.op);
      if (!receive.matched) {
        REQUIRE(receive.op.error == FI_ECANCELED);
      } else {
        must(-receive.op.error, "receive");
        check(receive.op, receive.data, receive.message);
      }
    }
  }

 private:
  struct Receive {
    Op op;
    Pattern pattern;
    std::vector<std::byte> data = std::vector<std::byte>(kLargest);
    bool matched = false;
    Message message;
  };

  fi_addr_t address(const Pattern& p) const {
    return p.source < 0 ? FI_ADDR_UNSPEC : x_sources[size_t(p.source)];
  }
  void post(Receive& receive) {
    x_node.receive(receive.op, receive.data.data(), kLargest, address(receive.pattern),
                   receive.pattern.tag, receive.pattern.ignore);
  }
  auto first(const Pattern& pattern) {
    return std::find_if(x_unexpected.begin(), x_unexpected.end(),
                        [&](const Message& m) { return pattern.covers(m); });
  }
  static void check(const Op& op, const std::vector<std::byte>& data, const Message& m) {
    if (op.tag != m.tag || op.length != length(m.key)) {
      fail("got tag %lu length %zu, expected tag %lu length %zu", op.tag, op.length, m.tag,
           length(m.key));
    }
    REQUIRE(holds({data.data(), op.length}, m.key));
  }
  void post_late() { post_late(random_pattern(x_random)); }
  void post_late(const Pattern& pattern) {
    auto found = first(pattern);
    if (found == x_unexpected.end()) return;  // post_early() posts the receives without a message
    Receive& receive = x_receives.emplace_back();
    receive.pattern = pattern;
    receive.matched = true;
    receive.message = *found;
    x_unexpected.erase(found);
    post(receive);
    x_node.wait(receive.op);
  }
  fi_msg_tagged request(const Pattern& pattern, Op& op, iovec* buffer) const {
    fi_msg_tagged message{};
    message.msg_iov = buffer;
    message.iov_count = buffer ? 1 : 0;
    message.addr = address(pattern);
    message.tag = pattern.tag;
    message.ignore = pattern.ignore;
    message.context = &op;
    return message;
  }
  void peek(uint64_t with) {
    const Pattern pattern = random_pattern(x_random);
    auto found = first(pattern);
    Op op;
    const auto message = request(pattern, op, nullptr);
    const int rc = int(fi_trecvmsg(x_node.ep(), &message, FI_PEEK | with));
    if (rc == -FI_ENOMSG) {  // the man page permits it; oneCCL wants the error entry
      REQUIRE(found == x_unexpected.end());
      return;
    }
    must(rc, "peek");
    x_node.wait(op);
    if (found == x_unexpected.end()) {
      REQUIRE(op.error == FI_ENOMSG);
      return;
    }
    must(-op.error, "peek");
    REQUIRE(op.tag == found->tag && op.length == length(found->key));
    if (with == FI_CLAIM) claim(pattern, op, *found);
    if (with != 0) x_unexpected.erase(found);
  }
  void claim(const Pattern& pattern, Op& op, const Message& expected) {
    if (x_random.below(4) == 0) {
      const auto message = request(pattern, op, nullptr);
      op.reset();
      must(int(fi_trecvmsg(x_node.ep(), &message, FI_CLAIM | FI_DISCARD)), "claim and discard");
      x_node.wait(op);
      return must(-op.error, "claim and discard");
    }
    std::vector<std::byte> data(kLargest);
    iovec buffer{data.data(), kLargest};
    const auto message = request(pattern, op, &buffer);
    op.reset();
    must(int(fi_trecvmsg(x_node.ep(), &message, FI_CLAIM)), "claim");
    x_node.wait(op);
    must(-op.error, "claim");
    check(op, data, expected);
  }

  Node& x_node;
  std::array<fi_addr_t, 2> x_sources;
  std::vector<Message> x_unexpected;
  std::deque<Receive> x_receives;
  Random x_random;
};

struct Plan {
  uint64_t messages, batches, seed;
  NodeOptions options;
};

int send_all(Board& board, const Plan& plan) {
  Node first(plan.options), second(plan.options);
  board.publish(2, second.name());
  const fi_addr_t to = board.meet(first, 0, 3)[1];
  const fi_addr_t to_from_second = second.insert(board.name(1));
  send_in_order(first, to, plan.messages, plan.seed);
  for (uint64_t batch = 0; batch < plan.batches; ++batch) {
    while (board.words[batch_ready] <= batch) {
      first.progress();
      second.progress();
    }
    send_batch({&first, &second}, {to, to_from_second}, board, batch_of(plan.seed, batch), batch);
  }
  return 0;
}

int receive_all(Board& board, const Plan& plan) {
  Node node(plan.options);
  const auto from = board.meet(node, 1, 3);
  receive_in_order(node, plan.messages, plan.seed);
  for (uint64_t batch = 0; batch < plan.batches; ++batch) {
    Checker checker(node, {from[0], from[2]}, batch_of(plan.seed, batch), plan.seed + batch);
    checker.post_early();
    board.words[batch_ready] = batch + 1;
    for (int source = 0; source < 2; ++source) {
      checker.await_marker(source);
      board.words[step_done] = batch * 2 + uint64_t(source) + 1;
    }
    checker.exercise();
    checker.drain();
    board.words[batch_checked] = batch + 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const Plan plan{
      option(argc, argv, "--messages", 20000),
      option(argc, argv, "--batches", 100),
      option(argc, argv, "--seed", 1),
      {.caps = FI_TAGGED | FI_DIRECTED_RECV, .sleeps = has_flag(argc, argv, "--sleep")}};
  Board& board = Board::create();
  const pid_t sender = spawn([&] { return send_all(board, plan); });
  const pid_t receiver = spawn([&] { return receive_all(board, plan); });
  const int failures = reap({sender, receiver}, 150);
  std::printf("fi_order: %lu messages in order, %lu batches as the model says\n", plan.messages,
              plan.batches);
  return failures != 0;
}
