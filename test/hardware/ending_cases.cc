// Ends of a connection: a queue pair in error, a peer that closes, a peer that is killed.
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "rig.h"

namespace erdma::hardware {
namespace {

constexpr size_t kBytes = size_t(256) << 10;
constexpr uint64_t kPending = 64;
/// Time that link_manager.cc waits for completions of a queue pair that it set to error.
constexpr double kDrainMs = 20;

struct Memory {
  explicit Memory(const End& end) : bytes(kBytes), region(end.pd(), bytes.data(), bytes.size()) {
    if (!region) fail("a region: %s", std::strerror(errno));
  }
  std::vector<std::byte> bytes;
  Region region;
};

void to_error(const End& end) {
  ibv_qp_attr error{};
  error.qp_state = IBV_QPS_ERR;
  const Stopwatch since;
  const int rc = ibv_modify_qp(end.qp(), &error, IBV_QP_STATE);
  fact("modify_us", since.us());
  if (rc) fail("modify to ERR: %s", std::strerror(std::abs(rc)));
}

// --- flush: 64 receives and 64 READs are pending when the queue pair goes to error.
void flush_passive(const Options& options) {
  End end(options);
  Memory window(end);
  end.wait_for_peer();
  end.accept(window.region.window());
  end.watch("passive", 0, 8'000);
}

void flush_active(const Options& options) {
  End end(options);
  Memory memory(end);
  end.reach_peer();
  end.prepare();
  for (uint64_t i = 0; i < kPending; ++i) end.receive(1000 + i, memory.region, 64);
  end.establish({});
  for (uint64_t i = 0; i < kPending; ++i)
    end.move(i, IBV_WR_RDMA_READ, memory.region, kBytes, end.theirs());
  to_error(end);
  const size_t soon = end.completions(2 * kPending, kDrainMs).size();
  const size_t later = end.completions(2 * kPending - soon, 3'000).size();
  fact("posted", 2 * (long long)kPending);
  fact("in_20_ms", (long long)soon);
  fact("in_3_s", (long long)(soon + later));
  // A request to a queue pair in error may complete or not.
  end.send(5000, memory.region, 64);
  fact("after_error", (long long)end.completions(1, 1'000).size());
}

// --- closes, killed: the passive side leaves, in order or killed, while the active side waits.
/// Returns after the active side, which has posted its receives, has sent a message.
void hear(End& end, const Memory& memory) {
  end.prepare();
  end.receive(1, memory.region, 64);
  end.accept(memory.region.window());
  if (end.completions(1, 10'000).empty()) fail("nothing was heard");
}

void closes_passive(const Options& options) {
  End end(options);
  const Memory memory(end);
  end.wait_for_peer();
  hear(end, memory);
  end.disconnect();
  end.watch("passive", 0, 500);
}

void killed_passive(const Options& options) {
  End end(options);
  const Memory memory(end);
  end.wait_for_peer();
  hear(end, memory);
  ::kill(::getpid(), SIGKILL);
}

void watch_it_go(const Options& options, bool heartbeat) {
  End end(options);
  Memory memory(end);
  end.reach_peer();
  end.prepare();
  for (uint64_t i = 0; i < 4; ++i) end.receive(1000 + i, memory.region, 64);
  end.establish({});
  end.send(1, memory.region, 8);
  end.watch("active", 5, 5'000);
  // The provider probes a silent peer with such a READ.
  if (heartbeat) end.move(2, IBV_WR_RDMA_READ, memory.region, 8, end.theirs());
  if (heartbeat) end.watch("heartbeat", 1, 15'000);
}

void closes_active(const Options& options) {
  watch_it_go(options, false);
}

void killed_active(const Options& options) {
  watch_it_go(options, true);
}

}  // namespace

const std::vector<NamedCase> kEndingCases = {
    {"flush", flush_passive, flush_active, "a queue pair in error with requests pending"},
    {"closes", closes_passive, closes_active, "the peer closes"},
    {"killed", killed_passive, killed_active, "the peer is killed"},
};

}  // namespace erdma::hardware
