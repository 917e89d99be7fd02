// Transfers over an established connection, and mistakes that end it.
#include <algorithm>
#include <cstring>

#include "rig.h"

namespace erdma::hardware {
namespace {

constexpr size_t kBytes = size_t(1) << 20;
/// The passive side stays longer than the active side watches.
constexpr double kStayMs = 12'000;
constexpr double kWatchMs = 6'000;

std::byte pattern(size_t at, unsigned seed) noexcept {
  return std::byte((at * 7 + at / 251 + seed) & 0xff);
}

void fill(std::vector<std::byte>& memory, unsigned seed) noexcept {
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = pattern(i, seed);
}

bool holds(const std::vector<std::byte>& memory, unsigned seed) noexcept {
  for (size_t i = 0; i < memory.size(); ++i)
    if (memory[i] != pattern(i, seed)) return false;
  return true;
}

struct Buffer {
  Buffer(const End& end, size_t length)
      : bytes(length), region(end.pd(), bytes.data(), bytes.size()) {
    if (!region) fail("a region of %zu bytes: %s", length, std::strerror(errno));
  }
  std::vector<std::byte> bytes;
  Region region;
};

bool good(const std::vector<ibv_wc>& found, size_t count) noexcept {
  return found.size() == count && std::all_of(found.begin(), found.end(), [](const ibv_wc& wc) {
           return wc.status == IBV_WC_SUCCESS;
         });
}

// --- data: the active side speaks first, WRITEs, READs back, and sends; the passive side checks.
void data_passive(const Options& options) {
  End end(options);
  Buffer window(end, kBytes), message(end, 4096), last(end, 4096);
  end.wait_for_peer();
  end.prepare();
  end.receive(1, message.region, message.bytes.size());
  end.receive(2, last.region, last.bytes.size());
  end.accept(window.region.window());
  if (!good(end.completions(1, 10'000), 1)) return fact("heard", "no");
  end.send(3, message.region, 1);
  const bool came = good(end.completions(2, 30'000), 2);
  fact("heard", came ? "yes" : "no");
  fact("written", came && holds(window.bytes, 3) ? "yes" : "no");
  end.watch("end", 0, kStayMs);
}

void data_active(const Options& options) {
  End end(options);
  Buffer memory(end, kBytes), back(end, kBytes), message(end, 4096);
  end.reach_peer();
  end.prepare();
  end.receive(1, message.region, message.bytes.size());
  end.establish({});
  end.send(2, memory.region, 64);
  fact("answered", good(end.completions(2, 10'000), 2) ? "yes" : "no");
  fill(memory.bytes, 3);
  end.move(3, IBV_WR_RDMA_WRITE, memory.region, kBytes, end.theirs());
  end.move(4, IBV_WR_RDMA_READ, back.region, kBytes, end.theirs());
  fact("moved", good(end.completions(2, 20'000), 2) ? "yes" : "no");
  fact("read", holds(back.bytes, 3) ? "yes" : "no");
  end.send(5, memory.region, 64);
  fact("sent", good(end.completions(1, 10'000), 1) ? "yes" : "no");
  end.watch("last", 1, 500);  // the peer receives it before this side leaves
  end.disconnect();
}

// --- first_event: a completion queue that is armed for the first time.
void first_event_passive(const Options& options) {
  End end(options);
  Buffer window(end, 4096);
  end.wait_for_peer();
  end.accept(window.region.window());
  end.watch("end", 0, kStayMs);
}

void first_event_active(const Options& options) {
  End end(options);
  Buffer memory(end, 4096);
  end.connect({});
  if (ibv_req_notify_cq(end.cq(), 0)) fail("ibv_req_notify_cq");
  const Stopwatch since;
  end.move(1, IBV_WR_RDMA_READ, memory.region, 8, end.theirs());
  fact("event_us", end.wait_for_completion_event(5'000) ? since.us() : -1);
  fact("completed", good(end.completions(1, 5'000), 1) ? "yes" : "no");
  end.disconnect();
}

// --- passive_first: the active side is silent; the passive one speaks.
void passive_first_passive(const Options& options) {
  End end(options);
  Buffer message(end, 4096);
  end.wait_for_peer();
  end.accept({});
  end.send(1, message.region, 64);
  end.watch("passive", 1, kWatchMs);
}

void passive_first_active(const Options& options) {
  End end(options);
  Buffer message(end, 4096);
  end.reach_peer();
  end.prepare();
  end.receive(1, message.region, message.bytes.size());
  const rdma_cm_event_type type = end.try_to_establish({});
  fact("handshake", rdma_event_str(type));
  if (type == RDMA_CM_EVENT_REJECTED || type == RDMA_CM_EVENT_UNREACHABLE)
    cannot("the connect ended with %s", rdma_event_str(type));
  // The early message may have ended the handshake.
  fact("arrived", good(end.completions(1, kWatchMs), 1) ? "yes" : "no");
  end.disconnect();
}

// --- no_receive, too_large: a SEND that its receiver has no room for.
void no_receive_passive(const Options& options) {
  End end(options);
  end.wait_for_peer();
  end.accept({});
  end.watch("passive", 0, kStayMs);
}

void too_large_passive(const Options& options) {
  End end(options);
  Buffer message(end, 4096);
  end.wait_for_peer();
  end.prepare();
  end.receive(1, message.region, 16);
  end.accept({});
  end.watch("passive", 1, kStayMs);
}

void send_one_active(const Options& options) {
  End end(options);
  Buffer message(end, 4096);
  end.connect({});
  end.receive(7, message.region, 64);  // a flush completes this receive
  end.send(1, message.region, 512);
  end.watch("active", 2, kWatchMs);
  end.disconnect();
}

// --- revoked: a WRITE with a key that was good.
void revoked_passive(const Options& options) {
  End end(options);
  Buffer window(end, 4096);
  fill(window.bytes, 5);
  end.wait_for_peer();
  const Window old = window.region.window();
  (void)window.region.revoke();
  end.accept(old);
  end.watch("passive", 0, kWatchMs + 2000);
  fact("unchanged", holds(window.bytes, 5) ? "yes" : "no");
}

void revoked_active(const Options& options) {
  End end(options);
  Buffer message(end, 4096);
  end.connect({});
  fill(message.bytes, 6);
  end.receive(7, message.region, 64);
  end.move(1, IBV_WR_RDMA_WRITE, message.region, 4096, end.theirs());
  end.watch("active", 2, kWatchMs);
  end.disconnect();
}

}  // namespace

const std::vector<NamedCase> kTransferCases = {
    {"data", data_passive, data_active, "WRITE, READ, SEND both ways, checked"},
    {"first_event", first_event_passive, first_event_active, "the first event of a queue"},
    {"passive_first", passive_first_passive, passive_first_active, "the passive side speaks first"},
    {"no_receive", no_receive_passive, send_one_active, "a SEND without a receive"},
    {"too_large", too_large_passive, send_one_active, "a SEND larger than the receive"},
    {"revoked", revoked_passive, revoked_active, "a WRITE with a key that was revoked"},
};

}  // namespace erdma::hardware
