#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <new>

#include "libcheck.h"
#include "transport/verbs_rig.h"

/// Tests a peer that is not an endpoint of this provider. Whatever it sends, only its own
/// connection suffers.
namespace erdma::test {
namespace {

using namespace transport::verbs;
using transport::Access;
using transport::Link;
using transport::RemoteKey;
using transport::SendHint;

class Stranger {
 public:
  Stranger(Rig& rig, Side& victim, uint16_t port)
      : x_rig(rig), x_name(address_of("10.0.0.9", port)) {
    x_cq = ibv_create_cq(rig.device->context(), 256, nullptr, nullptr, 0);
    ibv_qp_init_attr attr{};
    attr.send_cq = attr.recv_cq = x_cq;
    attr.qp_type = IBV_QPT_RC;
    attr.cap = {256, 64, 1, 1, 96};
    x_qp = ibv_create_qp(rig.device->pd(), &attr);
    x_mr = ibv_reg_mr(rig.device->pd(), x_memory, sizeof(x_memory), verbs::peer_rights(true, true));
    for (uint64_t i = 0; i < 48; ++i) receive(i);
    introduce(victim);
  }
  ~Stranger() {
    ibv_destroy_qp(x_qp);
    ibv_destroy_cq(x_cq);
    ibv_dereg_mr(x_mr);
  }
  void send(const void* bytes, size_t length) {
    std::memcpy(x_memory, bytes, length);
    ibv_sge piece{uint64_t(x_memory), uint32_t(length), x_mr->lkey};
    ibv_send_wr request{}, *bad = nullptr;
    request.sg_list = &piece;
    request.num_sge = 1;
    request.opcode = IBV_WR_SEND;
    request.send_flags = IBV_SEND_SIGNALED;
    (void)ibv_post_send(x_qp, &request, &bad);
    x_rig.nic.run();
  }
  template <typename Body>
  void send(Kind kind, const Body& body, size_t cut = 0, uint16_t credits = 0, size_t more = 0) {
    std::byte packet[1024] = {};
    const Prefix prefix{kind, 0, credits, 0};
    std::memcpy(packet, &prefix, sizeof(prefix));
    std::memcpy(packet + sizeof(prefix), &body, sizeof(body));
    send(packet, sizeof(prefix) + sizeof(body) - cut + more);
  }
  /// Posts a request to the victim's memory. Returns true if the device carried it out.
  bool access(ibv_wr_opcode opcode, uint64_t address, uint32_t key, uint32_t length) {
    ibv_sge piece{uint64_t(x_memory), length, x_mr->lkey};
    ibv_send_wr request{}, *bad = nullptr;
    request.wr_id = kAccess;
    request.sg_list = &piece;
    request.num_sge = 1;
    request.opcode = opcode;
    request.send_flags = IBV_SEND_SIGNALED;
    request.wr.rdma = {address, key};
    ck_assert_int_eq(ibv_post_send(x_qp, &request, &bad), 0);
    x_rig.nic.run();
    for (ibv_wc wc{}; ibv_poll_cq(x_cq, 1, &wc) == 1;)
      if (wc.wr_id == kAccess) return wc.status == IBV_WC_SUCCESS;
    return false;
  }
  /// Returns the number of packets of this kind that the victim sent.
  unsigned heard(Kind kind) {
    ibv_wc wc{};
    while (ibv_poll_cq(x_cq, 1, &wc) == 1) {
      if (wc.status || wc.wr_id == 0) continue;
      const std::byte* at = x_memory + slot(wc.wr_id - 1);
      ++x_heard[size_t(at[0])];
      receive(wc.wr_id - 1);
    }
    return x_heard[size_t(kind)];
  }
  const util::SocketAddress& name() const { return x_name; }
  const Terms& told() const { return x_told; }  ///< terms that the victim sent

