#pragma once

#include <cstdio>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <rdma/fi_errno.h>

#include "fake/verbs.h"
#include "libcheck.h"
#include "transport/conformance.h"
#include "transport/verbs/session.h"
#include "transport/verbs/verbs_transport.h"

// Endpoints on the NIC of fake/verbs.h, which connect without a thread. Include this header in one
// file.
namespace erdma::test {

namespace verbs = transport::verbs;

/// The connectors of the test by name, and settings for all of them.
struct FakeFabric {
  struct Wire {
    class FakeConnector* ends[2];
    uint64_t ids[2];
    bool joins(const FakeConnector* a, const FakeConnector* b) const {
      const bool these = (ends[0] == a && ends[1] == b) || (ends[0] == b && ends[1] == a);
      return these && a != b && ids[0] && ids[1];
    }
  };
  std::vector<std::pair<util::SocketAddress, FakeConnector*>> listeners;
  std::vector<Wire> wires;
  uint64_t next_id = 1;
  uint32_t next_serial = 0;
  uint16_t next_port = 1000;
  bool hold = false;          ///< connect() only records the attempt
  bool hold_active = false;   ///< likewise, after the passive side has come up
  bool quiet_deaths = false;  ///< the peer is not told of a close
  int refuse = 0;             ///< status of every attempt
  unsigned attempts = 0;

  static FakeFabric& one() {
    static FakeFabric fabric;
    return fabric;
  }
  FakeConnector* find(const util::SocketAddress& name) {
    for (auto& [known, connector] : listeners)
      if (known == name) return connector;
    return nullptr;
  }
};

class FakeConnector final : public verbs::Connector {
 public:
  struct Attempt {
    util::SocketAddress peer;
    uint64_t number;
  };

  explicit FakeConnector(const verbs::ConnectorConfig& config)
      : x_config(config), x_name(config.name), x_nonce(FakeFabric::one().next_id++) {
    if (!x_name.port()) x_name.set_port(FakeFabric::one().next_port++);
    FakeFabric::one().listeners.emplace_back(x_name, this);
    x_attempts.reserve(16);  // connect() may be called while there is no memory
  }
  ~FakeConnector() override {
    stop_listening();
    // Connections that were accepted and not taken from the mail end as well.
    for (FakeFabric::Wire& wire : FakeFabric::one().wires)
      for (int end : {0, 1})
        if (wire.ends[end] == this) wire.ids[end] = 0;
  }

  const util::SocketAddress& name() const noexcept override { return x_name; }
  int connect(const util::SocketAddress& peer, uint64_t attempt, bool) noexcept override {
    ++FakeFabric::one().attempts;
    // The peer's attempt has come up meanwhile; its mail is the answer.
    for (const FakeFabric::Wire& wire : FakeFabric::one().wires)
      if (wire.joins(this, FakeFabric::one().find(peer))) return 0;
    x_attempts.push_back({peer, attempt});
    if (!FakeFabric::one().hold) go_on();
    return 0;
  }
  void close(uint64_t connection_id, bool orderly) noexcept override {
    FakeFabric& fabric = FakeFabric::one();
    for (size_t i = 0; i < fabric.wires.size(); ++i) {
      FakeFabric::Wire& wire = fabric.wires[i];
      for (int end : {0, 1}) {
        if (wire.ids[end] != connection_id) continue;
        FakeConnector* peer = wire.ends[1 - end];
        wire.ids[end] = 0;
        if (wire.ids[1 - end] && !fabric.quiet_deaths)
          peer->lose(wire.ids[1 - end], orderly ? -FI_ESHUTDOWN : -FI_ECONNRESET);
      }
    }
  }
  void stop_listening() noexcept override {
    std::erase_if(FakeFabric::one().listeners,
                  [this](const auto& known) { return known.second == this; });
  }
  void abandon() noexcept override {}

  void lose(uint64_t connection_id, int status) {
    verbs::Mail mail;
    mail.type = verbs::Mail::Type::lost;
    mail.connection_id = connection_id;
    mail.status = status;
    x_config.mail->post(std::move(mail));
  }
  /// Carries out the attempts that connect() recorded.
  void go_on() {
    const std::vector<Attempt> attempts(x_attempts);
    x_attempts.clear();
    for (const Attempt& attempt : attempts) {
      FakeConnector* peer = FakeFabric::one().find(attempt.peer);
      const int status = FakeFabric::one().refuse ? FakeFabric::one().refuse
                         : peer                   ? 0
                                                  : -FI_ECONNREFUSED;
      if (status)
        report(attempt, status);
      else
        join(*peer, attempt);
    }
  }
  void report(const Attempt& attempt, int status) {
    verbs::Mail mail;
    mail.peer = attempt.peer;
    mail.attempt = attempt.number;
    mail.status = status;
    x_config.mail->post(std::move(mail));
  }
  const verbs::ConnectorConfig& config() const { return x_config; }

