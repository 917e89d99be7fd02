// Measures the memory of an endpoint and its peers: the proportional set size (Pss) of anonymous
// and shared pages, so that a page that both sides map counts half on each. Pages of files (code)
// do not count. As in a job, the peers also know each other, so a page that a peer keeps for all
// its peers is not half this endpoint's.
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>

#include "bench.h"

namespace erdma::bench {
namespace {

constexpr int kFew = 4;      // messages each way to a known peer
constexpr int kMany = 1000;  // messages each way to a busy peer, half of them of kLong bytes
constexpr size_t kLong = 8192;

struct Peer {
  pid_t process = -1;
  int socket = -1;
  fi_addr_t address = FI_ADDR_UNSPEC;
};

struct Name {
  uint32_t length = 0;
  char bytes[124] = {};
};

double pss_kib() {
  FILE* file = std::fopen("/proc/self/smaps_rollup", "r");
  REQUIRE(file);
  char line[256];
  long total = 0;
  while (std::fgets(line, sizeof line, file)) {
    long kib = 0;
    if (std::sscanf(line, "Pss_Anon: %ld", &kib) == 1 ||
        std::sscanf(line, "Pss_Shmem: %ld", &kib) == 1)
      total += kib;
  }
  std::fclose(file);
  return double(total);
}

void tell(int socket, const void* data, size_t length) {
  REQUIRE(::send(socket, data, length, MSG_NOSIGNAL) == ssize_t(length));
}

/// Reads from the other process, with progress meanwhile. Returns false if the process has ended.
bool hear(Node& node, int socket, void* data, size_t length) {
  for (pollfd ready{socket, POLLIN, 0};;) {
    node.progress();
    if (::poll(&ready, 1, 10) == 1) return ::recv(socket, data, length, 0) == ssize_t(length);
  }
}

Name name_of(const Node& node) {
  const std::string text = node.name();
  Name name;
  REQUIRE(text.size() <= sizeof name.bytes);
  name.length = uint32_t(text.size());
  std::memcpy(name.bytes, text.data(), text.size());
  return name;
}

/// Exchanges `count` messages each way, one after the other.
void talk(Node& node, fi_addr_t other, int count, uint64_t send_tag, uint64_t receive_tag) {
  static char out[kLong], in[kLong];
  for (int i = 0; i < count; ++i) {
    clients::Op sent, received;
    node.receive(received, in, sizeof in, other, receive_tag);
    node.send(sent, out, count > kFew && i % 2 ? kLong : 8, other, send_tag);
    node.wait(sent);
    node.wait(received);
  }
}

/// Starts the program anew, as a forked process would share pages with this one.
Peer start() {
  int sockets[2];
  clients::must(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), "socketpair");
  Peer peer{::fork(), sockets[0], FI_ADDR_UNSPEC};
  REQUIRE(peer.process >= 0);
  if (peer.process == 0) {
    const int theirs = ::dup(sockets[1]);
    ::execl("/proc/self/exe", "fi_pair_bench", "memory-peer", std::to_string(theirs).c_str(),
            nullptr);
    ::_exit(127);
  }
  ::close(sockets[1]);
  return peer;
}

/// An order to a peer: exchange `count` messages with `other`, one of the names that it was told.
struct Order {
  uint64_t other, count, send_tag, receive_tag;
};

void await(Node& node, const Peer& peer) {
  char done;
  REQUIRE(hear(node, peer.socket, &done, 1));
}

void talk_to(Node& node, std::vector<Peer>& peers, size_t many, int count) {
  for (size_t i = 0; i < many; ++i) {
    const Order order{peers.size(), uint64_t(count), 2 * i + 1, 2 * i};
    tell(peers[i].socket, &order, sizeof order);
    talk(node, peers[i].address, count, 2 * i, 2 * i + 1);
    await(node, peers[i]);
  }
}

/// Lets each peer exchange messages with each other one.
void introduce(Node& node, std::vector<Peer>& peers, int count) {
  for (size_t i = 0; i < peers.size(); ++i)
    for (size_t k = 0; k < i; ++k) {
      const Order one{k, uint64_t(count), 0, 1};
      const Order other{i, uint64_t(count), 1, 0};
      tell(peers[i].socket, &one, sizeof one);
      tell(peers[k].socket, &other, sizeof other);
      await(node, peers[i]);
      await(node, peers[k]);
    }
}

void report(const char* key, double before, size_t peers) {
  print(key, (pss_kib() - before) / double(peers));
}

}  // namespace

int measure_memory(int count, int busy) {
  const Node other;  // allocates what a process needs once
  const double empty = pss_kib();
  Node node;
  report("memory_endpoint", empty, 1);
  std::vector<Peer> peers(static_cast<size_t>(count));
  std::vector<Name> names(peers.size());
  for (size_t i = 0; i < peers.size(); ++i) {
    peers[i] = start();
    REQUIRE(hear(node, peers[i].socket, &names[i], sizeof names[i]));
  }
  names.push_back(name_of(node));
  for (const Peer& peer : peers) {
    const uint64_t many = names.size();
    tell(peer.socket, &many, sizeof many);
    for (const Name& name : names) tell(peer.socket, &name, sizeof name);
  }
  introduce(node, peers, kFew);
  pss_kib();  // allocates its buffers
  const double alone = pss_kib();
  for (size_t i = 0; i < peers.size(); ++i) {
    peers[i].address = node.insert({names[i].bytes, names[i].length});
  }
  report("memory_inserted", alone, peers.size());
  // Memory that the first peer of a process causes (pools, the arena of a provider's thread) is not
  // counted as that of a peer.
  talk_to(node, peers, 1, kFew);
  report("memory_first", alone, 1);
  const double one = pss_kib();
  talk_to(node, peers, peers.size(), kFew);
  report("memory_silent", one, peers.size() - 1);
  const double silent = pss_kib();
  talk_to(node, peers, size_t(busy), kMany);
  report("memory_busy", silent - (silent - one) * busy / (count - 1), size_t(busy));
  for (Peer& peer : peers) ::close(peer.socket);
  for (Peer& peer : peers) ::waitpid(peer.process, nullptr, 0);
  return 0;
}

int measure_memory_peer(int socket) {
  Node node;
  const Name own = name_of(node);
  uint64_t many = 0;
  tell(socket, &own, sizeof own);
  if (!hear(node, socket, &many, sizeof many)) return 1;
  std::vector<fi_addr_t> others;
  while (others.size() < many) {
    Name name;
    if (!hear(node, socket, &name, sizeof name)) return 1;
    others.push_back(node.insert({name.bytes, name.length}));
  }
  for (Order order; hear(node, socket, &order, sizeof order);) {
    talk(node, others.at(order.other), int(order.count), order.send_tag, order.receive_tag);
    tell(socket, "", 1);
  }
  return 0;
}

}  // namespace erdma::bench
