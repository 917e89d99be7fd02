#pragma once

#include <cstring>
#include <map>
#include <vector>

#include "protocol/pair.h"

namespace erdma::test {

/// Registered memory of one node.
struct FakeRegion final : protocol::Region {
  FakeRegion(void* bytes, size_t length, uint64_t access_) {
    iov[0] = {bytes, length};
    iov_count = 1;
    access = access_;
  }
  void accessed(uint64_t how) noexcept override { events.push_back(how); }
  std::vector<uint64_t> events;
};

struct FakeRegions final : protocol::Regions {
  protocol::Region* region(uint64_t key) noexcept override {
    const auto found = by_key.find(key);
    return found == by_key.end() ? nullptr : found->second;
  }
  std::map<uint64_t, FakeRegion*> by_key;
};

/// The one-sided operations of a Node.
struct OneSidedNode {
  explicit OneSidedNode(Node& node_)
      : node(node_), setup{node.transport.name, regions,      reads, writes,
                           remote_reads,        remote_writes} {
    node.engine.enable_one_sided(setup);
  }

  static protocol::OneSidedArgs args(protocol::wire::Op op, uint64_t to, const iovec* iov,
                                     size_t count, const protocol::wire::Segment* segments,
                                     size_t segment_count, void* context) {
    protocol::OneSidedArgs args{};
    args.local = Node::send_args(to, *iov, 0, context);
    args.local.tagged = false;
    args.local.iov = iov;
    args.local.count = count;
    args.local.length = hmem::total_length(iov, count);
    args.op = op;
    args.segments = segments;
    args.segment_count = segment_count;
    return args;
  }
  int transfer(protocol::wire::Op op, uint64_t to, void* local, size_t length, const void* remote,
               uint64_t key, void* context = nullptr) {
    const iovec iov{local, length};
    const protocol::wire::Segment segment{reinterpret_cast<uint64_t>(remote), key, length};
    return node.engine.post_one_sided(args(op, to, &iov, 1, &segment, 1, context));
  }
  int write(uint64_t to, const void* local, size_t length, void* remote, uint64_t key,
            void* context = nullptr) {
    return transfer(protocol::wire::Op::write, to, const_cast<void*>(local), length, remote, key,
                    context);
  }
  int read(uint64_t to, void* local, size_t length, const void* remote, uint64_t key,
           void* context = nullptr) {
    return transfer(protocol::wire::Op::read, to, local, length, remote, key, context);
  }
  bool silent() const {
    return reads.entries.empty() && writes.entries.empty() && remote_reads.entries.empty() &&
           remote_writes.entries.empty();
  }

  Node& node;
  FakeRegions regions;
  fake::CompletionSink reads, writes, remote_reads, remote_writes;
  protocol::OneSidedSetup setup;
};

/// Node a is the initiator, and b the target with memory registered under kKey.
struct OneSidedPair : Pair {
  static constexpr uint64_t kKey = 0x1234'5678'9abc'def0;
  static constexpr uint64_t kAll = FI_REMOTE_READ | FI_REMOTE_WRITE;

  explicit OneSidedPair(size_t length = 1 << 18, uint64_t access = kAll,
                        protocol::EngineConfig config = kConfig)
      : Pair(config),
        initiator(a),
        target(b),
        memory(pattern(length, 9)),
        region(memory.data(), length, access) {
    target.regions.by_key[kKey] = &region;
  }
  void expect_silent() {
    expect_clean(*this);
    ck_assert(initiator.silent() && target.silent());
    ck_assert_uint_eq(region.users, 0);
  }

  OneSidedNode initiator, target;
  std::vector<char> memory;
  FakeRegion region;
};

/// Contexts of operations.
inline int g_one, g_two;

inline void expect_done(fake::CompletionSink& sink, uint64_t flags, int error = 0,
                        void* context = &g_one) {
  ck_assert_uint_eq(sink.entries.size(), 1);
  const protocol::ErrorCompletion done = sink.take();
  ck_assert_ptr_eq(done.context, context);
  ck_assert_int_eq(done.error, error);
  ck_assert_uint_eq(done.flags, flags);
}

/// Drives both sides and forgets what the target counted.
inline void run_until_idle(OneSidedPair& pair) {
  pair.run_until_idle();
  pair.target.remote_reads.entries.clear();
  pair.target.remote_writes.entries.clear();
}

}  // namespace erdma::test