 private:
  struct Half {
    std::unique_ptr<verbs::Connection> connection;
    ibv_qp* qp = nullptr;
    verbs::Terms terms;
  };

  Half make(const util::SocketAddress& peer) {
    Half half;
    ibv_qp_init_attr attr{};
    half.connection = x_config.factory->prepare(attr);
    if (!half.connection) return half;
    half.qp = ibv_create_qp(x_config.device->pd(), &attr);
    if (x_config.factory->adopt(*half.connection, half.qp)) half.qp = nullptr;
    x_config.factory->fill_terms(peer, half.terms);
    half.terms.name = x_name;
    half.terms.nonce = x_nonce;
    return half;
  }
  void join(FakeConnector& peer, const Attempt& attempt) {
    Half mine = make(attempt.peer);
    Half theirs = mine.qp ? peer.make(x_name) : Half{};
    if (!mine.qp || !theirs.qp) return fail(attempt, std::move(mine), peer, std::move(theirs));
    fake::Nic::join(mine.qp, theirs.qp);
    FakeFabric& fabric = FakeFabric::one();
    const uint64_t ids[] = {fabric.next_id++, fabric.next_id++};
    fabric.wires.push_back({{this, &peer}, {ids[0], ids[1]}});
    const verbs::Terms my_terms = mine.terms;
    ck_assert(!x_config.factory->agree(*mine.connection, theirs.terms, true));
    ck_assert(!peer.x_config.factory->agree(*theirs.connection, my_terms, false));
    fabric.next_serial += 2;
    const uint64_t session = verbs::Session::name(fabric.next_serial, fabric.next_serial, 0);
    if (fabric.hold_active) {
      fabric.wires.back().ids[0] = 0;
      dispose(std::move(mine));
    } else {
      tell(std::move(mine), peer.x_name, theirs.terms, ids[0], session, true);
    }
    peer.tell(std::move(theirs), x_name, my_terms, ids[1], session, false);
  }
  void fail(const Attempt& attempt, Half mine, FakeConnector& peer, Half theirs) {
    dispose(std::move(mine));
    peer.dispose(std::move(theirs));
    report(attempt, -FI_ENOMEM);
  }
  void dispose(Half half) {
    if (!half.connection) return;
    verbs::Mail mail;
    mail.type = verbs::Mail::Type::dispose;
    mail.connection = std::move(half.connection);
    x_config.mail->post(std::move(mail));
  }
  void tell(Half half, const util::SocketAddress& peer, const verbs::Terms& terms, uint64_t id,
            uint64_t session, bool active) {
    verbs::Mail mail;
    mail.type = verbs::Mail::Type::up;
    mail.peer = peer;
    mail.connection_id = id;
    mail.active = active;
    mail.terms = terms;
    mail.resumes = half.terms.resumes;
    mail.session = session;
    mail.connection = std::move(half.connection);
    x_config.mail->post(std::move(mail));
  }

  const verbs::ConnectorConfig x_config;
  util::SocketAddress x_name;
  const uint64_t x_nonce;
  std::vector<Attempt> x_attempts;
};

/// A cache that registers all memory, or refuses all.
struct FakeCache final : verbs::RegistrationCache {
  ibv_pd* pd = nullptr;
  bool refuse = false;
  int refuse_after = -1;  ///< number of registrations before the first refusal
  int held = 0, made = 0;
  int warned = 0;  ///< number of warnings of copies
  const char* each_time = nullptr;
  void warn_of_copy() noexcept override { ++warned; }
  const char* registers_each_time() const noexcept override { return each_time; }
  int acquire(const void* address, size_t length, int rights,
              verbs::Registration& out) noexcept override {
    if (refuse || refuse_after == 0) return -FI_EOPNOTSUPP;
    if (refuse_after > 0) --refuse_after;
    ibv_mr* mr = ibv_reg_mr(pd, const_cast<void*>(address), length, rights);
    out = {mr->lkey, mr->rkey, mr};
    ++held;
    ++made;
    return 0;
  }
  void release(const verbs::Registration& registration) noexcept override {
    ibv_dereg_mr(static_cast<ibv_mr*>(registration.entry));
    --held;
  }
};

/// Counts how often the device refused memory of the transport itself.
struct AsksForRoom final : verbs::RegionEvictor {
  bool evict_after(int) noexcept override { return ++count, false; }
  unsigned count = 0;
};

struct FakeClock final : util::Clock {
  uint64_t time = 1'000'000'000;
  uint64_t now() const noexcept override { return time; }
};

/// A device, and endpoints on it. It must outlive the sides that use it.
struct Rig {
  std::unique_ptr<verbs::Device> device;
  FakeCache cache;
  FakeClock clock;
  fake::Nic& nic = fake::Nic::one();
  FakeFabric& fabric = FakeFabric::one();

