// Memory runs out while an endpoint makes progress over a real transport without a thread. Each
// allocation fails in turn, alone or with later ones, and then there is memory again. No message
// that was reported as sent is lost.
#include <array>
#include <memory>
#include <vector>

#include "fake/scarce_memory.h"
#include "protocol/engine.h"
#include "protocol/spare_buffers.h"
#include "transport/shm/shm_transport.h"
#include "transport/verbs_rig.h"

namespace erdma::test {
namespace {

/// A sink that only counts, as it must not allocate while there is no memory.
struct Ends final : protocol::CompletionSink {
  protocol::CompletionEntry& succeed(bool) noexcept override {
    ++well;
    return entry;
  }
  void fail(const protocol::ErrorCompletion& end) noexcept override {
    ++failed;
    error = end.error;
  }
  int ended() const { return well + failed; }

  protocol::CompletionEntry entry;
  int well = 0, failed = 0, error = 0;
};

/// A clock that advances by a millisecond with each call.
struct StepClock final : util::Clock {
  uint64_t now() const noexcept override { return time += 1'000'000; }
  mutable uint64_t time = 1'000'000'000;
};

struct Node final : protocol::AddressBook, protocol::Router {
  /// Maps fi_addr 0 to the peer.
  util::SocketAddress address_of(uint64_t fi_addr) const noexcept override {
    return fi_addr ? util::SocketAddress() : peer;
  }
  uint64_t fi_addr_of(const util::SocketAddress& address) const noexcept override {
    return address == peer ? 0 : UINT64_MAX;
  }
  util::Result<transport::Link*> route(const util::SocketAddress& address) noexcept override {
    return transport->link_to(address);
  }

  void start() {
    engine =
        std::make_unique<protocol::Engine>(protocol::EngineConfig{4096, 1 << 20, 64}, *this, *this,
                                           std::vector{transport.get()}, sent, received);
  }
  int send(const std::vector<char>& bytes) {
    iovec iov{const_cast<char*>(bytes.data()), bytes.size()};
    protocol::SendArgs args{};
    args.iov = &iov;
    args.count = 1;
    args.length = bytes.size();
    args.tagged = args.report = true;
    return engine->post_send(args);
  }
  int receive(std::vector<char>& bytes) {
    iovec iov{bytes.data(), bytes.size()};
    protocol::ReceiveArgs args{};
    args.iov = &iov;
    args.count = 1;
    args.length = bytes.size();
    args.source = UINT64_MAX;
    args.context = &bytes;
    args.tagged = args.report = true;
    return engine->post_receive(args);
  }

  util::SocketAddress peer;
  Ends sent, received;
  std::unique_ptr<transport::Transport> transport;
  std::unique_ptr<protocol::Engine> engine;
};

/// Two engines with transports whose threads' work runs on request.
struct Nodes {
  virtual ~Nodes() = default;
  virtual void step() = 0;

  void introduce(const util::SocketAddress& name_a, const util::SocketAddress& name_b) {
    a.peer = name_b;
    b.peer = name_a;
    a.start();
    b.start();
  }
  void progress() {
    fake::counted([&] {
      a.engine->progress();
      b.engine->progress();
      step();
      return 0;
    });
  }
  void progress_often() {
    for (int i = 0; i < 20; ++i) progress();
  }
  /// Returns false if the condition never holds.
  template <typename Condition>
  bool until(Condition condition) {
    for (int i = 0; i < 3000 && !condition(); ++i) progress();
    return condition();
  }
  void end() {
    a.engine.reset();
    b.engine.reset();
    a.transport.reset();
    b.transport.reset();
  }

  Node a, b;
};

namespace shm = transport::shm;

struct OnShm final : Nodes {
  OnShm() {
    shm::Options options;
    options.background = false;
    options.scope = shm::NameScope::address;
    std::array<util::SocketAddress, 2> names;
    for (Node* node : {&a, &b}) {
      auto opened =
          shm::ShmTransport::open(options, address_of("127.100.100.100", 0), nullptr, &clock);
      ck_assert_int_eq(opened.error(), 0);
      names[node == &b] = (*opened)->name();
      node->transport = std::move(*opened);
    }
    introduce(names[0], names[1]);
  }
  ~OnShm() override { end(); }
  void step() override {
    for (Node* node : {&a, &b}) static_cast<shm::ShmTransport&>(*node->transport).step();
  }

