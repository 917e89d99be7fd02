// fi_many [--peers P] [--processes N] [--messages M] [--seed S] [--limit SECONDS]
// One endpoint talks to P others, in N processes: first one short message to each, all at once;
// then messages of random sizes to random peers, which send the same bytes back. All bytes are
// checked. If connections are limited (FI_ERDMA_MAX_CONNECTIONS) they come and go meanwhile. Prints
// the rate of first contacts and the memory that the one endpoint took (memory of a simulated
// adapter is in files).
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "fi_common.h"

using namespace erdma::clients;

namespace {

constexpr size_t kLargest = 100'000;
constexpr uint64_t kAny = ~uint64_t{0};
constexpr size_t kNameRoom = 32;
constexpr size_t kWindow = 64;

/// Names in memory that all processes share, as Board has no room for so many.
struct Names {
  std::atomic<uint32_t> ready;  ///< number of peers that have written their names
  std::atomic<uint32_t> over;
  std::atomic<uint32_t> length;
  char observer[kNameRoom];
  char peers[][kNameRoom];
};

/// Endpoints that share a domain, a CQ and an AV.
class Group {
 public:
  explicit Group(size_t count) {
    const char* provider = std::getenv("FI_PROVIDER");
    fi_info* hints = fi_allocinfo();
    hints->caps = FI_TAGGED | FI_SOURCE;
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->fabric_attr->prov_name = ::strdup(provider ? provider : "erdma");
    must(fi_getinfo(FI_VERSION(1, 9), nullptr, nullptr, 0, hints, &x_info), "fi_getinfo");
    fi_freeinfo(hints);
    must(fi_fabric(x_info->fabric_attr, &x_fabric, nullptr), "fi_fabric");
    must(fi_domain(x_fabric, x_info, &x_domain, nullptr), "fi_domain");
    fi_av_attr av{};
    av.type = FI_AV_TABLE;
    must(fi_av_open(x_domain, &av, &x_av, nullptr), "fi_av_open");
    fi_cq_attr cq{};
    cq.format = FI_CQ_FORMAT_TAGGED;
    must(fi_cq_open(x_domain, &cq, &x_cq, nullptr), "fi_cq_open");
    endpoints.resize(count);
    for (fid_ep*& ep : endpoints) {
      must(fi_endpoint(x_domain, x_info, &ep, nullptr), "fi_endpoint");
      must(fi_ep_bind(ep, &x_av->fid, 0), "fi_ep_bind av");
      must(fi_ep_bind(ep, &x_cq->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind cq");
      must(fi_enable(ep), "fi_enable");
    }
  }
  ~Group() {
    for (fid_ep* ep : endpoints) must(fi_close(&ep->fid), "fi_close endpoint");
    must(fi_close(&x_cq->fid), "fi_close cq");
    must(fi_close(&x_av->fid), "fi_close av");
    must(fi_close(&x_domain->fid), "fi_close domain");
    must(fi_close(&x_fabric->fid), "fi_close fabric");
    fi_freeinfo(x_info);
  }

  uint32_t name(size_t which, char* to) const {
    size_t length = kNameRoom;
    must(fi_getname(&endpoints[which]->fid, to, &length), "fi_getname");
    return uint32_t(length);
  }
  fi_addr_t insert(const char* name) {
    fi_addr_t address = FI_ADDR_UNSPEC;
    REQUIRE(fi_av_insert(x_av, name, 1, &address, 0, nullptr) == 1);
    return address;
  }
  void progress() {
    fi_cq_tagged_entry entries[16];
    const ssize_t count = fi_cq_read(x_cq, entries, 16);
    if (count == -FI_EAVAIL) {
      fi_cq_err_entry error{};
      fi_cq_readerr(x_cq, &error, 0);
      fail("an operation failed: %s", fi_strerror(error.err));
    }
    for (ssize_t i = 0; i < count; ++i) {
      Op& op = *static_cast<Op*>(entries[i].op_context);
      op.length = entries[i].len;
      op.tag = entries[i].tag;
      op.done = true;
    }
  }
  void receive(fid_ep* ep, Op& op, void* data, size_t length, uint64_t tag, uint64_t ignore) {
    op.reset();
    must(int(fi_trecv(ep, data, length, nullptr, FI_ADDR_UNSPEC, tag, ignore, &op)), "fi_trecv");
  }
  void send(fid_ep* ep, Op& op, const void* data, size_t length, fi_addr_t to, uint64_t tag) {
    op.reset();
    ssize_t rc;
    while ((rc = fi_tsend(ep, data, length, nullptr, to, tag, &op)) == -FI_EAGAIN) progress();
    must(int(rc), "fi_tsend");
  }

  std::vector<fid_ep*> endpoints;

 private:
  fi_info* x_info = nullptr;
  fid_fabric* x_fabric = nullptr;
  fid_domain* x_domain = nullptr;
  fid_av* x_av = nullptr;
  fid_cq* x_cq = nullptr;
};

/// Sends back every message that arrives at one of `count` endpoints.
int answer(Names& names, size_t begin, size_t count) {
  Group group(count);
  for (size_t i = 0; i < count; ++i) group.name(i, names.peers[begin + i]);
  names.ready += uint32_t(count);
  while (names.length == 0) ::usleep(100);
  const fi_addr_t observer = group.insert(names.observer);
  struct Peer {
    Op op;
    std::vector<std::byte> data;
    bool sending = false;
  };
  std::vector<Peer> peers(count);
  for (size_t i = 0; i < count; ++i) {
    peers[i].data.resize(kLargest);
    group.receive(group.endpoints[i], peers[i].op, peers[i].data.data(), kLargest, 0, kAny);
  }
  while (!names.over) {
    group.progress();
    for (size_t i = 0; i < count; ++i) {
      Peer& peer = peers[i];
      if (!peer.op.done) continue;
      const size_t length = peer.op.length;
      const uint64_t tag = peer.op.tag;
      peer.sending = !peer.sending;
      if (peer.sending)
        group.send(group.endpoints[i], peer.op, peer.data.data(), length, observer, tag);
      else
        group.receive(group.endpoints[i], peer.op, peer.data.data(), kLargest, 0, kAny);
    }
  }
  return 0;
}

struct Exchange {
  Op sent, received;
  std::vector<std::byte> out, in;
  uint64_t number = 0;
  bool over() const { return sent.done && received.done; }
};

class Observer {
 public:
  Observer(Names& names, size_t peers, uint64_t seed) : x_group(1), x_random(seed) {
    x_ep = x_group.endpoints[0];
    const uint32_t length = x_group.name(0, names.observer);
    while (names.ready < peers) ::usleep(1000);
    names.length = length;
    for (size_t i = 0; i < peers; ++i) x_addresses.push_back(x_group.insert(names.peers[i]));
  }

  /// Returns the seconds until each peer has answered a first message.
  double meet() {
    const auto start = Clock::now();
    std::vector<Exchange> exchanges(x_addresses.size());
    for (size_t i = 0; i < exchanges.size(); ++i) begin(exchanges[i], x_addresses[i], 8);
    for (Exchange& exchange : exchanges) finish(exchange);
    return seconds_since(start);
  }
  void talk(uint64_t messages) {
    std::vector<Exchange> window(kWindow);
    for (uint64_t i = 0; i < messages; ++i) {
      Exchange& exchange = window[i % kWindow];
      if (exchange.number) finish(exchange);
      begin(exchange, x_addresses[x_random.below(x_addresses.size())], x_random.length(kLargest));
    }
    for (Exchange& exchange : window)
      if (exchange.number) finish(exchange);
  }

 private:
  void begin(Exchange& exchange, fi_addr_t to, size_t length) {
    exchange.number = ++x_number;
    exchange.out.resize(length);
    exchange.in.assign(length + 1, std::byte{0});
    fill(exchange.out, exchange.number);
    x_group.receive(x_ep, exchange.received, exchange.in.data(), length + 1, exchange.number, 0);
    x_group.send(x_ep, exchange.sent, exchange.out.data(), length, to, exchange.number);
  }
  void finish(Exchange& exchange) {
    const auto start = Clock::now();
    while (!exchange.over()) {
      x_group.progress();
      if (seconds_since(start) > 60) fail("no answer to message %lu", exchange.number);
    }
    REQUIRE(exchange.received.length == exchange.out.size());
    REQUIRE(holds({exchange.in.data(), exchange.out.size()}, exchange.number));
    exchange.number = 0;
  }

  Group x_group;
  fid_ep* x_ep;
  Random x_random;
  std::vector<fi_addr_t> x_addresses;
  uint64_t x_number = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const size_t peers = option(argc, argv, "--peers", 1000);
  const size_t processes = option(argc, argv, "--processes", 2);
  const uint64_t messages = option(argc, argv, "--messages", 20'000);
  const uint64_t seed = option(argc, argv, "--seed", 1);
  const double limit = double(option(argc, argv, "--limit", 120));
  void* memory = ::mmap(nullptr, sizeof(Names) + peers * kNameRoom, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  Names& names = *static_cast<Names*>(memory);
  std::vector<pid_t> children;
  children.push_back(spawn([&] {
    {
      Observer observer(names, peers, seed);
      const size_t before = status_kib("RssAnon:");
      const double met = observer.meet();
      const size_t connected = status_kib("RssAnon:");
      const auto start = Clock::now();
      observer.talk(messages);
      std::printf(
          "fi_many: %zu peers met in %.2f s (%.0f a second); %lu messages and answers in %.1f s; "
          "anonymous KiB: %zu before, %zu then, %zu at the end\n",
          peers, met, double(peers) / met, messages, seconds_since(start), before, connected,
          status_kib("RssAnon:"));
      std::fflush(stdout);
      names.over = 1;
    }
    return 0;
  }));
  for (size_t i = 0; i < processes; ++i) {
    const size_t begin = peers * i / processes, end = peers * (i + 1) / processes;
    children.push_back(spawn([&names, begin, end] { return answer(names, begin, end - begin); }));
  }
  return reap(children, limit);
}
