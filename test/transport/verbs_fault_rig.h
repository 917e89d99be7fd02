#pragma once

#include <arpa/inet.h>
#include <dlfcn.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <rdma/fi_errno.h>

#include "fake/completion_sink.h"
#include "libcheck.h"
#include "protocol/engine.h"
#include "transport/verbs/verbs_transport.h"
#include "util/clock.h"

/// Endpoints in one process on simulated adapters of their own. An `Operation` is a request of the
/// application, and must end once. Include this header in one file.
namespace erdma::test {

namespace verbs = transport::verbs;

/// An address book in which fi_addr i is node i.
struct Names final : protocol::AddressBook {
  std::vector<util::SocketAddress> names;
  util::SocketAddress address_of(uint64_t fi_addr) const noexcept override {
    return fi_addr < names.size() ? names[fi_addr] : util::SocketAddress();
  }
  uint64_t fi_addr_of(const util::SocketAddress& name) const noexcept override {
    for (size_t i = 0; i < names.size(); ++i)
      if (names[i] == name) return i;
    return UINT64_MAX;
  }
};

inline int softerdma(const std::string& line) {
  static const auto control =
      reinterpret_cast<int (*)(const char*)>(dlsym(RTLD_DEFAULT, "softerdma_control"));
  return control ? control(line.c_str()) : -1;
}
inline uint64_t rules_broken() {
  static const auto count =
      reinterpret_cast<uint64_t (*)()>(dlsym(RTLD_DEFAULT, "softerdma_violations"));
  return count ? count() : UINT64_MAX;
}

inline bool compat() {
  const char* personality = std::getenv("SOFTERDMA_PERSONALITY");
  return personality && std::string(personality) == "compat";
}
/// In compat mode, the handshake uses TCP, so the address must exist on this host. rdma_cm does not
/// support loopback.
inline util::SocketAddress ip_of(int node) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl((compat() ? 0x7f000001 : 0x0a080001) + uint32_t(node));
  return util::SocketAddress::from_sockaddr(&address, sizeof(address));
}

struct Node final : protocol::Router {
  /// `port`: the port of the process that had this name before.
  Node(int index, const verbs::Options& options, bool registers, Names& names, uint16_t port = 0) {
    auto opened = verbs::Device::open("erdma_" + std::to_string(index), ip_of(index));
    if (opened) device = std::move(*opened);
    ck_assert_ptr_nonnull(device.get());
    auto made = verbs::RegistrationCache::create(*device, {.enabled = registers});
    ck_assert_int_eq(made.error(), 0);
    cache = std::move(*made);
    util::SocketAddress name = device->address();
    name.set_port(port);
    auto begun = verbs::VerbsTransport::open(options, *device, *cache, name);
    ck_assert_int_eq(begun.error(), 0);
    transport = std::move(*begun);
    if (!port) names.names.push_back(transport->name());
    const protocol::EngineConfig config{64, 1 << 24, 1024};
    engine = std::make_unique<protocol::Engine>(
        config, names, *this, std::vector<transport::Transport*>{transport.get()}, sent, received);
  }
  ~Node() {
    engine->detach(true);
    transport->shutdown();
  }
  util::Result<transport::Link*> route(const util::SocketAddress& address) noexcept override {
    return transport->link_to(address);
  }

  std::unique_ptr<verbs::Device> device;
  std::unique_ptr<verbs::RegistrationCache> cache;
  std::unique_ptr<verbs::VerbsTransport> transport;
  fake::CompletionSink sent, received;
  std::unique_ptr<protocol::Engine> engine;
};

