#pragma once

#include <arpa/inet.h>

#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include "fake/completion_sink.h"
#include "fake/transport.h"
#include "libcheck.h"
#include "protocol/engine.h"

namespace erdma::test {

inline util::SocketAddress address_with_port(uint16_t port) {
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_addr.s_addr = htonl(0x0A000001);
  in.sin_port = htons(port);
  return util::SocketAddress::from_sockaddr(&in, sizeof(in));
}

/// An address book in which fi_addr i is port 5000 + i.
class Book final : public protocol::AddressBook {
 public:
  util::SocketAddress address_of(uint64_t fi_addr) const noexcept override {
    return fi_addr < size ? address_with_port(uint16_t(5000 + fi_addr)) : util::SocketAddress();
  }
  uint64_t fi_addr_of(const util::SocketAddress& address) const noexcept override {
    return address.port() < 5000 + size ? address.port() - 5000u : UINT64_MAX;
  }
  uint64_t size = 4;
};

/// One engine over a fake transport.
class Node final : public protocol::Router {
 public:
  Node(fake::Network& network, uint16_t index, protocol::EngineConfig config,
       protocol::SharedReceives* shared = nullptr)
      : transport(network, address_with_port(uint16_t(5000 + index))),
        engine(config, book, *this, {&transport}, sent, received, shared) {}
  /// A node with two paths to each peer: `transport` and `second`.
  Node(fake::Network& network, uint16_t index, protocol::EngineConfig config,
       fake::Transport& second)
      : transport(network, address_with_port(uint16_t(5000 + index))),
        other(&second),
        engine(config, book, *this, {&transport, &second}, sent, received) {}

  util::Result<transport::Link*> route(const util::SocketAddress& address) noexcept override {
    if (unreachable) return -FI_EHOSTUNREACH;
    if (by_other) return static_cast<transport::Link*>(&other->link(address));
    return transport.link_to(address);
  }

  transport::Link* fallback(const util::SocketAddress& address, int status) noexcept override {
    if (!other) return nullptr;
    detour_status = status;
    return &other->link(address);
  }

  int send(uint64_t to, const void* bytes, size_t length, uint64_t tag, void* context = nullptr) {
    iovec iov{const_cast<void*>(bytes), length};
    return engine.post_send(send_args(to, iov, tag, context));
  }
  static protocol::SendArgs send_args(uint64_t to, const iovec& iov, uint64_t tag,
                                      void* context = nullptr) {
    protocol::SendArgs args{};
    args.destination = to;
    args.iov = &iov;
    args.count = 1;
    args.length = iov.iov_len;
    args.tag = tag;
    args.context = context;
    args.tagged = true;
    args.report = true;
    return args;
  }
  int receive(void* bytes, size_t length, uint64_t tag, void* context = nullptr,
              uint64_t ignore = 0, uint64_t source = UINT64_MAX) {
    iovec iov{bytes, length};
    return engine.post_receive(receive_args(iov, tag, context, ignore, source));
  }
  static protocol::ReceiveArgs receive_args(const iovec& iov, uint64_t tag, void* context = nullptr,
                                            uint64_t ignore = 0, uint64_t source = UINT64_MAX) {
    protocol::ReceiveArgs args{};
    args.iov = &iov;
    args.count = 1;
    args.length = iov.iov_len;
    args.source = source;
    args.tag = tag;
    args.ignore = ignore;
    args.context = context;
    args.tagged = true;
    args.report = true;
    return args;
  }

  void lose_peers() {
    for (fake::Transport* each : {&transport, other}) {
      if (!each) continue;
      for (auto& [port, link] : each->links)
        fake::Transport::bring_down(*link, -FI_ECONNRESET, engine);
    }
  }
  /// Ends what a test has left: each peer is lost, receives with these contexts are cancelled, and
  /// unexpected messages are dropped.
  void end_work(std::initializer_list<const void*> contexts) {
    lose_peers();
    for (const void* context : contexts)
      while (engine.cancel(context) == 0) {
      }
    const iovec nothing{this, 0};
    for (const bool tagged : {true, false}) {
      protocol::ReceiveArgs any = receive_args(nothing, 0, this, UINT64_MAX);
      any.tagged = tagged;
      do {
        ck_assert_int_eq(engine.post_receive(any), 0);
      } while (engine.cancel(this) != 0);
    }
  }

  Book book;
  fake::CompletionSink sent, received;
  fake::Transport transport;
  fake::Transport* other = nullptr;  ///< transport of another path to the peers
  bool by_other = false;             ///< the other path is the first choice
  int detour_status = 0;             ///< status of the last link that was replaced
  bool unreachable = false;
  protocol::Engine engine;
};

inline constexpr protocol::EngineConfig kConfig{4096, 1 << 20, 64};

/// Two engines that can reach each other: a is fi_addr 0, b is fi_addr 1.
struct Pair {
  explicit Pair(protocol::EngineConfig config = kConfig)
      : a(network, 0, config), b(network, 1, config) {}

  void run_until_idle() {
    while (a.engine.progress() + b.engine.progress() > 0) {
    }
  }
  void end_work(std::initializer_list<const void*> contexts = {}) {
    a.end_work(contexts);
    b.end_work(contexts);
  }
  fake::Transport::FakeLink& a_to_b() { return a.transport.link(b.transport.name); }
  fake::Transport::FakeLink& b_to_a() { return b.transport.link(a.transport.name); }

  fake::Network network;
  Node a, b;
};

inline void must(int status) {
  ck_assert_int_eq(status, 0);
}

/// Fails unless there are no more completions and no shared memory.
inline void expect_clean(Pair& pair) {
  ck_assert(pair.a.sent.entries.empty() && pair.a.received.entries.empty());
  ck_assert(pair.b.sent.entries.empty() && pair.b.received.entries.empty());
  ck_assert(pair.a.transport.shared.empty() && pair.b.transport.shared.empty());
}

inline std::vector<char> pattern(size_t length, unsigned seed = 1) {
  std::vector<char> bytes(length);
  for (size_t i = 0; i < length; ++i) bytes[i] = char((i * 31 + seed * 7 + (i >> 8)) & 0xff);
  return bytes;
}

}  // namespace erdma::test
