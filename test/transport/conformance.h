#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transport/transport.h"
#include "util/clock.h"
#include "util/socket_address.h"

/// Helpers for the tests of all transports.
namespace erdma::test {

inline util::SocketAddress address_of(const char* ip, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  inet_pton(AF_INET, ip, &address.sin_addr);
  return util::SocketAddress::from_sockaddr(&address, sizeof(address));
}

/// Keeps the arguments of every upcall.
struct RecordingSink final : transport::Sink {
  struct Packet {
    transport::Link* link;
    transport::Header header;
    std::vector<std::byte> payload;
    uint64_t number() const {
      uint64_t value;
      std::memcpy(&value, header.bytes, sizeof(value));
      return value;
    }
  };
  struct Done {
    uint64_t token;
    int status;
  };
  struct Down {
    transport::Link* link;
    int status;
    size_t packets_before;
    size_t dones_before;
  };
  std::vector<Packet> packets;
  std::vector<Done> dones;
  std::vector<Down> downs;
  bool waits = false;  ///< operations wait for every peer

  void on_packet(transport::Link& link, const std::byte* header, const std::byte* payload,
                 size_t length) noexcept override {
    Packet packet{&link, {}, {payload, payload + length}};
    std::memcpy(packet.header.bytes, header, transport::kHeaderBytes);
    packets.push_back(std::move(packet));
  }
  void on_done(uint64_t token, int status) noexcept override { dones.push_back({token, status}); }
  void on_link_down(transport::Link& link, int status) noexcept override {
    downs.push_back({&link, status, packets.size(), dones.size()});
  }
  bool waits_for(const transport::Link&) noexcept override { return waits; }
  size_t downs_of(const transport::Link& link) const {
    size_t count = 0;
    for (const Down& down : downs) count += down.link == &link;
    return count;
  }
};

inline transport::Header numbered(uint64_t number) {
  transport::Header header{};
  std::memcpy(header.bytes, &number, sizeof(number));
  return header;
}

inline std::vector<std::byte> pattern(size_t length, unsigned seed) {
  std::vector<std::byte> bytes(length);
  unsigned state = seed * 2654435761u + 1;
  for (std::byte& byte : bytes) {
    state = state * 1664525u + 1013904223u;
    byte = std::byte(state >> 24);
  }
  return bytes;
}

/// A transport with its sink.
struct Side {
  std::unique_ptr<transport::Transport> owned;
  transport::Transport* transport = nullptr;
  util::SocketAddress name;
  RecordingSink own_sink;
  RecordingSink* sink = &own_sink;

  int poll() { return transport->poll(*sink); }
};

/// Two endpoints that can reach each other. For a loopback transport, both are one endpoint.
struct Pair {
  Side a, b;
  void poll() {
    a.poll();
    if (b.transport && b.transport != a.transport) b.poll();
  }
  /// Polls both sides until `condition`. Returns false after `seconds`.
  template <typename Condition>
  bool poll_until(Condition condition, unsigned seconds = 20) {
    const util::SystemClock clock;
    const uint64_t end = clock.now() + seconds * 1'000'000'000ull;
    while (!condition()) {
      poll();
      if (clock.now() > end) return condition();
    }
    return true;
  }
  transport::Link& a_to_b() { return **a.transport->link_to(b.name); }
  transport::Link& b_to_a() { return **b.transport->link_to(a.name); }

  /// Repeats send() until the link takes the packet. Returns 0 or the final error.
  int send(transport::Link& link, uint64_t number, const void* payload, size_t length) {
    const iovec iov{const_cast<void*>(payload), length};
    int rc = -1;
    poll_until([&] {
      rc = link.send(numbered(number), &iov, 1, length, transport::SendHint::none);
      return rc != -EAGAIN;
    });
    return rc;
  }
};

}  // namespace erdma::test