/// A mapping of its own between inaccessible pages, so that the kernel does not merge it with
/// another one. Each node's cache watches the mappings that it registers, and two caches cannot
/// watch the same one.
class Buffer {
 public:
  explicit Buffer(size_t size) : x_size(size) {
    x_mapping = mmap(nullptr, mapped(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert(x_mapping != MAP_FAILED);
    ck_assert_int_eq(mprotect(data(), size, PROT_READ | PROT_WRITE), 0);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { munmap(x_mapping, mapped()); }
  char* data() const { return static_cast<char*>(x_mapping) + kPage; }
  size_t size() const { return x_size; }
  bool operator==(const Buffer& other) const {
    return x_size == other.x_size && !std::memcmp(data(), other.data(), x_size);
  }

 private:
  static constexpr size_t kPage = 4096;
  size_t mapped() const { return (x_size + 3 * kPage - 1) / kPage * kPage; }
  void* x_mapping;
  size_t x_size;
};

/// The send or the receive of a message.
struct Operation {
  int node, peer;
  bool is_send;
  bool reliable;  ///< a send that succeeds only after delivery
  uint64_t tag;
  Buffer bytes;
  int posts = 0;
  int ends = 0;       ///< number of completions
  int error = 0;      ///< error of the last completion
  bool held = false;  ///< not posted yet
  bool over() const { return posts && ends == posts; }
  bool succeeded() const { return over() && !error; }
};

struct Message {
  Message(int from, int to, size_t size, bool reliable, uint64_t tag)
      : send{from, to, true, reliable, tag, Buffer(size)}, receive{to,    from, false,
                                                                   false, tag,  Buffer(size)} {}
  Operation send, receive;
  bool delivered() const { return receive.bytes == send.bytes; }
};

class World {
 public:
  World(const verbs::Options& options, bool first_registers, bool others_register, int count = 3)
      : x_options(options) {
    for (int i = 0; i < count; ++i)
      nodes.push_back(
          std::make_unique<Node>(i, options, i == 0 ? first_registers : others_register, x_names));
  }
  ~World() {
    // A node that closes first says goodbye to peers that can still answer.
    while (!nodes.empty()) nodes.pop_back();
  }

  Message& message(int from, int to, size_t size, bool reliable) {
    const uint64_t tag = ++x_tag;
    messages.push_back(std::make_unique<Message>(from, to, size, reliable, tag));
    Message& made = *messages.back();
    for (size_t i = 0; i < size; ++i) made.send.bytes.data()[i] = char(i * 31 + tag * 7 + (i >> 8));
    return made;
  }

  void step() {
    for (auto& message : messages) {
      // A receive that failed with an earlier connection is posted again while its message is on
      // the way.
      if (message->receive.over() && message->receive.error && !message->send.over())
        repost(message->receive);
      post(message->receive);
      post(message->send);
    }
    int moved = 0;
    for (auto& node : nodes) moved += node->engine->progress();
    for (auto& node : nodes) moved += take(node->sent) + take(node->received);
    x_still = moved ? 0 : x_still + 1;
    if (!moved) sleep();
  }
  /// Returns false if the world hangs. The time limit suits a busy machine.
  template <typename Condition>
  bool until(Condition condition) {
    const util::SystemClock clock;
    const uint64_t end = clock.now() + 60'000'000'000;
    while (!condition()) {
      if (clock.now() > end) return false;
      step();
    }
    return true;
  }
  bool sent() const {
    for (const auto& message : messages)
      if (!message->send.over()) return false;
    return true;
  }
  bool received() const {
    for (const auto& message : messages)
      if (!message->receive.over()) return false;
    return true;
  }
  /// Returns true if all messages that this node sent successfully have arrived.
  bool received_from(int node) const {
    for (const auto& message : messages)
      if (message->send.node == node && message->send.succeeded() && !message->receive.over())
        return false;
    return true;
  }
  bool still() const { return x_still >= 30; }
  /// Cancels receives whose message will not come, as an application would.
  void cancel_receives() {
    for (auto& message : messages)
      if (!message->receive.over())
        (void)nodes[size_t(message->receive.node)]->engine->cancel(&message->receive);
  }

  /// Replaces a node by another process of the same name. The operations that it had posted end.
  void replace(int node) {
    for (auto& message : messages)
      for (Operation* half : {&message->send, &message->receive})
        if (half->node == node && half->posts) end(*half, FI_ECONNRESET);
    const uint16_t port = x_names.names[size_t(node)].port();
    nodes[size_t(node)].reset();
    nodes[size_t(node)] = std::make_unique<Node>(node, x_options, true, x_names, port);
  }
  static void end(Operation& operation, int error) {
    operation.posts = operation.ends = std::max(operation.posts, 1);
    operation.error = error;
  }

  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<std::unique_ptr<Message>> messages;  ///< messages in flight or finished

 private:
  void post(Operation& operation) {
    if (!operation.posts && !operation.held) repost(operation);
  }
  void repost(Operation& operation) {
    protocol::Engine& engine = *nodes[size_t(operation.node)]->engine;
    const iovec iov{operation.bytes.data(), operation.bytes.size()};
    const int rc = operation.is_send ? engine.post_send(send_args(operation, iov))
                                     : engine.post_receive(receive_args(operation, iov));
    if (rc == -FI_EAGAIN) return;
    ++operation.posts;
    if (!rc) return;
    ++operation.ends;  // no operation began, so the call was its end
    operation.error = -rc;
  }
  static protocol::SendArgs send_args(Operation& operation, const iovec& iov) {
    protocol::SendArgs args{};
    args.destination = uint64_t(operation.peer);
    args.iov = &iov;
    args.count = 1;
    args.length = iov.iov_len;
    args.tag = operation.tag;
    args.context = &operation;
    args.tagged = args.report = true;
    args.until_delivered = operation.reliable;
    return args;
  }
  static protocol::ReceiveArgs receive_args(Operation& operation, const iovec& iov) {
    protocol::ReceiveArgs args{};
    args.iov = &iov;
    args.count = 1;
    args.length = iov.iov_len;
    args.source = uint64_t(operation.peer);
    args.tag = operation.tag;
    args.context = &operation;
    args.tagged = args.report = true;
    return args;
  }
  /// Waits as an application does. Most events wake it; a peer's time limits do not.
  void sleep() {
    std::vector<pollfd> waits;
    bool idle = true;
    for (auto& node : nodes) {
      idle = node->transport->arm() && idle;
      waits.push_back({node->transport->wait_fd(), POLLIN, 0});
    }
    if (idle)
      ::poll(waits.data(), nfds_t(waits.size()), 1);
    else
      ::sched_yield();
    for (auto& node : nodes) node->transport->disarm();
  }
  static int take(fake::CompletionSink& sink) {
    int taken = 0;
    for (; !sink.entries.empty(); ++taken) {
      const protocol::ErrorCompletion done = sink.take();
      auto& operation = *static_cast<Operation*>(done.context);
      ++operation.ends;
      operation.error = done.error;
      if (!operation.is_send && !done.error) ck_assert_uint_eq(done.length, operation.bytes.size());
    }
    return taken;
  }

  const verbs::Options x_options;
  Names x_names;
  uint64_t x_tag = 0;
  int x_still = 0;
};

}  // namespace erdma::test
