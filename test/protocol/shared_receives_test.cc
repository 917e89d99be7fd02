// Tests receives that several engines share.
#include <algorithm>
#include <deque>
#include <random>

#include "libcheck.h"
#include "protocol/pair.h"

namespace {

using namespace erdma;
using protocol::ErrorCompletion;
using protocol::Probe;
using test::kConfig;
using test::must;
using test::Node;
using test::pattern;

int g_contexts[4];

/// Two engines with one context, fi_addr 0 and 1, and two senders, 2 and 3.
struct World {
  World()
      : shared(default_sink),
        a(network, 0, kConfig, &shared),
        b(network, 1, kConfig, &shared),
        c(network, 2, kConfig),
        d(network, 3, kConfig) {}
  ~World() {
    for (Node* node : {&a, &b}) node->engine.detach(false);
  }

  void run_until_idle() {
    while (a.engine.progress() + b.engine.progress() + c.engine.progress() + d.engine.progress()) {
    }
  }
  int post(const iovec& iov, uint64_t tag, void* context, uint64_t ignore = 0,
           uint64_t source = UINT64_MAX, bool multi = false) {
    protocol::ReceiveArgs args = Node::receive_args(iov, tag, context, ignore, source);
    args.multi = multi;
    bool matched = false;
    const int rc = shared.post(args, matched);
    run_until_idle();
    return rc;
  }
  void send(Node& from, uint64_t to, std::vector<char> bytes, uint64_t tag) {
    const std::vector<char>& message = sent.emplace_back(std::move(bytes));
    must(from.send(to, message.data(), message.size(), tag));
    run_until_idle();
  }
  int probe(Probe kind, uint64_t tag, void* context, iovec iov = {}) {
    return shared.probe(Node::receive_args(iov, tag, context), kind);
  }
  /// Does the same as Node::end_work() for all engines.
  void end_work() {
    for (Node* node : {&a, &b}) node->lose_peers();
    for (int& context : g_contexts)
      while (shared.cancel(&context) == 0) {
      }
    do {
      must(post({this, 0}, 0, this, UINT64_MAX));
    } while (shared.cancel(this) != 0);
    for (Node* node : {&c, &d}) node->end_work({});
  }
  bool quiet() const {
    return a.received.entries.empty() && b.received.entries.empty() && default_sink.entries.empty();
  }

