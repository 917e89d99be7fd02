#pragma once

#include <algorithm>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "fake/completion_sink.h"
#include "libcheck.h"
#include "protocol/engine.h"

/// An endpoint that behaves like an application, and checks each completion.
namespace erdma::fuzz {

namespace wire = protocol::wire;
using protocol::Engine;

/// Fills memory that no peer may read or change.
inline constexpr char kCanary = char(0xCA);
inline constexpr size_t kGuard = 64;

/// xorshift yields the same numbers from the same seed on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : x_state(seed * 2654435761u + 88172645463325252u) {}
  uint64_t next() {
    x_state ^= x_state << 13, x_state ^= x_state >> 7, x_state ^= x_state << 17;
    return x_state;
  }
  size_t below(size_t bound) { return size_t(next() % bound); }
  bool one_in(size_t n) { return below(n) == 0; }
  template <typename T>
  T of(std::initializer_list<T> values) {
    return values.begin()[below(values.size())];
  }

 private:
  uint64_t x_state;
};

/// Returns bytes that differ from canaries.
inline std::vector<char> plain(size_t length, size_t seed) {
  std::vector<char> bytes(length);
  char* const at = bytes.data();
  for (size_t i = 0; i < length; ++i) at[i] = char((i * 31 + seed * 17) & 0x7f);
  return bytes;
}

/// Memory between canaries. It is filled with canaries itself until an operation may fill it.
struct Guarded {
  explicit Guarded(size_t length_) : length(length_), all(length_ + 2 * kGuard, kCanary) {}
  char* data() { return all.data() + kGuard; }
  bool intact() const {
    const auto is_canary = [](char byte) { return byte == kCanary; };
    return std::all_of(all.begin(), all.begin() + kGuard, is_canary) &&
           std::all_of(all.end() - kGuard, all.end(), is_canary);
  }
  size_t length;
  std::vector<char> all;
};

/// One operation from its post to its completion. It is its own context.
struct Operation {
  Operation(bool is_honest, size_t length) : honest(is_honest), memory(length) {}
  bool honest;  ///< the honest peer takes part: it succeeds, with `expected`
  const char* what = "";
  bool receive = false, multi = false, released = false, cancelled = false;
  bool accepted = false;
  unsigned completions = 0;
  Guarded memory;
  std::vector<char> expected;
};

struct Book final : protocol::AddressBook {
  util::SocketAddress address_of(uint64_t fi_addr) const noexcept override {
    return fi_addr < names.size() ? names[fi_addr] : util::SocketAddress();
  }
  uint64_t fi_addr_of(const util::SocketAddress& address) const noexcept override {
    const auto found = std::find(names.begin(), names.end(), address);
    return found == names.end() ? UINT64_MAX : uint64_t(found - names.begin());
  }
  std::vector<util::SocketAddress> names;
};

/// Registered memory.
struct Region final : protocol::Region {
  Region(void* bytes, size_t length, uint64_t access_) {
    iov[0] = {bytes, length};
    iov_count = 1;
    access = access_;
  }
  void accessed(uint64_t) noexcept override {}
};

struct Regions final : protocol::Regions {
  protocol::Region* region(uint64_t key) noexcept override {
    const auto found = by_key.find(key);
    return found == by_key.end() ? nullptr : found->second;
  }
  std::map<uint64_t, Region*> by_key;
};

enum : uint64_t { kVictim, kHonest, kHostile };  ///< fi_addr_t

/// All layers above a transport.
class Endpoint final : public protocol::Router {
 public:
  Endpoint(transport::Transport& own, Book& book_, const util::SocketAddress& name_)
      : book(book_),
        name(name_),
        x_transport(own),
        engine({4096, 1 << 16, 4096}, book, *this, {&own}, sent, received),
        setup{name, regions, reads, writes, remote_reads, remote_writes} {
    engine.enable_one_sided(setup);
    engine.set_min_multi_recv(64);
  }
  util::Result<transport::Link*> route(const util::SocketAddress& address) noexcept override {
    return x_transport.link_to(address);
  }

  Operation& make(bool honest, size_t length) {
    return *operations.emplace_back(std::make_unique<Operation>(honest, length));
  }
  void begun(Operation& op, int rc) {
    op.accepted = rc == 0;
    if (!op.accepted) operations.pop_back();
  }
  protocol::SendArgs local(uint64_t to, const iovec& iov, uint64_t tag, Operation& op) {
    protocol::SendArgs args{};
    args.destination = to;
    args.iov = &iov;
    args.count = 1;
    args.length = iov.iov_len;
    args.tag = tag;
    args.context = &op;
    args.tagged = args.report = true;
    return args;
  }

