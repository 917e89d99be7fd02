// What an endpoint and its peers cost in memory: the proportional share (Pss) of anonymous and
// shared pages, so that a page both sides map counts half on each. Pages of files (code) do not
// count.
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>

#include "bench.h"

namespace erdma::bench {
namespace {

constexpr int kFew = 4;      // messages each way that make a peer known
constexpr int kMany = 1000;  // and that make it busy, half of them of kLong bytes
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

/// Reads what the other process tells, with progress meanwhile. False: it has gone.
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

/// `count` messages each way, one after the other.
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

/// A process of its own program image: one that is forked would share pages with this one.
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

/// Tag 2i is to the i-th peer, 2i + 1 is from it.
void talk_to(Node& node, std::vector<Peer>& peers, size_t many, int count) {
  for (size_t i = 0; i < many; ++i) {
    const uint64_t order[2] = {i, uint64_t(count)};
    tell(peers[i].socket, order, sizeof order);
    talk(node, peers[i].address, count, 2 * i, 2 * i + 1);
    char done;
    REQUIRE(hear(node, peers[i].socket, &done, 1));
  }
}

void report(const char* key, double before, size_t peers) {
  print(key, (pss_kib() - before) / double(peers));
}

}  // namespace

int measure_memory(int count, int busy) {
  const Node other;  // takes what is needed once in a process
  const double empty = pss_kib();
  Node node;
  report("memory_endpoint", empty, 1);
  std::vector<Peer> peers(static_cast<size_t>(count));
  std::vector<Name> names(peers.size());
  const Name own = name_of(node);
  for (size_t i = 0; i < peers.size(); ++i) {
    peers[i] = start();
    REQUIRE(hear(node, peers[i].socket, &names[i], sizeof names[i]));
    tell(peers[i].socket, &own, sizeof own);
  }
  pss_kib();  // its buffers
  const double alone = pss_kib();
  for (size_t i = 0; i < peers.size(); ++i) {
    peers[i].address = node.insert({names[i].bytes, names[i].length});
  }
  report("memory_inserted", alone, peers.size());
  // What the first peer of a process brings about (pools, the arena of a provider's thread) is no
  // cost of a peer.
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
  Name name;
  tell(socket, &own, sizeof own);
  if (!hear(node, socket, &name, sizeof name)) return 1;
  const fi_addr_t observer = node.insert({name.bytes, name.length});
  uint64_t order[2];
  while (hear(node, socket, order, sizeof order)) {
    talk(node, observer, int(order[1]), 2 * order[0] + 1, 2 * order[0]);
    tell(socket, "", 1);
  }
  return 0;
}

}  // namespace erdma::bench