  StepClock clock;
};

struct OnNic final : Nodes {
  OnNic() {
    rig.fabric.hold = true;
    Side sides[2];
    for (Side& side : sides) ck_assert(rig.open(side, {}, &clock));
    a.transport = std::move(sides[0].owned);
    b.transport = std::move(sides[1].owned);
    introduce(sides[0].name, sides[1].name);
  }
  ~OnNic() override { end(); }
  /// The stand-ins for the connector's thread and the adapter have memory.
  void step() override {
    fake::t_counted = false;
    for (const auto& [name, connector] : rig.fabric.listeners) connector->go_on();
  }

  Rig rig;
  StepClock clock;
};

std::unique_ptr<Nodes> make(int way) {
  fake::g_concerns = [](const void*) { return !fake::t_in_adapter; };
  if (way == 0) return std::make_unique<OnShm>();
  return std::make_unique<OnNic>();
}
constexpr int kWays = 2;
constexpr long kWhile = 40;

void must(int status) {
  ck_assert_int_eq(status, 0);
}

/// Sends a message for a receive that is posted before or after it. Returns true if an allocation
/// failed.
bool message_without(int way, long allocation, long many, size_t length, bool expected) {
  const std::unique_ptr<Nodes> nodes = make(way);
  Ends &sent = nodes->a.sent, &received = nodes->b.received;
  const std::vector<char> bytes(length, 'x');
  std::vector<char> place(length);
  bool posted = false;
  const auto post = [&] {
    if (!std::exchange(posted, true)) must(nodes->b.receive(place));
  };
  fake::run_short(allocation, many);
  for (int round = 1; !sent.well; ++round) {
    if (expected) post();
    must(nodes->a.send(bytes));
    if (!expected) nodes->progress_often();
    post();
    const bool over = nodes->until(
        [&] { return sent.ended() == round && (sent.failed == round || received.ended()); });
    ck_assert_msg(over && round < 100 && (received.failed ? sent.failed : true) &&
                      received.failed <= sent.failed,
                  "way %d, %zu bytes, %ld from allocation %ld: sent %d, failed %d (%d), received "
                  "%d, failed %d (%d)",
                  way, length, many, allocation, sent.well, sent.failed, sent.error, received.well,
                  received.failed, received.error);
    if (sent.failed)
      ck_assert_msg(sent.error == FI_ENOMEM, "%ld from allocation %ld: %s", many, allocation,
                    fi_strerror(sent.error));
    if (received.failed) ck_assert_int_eq(received.error, FI_ENOMEM);
    if (received.failed) posted = false, received.failed = 0;
  }
  ck_assert_int_eq(received.well, 1);
  ck_assert(place == bytes);
  return fake::replenish();
}

TEST_CASE(.timeout = 60);

TEST(a_message_arrives_although_memory_lacked, 4 * kWays) {
  const int way = _i % kWays;
  const bool expected = _i / kWays % 2;
  const long many = _i < 2 * kWays ? 1 : kWhile;
  for (const size_t length : {size_t(8), size_t(3000), size_t(100'000)}) {
    long allocation = 0;
    while (message_without(way, allocation, many, length, expected)) ++allocation;
    ck_assert_int_gt(allocation, 5);
  }
}

/// The memory that lacks may be what is kept for payloads of another size.
TEST(kept_buffers_are_freed_for_a_payload_that_finds_no_memory) {
  protocol::SpareBuffers spare;
  spare.give_back(spare.take(65536), 65536);
  ck_assert_uint_gt(spare.kept(), 0);
  fake::run_short(0);
  ck_assert(fake::counted([&] { return bool(spare.take(4096)); }));
  ck_assert(fake::replenish());
  ck_assert_uint_eq(spare.kept(), 0);
}

}  // namespace
}  // namespace erdma::test