  Rig() {
    auto opened = verbs::Device::open("fake0", address_of("10.0.0.1", 0));
    if (opened) device = std::move(*opened);
    cache.pd = device->pd();
  }
  bool open(Side& side, const verbs::Options& options = {}, const util::Clock* with = nullptr,
            uint16_t port = 0) {
    auto opened = verbs::VerbsTransport::open(
        options, *device, cache, address_of("10.0.0.1", port), with,
        [](const verbs::ConnectorConfig& config)
            -> util::Result<std::unique_ptr<verbs::Connector>> {
          return std::unique_ptr<verbs::Connector>(new FakeConnector(config));
        });
    if (!opened) return false;
    side.name = (*opened)->name();
    side.transport = opened->get();
    side.owned = std::move(*opened);
    return true;
  }
  static verbs::VerbsTransport& transport(Side& side) {
    return static_cast<verbs::VerbsTransport&>(*side.transport);
  }
};

/// Two endpoints. The destructor fails if they broke a rule of the device.
struct Two {
  Rig rig;
  Pair pair;
  explicit Two(const verbs::Options& options = {}) {
    ck_assert(rig.open(pair.a, options, &rig.clock));
    ck_assert(rig.open(pair.b, options, &rig.clock));
  }
  ~Two() {
    for (const std::string& what : rig.nic.violations) printf("violation: %s\n", what.c_str());
    ck_assert(rig.nic.violations.empty() || broken_on_purpose);
  }
  bool broken_on_purpose = false;
  Side& a() { return pair.a; }
  Side& b() { return pair.b; }
  void meet() {
    ck_assert_int_eq(pair.send(pair.a_to_b(), 0, nullptr, 0), 0);
    ck_assert(pair.poll_until([&] { return pair.b.sink->packets.size() == 1; }));
    for (int i = 0; i < 8; ++i) pair.poll();
  }
  /// The clock advances, as draining a connection has a time limit.
  template <typename Condition>
  bool until(Condition condition) {
    for (int i = 0; i < 200'000; ++i) {
      if (condition()) return true;
      pair.poll();
      rig.clock.time += 100'000;
    }
    return false;
  }
};

/// Makes `a` use every kind of memory that a transport registers for itself, and `b` share a page
/// with it. Memory of pools stays registered.
inline void use_all_memory(Rig& rig, Pair& pair) {
  std::vector<std::byte> there(300'000), here(300'000);
  const size_t before = pair.b.sink->packets.size();
  for (int i = 0; i < 200; ++i)  // more than the first receives hold: they grow
    ck_assert_int_eq(pair.send(pair.a_to_b(), 1, here.data(), 200), 0);
  for (int i = 0; i < 200; ++i) ck_assert_int_eq(pair.send(pair.b_to_a(), 1, here.data(), 200), 0);
  ck_assert(pair.poll_until([&] { return pair.b.sink->packets.size() == before + 200; }));

  auto open =
      pair.b_to_a().optional().registrar->open({there.data(), there.size()}, nullptr, true, true);
  ck_assert(open);
  transport::RemoteKey remote_key;
  (*open)->describe(remote_key);
  transport::Link& link = pair.a_to_b();
  const auto finished = [&](auto begin) {
    const size_t dones = pair.a.sink->dones.size();
    ck_assert(pair.poll_until([&] { return begin() == 0; }));
    ck_assert(pair.poll_until([&] { return pair.a.sink->dones.size() > dones; }));
    ck_assert_int_eq(pair.a.sink->dones.back().status, 0);
  };
  transport::DeviceAddress first;
  ck_assert(link.optional().fast->unpack(remote_key, first));
  finished([&] { return link.optional().fast->get(first, here.data(), 8, 1); });
  rig.cache.refuse = true;
  for (const size_t size : {size_t{4096}, here.size()}) {
    const iovec local{here.data(), size};
    finished([&] { return link.get({remote_key, 0, size}, &local, 1, 1); });
    finished([&] { return link.put({remote_key, 0, size}, &local, 1, 1, true); });
  }
  rig.cache.refuse = false;
}

}  // namespace erdma::test
