// RMA and atomics: one process accesses the memory of the other, which only makes progress.
#include <unistd.h>

#include <utility>

#include <rdma/fi_atomic.h>
#include <rdma/fi_rma.h>

#include "bench.h"

namespace erdma::bench {
namespace {

constexpr size_t kLarge = size_t{1} << 20;
constexpr size_t kLargest = size_t{4} << 20;
constexpr size_t kLong = size_t{64}
                         << 10;  // several operations of this length or more are under way
constexpr size_t kLongWindow = 8;
constexpr int kWindow = 64;
/// Words of the board.
enum { kAddress = 10, kKey, kReady, kSilence, kSilent, kOver };

class Target {
 public:
  explicit Target(Side& side) : x_side(side), x_memory(kLargest * kLongWindow) {
    const uint64_t all = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    clients::must(fi_mr_reg(side.node.domain(), x_memory.data(), x_memory.size(), all, 0,
                            side.first ? 1 : 2, 0, &x_region, nullptr),
                  "fi_mr_reg");
  }
  ~Target() { fi_close(&x_region->fid); }
  Target(const Target&) = delete;

  char* memory() { return x_memory.data(); }
  void* desc() const { return fi_mr_desc(x_region); }
  /// Returns the address that a peer uses.
  uint64_t address() {
    const bool virtual_addresses = x_side.node.info().domain_attr->mr_mode & FI_MR_VIRT_ADDR;
    return virtual_addresses ? uint64_t(x_memory.data()) : 0;
  }
  uint64_t key() const { return fi_mr_key(x_region); }
  void publish() {
    x_side.board.words[kAddress] = address();
    x_side.board.words[kKey] = key();
    x_side.board.words[kReady] = 1;
  }

 private:
  Side& x_side;
  std::vector<char> x_memory;
  fid_mr* x_region = nullptr;
};

enum class What { write, read, fetch_add };

class Initiator {
 public:
  Initiator(Side& side, Target& own)
      : x_side(side),
        x_own(own),
        x_peer(side.other),
        x_address(side.board.words[kAddress]),
        x_key(side.board.words[kKey]),
        x_contexts(kWindow) {}
  /// Reads from the second large part of the process's own memory, as GPUDirect's flush does.
  struct FromItself {};
  Initiator(Side& side, Target& own, FromItself)
      : x_side(side),
        x_own(own),
        x_peer(side.own),
        x_address(own.address() + kLarge),
        x_key(own.key()),
        x_contexts(kWindow) {}

  /// Returns the microseconds of each operation, with at most `window` under way.
  double run(What what, size_t length, int count, size_t window) {
    size_t pending = 0;
    fi_cq_tagged_entry entries[16];
    const double start = now_us();
    for (int i = 0; i < count; ++i) {
      while (pending >= window) pending -= size_t(read_completions(x_side, entries));
      ssize_t rc;
      while ((rc = post(what, length, size_t(i) % window)) == -FI_EAGAIN)
        pending -= size_t(read_completions(x_side, entries));
      clients::must(int(rc), "a one-sided operation");
      ++pending;
    }
    while (pending > 0) pending -= size_t(read_completions(x_side, entries));
    return (now_us() - start) / count;
  }
  double median_of(int blocks, What what, size_t length, int count, size_t window) {
    run(what, length, count, window);
    std::vector<double> samples;
    for (int block = 0; block < blocks; ++block)
      samples.push_back(run(what, length, count, window));
    return median(samples);
  }

 private:
  ssize_t post(What what, size_t length, size_t slot) {
    char* const here = x_own.memory() + slot * length;
    const uint64_t there = x_address + slot * length;
    fid_ep* const ep = x_side.node.ep();
    void* const context = &x_contexts[slot];
    switch (what) {
      case What::write:
        return fi_write(ep, here, length, x_own.desc(), x_peer, there, x_key, context);
      case What::read:
        return fi_read(ep, here, length, x_own.desc(), x_peer, there, x_key, context);
      case What::fetch_add:
        return fi_fetch_atomic(ep, here, 1, x_own.desc(), here + kLarge, x_own.desc(), x_peer,
                               there, x_key, FI_UINT64, FI_SUM, context);
    }
    return -FI_EINVAL;
  }

  Side& x_side;
  Target& x_own;
  const fi_addr_t x_peer;
  const uint64_t x_address, x_key;
  std::vector<fi_context2> x_contexts;
};

double guess(size_t length) {
  return 1 + double(length) / 1e4;
}

void measure_size(Initiator& initiator, const Plan& plan, size_t length) {
  const size_t window = length < kLong ? 1 : kLongWindow;
  const int each = std::max(int(window), int(20 / guess(length)));
  const int blocks = plan.fitting(1, guess(length) * each, 3, 1000);
  for (const auto& [name, what] : {std::pair{"write", What::write}, {"read", What::read}}) {
    const double us = initiator.median_of(blocks, what, length, each, window);
    print(name + ("_" + std::to_string(length)), us);
    if (length == kLarge) print(std::string(name) + "_bandwidth", double(length) / us / 1e3);
  }
}

/// Makes progress until the target is told to stop. It then says so and makes no more progress.
void be_target(Side& side, Target& own) {
  own.publish();
  side.node.wait_until([&] { return side.board.words[kSilence] != 0; }, "the measurements");
  side.board.words[kSilent] = 1;
  while (side.board.words[kOver] == 0) ::usleep(1000);
}

void measure_silent(Side& side, Initiator& initiator, int blocks) {
  side.board.words[kSilence] = 1;
  side.node.wait_until([&] { return side.board.words[kSilent] != 0; }, "the target");
  print("silent_write_8", initiator.median_of(blocks, What::write, 8, 20, 1));
  print("silent_read_8", initiator.median_of(blocks, What::read, 8, 20, 1));
}

}  // namespace

void measure_one_sided(Side& side) {
  settle(side);
  Target own(side);
  if (!side.first) return be_target(side, own);
  const Plan plan = Plan::from_environment();
  const int blocks = plan.fitting(1, 20, 5, 1000);
  side.node.wait_until([&] { return side.board.words[kReady] != 0; }, "the other's memory");
  Initiator initiator(side, own);
  for (const size_t length : plan.sizes)
    if (length <= kLargest) measure_size(initiator, plan, length);
  Initiator reader(side, own, Initiator::FromItself{});
  print("local_read_8", reader.median_of(blocks, What::read, 8, 20, 1));
  print("fetch_add", initiator.median_of(blocks, What::fetch_add, 8, 20, 1));
  const int rate = plan.fitting(0.5, 0.5, 100, 50000);
  print("fetch_add_rate", 1 / initiator.median_of(5, What::fetch_add, 8, rate, kWindow));
  measure_silent(side, initiator, blocks);
  side.board.words[kOver] = 1;
}

}  // namespace erdma::bench
