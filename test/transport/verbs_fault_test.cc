#include <signal.h>
#include <sys/wait.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <span>

#include "transport/simulated_device.h"
#include "transport/verbs_fault_rig.h"
#include "watched_memory.h"

/// Tests every fault of the simulated adapter with every protocol:
/// - Each operation ends once.
/// - No completion is false.
/// - Other peers do not notice, and the next message arrives.
/// ONLY=part of a fault's name and PROTOCOL=part of a protocol's name select rows.
namespace erdma::test {
namespace {

using verbs::Rendezvous;

/// How node 0 sends to node 1, and which node's work requests of which kind a fault hits.
struct Protocol {
  const char* name;
  size_t size;
  int messages;
  Rendezvous rendezvous;
  bool sender_registers, receiver_registers;
  bool reliable;
  int hit;
  const char* op;
};
const Protocol kProtocols[] = {
    {"inline", 8, 12, Rendezvous::write, true, true, true, 0, "send"},
    {"eager 500", 500, 12, Rendezvous::write, true, true, false, 0, "send"},
    {"eager 8000", 8000, 12, Rendezvous::write, true, true, true, 0, "send"},
    {"rendezvous WRITE", 1'300'000, 3, Rendezvous::write, true, true, false, 0, "write"},
    {"rendezvous READ", 1'300'000, 3, Rendezvous::read, true, true, false, 1, "read"},
    {"bounced WRITE", 300'000, 3, Rendezvous::write, false, true, false, 0, "write"},
    {"staged push", 100'000, 3, Rendezvous::write, false, false, false, 0, "send"},
    {"staged pull", 100'000, 3, Rendezvous::read, false, false, false, 0, "send"},
    {"credits", 8, 300, Rendezvous::write, true, true, false, 1, "send"},
};

enum Outcome { survives, breaks, either };
enum Third { speaks, silent };

/// In `line`, DEV and OP stand for those of the protocol. `device` has options of the adapter that
/// the fault hits.
struct Fault {
  const char* name;
  const char* line;
  const char* device;
  Outcome outcome;
  int error;     ///< also accepted: FI_ECONNRESET of the other side,
                 ///< and without memory FI_ECONNREFUSED
  Third third;   ///< whether traffic between the third node and the hit node goes on
  bool cold;     ///< the fault occurs before the first connection
  bool few;      ///< slow and independent of the protocol, so two protocols suffice
  bool cm_only;  ///< a fault of rdma_cm only
};
const Fault kFaults[] = {
    {"general 1st", "wr dev=DEV op=OP n=1 status=general", "", breaks, 0, speaks, 0, 0, 0},
    {"general 2nd", "wr dev=DEV op=OP n=2 status=general", "", breaks, 0, speaks, 0, 0, 0},
    {"general 5th", "wr dev=DEV op=OP n=5 status=general", "", breaks, 0, speaks, 0, 0, 0},
    {"rem_access", "wr dev=DEV op=OP n=2 status=rem_access", "", breaks, 0, speaks, 0, 0, 0},
    {"loc_qp_op", "wr dev=DEV op=OP n=2 status=loc_qp_op", "", breaks, FI_EIO, speaks, 0, 0, 0},
    {"loc_access", "wr dev=DEV op=OP n=2 status=loc_access", "", breaks, FI_EIO, speaks, 0, 0, 0},
    {"flush", "wr dev=DEV op=OP n=2 status=flush", "", breaks, 0, speaks, 0, 0, 0},
    {"retry_exc 1st", "wr dev=DEV op=OP n=1 status=retry_exc", "", breaks, FI_ETIMEDOUT, speaks, 0,
     0, 0},
    {"retry_exc 5th", "wr dev=DEV op=OP n=5 status=retry_exc", "", breaks, FI_ETIMEDOUT, speaks, 0,
     0, 0},
    {"drop 1st", "drop dev=DEV n=1", "", breaks, 0, speaks, 0, 0, 0},
    {"drop 5th", "drop dev=DEV n=5", "", breaks, 0, speaks, 0, 0, 0},
    {"dropped while connecting", "drop dev=DEV n=1", "", either, FI_ETIMEDOUT, speaks, 1, 0, 0},
    {"flush of half", "wr dev=DEV op=OP n=2 status=general", ",flush=half", breaks, 0, speaks, 0, 0,
     0},
    {"no flush", "wr dev=DEV op=OP n=2 status=general", ",flush=none", breaks, 0, speaks, 0, 0, 0},
    {"flush withheld", "flush withhold;wr dev=DEV op=OP n=3 status=general", "", breaks, 0, speaks,
     0, 0, 0},
    {"completions withheld", "completions withhold", "", breaks, FI_ETIMEDOUT, silent, 0, 0, 0},
    {"completions delayed", "completions delay us=300", "", survives, 0, speaks, 0, 0, 0},
    {"completions reordered", "completions reorder", "", survives, 0, speaks, 0, 0, 0},
    {"no registration", "reg errno=ENOMEM times=1000000", "", either, FI_ENOMEM, silent, 0, 0, 0},
    {"one registration fails", "reg errno=ENOMEM", "", either, FI_ENOMEM, speaks, 0, 0, 0},
    {"no commands", "commands make dev=DEV errno=ETIME", "", either, FI_ENODEV, silent, 0, 0, 0},
    {"no commands from the start", "commands make dev=DEV errno=ENODEV", "", either, FI_ENODEV,
     silent, 1, 1, 0},
    {"no registration from the start", "reg errno=ENOMEM times=1000000", "", either, FI_ENOMEM,
     silent, 1, 0, 0},
    {"few regions", "", ",max_mr=6", either, FI_ENOMEM, silent, 1, 0, 0},
    {"little locked memory", "", ",memlock=400K", either, FI_ENOMEM, silent, 1, 0, 0},
    {"port down", "port dev=DEV down", "", breaks, FI_ETIMEDOUT, silent, 0, 0, 0},
    {"one queue pair", "", ",max_qp=1", survives, 0, speaks, 1, 0, 0},
    {"refused at first", "connect refuse times=3", "", survives, 0, speaks, 1, 1, 1},
    {"refused always", "connect refuse times=1000000", "", breaks, FI_ECONNREFUSED, silent, 1, 1,
     1},
    {"the handshake hangs", "connect hang times=1000000", "", breaks, FI_ETIMEDOUT, silent, 1, 1,
     1},
    {"one handshake hangs", "connect hang", "", either, FI_ETIMEDOUT, silent, 1, 1, 1},
};

constexpr int kRows = int(std::size(kFaults));

bool wanted(const char* variable, const char* name) {
  const char* part = std::getenv(variable);
  return !part || std::strstr(name, part);
}

std::string with(std::string text, const char* what, const std::string& value) {
  for (size_t at; (at = text.find(what)) != std::string::npos;)
    text.replace(at, std::strlen(what), value);
  return text;
}

void tell_adapter(const std::string& lines) {
  for (size_t begin = 0; begin < lines.size();) {
    const size_t end = std::min(lines.find(';', begin), lines.size());
    ck_assert_int_eq(softerdma(lines.substr(begin, end - begin)), 0);
    begin = end + 1;
  }
}

void set_up_adapters(const Protocol& protocol, const Fault& fault, int count = 3) {
  std::string devices;
  for (int i = 0; i < count; ++i)
    devices += "erdma_" + std::to_string(i) + ",ip=" + ip_of(i).host_string() +
               ",retry_ms=100,connect_ms=500" + (i == protocol.hit ? fault.device : "") + ";";
  setenv("SOFTERDMA_DEVICES", devices.c_str(), 1);
  // Each test has a network of its own.
  setenv("SOFTERDMA_DIR", temporary_path("softerdma-broken").c_str(), 1);
}

/// Checks what must hold of every message.
void expect_honest(const Message& message) {
  for (const Operation* each : {&message.send, &message.receive})
    ck_assert_msg(each->ends == each->posts,
                  "a %s of node %d, posted %d times, ended %d times (%s)",
                  each->is_send ? "send" : "receive", each->node, each->posts, each->ends,
                  fi_strerror(each->error));
  if (message.receive.succeeded()) ck_assert(message.delivered());
  if (message.send.succeeded() && message.send.reliable) ck_assert(message.delivered());
}

void expect_fitting(const Operation& operation, const Fault& fault) {
  const bool taken_back = !operation.is_send && operation.error == FI_ECANCELED;
  // Attempts that a full device refuses are repeated. When their time limit ends, the last one may
  // be under way.
  const bool refused = (fault.error == FI_ENOMEM || fault.error == FI_ENODEV) &&
                       (operation.error == FI_ECONNREFUSED ||
                        (fault.third == silent && operation.error == FI_ETIMEDOUT));
  const bool fits = !operation.error || operation.error == FI_ECONNRESET || taken_back || refused ||
                    (fault.error && operation.error == fault.error);
  ck_assert_msg(fits, "%s: %s at node %d: %s", fault.name, operation.is_send ? "send" : "receive",
                operation.node, fi_strerror(operation.error));
}

/// Runs until each operation has ended. Cancels the receives of lost messages, but not those of the
/// third node, whose messages must arrive.
void finish(World& world, Outcome outcome) {
  const bool sent = world.until([&] { return world.sent(); });
  for (const auto& each : world.messages)
    ck_assert_msg(sent || each->send.over(), "a %s from %d to %d %s",
                  each->send.reliable ? "reliable send" : "send", each->send.node, each->send.peer,
                  each->send.posts ? "hangs" : "is never taken");
  if (outcome == survives) {
    for (const auto& each : world.messages)
      ck_assert_msg(!each->send.error, "a send from %d to %d failed: %s", each->send.node,
                    each->send.peer, fi_strerror(each->send.error));
    ck_assert_msg(world.until([&] { return world.received(); }), "a receive hangs");
  }
  if (outcome != survives)
    (void)world.until(
        [&] { return world.received() || (world.still() && world.received_from(2)); });
  world.cancel_receives();
  ck_assert_msg(world.until([&] { return world.received(); }), "a receive can't be taken back");
  for (int i = 0; i < 50; ++i) world.step();  // no operation ends twice
  for (const auto& each : world.messages) expect_honest(*each);
}

void warm_up(World& world, const Protocol& protocol) {
  // The receives for large packets are posted after some traffic.
  const int rounds = protocol.size > 1000 && protocol.size < 10'000 ? 30 : 1;
  for (int i = 0; i < rounds; ++i) {
    world.message(0, 1, std::min<size_t>(protocol.size, 900), true);
    world.message(1, 0, 8, true);
    ck_assert(world.until([&] { return world.sent() && world.received(); }));
  }
  world.message(2, protocol.hit, 8, false);
  ck_assert(world.until([&] { return world.sent() && world.received(); }));
  for (const auto& each : world.messages)
    ck_assert_msg(each->delivered(), "warming up: %s", fi_strerror(each->send.error));
  world.messages.clear();
}

/// Tries several times, as a message may enter a connection whose end no side has noticed yet.
void expect_reconnect(World& world, int from, int to, const Protocol& protocol) {
  for (int tries = 0; tries < 5; ++tries) {
    world.messages.clear();
    const Message& again = world.message(from, to, protocol.size, true);
    finish(world, either);
    if (again.send.succeeded() && again.receive.succeeded()) return;
  }
  ck_abort_msg("node %d does not reach node %d any more", from, to);
}

/// Sets short time limits if nothing else ends operations, and otherwise limits that a busy machine
/// does not reach.
void set_patience(verbs::Options& options, bool ends_operations) {
  options.connect_timeout_ns = options.peer_timeout_ns =
      ends_operations ? 1'000'000'000 : 30'000'000'000;
}

void run_case(const Protocol& protocol, const Fault& fault) {
  set_up_adapters(protocol, fault);
  verbs::Options options;
  options.rendezvous = protocol.rendezvous;
  set_patience(options, fault.third == silent);
  World world(options, protocol.sender_registers, protocol.receiver_registers);
  if (!fault.cold) warm_up(world, protocol);
  tell_adapter(
      with(with(fault.line, "DEV", "erdma_" + std::to_string(protocol.hit)), "OP", protocol.op));
  for (int i = 0; i < protocol.messages; ++i)
    world.message(0, 1, protocol.size, protocol.reliable && i % 2);
  for (int i = 0; i < 2; ++i) world.message(1, 0, protocol.size, protocol.reliable);
  if (fault.third == speaks) world.message(2, protocol.hit, 8, false);
  finish(world, fault.outcome);
  unsigned failed = 0;
  for (const auto& each : world.messages) {
    for (const Operation* half : {&each->send, &each->receive}) {
      expect_fitting(*half, fault);
      failed += half->error != 0;
      if (each->send.node == 2)
        ck_assert_msg(half->succeeded(), "the third: %s", fi_strerror(half->error));
    }
  }
  if (fault.outcome == breaks) ck_assert_msg(failed > 0, "the fault did not strike");
  if (fault.outcome == survives) ck_assert_msg(!failed, "%u operations failed", failed);
  tell_adapter("clear");
  if (std::strstr(fault.line, "down"))
    tell_adapter("port dev=erdma_" + std::to_string(protocol.hit) + " up");
  if (!*fault.device || fault.outcome != either) {
    expect_reconnect(world, 0, 1, protocol);
    expect_reconnect(world, 1, 0, protocol);
  }
  ck_assert_uint_eq(rules_broken(), 0);
}

void initialize_the_log() {
  if (!getenv("FI_LOG_LEVEL")) return;
  fi_info* info = nullptr;
  fi_getinfo(FI_VERSION(1, 17), nullptr, nullptr, 0, nullptr, &info);
}

SUITE(.run = on_both_simulated_devices, .once = initialize_the_log);

TEST(an_operation_ends_once_and_truly_whatever_the_adapter_does,
     kRows* int(std::size(kProtocols))) {
  leaves_work_undone();  // a fault may make the receives of messages that arrived earlier fail
  const Protocol& protocol = kProtocols[_i / kRows];
  const Fault& fault = kFaults[_i % kRows];
  if (!wanted("ONLY", fault.name) || !wanted("PROTOCOL", protocol.name)) return;
  if (fault.few && _i / kRows != 0 && _i / kRows != 3) return;
  if (fault.cm_only && compat()) return;
  std::printf("# %s, %s\n", protocol.name, fault.name);
  std::fflush(stdout);
  run_case(protocol, fault);
}

/// Node 0 has more peers than connections, so it gives up its connection to node 1. That connection
/// breaks at any message of this exchange. Both ends have operations that depend on the other:
/// receives, and sends that end on delivery.
TEST(an_operation_ends_once_and_truly_wherever_a_retirement_breaks, 12) {
  leaves_work_undone();  // as above
  const std::string device = "erdma_" + std::to_string(_i % 2);
  const Fault none{"a retirement that breaks", "", "", either, FI_ETIMEDOUT, speaks, 0, 0, 0};
  set_up_adapters(kProtocols[0], none, 4);
  verbs::Options options;
  options.max_connections = 2;
  set_patience(options, false);
  World world(options, true, true, 4);
  for (const int to : {1, 2}) {
    world.message(0, to, 8, true);
    ck_assert(world.until([&] { return world.sent() && world.received(); }));
  }
  world.messages.clear();
  tell_adapter("drop dev=" + device + " n=" + std::to_string(1 + _i / 2));
  world.message(0, 3, 8, true);
  world.message(1, 0, 8, true);
  finish(world, either);
  for (const auto& each : world.messages) {
    expect_fitting(each->send, none);
    expect_fitting(each->receive, none);
  }
  tell_adapter("clear");
  for (const int peer : {1, 2, 3}) {
    expect_reconnect(world, 0, peer, kProtocols[0]);
    expect_reconnect(world, peer, 0, kProtocols[0]);
  }
  ck_assert_uint_eq(rules_broken(), 0);
}

/// The side that sends first after another process has taken the name of node 1.
enum class First { replaced, other, nobody };

/// Node 0 has given up its connection to node 1. It has posted a receive from node 1, and a short
/// and a long send that end on delivery.
TEST(an_operation_ends_once_and_truly_when_its_peer_is_replaced_while_retired, 3) {
  leaves_work_undone();  // messages that the replaced process did not receive
  const auto first = First(_i);
  const Fault none{"a peer that is replaced", "", "", either, FI_ETIMEDOUT, speaks, 0, 0, 0};
  set_up_adapters(kProtocols[0], none, 4);
  verbs::Options options;
  options.max_connections = 2;
  set_patience(options, first == First::nobody);
  World world(options, true, true, 4);
  for (const int to : {1, 2}) {
    world.message(0, to, 8, true);
    ck_assert(world.until([&] { return world.sent() && world.received(); }));
  }
  world.messages.clear();
  Message& awaited = world.message(1, 0, 8, true);
  awaited.send.held = true;
  Message* const lost[] = {&world.message(0, 1, 8, true), &world.message(0, 1, 1'300'000, true)};
  for (Message* message : lost) message->receive.held = true;
  ck_assert(world.until([&] { return world.still(); }));
  // These messages make the connection to node 1 the least recently used one.
  for (const int to : {2, 3}) {
    const Message& other = world.message(0, to, 8, true);
    ck_assert(world.until([&] { return other.send.over() && other.receive.succeeded(); }));
  }
  world.replace(1);
  if (first == First::replaced)
    awaited.send.held = false;
  else
    World::end(awaited.send, FI_ECONNRESET);
  for (Message* message : lost) message->receive.held = false;
  if (first == First::other) world.message(0, 1, 8, true);
  finish(world, either);
  for (const auto& each : world.messages) {
    expect_fitting(each->send, none);
    expect_fitting(each->receive, none);
  }
  for (const Message* message : lost) ck_assert_int_eq(message->send.error, FI_ECONNRESET);
  for (const int peer : {1, 2, 3}) {
    expect_reconnect(world, 0, peer, kProtocols[0]);
    expect_reconnect(world, peer, 0, kProtocols[0]);
  }
  ck_assert_uint_eq(rules_broken(), 0);
}

/// Idle registrations use all regions of the adapters.
TEST(connections_come_up_where_idle_registrations_have_every_region) {
  constexpr size_t kPages = 100, kPage = 4096;
  const Fault none{"no region is left", "", "", survives, 0, speaks, 0, 0, 0};
  set_up_adapters(kProtocols[0], none, 3);
  setenv("SOFTERDMA_MAX_MR", "120", 1);
  verbs::Options options;
  set_patience(options, false);
  World world(options, true, true);
  std::vector<std::unique_ptr<Buffer>> memory;
  std::vector<verbs::Registration> held[3];
  for (int i = 0; i < 3; ++i) memory.push_back(std::make_unique<Buffer>(kPages * kPage));
  for (size_t i = 0, refused = 0; refused < 3; i = (i + 1) % 3) {
    verbs::Registration use;
    const char* const page = memory[i]->data() + held[i].size() * kPage;
    if (world.nodes[i]->cache->acquire(page, kPage, verbs::peer_rights(true, false), use))
      ++refused;
    else
      held[i].push_back(use);
  }
  for (size_t i = 0; i < 3; ++i) {
    ck_assert_uint_gt(held[i].size(), 20);
    for (const verbs::Registration& use : held[i]) world.nodes[i]->cache->release(use);
  }
  for (int i = 0; i < 3; ++i) world.message(i, (i + 1) % 3, 500, true);
  ck_assert(world.until([&] { return world.sent() && world.received(); }));
  for (const auto& each : world.messages)
    ck_assert(each->send.succeeded() && each->receive.succeeded() && each->delivered());
  ck_assert_uint_eq(rules_broken(), 0);
}

/// Keeps registrations that it does not use, as many as it may, until it is killed.
[[noreturn]] void keep_regions(int ready) {
  constexpr size_t kPages = 120;
  const auto page = size_t(getpagesize());
  uint8_t kept = 0;
  auto device = verbs::Device::open("erdma_0", ip_of(0));
  auto cache = verbs::RegistrationCache::create(**device, {});
  const Buffer memory(kPages * page);
  for (size_t i = 0; i < kPages; ++i) {
    verbs::Registration use;
    if ((*cache)->acquire(memory.data() + i * page, page, 0, use)) continue;
    (*cache)->release(use);
    ++kept;
  }
  if (write(ready, &kept, 1) != 1) _exit(1);
  for (;;) pause();
}

/// The regions of an adapter belong to all processes of its host.
TEST(a_process_leaves_regions_to_others) {
  const Fault none{"few regions", "", "", survives, 0, speaks, 0, 0, 0};
  set_up_adapters(kProtocols[0], none, 1);
  for (const char* limit : {"SOFTERDMA_MAX_MR", "SOFTERDMA_HOST_MR"}) setenv(limit, "100", 1);
  int ready[2];
  ck_assert_int_eq(pipe(ready), 0);
  const pid_t other = fork();
  if (other == 0) keep_regions(ready[1]);
  close(ready[1]);  // if the other process ends early, so does the read
  uint8_t kept = 0;
  ck_assert_int_eq(read(ready[0], &kept, 1), 1);
  if (can_watch_memory()) ck_assert_uint_gt(kept, 100);  // it could have had all
  close(ready[0]);
  auto device = verbs::Device::open("erdma_0", ip_of(0));
  ck_assert_int_eq(device.error(), 0);
  verbs::OwnMemory memory;
  // A thread of the other process ends registrations in its own time.
  int error = ENOSPC;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (error && std::chrono::steady_clock::now() < end) {
    error = memory.make(**device, 4096, verbs::OwnUse::receives);
    sched_yield();
  }
  ck_assert_int_eq(error, 0);
  kill(other, SIGKILL);
  ck_assert_int_eq(waitpid(other, nullptr, 0), other);
}

}  // namespace

}  // namespace erdma::test