 private:
  static constexpr size_t kSlot = 1024;
  static constexpr uint64_t kAccess = 1000;
  static size_t slot(uint64_t index) { return (index + 1) * kSlot; }
  void receive(uint64_t index) {
    ibv_sge piece{uint64_t(x_memory + slot(index)), kSlot, x_mr->lkey};
    ibv_recv_wr request{index + 1, nullptr, &piece, 1}, *bad = nullptr;
    (void)ibv_post_recv(x_qp, &request, &bad);
  }
  void introduce(Side& victim) {
    const ConnectorConfig& config = x_rig.fabric.find(victim.name)->config();
    Mail mail;
    ibv_qp_init_attr attr{};
    mail.connection = config.factory->prepare(attr);
    ibv_qp* theirs = ibv_create_qp(x_rig.device->pd(), &attr);
    ck_assert_int_eq(config.factory->adopt(*mail.connection, theirs), 0);
    config.factory->fill_terms(x_name, x_told);
    fake::Nic::join(x_qp, theirs);
    mail.type = Mail::Type::up;
    mail.peer = x_name;
    mail.connection_id = x_rig.fabric.next_id++;
    mail.session = 2 * mail.connection_id;
    mail.terms.credits = 48;
    mail.terms.receive_bytes = kSlot;
    mail.terms.heartbeat_address = uint64_t(x_memory);
    mail.terms.heartbeat_rkey = x_mr->rkey;
    ck_assert_int_eq(config.factory->agree(*mail.connection, mail.terms, false), 0);
    config.mail->post(std::move(mail));
  }

  Rig& x_rig;
  util::SocketAddress x_name;
  ibv_cq* x_cq;
  ibv_qp* x_qp;
  ibv_mr* x_mr;
  Terms x_told;
  unsigned x_heard[256] = {};
  std::byte x_memory[50 * kSlot] = {};
};

struct Scene {
  Rig rig;
  Pair pair;  ///< a is the victim, b an honest peer
  std::unique_ptr<Stranger> stranger;
  RemoteKey readable, writable, registered;  ///< keys of the victim's memory for the stranger
  std::byte memory[100] = {};
  const iovec iov{memory, sizeof(memory)};