  void send(uint64_t to, const std::vector<char>& bytes, uint64_t tag, bool delivered) {
    Operation& op = make(to == kHonest, bytes.size());
    std::copy(bytes.begin(), bytes.end(), op.memory.data());
    op.expected = bytes;
    op.what = "send";
    const iovec iov{op.memory.data(), bytes.size()};
    auto args = local(to, iov, tag, op);
    args.until_delivered = delivered;
    begun(op, engine.post_send(args));
  }
  void receive(uint64_t from, size_t length, uint64_t tag, uint64_t ignore, bool multi,
               const std::vector<char>* expected) {
    Operation& op = make(expected != nullptr, length);
    op.receive = true;
    op.what = multi ? "multi-receive" : "receive";
    op.multi = multi;
    if (expected) op.expected = *expected;
    const iovec iov{op.memory.data(), length};
    protocol::ReceiveArgs args{};
    args.iov = &iov;
    args.count = 1;
    args.length = length;
    args.source = from;
    args.tag = tag;
    args.ignore = ignore;
    args.context = &op;
    args.tagged = args.report = true;
    args.multi = multi;
    begun(op, engine.post_receive(args));
  }
  void transfer(wire::Op kind, uint64_t to, const wire::Segment* segments, size_t count,
                size_t length, const std::vector<char>* expected) {
    Operation& op = make(expected != nullptr, length);
    if (expected) op.expected = *expected;
    op.what = kind == wire::Op::write ? "write" : "read";
    if (kind == wire::Op::write) {
      const auto bytes = expected ? *expected : plain(length, 3);
      std::copy(bytes.begin(), bytes.end(), op.memory.data());
    }
    const iovec iov{op.memory.data(), length};
    protocol::OneSidedArgs args{};
    args.local = local(to, iov, 0, op);
    args.local.tagged = false;
    args.op = kind;
    args.segments = segments;
    args.segment_count = count;
    begun(op, engine.post_one_sided(args));
  }
  void atomic(uint64_t to, wire::Segment segment, size_t count, uint8_t flags, bool reads_only) {
    Operation& op = make(false, count * 8);
    op.what = "atomic";
    const auto values = plain(count * 8, 5);
    const iovec iov{op.memory.data(), count * 8};
    const iovec operands{const_cast<char*>(values.data()), count * 8};
    segment.length = count * 8;
    protocol::OneSidedArgs args{};
    args.local = local(to, iov, 0, op);
    args.local.tagged = false;
    if (!(flags & wire::kFetch)) args.local.count = args.local.length = 0;
    args.op = wire::Op::atomic;
    args.segments = &segment;
    args.segment_count = 1;
    args.word = {0, uint8_t(reads_only ? 10 : flags & wire::kCompare ? 12 : 2), 7, 0};
    args.flags = flags;
    args.element = 8;
    args.count = count;
    args.operands = &operands;
    args.operand_count = reads_only ? 0 : 1;
    args.compares = &operands;
    args.compare_count = flags & wire::kCompare ? 1 : 0;
    begun(op, engine.post_one_sided(args));
  }

  /// Takes and checks the completions.
  void collect() {
    for (auto* sink : {&sent, &received, &reads, &writes})
      while (!sink->entries.empty()) finished(sink->take());
    for (auto* sink : {&remote_reads, &remote_writes}) sink->entries.clear();
    std::erase_if(operations, [](const auto& op) {
      return op->multi ? op->released && !op->cancelled : op->completions > 0;
    });
  }
  /// Cancels the remaining receives after the end of the hostile peer.
  void cancel_receives() {
    for (const auto& op : operations)
      if (op->receive && (op->multi || !op->completions) && engine.cancel(op.get()) == 0)
        op->cancelled = true;
  }
  size_t pending() const {
    return size_t(std::count_if(operations.begin(), operations.end(), [](const auto& op) {
      return op->multi ? !op->released : op->completions == 0;
    }));
  }
  const char* first_pending() const {
    for (const auto& op : operations)
      if (op->multi ? !op->released : op->completions == 0) return op->what;
    return "none";
  }
  size_t pending_with_honest() const {
    return size_t(std::count_if(operations.begin(), operations.end(),
                                [](const auto& op) { return op->honest && !op->completions; }));
  }

  Book& book;
  const util::SocketAddress name;

 private:
  transport::Transport& x_transport;

  void finished(const protocol::ErrorCompletion& done) {
    auto* const context = static_cast<Operation*>(done.context);
    const auto found = std::find_if(operations.begin(), operations.end(),
                                    [&](const auto& op) { return op.get() == context; });
    ck_assert_msg(found != operations.end(), "a second completion, or one of nothing");
    Operation& op = **found;
    ++op.completions;
    ck_assert_msg(op.memory.intact(), "bytes beside the buffer were changed");
    if (op.multi) {
      ck_assert_msg(!op.released, "a buffer was used after its release");
      op.released |= bool(done.flags & FI_MULTI_RECV);
    } else {
      ck_assert_msg(op.completions == 1, "a second completion");
    }
    if (!op.honest) return;
    ck_assert_msg(done.error == 0, "with the honest peer: %s", fi_strerror(done.error));
    ck_assert_msg(std::equal(op.expected.begin(), op.expected.end(), op.memory.data()),
                  "the honest peer's bytes are not what they were");
  }

 public:
  fake::CompletionSink sent, received, reads, writes, remote_reads, remote_writes;
  Regions regions;
  Engine engine;
  protocol::OneSidedSetup setup;
  std::list<std::unique_ptr<Operation>> operations;
};

}  // namespace erdma::fuzz