  std::deque<std::vector<char>> sent;  ///< messages, which receivers may fetch later
  fake::Network network;
  fake::CompletionSink default_sink;
  protocol::SharedReceives shared;
  Node a, b, c, d;
};

ErrorCompletion take_one(fake::CompletionSink& sink) {
  ck_assert_uint_eq(sink.entries.size(), 1);
  return sink.take();
}

constexpr size_t kLengths[] = {0, 8, 1024, 1025, 70000};

TEST(a_message_takes_the_oldest_receive_whichever_engine_it_comes_to, std::size(kLengths)) {
  World world;
  const auto first = pattern(kLengths[_i], 1), second = pattern(kLengths[_i], 2);
  std::vector<char> one(70000), two(70000);
  must(world.post({one.data(), one.size()}, 7, &g_contexts[0]));
  must(world.post({two.data(), two.size()}, 7, &g_contexts[1]));
  world.send(world.c, 1, first, 7);
  const ErrorCompletion at_b = take_one(world.b.received);
  world.send(world.d, 0, second, 7);
  const ErrorCompletion at_a = take_one(world.a.received);
  ck_assert_ptr_eq(at_b.context, &g_contexts[0]);
  ck_assert_ptr_eq(at_a.context, &g_contexts[1]);
  ck_assert_uint_eq(at_b.source, 2);
  ck_assert_uint_eq(at_a.source, 3);
  ck_assert_uint_eq(at_a.length, kLengths[_i]);
  ck_assert(std::equal(first.begin(), first.end(), one.begin()));
  ck_assert(std::equal(second.begin(), second.end(), two.begin()));
  ck_assert(world.quiet());
}

TEST(messages_wait_in_one_order_of_arrival, std::size(kLengths)) {
  World world;
  const auto first = pattern(kLengths[_i], 1), second = pattern(kLengths[_i], 2);
  std::vector<char> one(70000), two(70000);
  world.send(world.c, 1, first, 7);
  world.send(world.c, 0, second, 7);
  ck_assert(world.quiet());
  must(world.post({one.data(), one.size()}, 7, &g_contexts[0]));
  ck_assert_ptr_eq(take_one(world.b.received).context, &g_contexts[0]);
  must(world.post({two.data(), two.size()}, 7, &g_contexts[1]));
  ck_assert_ptr_eq(take_one(world.a.received).context, &g_contexts[1]);
  ck_assert(std::equal(first.begin(), first.end(), one.begin()));
  ck_assert(std::equal(second.begin(), second.end(), two.begin()));
}

TEST(a_directed_receive_names_a_source_at_every_engine) {
  World world;
  char bytes[8];
  for (const uint64_t to : {0u, 1u}) {
    must(world.post({bytes, 8}, 7, &g_contexts[0], 0, 3));
    world.send(world.c, to, pattern(8), 7);
    ck_assert(world.quiet());
    world.send(world.d, to, pattern(8), 7);
    ck_assert_uint_eq(take_one(to ? world.b.received : world.a.received).source, 3);
    must(world.post({bytes, 8}, 7, &g_contexts[1], 0, 2));
    ck_assert_uint_eq(take_one(to ? world.b.received : world.a.received).source, 2);
  }
  ck_assert_int_eq(world.post({bytes, 8}, 7, &g_contexts[0], 0, 77), -FI_EINVAL);
}

TEST(a_multi_receive_buffer_takes_messages_of_all_engines) {
  World world;
  std::vector<char> bytes(3000);
  world.shared.set_min_multi_recv(1000);
  world.send(world.c, 0, pattern(1025, 1), 7);
  must(world.post({bytes.data(), bytes.size()}, 7, &g_contexts[0], 0, UINT64_MAX, true));
  const ErrorCompletion first = take_one(world.a.received);
  world.send(world.c, 1, pattern(1000, 2), 7);
  const ErrorCompletion second = take_one(world.b.received);
  ck_assert_ptr_eq(first.buffer, bytes.data());
  ck_assert_ptr_eq(second.buffer, bytes.data() + 1025);
  ck_assert(!(first.flags & FI_MULTI_RECV) && (second.flags & FI_MULTI_RECV));
  world.send(world.c, 1, pattern(8, 3), 7);
  ck_assert(world.quiet());
  world.end_work();
}

TEST(one_buffer_takes_what_waited_at_several_engines) {
  World world;
  std::vector<char> bytes(100);
  world.send(world.c, 0, pattern(10, 1), 7);
  world.send(world.c, 1, pattern(20, 2), 7);
  world.send(world.d, 0, pattern(30, 3), 7);
  must(world.post({bytes.data(), bytes.size()}, 7, &g_contexts[0], 0, UINT64_MAX, true));
  ck_assert_uint_eq(world.a.received.entries.size(), 2);
  ck_assert_uint_eq(take_one(world.b.received).length, 20);
  ck_assert_uint_eq(world.a.received.take().length, 10);
  ck_assert_uint_eq(world.a.received.take().length, 30);
}

TEST(probes_look_at_all_engines) {
  World world;
  std::vector<char> bytes(8);
  must(world.probe(Probe::peek, 7, &g_contexts[0]));
  ck_assert_int_eq(take_one(world.default_sink).error, FI_ENOMSG);
  world.send(world.c, 1, pattern(8, 1), 7);
  world.send(world.c, 0, pattern(8, 2), 7);
  must(world.probe(Probe::peek_claim, 7, &g_contexts[0]));
  ck_assert_uint_eq(take_one(world.b.received).length, 8);
  must(world.probe(Probe::peek_discard, 7, &g_contexts[1]));
  ck_assert_uint_eq(take_one(world.a.received).source, 2);
  must(world.probe(Probe::claim, 7, &g_contexts[0], {bytes.data(), bytes.size()}));
  ck_assert_ptr_eq(take_one(world.b.received).context, &g_contexts[0]);
  ck_assert(bytes == pattern(8, 1));
  must(world.probe(Probe::peek, 7, &g_contexts[0]));
  ck_assert_int_eq(take_one(world.default_sink).error, FI_ENOMSG);
}

/// A probe looks behind the message that completes the last receive, too.
TEST(a_probe_finds_what_a_poll_may_leave_in_its_ring) {
  World world;
  const auto message = pattern(5000), behind = pattern(8);
  std::vector<char> got(message.size());
  world.a.transport.behaviour.leaves = true;
  world.c.transport.behaviour.fragmented = message.size();
  must(world.post({got.data(), got.size()}, 7, &g_contexts[0]));
  must(world.c.send(0, message.data(), message.size(), 7));
  must(world.c.send(0, behind.data(), behind.size(), 8));
  must(world.probe(Probe::peek, 8, &g_contexts[1]));
  ck_assert(world.default_sink.entries.empty());
  ck_assert_ptr_eq(world.a.received.take().context, &g_contexts[0]);
  ck_assert_uint_eq(take_one(world.a.received).length, behind.size());
  ck_assert(got == message);
  must(world.probe(Probe::peek_discard, 8, &g_contexts[1]));
  (void)world.a.received.take();
  world.end_work();
}

TEST(a_receive_is_cancelled_without_an_engine) {
  World world;
  char bytes[8];
  must(world.post({bytes, 8}, 7, &g_contexts[0]));
  ck_assert_int_eq(world.shared.cancel(&g_contexts[1]), -FI_ENOENT);
  must(world.shared.cancel(&g_contexts[0]));
  const ErrorCompletion cancelled = take_one(world.default_sink);
  ck_assert_int_eq(cancelled.error, FI_ECANCELED);
  ck_assert_ptr_eq(cancelled.context, &g_contexts[0]);
  ck_assert_int_eq(world.shared.cancel(&g_contexts[0]), -FI_ENOENT);
}

TEST(an_engine_that_leaves_takes_its_messages_along) {
  erdma::test::leaves_work_undone();  // messages end with their engine
  World world;
  char bytes[8];
  world.send(world.c, 0, pattern(8, 1), 7);
  world.send(world.c, 0, pattern(8, 2), 7);
  must(world.probe(Probe::peek_claim, 7, &g_contexts[0]));
  world.send(world.d, 1, pattern(8, 3), 7);
  world.a.received.entries.clear();
  world.a.engine.detach(true);
  ck_assert_int_eq(world.probe(Probe::claim, 7, &g_contexts[0], {bytes, 8}), -FI_EINVAL);
  must(world.post({bytes, 8}, 7, &g_contexts[1]));
  ck_assert_uint_eq(take_one(world.b.received).source, 3);
  must(world.post({bytes, 8}, 7, &g_contexts[2]));
  ck_assert(world.quiet());
}

TEST(what_a_leaving_engine_was_filling_is_cancelled_once) {
  World world;
  std::vector<char> one(70000), two(140000);
  world.a.transport.behaviour.hold_transfers = true;
  must(world.post({one.data(), one.size()}, 7, &g_contexts[0]));
  must(world.post({two.data(), two.size()}, 8, &g_contexts[1], 0, UINT64_MAX, true));
  const auto message = pattern(70000);
  world.send(world.c, 0, message, 7);
  world.send(world.c, 0, message, 8);
  ck_assert(world.quiet());
  world.a.engine.detach(true);
  ck_assert(world.quiet());  // the transport may still write to the buffers
  world.a.engine.cancel_deliveries(world.default_sink);
  ck_assert_uint_eq(world.default_sink.entries.size(), 2);
  for (int* context : {&g_contexts[0], &g_contexts[1]}) {
    const ErrorCompletion cancelled = world.default_sink.take();
    // FI_ECANCELED would mean that the multi-receive buffer is released.
    ck_assert_int_eq(cancelled.error, context == &g_contexts[0] ? FI_ECANCELED : FI_ECONNABORTED);
    ck_assert_ptr_eq(cancelled.context, context);
    ck_assert(!(cancelled.flags & FI_MULTI_RECV));
  }
  // The rest of the multi-receive buffer is still used.
  world.send(world.d, 1, message, 8);
  const ErrorCompletion last = take_one(world.b.received);
  ck_assert_ptr_eq(last.buffer, two.data() + 70000);
  ck_assert(last.flags & FI_MULTI_RECV);
  world.end_work();
}

/// The sender was not told yet.
TEST(what_a_leaving_engine_has_received_completes) {
  World world;
  std::vector<char> got(70000);
  const auto message = pattern(70000);
  world.a.transport.behaviour.room = 0;
  must(world.post({got.data(), got.size()}, 7, &g_contexts[0]));
  world.send(world.c, 0, message, 7);
  ck_assert(world.quiet() && got == message);
  world.a.engine.detach(true);
  world.a.engine.cancel_deliveries(world.default_sink);
  const ErrorCompletion done = take_one(world.a.received);
  ck_assert_int_eq(done.error, 0);
  ck_assert_ptr_eq(done.context, &g_contexts[0]);
  ck_assert(world.quiet());
  world.end_work();
}

/// A part of three messages has arrived: one message has matched, one is claimed, and one waits.
TEST(an_engine_that_leaves_in_the_middle_of_messages_ends_their_receives_once) {
  erdma::test::leaves_work_undone();
  World world;
  Node* const senders[] = {&world.b, &world.c, &world.d};
  const auto message = pattern(5000);
  std::vector<char> got(5000, '.'), other(5000);
  must(world.post({got.data(), got.size()}, 0, &g_contexts[0]));
  for (uint64_t tag = 0; tag < 3; ++tag) {
    fake::Behaviour& behaviour = senders[tag]->transport.behaviour;
    behaviour.room = 2;
    behaviour.fragmented = 65536;
    must(senders[tag]->send(0, message.data(), message.size(), tag));
    behaviour.room = 0;
  }
  world.run_until_idle();
  must(world.probe(Probe::peek_claim, 1, &g_contexts[1]));
  ck_assert_uint_eq(take_one(world.a.received).length, message.size());
  world.a.engine.detach(true);
  ck_assert(world.default_sink.entries.empty());
  world.a.engine.cancel_deliveries(world.default_sink);
  ck_assert_int_eq(take_one(world.default_sink).error, FI_ECANCELED);
  const std::vector<char> before = got;
  ck_assert_int_eq(world.probe(Probe::claim, 1, &g_contexts[1], {other.data(), other.size()}),
                   -FI_EINVAL);
  must(world.post({other.data(), other.size()}, 2, &g_contexts[2]));
  for (Node* sender : senders) sender->transport.behaviour.room = 1000;
  world.run_until_idle();
  ck_assert(got == before);
  ck_assert(world.default_sink.entries.empty() && world.a.received.entries.empty());
  ck_assert_int_eq(world.shared.cancel(&g_contexts[2]), 0);
}

TEST(a_dead_peer_fails_what_only_it_could_satisfy) {
  World world;
  char bytes[8];
  world.send(world.c, 0, pattern(8), 9);
  world.send(world.a, 2, pattern(8), 9);
  must(world.post({bytes, 8}, 7, &g_contexts[0], 0, 2));
  must(world.post({bytes, 8}, 7, &g_contexts[1], 0, 3));
  world.a.transport.link(world.c.transport.name).failed = -FI_ECONNRESET;
  world.run_until_idle();
  const ErrorCompletion failed = take_one(world.a.received);
  ck_assert_int_eq(failed.error, FI_ECONNRESET);
  ck_assert_ptr_eq(failed.context, &g_contexts[0]);
  world.send(world.d, 1, pattern(8), 7);
  ck_assert_ptr_eq(take_one(world.b.received).context, &g_contexts[1]);
  world.end_work();
}

// --- against a model ----------------------------------------------------------------------------

/// A model that scans its own lists, oldest first.
struct Model {
  struct Posted {
    uint64_t tag, ignore, source;
    void* context;
  };
  struct Waiting {
    uint64_t tag, source;
    int to;
    size_t length;
  };
  static bool match(const Posted& posted, const Waiting& message) {
    return ((posted.tag ^ message.tag) & ~posted.ignore) == 0 &&
           (posted.source == UINT64_MAX || posted.source == message.source);
  }
  std::deque<Posted> posted;
  std::deque<Waiting> waiting;
};

struct Expected {
  int at;
  void* context;
  uint64_t source, tag;
  size_t length;
};

void expect(World& world, const Expected& expected) {
  const ErrorCompletion done = take_one(expected.at ? world.b.received : world.a.received);
  ck_assert_ptr_eq(done.context, expected.context);
  ck_assert_int_eq(done.error, 0);
  ck_assert_uint_eq(done.source, expected.source);
  ck_assert_uint_eq(done.tag, expected.tag);
  ck_assert_uint_eq(done.length, expected.length);
}

TEST(engines_with_one_context_match_as_one_list_does, 4) {
  World world;
  Model model;
  std::mt19937 random(unsigned(_i + 1));
  const auto pick = [&](uint32_t below) { return uint32_t(random() % below); };
  std::vector<char> buffer(4096);
  uintptr_t last_context = 0;
  for (int step = 0; step < 3000; ++step) {
    const bool favour_posts = step / 300 % 2 != 0;
    const uint32_t action = pick(10);
    if (action == 0 && !model.posted.empty()) {
      const size_t at = pick(uint32_t(model.posted.size()));
      must(world.shared.cancel(model.posted[at].context));
      ck_assert_ptr_eq(take_one(world.default_sink).context, model.posted[at].context);
      model.posted.erase(model.posted.begin() + long(at));
    } else if ((action < 7) == favour_posts) {
      const Model::Posted posted{pick(4), pick(3) ? 0u : 2u, pick(2) ? UINT64_MAX : 2 + pick(2),
                                 reinterpret_cast<void*>(++last_context)};
      must(world.post({buffer.data(), buffer.size()}, posted.tag, posted.context, posted.ignore,
                      posted.source));
      const auto found = std::ranges::find_if(
          model.waiting, [&](const auto& message) { return Model::match(posted, message); });
      if (found == model.waiting.end()) {
        model.posted.push_back(posted);
      } else {
        expect(world, {found->to, posted.context, found->source, found->tag, found->length});
        model.waiting.erase(found);
      }
    } else {
      const uint64_t source = 2 + pick(2);
      const Model::Waiting message{pick(4), source, int(pick(2)), pick(8) ? 16u : 2000u};
      world.send(source == 2 ? world.c : world.d, uint64_t(message.to), pattern(message.length),
                 message.tag);
      const auto found = std::ranges::find_if(
          model.posted, [&](const auto& posted) { return Model::match(posted, message); });
      if (found == model.posted.end()) {
        model.waiting.push_back(message);
      } else {
        expect(world, {message.to, found->context, source, message.tag, message.length});
        model.posted.erase(found);
      }
    }
    ck_assert(world.quiet());
    world.c.sent.entries.clear();
    world.d.sent.entries.clear();
  }
  for (const Model::Posted& posted : model.posted) must(world.shared.cancel(posted.context));
  world.end_work();
}

}  // namespace