  Scene() {
    ck_assert(rig.open(pair.a, {}, &rig.clock));
    ck_assert(rig.open(pair.b, {}, &rig.clock));
    ck_assert_int_eq(pair.send(pair.b_to_a(), 0, nullptr, 0), 0);
    ck_assert(pair.poll_until([&] { return pair.a.sink->packets.size() == 1; }));
    stranger = std::make_unique<Stranger>(rig, pair.a, 77);
    poll();
    Link& link = to_stranger();
    rig.cache.refuse = true;
    ck_assert_int_eq(link.share(&iov, 1, 100, Access::remote_read, readable), 0);
    ck_assert_int_eq(link.share(&iov, 1, 100, Access::remote_write, writable), 0);
    rig.cache.refuse = false;
    ck_assert_int_eq(link.share(&iov, 1, 100, Access::remote_write, registered), 0);
  }
  ~Scene() {
    for (const RemoteKey& remote_key : {readable, writable, registered})
      to_stranger().revoke(remote_key);
  }
  Link& to_stranger() { return **pair.a.transport->link_to(stranger->name()); }
  void poll(int times = 40) {
    for (int i = 0; i < times; ++i) {
      pair.poll();
      rig.clock.time += 1'000'000;
    }
  }
  static util::PoolHandle handle(const RemoteKey& remote_key) {
    RemoteMemory named;
    ck_assert(decode(remote_key, named));
    return named.handle;
  }
  static BouncedBody about(const RemoteKey& remote_key, uint64_t offset = 0,
                           uint64_t length = 100) {
    const util::PoolHandle named = handle(remote_key);
    return {named.index, 7, named.generation, 7, 0, offset, length};
  }
  bool honest_peer_goes_on() {
    const size_t before = pair.b.sink->packets.size();
    return pair.send(pair.a_to_b(), 5, nullptr, 0) == 0 &&
           pair.poll_until([&] { return pair.b.sink->packets.size() == before + 1; });
  }
};

struct Nothing {};
using Attack = void (*)(Scene& scene);
const Attack kAttacks[] = {
    [](Scene& s) { s.stranger->send("abc", 3); },
    [](Scene& s) { s.stranger->send(Kind(0), Nothing{}); },
    [](Scene& s) { s.stranger->send(Kind(99), uint64_t(1)); },
    [](Scene& s) { s.stranger->send(Kind::packet, uint64_t(1)); },
    [](Scene& s) { s.stranger->send(Kind::credit, Nothing{}, 1, UINT16_MAX); },
    [](Scene& s) {
      s.stranger->send(Kind::grow, GrowBody{0, 4096}, 1);
    },
    [](Scene& s) {
      s.stranger->send(Kind::grow, GrowBody{0, 1});
    },
    [](Scene& s) { s.stranger->send(Kind::retire_ok, RetireBody{0}); },
    [](Scene& s) { s.stranger->send(Kind::retire_no, RetireBody{7}); },
    [](Scene& s) { s.stranger->send(Kind::retire, RetireBody{0}, 1); },
    [](Scene& s) { s.stranger->send(Kind::retire_back, RetireBody{0}, 1); },
    [](Scene& s) {
      s.stranger->send(Kind::retire, RetireBody{0});
      s.stranger->send(Kind::retire, RetireBody{1});
    },
    [](Scene& s) { s.stranger->send(Kind::pull, Scene::about(s.readable), 1); },
    [](Scene& s) { s.stranger->send(Kind::pull, Scene::about(s.readable, 0, 101)); },
    [](Scene& s) { s.stranger->send(Kind::pull, Scene::about(s.readable, 0, 0)); },
    [](Scene& s) { s.stranger->send(Kind::pull, Scene::about(s.writable)); },
    [](Scene& s) { s.stranger->send(Kind::pull, Scene::about(s.registered)); },
    [](Scene& s) {
      s.stranger->send(Kind::pull, Scene::about(s.readable));
      s.stranger->send(Kind::pull, Scene::about(s.readable));
    },
    [](Scene& s) { s.stranger->send(Kind::push, Scene::about(s.readable), 0, 0, 100); },
    [](Scene& s) { s.stranger->send(Kind::push, Scene::about(s.registered), 0, 0, 100); },
    [](Scene& s) { s.stranger->send(Kind::push, Scene::about(s.writable, 0, 101), 0, 0, 101); },
    [](Scene& s) { s.stranger->send(Kind::push, Scene::about(s.writable, 50), 0, 0, 51); },
    [](Scene& s) { s.stranger->send(Kind::push, Scene::about(s.writable, UINT64_MAX), 0, 0, 8); },
    [](Scene& s) { s.stranger->send(Kind::push, Scene::about(s.writable, 101), 0, 0, 1); },
    [](Scene& s) { s.stranger->send(Kind::data, BouncedBody{}, 0, 0, 10); },
    [](Scene& s) { s.stranger->send(Kind::answer, BouncedBody{}); },
};

TEST(a_broken_rule_costs_its_own_connection_only, std::size(kAttacks)) {
  Scene scene;
  kAttacks[_i](scene);
  // A single false count of 65535 may be accepted, because it harms no peer.
  if (_i == 4) kAttacks[_i](scene);
  scene.poll();
  ck_assert_uint_eq(scene.pair.a.sink->downs.size(), 1);
  ck_assert_int_eq(scene.pair.a.sink->downs[0].status, -FI_ECONNRESET);
  ck_assert_ptr_eq(scene.pair.a.sink->downs[0].link, &scene.to_stranger());
  ck_assert_uint_eq(scene.pair.a.sink->packets.size(), 1);
  ck_assert(scene.honest_peer_goes_on());
}

/// The peer may take its request back at any time:
/// - This side has agreed. The connection is used on.
/// - This side is about to end the connection, as it has heard nothing more. The connection is used
///   on.
/// - This side has ended the connection. The end counts as agreed.
TEST(a_request_that_is_taken_back_is_no_loss, 3) {
  constexpr Phase kPhases[] = {Phase::accept_sent, Phase::closing,
                               Phase::making /* none: it is gone */};
  Scene scene;
  scene.to_stranger().revoke(scene.readable);
  scene.stranger->send(Kind::retire, RetireBody{0});
  for (int i = 0; i < 10; ++i) scene.pair.poll();
  ck_assert_uint_eq(scene.stranger->heard(Kind::retire_ok), 1);
  const auto& link = static_cast<VerbsLink&>(scene.to_stranger());
  const auto reached = [&] {
    return !link.connection(false) || link.connection(false)->lifecycle.phase() == kPhases[_i];
  };
  for (int i = 0; i < 100'000 && !reached(); ++i) {
    scene.pair.poll();
    scene.rig.clock.time += 1'000'000;
  }
  ck_assert(reached());
  scene.stranger->send(Kind::retire_back, RetireBody{0});
  scene.stranger->send(Kind::packet, numbered(6));
  scene.poll();
  ck_assert_uint_eq(scene.pair.a.sink->downs.size(), 0);
  ck_assert_uint_eq(scene.pair.a.sink->packets.size(), _i < 2 ? 2 : 1);
  if (_i == 2) return;
  ck_assert_int_eq(scene.pair.send(scene.to_stranger(), 7, nullptr, 0), 0);
  scene.poll();
  ck_assert_uint_eq(scene.stranger->heard(Kind::packet), 1);
}

struct NoHost final : ConnectionHost {
  void broken(int, const char*) noexcept override {}
  void progress_soon() noexcept override {}
  void await_block() noexcept override {}
};

/// The connector's thread destroys connections that were never used, while the polling thread
/// counts grown connections in `Resources`.
TEST(what_did_not_grow_ends_without_a_write_to_what_is_shared) {
  Rig rig;
  const auto page = size_t(sysconf(_SC_PAGESIZE));
  const size_t length = (sizeof(Resources) + page - 1) / page * page;
  void* const memory =
      mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ck_assert_ptr_ne(memory, MAP_FAILED);
  auto* shared = new (memory) Resources(Options{}, *rig.device, rig.cache, 8);
  NoHost host;
  {
    PacketSender sender(*shared, host);
    {
      const PacketReceiver receiver(*shared, sender, host);
      ck_assert_int_eq(mprotect(memory, length, PROT_READ), 0);
    }
    ck_assert_int_eq(mprotect(memory, length, PROT_READ | PROT_WRITE), 0);
  }
  shared->~Resources();
  munmap(memory, length);
}

/// The peer learns of the end at once. No thread waits for the peer.
TEST(the_end_is_told_over_a_connection_that_is_used_on, 2) {
  constexpr Phase kPhases[] = {Phase::accept_sent, Phase::closing};
  Scene scene;
  scene.to_stranger().revoke(scene.readable);
  scene.stranger->send(Kind::retire, RetireBody{0});
  for (int i = 0; i < 10; ++i) scene.pair.poll();
  const auto& link = static_cast<VerbsLink&>(scene.to_stranger());
  for (int i = 0; i < 100'000 && link.connection(false)->lifecycle.phase() != kPhases[_i]; ++i) {
    scene.pair.poll();
    scene.rig.clock.time += 1'000'000;
  }
  ck_assert(link.connection(false)->lifecycle.phase() == kPhases[_i]);
  scene.stranger->send(Kind::retire_back, RetireBody{0});
  scene.pair.a.transport->shutdown();
  ck_assert_uint_eq(scene.stranger->heard(Kind::bye), 1);
}

TEST(memory_that_was_revoked_is_answered_for_and_not_touched) {
  Scene scene;
  const BouncedBody read = Scene::about(scene.readable);
  const BouncedBody write = Scene::about(scene.writable);
  scene.to_stranger().revoke(scene.readable);
  scene.to_stranger().revoke(scene.writable);
  scene.stranger->send(Kind::pull, read);
  scene.stranger->send(Kind::push, write, 0, 0, 100);
  scene.poll();
  ck_assert_uint_eq(scene.stranger->heard(Kind::answer), 2);
  ck_assert_uint_eq(scene.stranger->heard(Kind::data), 0);
  ck_assert_uint_eq(scene.pair.a.sink->downs.size(), 0);
}

TEST(another_peers_memory_is_not_to_be_had) {
  Scene scene;
  scene.rig.cache.refuse = true;
  RemoteKey others;
  ck_assert_int_eq(scene.pair.a_to_b().share(&scene.iov, 1, 100, Access::remote_read, others), 0);
  scene.stranger->send(Kind::pull, Scene::about(others));
  scene.poll();
  ck_assert_uint_eq(scene.stranger->heard(Kind::data), 0);
  scene.pair.a_to_b().revoke(others);
}

TEST(a_peer_that_takes_no_answers_does_not_fill_the_memory) {
  Scene scene;
  VerbsTransport& transport = Rig::transport(scene.pair.a);
  for (int i = 0; i < 5000 && scene.pair.a.sink->downs.empty(); ++i) {
    scene.stranger->send(Kind::push, Scene::about(scene.writable, 100), 0);
    scene.poll(2);
    (void)scene.stranger->heard(Kind::answer);  // returns no credits
    ck_assert_uint_le(transport.resources().answers.in_use(), 1024);
  }
  scene.poll();
  ck_assert_uint_eq(scene.pair.a.sink->downs.size(), 1);
  ck_assert_uint_eq(transport.resources().answers.in_use(), 0);
}

TEST(a_peer_that_retires_and_stays_is_left_in_time) {
  Scene scene;
  scene.stranger->send(Kind::retire, RetireBody{5});
  scene.stranger->send(Kind::retire_back, RetireBody{4});
  scene.poll();
  ck_assert_uint_eq(scene.stranger->heard(Kind::retire_ok), 1);
  ck_assert_int_eq(scene.to_stranger().send(numbered(1), nullptr, 0, 0, SendHint::none),
                   -FI_EAGAIN);
  for (int i = 0; i < 20'000; ++i) scene.poll(1);
  ck_assert_uint_eq(scene.pair.a.sink->downs.size(), 0);
  // Nothing listens under the stranger's name.
  ck_assert_int_eq(scene.to_stranger().send(numbered(1), nullptr, 0, 0, SendHint::none),
                   -FI_EAGAIN);
  scene.poll();
  ck_assert_uint_eq(scene.pair.a.sink->downs.size(), 1);
  ck_assert_int_eq(scene.pair.a.sink->downs[0].status, -FI_ECONNREFUSED);
}

TEST(terms_that_make_no_sense_are_no_connection) {
  Scene scene;
  const ConnectorConfig& config = scene.rig.fabric.find(scene.pair.a.name)->config();
  const Terms terms[] = {{{}, 1, 0, 1024}, {{}, 1, 3, 1024}, {{}, 1, 8, 0}, {{}, 1, 8, 100}};
  for (const Terms& offered : terms) {
    Mail mail;
    ibv_qp_init_attr attr{};
    mail.connection = config.factory->prepare(attr);
    ibv_qp* queue_pair = ibv_create_qp(scene.rig.device->pd(), &attr);
    ck_assert_int_eq(config.factory->adopt(*mail.connection, queue_pair), 0);
    mail.type = Mail::Type::up;
    mail.peer = address_of("10.0.0.8", 1);
    mail.connection_id = scene.rig.fabric.next_id++;
    mail.terms = offered;
    config.mail->post(std::move(mail));
    scene.poll();
  }
  ck_assert(scene.honest_peer_goes_on());
}

TEST(random_packets_do_no_harm, 8) {
  Scene scene;
  unsigned state = unsigned(_i) + 1;
  const auto random = [&] { return (state = state * 1664525u + 1013904223u) >> 8; };
  for (unsigned round = 0; round < 300; ++round) {
    Stranger fuzzer(scene.rig, scene.pair.a, uint16_t(1000 + round));
    for (int i = 0; i < 6; ++i) {
      std::byte bytes[600];
      for (std::byte& byte : bytes) byte = random() % 3 ? std::byte(0) : std::byte(random());
      bytes[0] = std::byte(random() % 14);
      bytes[2] = bytes[3] = std::byte(0);
      fuzzer.send(bytes, random() % sizeof(bytes));
      scene.pair.poll();
    }
    scene.poll(5);
  }
  ck_assert(scene.honest_peer_goes_on());
}

TEST(completions_that_come_after_the_end_find_nobody) {
  Scene scene;
  // The packets stay in the queue when the queue pair is destroyed: the fake keeps them, as the
  // device does.
  scene.rig.nic.hold = true;
  scene.stranger->send(Kind::packet, transport::Header{});
  scene.to_stranger().fail(-FI_ECONNABORTED);
  scene.rig.nic.flush = false;
  scene.poll();
  ck_assert_uint_eq(scene.pair.a.sink->downs.size(), 1);
  scene.rig.nic.hold = false;
  scene.poll();
  ck_assert_uint_eq(scene.pair.a.sink->packets.size(), 1);
  ck_assert(scene.honest_peer_goes_on());
}

/// A peer is told the address and key for its heartbeats. From these it can guess neighbouring
/// addresses, and keys that were given out before and after.
TEST(what_lies_beside_the_heartbeat_memory_is_out_of_reach, 2) {
  Scene scene;
  use_all_memory(scene.rig, scene.pair);
  const Terms told = scene.stranger->told();
  constexpr int kPages = 8, kKeys = 16;
  const bool write = _i == 0;
  const ibv_wr_opcode opcode = write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
  uint16_t port = 1000;
  for (int page = -kPages; page <= kPages; ++page)
    for (int key = -kKeys; key <= kKeys; ++key) {
      if (!write && page == 0 && key == 0) continue;  // this access is permitted
      Stranger guesser(scene.rig, scene.pair.a, port++);
      ck_assert_msg(!guesser.access(opcode, told.heartbeat_address + uint64_t(page * 4096),
                                    told.heartbeat_rkey + uint32_t(key * 0x100), 8),
                    "page %d, key %d", page, key);
      scene.poll(2);
    }
  ck_assert(scene.honest_peer_goes_on());
}

}  // namespace

}  // namespace erdma::test
